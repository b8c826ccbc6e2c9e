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

model=(--hidden-size 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 8 --intermediate-size 48
    --seq 16 --batch 4 --eval-every 0 --eval-samples 16 --steps 400 --output json)

# Host b dies when the log has step 150.
training() {
    local log=$out/$mpi.jsonl
    (until grep -qs '"step": 150,' "$log"; do sleep 0.01; done && $cluster kill b 2>/dev/null) &
    "$hprun" -n 4 "$build/bin/hptrain" "${model[@]}" --mesh 2x2 --log "$out/whole.jsonl" >"$out/said" 2>&1 || fail "one host"
    timeout -s KILL 60 $cluster hprun "$mpi" 2 "$hprun" --max-restarts 3 "$build/bin/hptrain" "${model[@]}" \
        --mesh -1x2 --save "$out/saved" --save-every 20 --log "$log" >"$out/said" 2>&1 || fail "$mpi: expected exit status 0"
    says "hprun: host hpb does not answer: it is left out"
    # from the newest checkpoint on, with half of the replicas and as many tokens
    jq -es 'map(select(.event == "begin")) | .[0].n_replicas == 2 and .[-1].n_replicas == 1 and .[-1].first_step >= 120 and
        .[-1].tokens_per_step == .[0].tokens_per_step' "$log" >/dev/null || fail "$mpi: $(grep begin "$log" | cut -c 1-600)"
    # on two hosts, the bits of one
    cmp <(grep -o '"step": [0-9]*, "loss": [^,]*' "$out/whole.jsonl" | head -n 100) <(grep -o '"step": [0-9]*, "loss": [^,]*' "$log" | head -n 100) ||
        fail "$mpi: expected the losses of one host"
    # and then, to rounding, those of a run that nothing has disturbed
    jq -es --slurpfile whole "$out/whole.jsonl" '[map(select(.event == "step")) | .[] | {(.step | tostring): .loss}] | add |
        length == 400 and (. as $seen | all($whole[] | select(.event == "step"); ($seen[.step | tostring] - .loss | fabs) < 0.02))' \
        "$log" >/dev/null || fail "$mpi: expected the losses of an undisturbed run, given $(tail -n 2 "$log") and $(tail -n 2 "$out/whole.jsonl")"
}

if [ "${2:-}" = training ]; then
    mpi=$3
    training
    exit
fi
n_here=0
for mpi in openmpi mpich; do
    is_here $mpi || continue
    n_here=$((n_here + 1))
    echo "== $mpi: the link is cut"
    cut_off
    echo "== $mpi: host b dies while hptrain runs"
    $cluster with "$0" "$build" training "$mpi" # a host that dies does not come back
done
[ $n_here -gt 0 ] || fail "no MPI with its plug-in is here (tools/setup.sh mpi installs two)"
