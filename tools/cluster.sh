#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# cluster.sh - two hosts on one machine, joined by a link of a given rate, for tests.
#
# usage: tools/cluster.sh with [RATE] CMD...      make the hosts, run CMD, and take them away again
#        tools/cluster.sh test BUILD [NAME...]    tests/cluster/test_NAME.sh with hosts of their own
#    inside CMD:
#        tools/cluster.sh mpirun MPI N CMD...     N ranks on each host; MPI: openmpi, mpich
#        tools/cluster.sh hprun MPI N HPRUN OPTION... PROG...   the same by hprun, of host a
#        tools/cluster.sh on HOST CMD...          on host a or b
#        tools/cluster.sh rate RATE               make the link slower or faster: 10mbit
#        tools/cluster.sh cut | mend              nothing passes; it does again
#        tools/cluster.sh kill HOST               everything on it dies at once
#
# A host is a set of namespaces (network, host name, mounts, System V memory) that a first process
# holds; a veth pair is the link. When its processes are dead everything is gone, so nothing is left
# behind. Processes are numbered alike on both, since a launcher on one must reach the other: that
# ranks see each other's numbers proves nothing. Needs root. RATE: of tc, 1gbit when not given.
set -euo pipefail

fail() {
    echo "cluster: $*" >&2
    exit 1
}

self=$(realpath "$0")
network=10.77.0

# The process that holds a host, dead or alive.
holder() { # HOST
    case $1 in
    a | hpa | "$network.1") cat "$HP_CLUSTER/a" ;;
    b | hpb | "$network.2") cat "$HP_CLUSTER/b" ;;
    *) fail "expected host a or b, given '$1'" ;;
    esac
}

on() { # HOST CMD...: which sees the folder that we are in
    local pid
    pid=$(holder "$1")
    shift
    exec nsenter --target "$pid" --net --uts --ipc --mount --wd="$PWD" -- "$@"
}

set_rate() { # RATE: in both directions
    local host
    for host in a b; do
        ("$self" on $host tc qdisc replace dev wire root tbf rate "$1" burst 256kb latency 50ms)
    done
}

# What the first process of a host sets up before it waits to be killed. The files of a host are
# those of the machine, but for what tells hosts apart.
hold() { # NAME HOSTS READY
    hostname "hp$1"
    mount --make-rprivate /
    mount -t sysfs sysfs /sys # which names the network's devices
    mount -t tmpfs tmpfs /dev/shm
    mount --bind "$2" /etc/hosts
    ip link set lo up
    : >"$3"
    exec sleep infinity
}

up() { # RATE: into the folder HP_CLUSTER
    local host n=0
    printf '127.0.0.1 localhost\n%s.1 hpa\n%s.2 hpb\n' $network $network >"$HP_CLUSTER/hosts"
    for host in a b; do
        setsid unshare --net --uts --ipc --mount \
            "$self" hold $host "$HP_CLUSTER/hosts" "$HP_CLUSTER/$host.up" \
            </dev/null >"$HP_CLUSTER/$host.log" 2>&1 &
        echo $! >"$HP_CLUSTER/$host"
        disown # its end is no news
    done
    for host in a b; do
        for _ in $(seq 200); do
            [ -e "$HP_CLUSTER/$host.up" ] && break
            sleep 0.02
        done
        [ -e "$HP_CLUSTER/$host.up" ] || fail "host $host did not come up: $(cat "$HP_CLUSTER/$host.log")"
    done
    # made on host a, so that its name meets nothing that the machine has
    nsenter --target "$(holder a)" --net \
        ip link add name wire type veth peer name wire netns "$(holder b)"
    for host in a b; do
        n=$((n + 1))
        ("$self" on $host ip addr add $network.$n/24 dev wire)
        ("$self" on $host ip link set wire up)
    done
    cat >"$HP_CLUSTER/agent" <<AGENT
#!/bin/sh
HP_CLUSTER=$HP_CLUSTER exec $self agent "\$@"
AGENT
    chmod +x "$HP_CLUSTER/agent"
    set_rate "$1"
    for host in a b; do # UCX takes no device that is not up yet
        for _ in $(seq 100); do
            [ "$("$self" on $host cat /sys/class/net/wire/operstate)" != up ] || break
            sleep 0.02
        done
    done
}

# Those in its network, which children that left their parents are in too.
kill_host() { # HOST
    local network_of_host process is_done=no
    network_of_host=$(readlink "/proc/$(holder "$1")/ns/net") || return 0
    while [ $is_done = no ]; do
        is_done=yes
        for process in /proc/[0-9]*; do
            [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$network_of_host" ] || continue
            kill -KILL "${process#/proc/}" 2>/dev/null && is_done=no
        done
    done
}

down() {
    local host
    for host in a b; do
        [ ! -s "$HP_CLUSTER/$host" ] || kill_host $host
    done
    rm -rf "$HP_CLUSTER"
}

with() { # RATE CMD...
    local rate=$1 status=0
    shift
    HP_CLUSTER=$(mktemp -d)
    export HP_CLUSTER
    trap down EXIT
    trap 'exit 130' INT TERM HUP
    up "$rate"
    "$@" || status=$?
    return $status
}

# How both launchers start their daemons: AGENT [OPTIONS] HOST WORDS..., as ssh takes them.
agent() {
    local options=()
    while [[ $1 == -* ]]; do
        options+=("$1")
        shift
    done
    local host=$1
    shift
    # a question whether the host is there must not come by another way
    [ "$*" != cat ] || over_link "$host" cat
    on "$host" sh -c "$*"
}

# CMD on HOST, its input and output over the link, as ssh does it.
over_link() { # HOST CMD
    local port from
    exec {from}< <(on "$1" python3 -c '
import os, socket, sys
listener = socket.create_server(("", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
for fd in 0, 1:
    os.dup2(connection.fileno(), fd)
os.execvp(sys.argv[1], sys.argv[1:])' "$2")
    read -r port <&"$from"
    exec 3<>"/dev/tcp/$1/$port"
    cat <&3 &
    exec cat >&3
}

mpirun() { # MPI N CMD...
    local mpi=$1 n=$2
    shift 2
    case $mpi in
    openmpi)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        # unbound: each host's daemon would bind its first rank to the machine's first core
        # shellcheck disable=SC2086 # a list of words
        on a mpirun.openmpi --oversubscribe --bind-to none -H "hpa:$n,hpb:$n" --mca plm_rsh_agent "$HP_CLUSTER/agent" \
            --mca oob_tcp_if_include $network.0/24 --mca btl_tcp_if_include $network.0/24 \
            --mca pml ob1 ${HP_CLUSTER_MPIRUN:-} "$@"
        ;;
    mpich)
        # UCX tells hosts apart by what two namespaces of one machine share
        export UCX_TLS=tcp,self UCX_NET_DEVICES=wire UCX_RNDV_THRESH=65536
        # shellcheck disable=SC2086
        on a mpirun.mpich -launcher ssh -launcher-exec "$HP_CLUSTER/agent" -hosts "hpa:$n,hpb:$n" \
            ${HP_CLUSTER_MPIRUN:-} -n $((2 * n)) "$@"
        ;;
    *) fail "expected openmpi or mpich, given '$mpi'" ;;
    esac
}

# Like mpirun; the options stand in what both MPIs read.
hprun() { # MPI N HPRUN WORDS...
    local mpi=$1 n=$2 hprun=$3
    shift 3
    export OMPI_MCA_oob_tcp_if_include=$network.0/24 OMPI_MCA_btl_tcp_if_include=$network.0/24
    export OMPI_MCA_pml=ob1 OMPI_MCA_rmaps_base_oversubscribe=1
    [ "$mpi" = openmpi ] || export UCX_TLS=tcp,self UCX_RNDV_THRESH=65536 # over wire, or lo when it is alone
    on a "$hprun" --hosts "hpa:$n,hpb:$n" --mpi "$mpi" --agent "$HP_CLUSTER/agent" "$@"
}

needs() {
    [ "$(id -u)" -eq 0 ] || fail "making namespaces and links needs root"
    local tool
    for tool in ip tc unshare nsenter; do
        command -v $tool >/dev/null || fail "$tool is not there (tools/setup.sh cluster installs it)"
    done
}

run_tests() { # BUILD [NAME...]
    local build=$1 names=() script status
    shift
    names=("$@")
    if [ ${#names[@]} -eq 0 ]; then
        for script in tests/cluster/test_*.sh; do
            script=${script##*/test_}
            names+=("${script%.sh}")
        done
    fi
    for script in "${names[@]}"; do
        echo "== cluster.$script"
        status=0
        ("$self" with "tests/cluster/test_$script.sh" "$build") || status=$?
        [ $status -eq 0 ] || [ $status -eq 77 ] || fail "cluster.$script failed" # 77: skipped, it says why
    done
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
hold) hold "$@" ;;
with)
    needs
    rate=1gbit
    if [[ ${1:-} =~ ^[0-9]+[kmg]?bit$ ]]; then
        rate=$1
        shift
    fi
    [ $# -gt 0 ] || fail "expected a command"
    with "$rate" "$@"
    ;;
test)
    [ $# -gt 0 ] || fail "expected the build folder"
    build=$(realpath "$1")
    shift
    cd "$(dirname "$self")/.."
    needs
    run_tests "$build" "$@"
    ;;
on | mpirun | hprun | rate | cut | mend | kill | agent)
    [ -d "${HP_CLUSTER:-}" ] || fail "expected to run inside 'cluster.sh with'"
    case $command in
    on) on "$@" ;;
    mpirun) mpirun "$@" ;;
    hprun) hprun "$@" ;;
    agent) agent "$@" ;;
    rate) set_rate "$1" ;;
    cut) on a ip link set wire down ;;
    mend) on a ip link set wire up ;;
    kill) kill_host "$1" ;;
    esac
    ;;
*) fail "expected with, test, mpirun, hprun, on, rate, cut, mend or kill, given '$command'" ;;
esac
