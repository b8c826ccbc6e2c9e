#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain and checkpoints that are there: those of another run are not written over, one that is
# resumed otherwise is told of, and what is no checkpoint of this model is said to be none.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 3 --save "$out/run" --export hf >/dev/null
cp -r "$out/run" "$out/copy"

echo "== checkpoints of another run are not written over"
refused 2 "$out/run has step-00000003: --resume $out/run goes on from it" "${sizes[@]}" --save "$out/run"
refused 2 "$out/run has step-00000003" "${sizes[@]}" --save "$out/run" --resume "$out/copy"
diff -r "$out/run" "$out/copy" || fail "--save: expected that nothing changes"
"$hptrain" "${qwen3[@]}" --batch 8 --steps 3 --save "$out/copy" --resume "$out/copy/." >/dev/null || fail "--resume DIR/.: expected the same"

echo "== what a resumed run does otherwise is told, on standard error where programs read"
again() { { "$hprun" -n 2 "$hptrain" "${qwen3[@]}" --matmul plain --steps 3 --resume "$out/run" "$@" \
    >/dev/null; } 2>&1; }
[ -z "$(again)" ] || fail "the same command: expected no note, given $(again)"
[ -z "$(again --mesh 2x1 --batch 2 --accumulate 2)" ] || fail "the same samples in a step: expected no note"
[ "$(again --batch 2 --lr 1e-3 --lr-min 1.2e-4 --data README.md)" = "note: the run that saved $out/run goes on otherwise: \
tokens-per-step 128 -> 64, data (none) -> README.md, lr 0.006 -> 0.001" ] || fail "other options: $(again --batch 2 --lr 1e-3 --lr-min 1.2e-4 --data README.md)"
[ -z "$(again --batch 2 --quiet)" ] || fail "--quiet: expected no note"
rm "$out/copy/hptrain.json"
"$hptrain" "${qwen3[@]}" --steps 3 --resume "$out/copy" >/dev/null || fail "no hptrain.json: expected that it goes on"
echo '{"sizes": 3, "seq": [1' >"$out/copy/hptrain.json"
"$hptrain" "${qwen3[@]}" --steps 3 --resume "$out/copy" >/dev/null || fail "a broken hptrain.json: expected that it goes on"

echo "== another model, an export, a directory above one"
refused 2 "expected the model of the checkpoint in --resume $out/run, qwen3: vocabulary 256, hidden-size 32, layers 2," \
    "${sizes[@]}" --layers 3 --resume "$out/run"
refused 2 "expected the model of the checkpoint in --resume $out/run, qwen3: " "${mlp[@]}" --resume "$out/run"
refused 2 "given $out/run/hf, an export: use --model $out/run/hf" "${sizes[@]}" --resume "$out/run/hf"
refused 2 "$out/run/config.json is not there; did you mean --model $out/run/hf?" --model "$out/run"
