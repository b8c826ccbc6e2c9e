#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Messages of more bytes than an int counts, and many random ones, over the transport of each MPI.
set -euo pipefail
build=$1
probe=$build/tests/cluster/transport
unset OMPI_COMM_WORLD_SIZE PMI_SIZE PMIX_RANK
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

available_kb=$(awk '/MemAvailable/ { print $2 }' /proc/meminfo)
if [ "$available_kb" -lt 8000000 ]; then
    echo "8 GB of memory are not free"
    exit 77
fi
n_here=0
for mpi in openmpi mpich; do
    if ! command -v "mpirun.$mpi" >/dev/null ||
        [ ! -e "$build/lib/hyperparallel/libhyperparallel-mpi-$mpi.so" ]; then
        continue
    fi
    n_here=$((n_here + 1))
    launch=("mpirun.$mpi")
    [ $mpi = mpich ] || launch+=(--oversubscribe --bind-to none)
    "${launch[@]}" -n 2 "$probe" large 2200000011 0
    for seed in 11 12 13; do
        "${launch[@]}" -n 4 "$probe" random $seed 600 reordered $seed 600 order 2000 0
    done
done
if [ $n_here -eq 0 ]; then
    echo "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
    exit 77
fi
