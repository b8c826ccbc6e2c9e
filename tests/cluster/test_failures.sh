#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What becomes of a job over two hosts, of each MPI: a host dies, the link is cut, a rank is killed:
# within a second every survivor has an error that names a rank of those that are gone. A link that
# has become 100 times slower is said, and ends nothing. Each with hosts of its own. Runs inside
# `tools/cluster.sh with`.
#
# Both launchers end the ranks of a job that has lost one, so each rank leaves its launcher's process
# group, and writes into a file what it has to say.
set -euo pipefail
build=$1
cluster=tools/cluster.sh
out=$HP_CLUSTER/out
mkdir -p "$out"

fail() {
    echo "test_failures: $*" >&2
    head -n 4 "$out"/said "$out"/[0-9]* >&2 2>/dev/null || true
    exit 1
}

is_here() { # MPI
    command -v "mpirun.$1" >/dev/null && [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$1.so" ]
}

now_ms() { date +%s%3N; }

wait_for() { # WORDS RANK...: each rank's file begins with one of the words
    local words=$1 rank
    shift
    for rank in "$@"; do
        for _ in $(seq 400); do
            ! grep -qsE "^($words)" "$out/$rank" || break
            sleep 0.05
        done
        grep -qsE "^($words)" "$out/$rank" || fail "$mpi: expected rank $rank to say $words"
    done
}

start() { # BYTES SECONDS VICTIM
    rm -f "$out"/[0-9]*
    # shellcheck disable=SC2016 # of the ranks
    $cluster mpirun "$mpi" 2 sh -c 'setsid "$@" & wait' sh "$build/tests/cluster/survivors" "$out" "$@" \
        >"$out/said" 2>&1 &
    launcher=$!
    wait_for "begun|struck" 0 1 2 3
    sleep 1
}

stop() {
    kill -KILL "$launcher" 2>/dev/null || true
    wait "$launcher" 2>/dev/null || true
}

named() { # MS "GONE" SURVIVOR...: not later than a second after MS, one of those that are gone
    local end=$(($1 + 1000)) gone=$2 rank words longest=0
    shift 2
    wait_for failed "$@"
    for rank in "$@"; do
        read -ra words <"$out/$rank" # failed CALLS MS of RANK: TEXT
        [[ " $gone " == *" ${words[4]%:} "* ]] || fail "$mpi: expected rank $rank to name one of $gone"
        [ "${words[2]}" -le "$end" ] || fail "$mpi: expected rank $rank to know within a second, it took $((words[2] - end + 1000)) ms"
        [ $((words[2] - end + 1000)) -le $longest ] || longest=$((words[2] - end + 1000))
    done
    echo "$mpi: $what: ranks $* know within $longest ms: $(cut -d: -f2- "$out/$1" | cut -c 1-150)"
}

one() { # WHAT: in hosts of their own
    what=$1
    case $what in
    host_dies)
        start 65536 20 -1
        $cluster kill b 2>/dev/null
        named "$(now_ms)" "2 3" 0 1
        ;;
    link_is_cut)
        start 65536 20 -1
        $cluster cut
        struck=$(now_ms)
        named "$struck" "2 3" 0 1
        named "$struck" "0 1" 2 3
        ;;
    rank_dies)
        start 65536 20 3
        wait_for struck 3
        named "$(cut -d' ' -f3 "$out/3")" 3 0 1 2
        ;;
    link_is_slow)
        export HYPER_PARALLEL_SHMEM_LOG_LEVEL=WARNING HYPER_PARALLEL_LOG_DIR=$out
        start 4194304 8 -1
        $cluster rate 10mbit
        wait_for "done" 0 1 2 3
        for host in hpa hpb; do # said in the log of a rank of the other
            grep -qhE "link to.* $host.* slower" "$out"/hyperparallel.rank*.log || fail "$mpi: expected a slow link to $host to be said, given $(cat "$out"/*.log)"
        done
        echo "$mpi: $what: $(grep -hE slower "$out"/hyperparallel.rank*.log | head -n 1 | cut -c 1-200)"
        ;;
    esac
    stop
}

if [ $# -gt 1 ]; then
    mpi=$3
    one "$2"
    exit
fi
n_here=0
for mpi in openmpi mpich; do
    is_here $mpi || continue
    n_here=$((n_here + 1))
    for what in host_dies link_is_cut rank_dies link_is_slow; do
        $cluster with "$0" "$build" $what $mpi
    done
done
[ $n_here -gt 0 ] || fail "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
