#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain --tp N: ranks that compute the same samples together. The same samples in any arrangement
# of ranks give the losses of one rank; what one arrangement saves another one resumes; what does not
# fit is refused before anything starts; a rank that is killed is named.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

# 8 samples of 17 tokens in a step: tokens and columns that the ranks do not divide.
wide=(--hidden-size 32 --layers 2 --heads 8 --kv-heads 4 --head-dim 8 --intermediate-size 50 --seq 17
    --eval-every 0 --eval-samples 10 --warmup 2)
train() { # NAME RANKS ARGUMENT...
    local name=$1 n=$2
    shift 2
    "$hprun" -n "$n" "$hptrain" "${wide[@]}" --log "$out/$name.jsonl" "$@" >/dev/null || fail "$name: expected success"
}

# Every loss of both logs, held-out ones too, within 1e-5.
near() { # WHAT FILE FILE
    jq -es 'def of(f): map(select(.event == f)); (of("step") | group_by(.step)) + [of("end") | map({loss: .held_out_loss_after})] |
        length > 1 and all(.[]; length == 2 and (.[0].loss - .[1].loss | fabs) <= 1e-5)' "$2" "$3" >/dev/null ||
        fail "$1: expected losses within 1e-5, given
$(losses "$2")
$(losses "$3")"
}

echo "== the losses are those of one rank with the same samples"
train alone 1 --batch 8 --steps 6
train pair 2 --batch 8 --steps 6 --tp 2
train cube 8 --batch 2 --steps 6 --tp 2 --mesh 2x2
train four 8 --batch 2 --steps 6 --tp 4 --mesh 1x2 --accumulate 2 --recompute --comm per-param
for name in pair cube four; do
    near "$name" "$out/alone.jsonl" "$out/$name.jsonl"
done
jq -es '.[0] | .n_ranks == 8 and .n_replicas == 2 and .n_shards == 2 and .n_tensor == 2 and .options.tp == 2' \
    "$out/cube.jsonl" >/dev/null || fail "cube: $(head -n 1 "$out/cube.jsonl")"
"$hprun" -n 4 "$hptrain" "${wide[@]}" --tp 2 --steps 0 --output text | grep -qF '4 ranks as 1x2x2 (replicate x shard x tensor)' ||
    fail "--tp: expected the mesh in the text"

echo "== modes of one arrangement agree bit for bit, in bf16 too, and are sound"
for mode in mapped per-param fused; do
    train $mode 4 --batch 2 --steps 3 --tp 2 --comm $mode --param-dtype bf16 --reduce-dtype bf16 --verify --trace "$out/trace"
    same $mode "$out/mapped.jsonl" "$out/$mode.jsonl"
    jq -e '.sound and .mesh == [1, 4]' "$out/trace/verdict.json" >/dev/null || fail "$mode: $(cat "$out/trace/verdict.json")"
done

echo "== what one arrangement saves another one resumes, and any loads what is written for others"
train half 4 --batch 4 --steps 6 --tp 2 --accumulate 1 --save "$out/saved" --save-every 3
cp -r "$out/saved" "$out/third"
rm -r "$out/third/step-00000006"
echo step-00000003 >"$out/third/latest"
train rest 1 --batch 8 --steps 6 --resume "$out/third"
near "resumed alone" <(grep -v '"step": [123],' "$out/half.jsonl") "$out/rest.jsonl"
train again 4 --batch 8 --steps 6 --tp 4 --resume "$out/third" --save "$out/third" --export hf --sample "In the" --sample-bytes 40
near "resumed by four" <(grep -v '"step": [123],' "$out/half.jsonl") "$out/again.jsonl"
"$hptrain" --model "$out/third/hf" --seq 17 --eval-samples 10 --steps 0 --sample "In the" --sample-bytes 40 --log "$out/loaded.jsonl" >/dev/null
[ "$(grep '"event": "sample"' "$out/again.jsonl")" = "$(grep '"event": "sample"' "$out/loaded.jsonl")" ] || fail "--export hf: another sample"

echo "== what does not fit is refused"
refused 2 'expected --tp to be a whole number from 1 to 64, given "0"' "${sizes[@]}" --tp 0
refused 2 'expected --tp to divide the 2 ranks, given 3' "${sizes[@]}" --tp 3
refused 2 'expected --tp to divide the 2 ranks, given 4' "${sizes[@]}" --tp 4
refused 2 "expected --tp to divide the model's 1 heads of keys and values, given 2" "${sizes[@]}" --kv-heads 1 --tp 2
refused 2 'expected --mesh RxS with R x S x --tp = 2, the number of ranks, given 1x2 = 4' "${sizes[@]}" --mesh 1x2 --tp 2
refused 2 'expected no --tp with --model bytes-mlp' "${mlp[@]}" --tp 2

echo "== a rank that is killed is named"
cat >"$out/mortal" <<'END'
#!/bin/bash
me=$$
[ "$RANK" != 3 ] || (until grep -q '"step": 3,' "$LOG" 2>/dev/null; do sleep 0.01; done; kill -KILL $me) &
exec "$@"
END
chmod +x "$out/mortal"
export LOG=$out/killed.jsonl
! "$hprun" -n 4 "$out/mortal" "$hptrain" "${wide[@]}" --tp 2 --batch 4 --steps 100000 --log "$LOG" >/dev/null 2>"$out/said" ||
    fail "a kill: expected a failure"
grep -q 'rank 3 (pid [0-9]*) was killed by SIGKILL' "$out/said" || fail "a kill: $(cat "$out/said")"
