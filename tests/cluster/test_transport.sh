#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The transport of each MPI over a real link between two hosts: the messages of cli.transport, the
# rate of 16 MiB messages against what iperf3 reaches on the same link, a rank that is killed in the
# middle of a message. Runs inside `tools/cluster.sh with`.
#
# No MPI tells of a dead rank by itself here: Open MPI 4.1 says so on standard error and goes on,
# MPICH 4.0 says nothing. What names the rank is the deadline of the wait, or whoever looks for life.
# Both launchers end the other ranks unless they are told not to.
set -euo pipefail
build=$1
cluster=tools/cluster.sh
probe=$build/tests/cluster/transport
out=$HP_CLUSTER/out
mkdir -p "$out"

fail() {
    echo "test_transport: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

is_here() { # MPI
    command -v "mpirun.$1" >/dev/null && [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$1.so" ]
}

on_both() { # MPI RANKS_OF_EACH WORDS...
    timeout -s KILL 60 $cluster mpirun "$@" >"$out/said" 2>&1
}

# What one stream carries now, in Mbit/s.
iperf_rate() {
    $cluster on b iperf3 -s -1 >"$out/server" 2>&1 &
    sleep 0.3
    $cluster on a iperf3 -c hpb -t 2 -f m | awk '/receiver/ { print $(NF - 2) }'
    wait $!
}

# The survivors of host a name rank 3, which died on host b; SIGUSR1 is how MPICH's launcher tells
# them of it.
names_the_dead() { # MPI LAUNCHER'S WORD
    local n
    (HP_CLUSTER_MPIRUN=$2 timeout -s KILL 6 $cluster mpirun "$1" 2 \
        sh -c "trap '' USR1; exec $probe kill 3 1000" >"$out/said" 2>&1) 2>"$out/killed" || true
    n=$(grep -cE "^survivor [01]: .* of rank 3 after [0-9]+ ms: .* rank 3 on hpb" "$out/said" || true)
    [ "$n" -eq 2 ] || fail "$1: expected both ranks of host a to name rank 3, $n did"
}

n_here=0
for mpi in openmpi mpich; do
    is_here $mpi || continue
    n_here=$((n_here + 1))
    case $mpi in openmpi) survive=--enable-recovery ;; mpich) survive=-disable-auto-cleanup ;; esac
    echo "== $mpi: messages"
    on_both $mpi 2 "$probe" about 0 0 random 1 100 order 60 0 sizes 0 0 cancel 0 0 unwatched 800 0 threads 2 0 \
        reordered 2 60 missing 3 200 || fail "$mpi: expected exit status 0"
    grep -q "rank 3 of 4 on hpb, rank 0 on hpa: mpi-$mpi" "$out/said" || fail "expected two hosts"
    if command -v iperf3 >/dev/null; then
        echo "== $mpi: rate"
        best=$(iperf_rate)
        on_both $mpi 1 "$probe" rate $((16 << 20)) 12 || fail "$mpi: expected exit status 0"
        ours=$(tail -1 "$out/said")
        echo "16 MiB messages: $ours Mbit/s, iperf3: $best Mbit/s"
        awk -v ours="$ours" -v best="$best" 'BEGIN { exit !(ours >= 0.9 * best) }' ||
            fail "expected at least 90% of what iperf3 reaches"
    fi
    echo "== $mpi: a rank dies"
    names_the_dead $mpi "$survive"
done
[ $n_here -gt 0 ] || fail "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
