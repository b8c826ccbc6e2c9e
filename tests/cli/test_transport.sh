#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The transport of each MPI that is here, under its own launcher on this host: random messages, order,
# sizes, giving up, threads, another order of the network, all calls from one thread; which plug-in a
# launcher gets, and what is said where there is none, or another MPI's.
set -euo pipefail
build=$1
probe=$build/tests/cluster/transport
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_transport: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

# Set where the launcher of another job started this test.
unset OMPI_COMM_WORLD_SIZE PMI_SIZE PMIX_RANK
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

start() { # MPI N WORDS...
    local mpi=$1 n=$2
    shift 2
    case $mpi in
    openmpi) mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n "$n" "$@" ;;
    mpich) mpirun.mpich -n "$n" "$@" ;;
    esac
}

works() { # MPI N CASE A B...
    timeout 50 bash -c "$(declare -f start); start \"\$@\"" start "$1" "$2" "$probe" "${@:3}" \
        >"$out/said" 2>&1 || fail "$*: expected exit status 0"
}

says() { # TEXT WORDS...: fails, with TEXT
    local text=$1 status=0
    shift
    "$@" >"$out/said" 2>&1 || status=$?
    [ $status -ne 0 ] || fail "$*: expected to fail"
    grep -qF -- "$text" "$out/said" || fail "$*: expected \"$text\""
}

is_here() { # MPI
    command -v "mpirun.$1" >/dev/null && [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$1.so" ]
}

echo "== no launcher, none wanted"
says "expected to be started by mpirun of Open MPI" "$probe" about 0 0
HYPER_PARALLEL_TRANSPORT=none says "HYPER_PARALLEL_TRANSPORT is none" "$probe" about 0 0
HYPER_PARALLEL_TRANSPORT=pigeon says "HYPER_PARALLEL_TRANSPORT" "$probe" about 0 0

n_here=0
for mpi in openmpi mpich; do
    is_here $mpi || continue
    n_here=$((n_here + 1))
    echo "== $mpi"
    works $mpi 2 about 0 0 random 1 60 order 80 0 sizes 0 0 cancel 0 0 cut_off 80 0 unwatched 800 0 threads 3 0 \
        reordered 2 60 missing 1 100
    grep -q "rank 1 of 2 on $(hostname), rank 0 on $(hostname): mpi-$mpi, .*, calls of any thread" \
        "$out/said" || fail "expected what the transport is"
    works $mpi 4 random 2 80 order 20 0 reordered 3 40 threads 2 0 missing 3 100
    HYPER_PARALLEL_TRANSPORT_THREADS=one works $mpi 2 about 0 0 random 4 40 order 80 0 sizes 0 0 \
        cancel 0 0 threads 3 0
    grep -q "calls of one thread" "$out/said" || fail "expected calls of one thread"
    echo "== $mpi: tensor-parallel groups over it, data-parallel groups over symmetric memory"
    start $mpi 4 "$build/tests/cluster/tensor_parallel" >"$out/said" 2>&1 ||
        fail "tensor_parallel: expected exit status 0"
    [ "$(grep -c "the same bits" "$out/said")" -eq 4 ] || fail "expected the same bits on 4 ranks"
    echo "== $mpi: a program that starts MPI itself"
    start $mpi 2 "$build/tests/cluster/own_mpi.$mpi" multiple >"$out/said" 2>&1 ||
        fail "own_mpi: expected exit status 0"
    grep -qF "MPI_Finalize was called; an MPI starts once" "$out/said" || fail "expected no second start"
    says "the program started MPI for calls of one thread alone" \
        start $mpi 2 "$build/tests/cluster/own_mpi.$mpi" single
    HYPER_PARALLEL_PLUGINS=$out says "libhyperparallel-mpi-$mpi.so is not in $out" \
        start $mpi 2 "$probe" about 0 0
done
if [ $n_here -eq 2 ]; then
    echo "== another MPI's launcher"
    HYPER_PARALLEL_TRANSPORT=mpi-mpich \
        says "expected 2 ranks, mpi-mpich sees itself alone: the job was started by mpirun of Open MPI; HYPER_PARALLEL_TRANSPORT=mpi-openmpi fits that" \
        start openmpi 2 "$probe" about 0 0
    HYPER_PARALLEL_TRANSPORT=mpi-openmpi says "HYPER_PARALLEL_TRANSPORT=mpi-mpich fits that" \
        start mpich 2 "$probe" about 0 0
fi
if [ $n_here -eq 0 ]; then
    echo "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
    exit 77
fi
