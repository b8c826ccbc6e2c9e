#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain over two hosts of two ranks, under each MPI: one replica on each host (2x2), which is what
# HSDP is for, and meshes whose shard groups span the hosts, in every mode. Losses and weights have the
# bits of a run on one host. Says how much of the communication was exposed. Runs inside `tools/cluster.sh with`.
set -euo pipefail
build=$1
cluster=tools/cluster.sh
hprun=$build/bin/hprun
hptrain=$build/bin/hptrain
out=$HP_CLUSTER/out
mkdir -p "$out"

fail() {
    echo "test_training: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

is_here() { # MPI
    command -v "mpirun.$1" >/dev/null && [ -e "$build/lib/hyperparallel/libhyperparallel-mpi-$1.so" ]
}

losses() { # NAME
    grep -o '"loss": [^,]*\|"held_out_loss[a-z_]*": [^,}]*' "$out/$1.jsonl"
}

model=(--hidden-size 64 --layers 4 --heads 4 --kv-heads 2 --head-dim 16 --intermediate-size 128
    --seq 32 --batch 4 --eval-every 0 --eval-samples 16 --steps 12)

train() { # NAME LAUNCHER... -- OPTION...: leaves $out/NAME.jsonl, and $out/NAME, the checkpoint
    local name=$1 launcher=()
    shift
    while [ "$1" != -- ]; do
        launcher+=("$1")
        shift
    done
    shift
    rm -rf "${out:?}/$name"
    timeout -s KILL 60 "${launcher[@]}" "$hptrain" "${model[@]}" "$@" --save "$out/$name" --export hf \
        --log "$out/$name.jsonl" --output json >"$out/said" 2>&1 || fail "$name: expected exit status 0"
}

# Of a step, the median over the steps: ms, and of those that compute stood still.
exposed() { # NAME
    jq -rs 'map(select(.event == "step")) | def median(f): map(f) | sort | .[length / 2 | floor];
        "step \(median(.step_ms)) ms, exposed: unshard \(median(.exposed_ms.unshard)) reduce \(median(.exposed_ms.reduce)) replicate \(median(.exposed_ms.replicate))"' \
        "$out/$1.jsonl"
}

same() { # NAME: as one host has trained it, of any mesh
    cmp <(losses one) <(losses "$1") || fail "$1: expected the losses of one host"
    diff -rq "$out/one/hf" "$out/$1/hf" >"$out/said" || fail "$1: expected the weights of one host"
}

train one "$hprun" -n 4 -- --mesh 2x2 --comm per-param
n_here=0
for mpi in openmpi mpich; do
    is_here $mpi || continue
    n_here=$((n_here + 1))
    for mesh in 2x2 1x4 4x1; do
        for comm in per-param fused fused-zero-copy mapped auto; do
            [ $mesh.$comm != 1x4.mapped ] || continue # memory that no two hosts share
            name=$mpi.$mesh.$comm
            # as if all were on one host
            train "$name" $cluster mpirun $mpi 2 env LOCAL_WORLD_SIZE=4 LOCAL_RANK=0 -- --mesh $mesh --comm $comm
            jq -es --arg mesh $mesh 'map(select(.event == "begin")) | .[0].n_ranks == 4 and "\(.[0].n_replicas)x\(.[0].n_shards)" == $mesh' \
                "$out/$name.jsonl" >/dev/null || fail "$name: expected four ranks as $mesh"
            same "$name"
            echo "$mpi $mesh $comm: $(exposed "$name")"
        done
    done
done
[ $n_here -gt 0 ] || fail "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
