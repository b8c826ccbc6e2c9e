#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hprun above mpirun, of each MPI: a host that dies, and one behind a link that is cut, which an mpirun
# waits for without end; both times the job starts again on the host that is left, and hptrain goes on
# from its checkpoint with half of its replicas. Runs inside `tools/cluster.sh with`.
set -euo pipefail
build=$1
cluster=tools/cluster.sh
hprun=$build/bin/hprun
out=$HP_CLUSTER/out
mkdir -p "$out"
export out

fail() {
    echo "test_restarts: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

is_here() { # MPI
    command -v "mpirun.$1" >/dev/null && [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$1.so" ]
}

says() { # TEXT
    grep -qF -- "$1" "$out/said" || fail "$mpi: expected \"$1\""
}

# The ranks of host a notice, as the library makes them, and end; those of host b know nothing.
# shellcheck disable=SC2016 # expanded by the ranks
survivor='echo "$(hostname) try $TORCHELASTIC_RESTART_COUNT ranks ${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}"
    [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0
    [ "$(hostname)" = hpa ] || exec sleep 30
    until [ -e "$out/gone" ]; do sleep 0.1; done
    sleep 1
    exit 1'

cut_off() { # the ranks of a host that nobody reaches
    rm -f "$out/gone"
    (sleep 2 && $cluster cut && touch "$out/gone") &
    timeout -s KILL 40 $cluster hprun "$mpi" 2 "$hprun" --max-restarts 1 bash -c "$survivor" >"$out/said" 2>&1 ||
        fail "$mpi: expected the second try to work"
    says "hprun: host hpb has not answered for 5 s: the job is ended"
    says "hprun: host hpb does not answer: it is left out"
    [ "$(grep -c '^hpa try 1 ranks 2$' "$out/said")" -eq 2 ] || fail "$mpi: expected two ranks in the second try"
    $cluster mend
}

n_here=0
for mpi in openmpi mpich; do
    is_here $mpi || continue
    n_here=$((n_here + 1))
    echo "== $mpi: the link is cut"
    cut_off
done
[ $n_here -gt 0 ] || fail "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
