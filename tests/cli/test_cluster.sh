#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two hosts in short: hprun starts hptrain on both by each MPI that is here, one replica on each, with
# the bits of one host; then host b dies, and the job goes on without it. tests/cluster has the rest
# (make cluster-test). Skipped where hosts cannot be made.
set -euo pipefail
build=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

skip() {
    echo "skipped: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "making hosts needs root"
tools/setup.sh -n cluster >"$out/said" 2>&1 || skip "$(head -n 1 "$out/said")"
tools/cluster.sh with true >"$out/said" 2>&1 || skip "no hosts here: $(tail -n 1 "$out/said")"
for mpi in openmpi mpich; do
    command -v "mpirun.$mpi" >/dev/null || continue
    [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$mpi.so" ] || continue
    echo "== $mpi"
    tools/cluster.sh with tests/cluster/test_restarts.sh "$build" training $mpi
    is_done=yes
done
[ "${is_done:-}" = yes ] || skip "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
