#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain in every mode and schedule: the same losses, digit for digit, whatever is gathered how and
# when; what --verify proves and writes; and what each of those options refuses.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

short=("${qwen3[@]}" --lr 3e-3 --warmup 0 --steps 4)
train() { # NAME ARGUMENT...: four ranks
    local name=$1
    shift
    "$hprun" -n 4 "$hptrain" "${short[@]}" --log "$out/$name.jsonl" "$@" >/dev/null ||
        fail "$*: expected success"
}

echo "== modes, schedules, prefetch and what is kept agree bit for bit"
train plain --comm per-param --schedule serial
for mode in per-param fused fused-zero-copy mapped auto; do
    for how in "prefetch --prefetch 0" "overlap --prefetch 2 --reshard 0"; do
        # shellcheck disable=SC2086 # several words
        train run --comm $mode --mesh 2x2 --schedule $how
        same "$mode, $how" "$out/plain.jsonl" "$out/run.jsonl"
    done
    jq -es --arg mode $mode '.[0] | .schedule == "full" and .options.comm == $mode and
        if $mode == "auto" then .comm != "auto" else .comm == $mode end' "$out/run.jsonl" >/dev/null ||
        fail "$mode: expected its name in $(head -n 1 "$out/run.jsonl")"
done
train run --replay 2 --offload --missing-grad error --recompute
same "--replay, --offload, --missing-grad, --recompute" "$out/plain.jsonl" "$out/run.jsonl"

echo "== gradients left whole or reduced over the shards: alike in all modes of a mesh"
for way in no-sync defer-replicate; do
    for mode in per-param fused mapped; do
        train $way.$mode --comm $mode --mesh 2x2 --batch 2 --accumulate 2 --accumulate-mode $way
        same "$way, $mode" "$out/$way.per-param.jsonl" "$out/$way.$mode.jsonl"
    done
done

echo "== gradients in bf16 between replicas: near, and not the same"
train wire --mesh 4x1 --replicate-wire bf16
! cmp -s <(losses "$out/plain.jsonl") <(losses "$out/wire.jsonl") || fail "--replicate-wire: expected other losses"
paste <(losses "$out/plain.jsonl") <(losses "$out/wire.jsonl") |
    awk '{ if ($2 - $4 > 0.05 || $4 - $2 > 0.05) exit 1 }' || fail "--replicate-wire: expected losses that are near"

echo "== --verify: the plan and what was done are sound, in the log and in verdict.json"
for mode in per-param fused fused-zero-copy mapped; do
    train verified --comm $mode --mesh 2x2 --verify --trace "$out/trace" --prefetch 2 --eval-every 2
    same "--verify, $mode" "$out/plain.jsonl" "$out/verified.jsonl"
    jq -es 'map(select(.event == "verify")) | map(.what) == ["plan", "recorded"] and
        all(.[]; .sound and .rule == "sound" and .text == "" and .operations > 0 and .peak_bytes >= 0)' \
        "$out/verified.jsonl" >/dev/null || fail "$mode: $(grep verify "$out/verified.jsonl")"
    jq -e --arg mode $mode '.sound and .rule == "sound" and .text == "" and .ranks == 4 and .steps == 2 and .operations > 0 and
        .mode == $mode and .mesh == [2, 2] and .schedule == "full" and .prefetch == 2 and has("bound_bytes")' \
        "$out/trace/verdict.json" >/dev/null || fail "$mode: $(cat "$out/trace/verdict.json")"
    [ "$(find "$out/trace" -name 'trace-*.json' | wc -l)" -eq 4 ] || fail "$mode: expected the traces beside it"
done
"$hprun" -n 2 "$hptrain" "${short[@]}" --verify --output text >"$out/said"
[ "$(grep -cE '^verified \((plan|recorded)\): sound, [0-9,]+ operations of 2 ranks$' "$out/said")" -eq 2 ] || fail "--verify: $(cat "$out/said")"

echo "== names that are none"
refused 2 'expected --comm to be per-param|fused|fused-zero-copy|mapped|auto, given "shared"' --comm shared
refused 2 'expected --schedule to be full|serial|prefetch, given "none"' --schedule none
refused 2 'expected --reshard to be a whole number from 0 to 1, given "2"' --reshard 2
refused 2 'expected --accumulate-mode to be no-sync|defer-replicate, given "sync"' --accumulate-mode sync
refused 2 'expected --replicate-wire to be fp32|bf16|fp16, given "fp64"' --replicate-wire fp64
"$hptrain" --help | tr -s ' \n' ' ' | grep -qF 'leave them (per-param|fused|fused-zero-copy|mapped|auto; default' ||
    fail "--help: expected the names of the modes"
