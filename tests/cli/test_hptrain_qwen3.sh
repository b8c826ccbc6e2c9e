#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain on a small Qwen3: meshes, accumulation, a resumed run, the model out to a directory and in
# again, samples, and directories that hold no model that can be loaded.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

# The largest difference between the losses of two logs is at most 1e-6.
near() { # WHAT FILE FILE
    jq -es 'map(select(.event == "step")) | group_by(.step) | length > 0 and
        all(.[]; length == 2 and (.[0].loss - .[1].loss | fabs) <= 1e-6)' "$2" "$3" >/dev/null ||
        fail "$1: expected losses within 1e-6, given
$(losses "$2")
$(losses "$3")"
}

echo "== meshes agree bit for bit, in fp32 and with bf16 weights, recomputed or kept"
for mesh in 1x4 2x2; do
    "$hprun" -n 4 "$hptrain" "${qwen3[@]}" --batch 2 --mesh $mesh --steps 4 --log "$out/$mesh.jsonl" >/dev/null
    "$hprun" -n 4 "$hptrain" "${qwen3[@]}" --batch 2 --mesh $mesh --steps 4 --param-dtype bf16 \
        --reduce-dtype bf16 --log "$out/$mesh.bf16.jsonl" >/dev/null
done
"$hprun" -n 4 "$hptrain" "${qwen3[@]}" --batch 2 --steps 4 --recompute --log "$out/recompute.jsonl" >/dev/null
same "1x4 and 2x2" "$out/1x4.jsonl" "$out/2x2.jsonl"
same "1x4 and 2x2, bf16" "$out/1x4.bf16.jsonl" "$out/2x2.bf16.jsonl"
same "recomputed and kept" "$out/1x4.jsonl" "$out/recompute.jsonl"
! cmp -s <(losses "$out/1x4.jsonl") <(losses "$out/1x4.bf16.jsonl") || fail "--param-dtype: expected other losses"

echo "== two passes of a batch are one of twice the batch"
for model in "${sizes[*]}" "${mlp[*]}"; do
    # shellcheck disable=SC2086 # several words
    "$hprun" -n 2 "$hptrain" $model "${run[@]}" --warmup 2 --steps 6 --batch 4 --accumulate 2 --log "$out/two.jsonl" >/dev/null
    # shellcheck disable=SC2086
    "$hprun" -n 2 "$hptrain" $model "${run[@]}" --warmup 2 --steps 6 --batch 8 --log "$out/one.jsonl" >/dev/null
    near "--accumulate 2, $model" "$out/one.jsonl" "$out/two.jsonl"
done

echo "== the learning rate rises in a line and falls in half a cosine"
"$hptrain" "${qwen3[@]}" --steps 8 --lr 1e-3 --lr-min 2e-4 --warmup 4 | jq -es 'map(select(.event == "step").lr) |
    [., [2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 8.8284271e-4, 6e-4, 3.1715729e-4]] | transpose |
    all(.[]; (.[0] - .[1] | fabs) < 1e-10)' >/dev/null || fail "--warmup: another learning rate"
"$hptrain" "${qwen3[@]}" --steps 3 --lr 1e-3 --lr-decay none --warmup 0 | jq -es \
    'map(select(.event == "step").lr) | all(.[]; . == 1e-3)' >/dev/null || fail "--lr-decay none: it decays"

echo "== a run resumed in its warm-up goes on bit for bit: losses, and all bytes of the checkpoint"
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 6 --warmup 5 --save-every 3 --save "$out/whole" --log "$out/whole.jsonl" >/dev/null
mkdir "$out/half"
cp -r "$out/whole/step-00000003" "$out/half"
echo step-00000003 >"$out/half/latest"
head -n 5 "$out/whole.jsonl" >"$out/half.jsonl"
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 6 --warmup 5 --resume "$out/half" --save "$out/half" --log "$out/half.jsonl" >/dev/null
same "resumed and not" "$out/whole.jsonl" "$out/half.jsonl"
diff -r "$out/whole" "$out/half" || fail "resumed: expected the same checkpoints"

echo "== no further step: the loss is measured alone"
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 6 --resume "$out/whole" --log "$out/none.jsonl" >/dev/null
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 0 --resume "$out/whole" >"$out/zero.jsonl"
[ "$(held_out "$out/none.jsonl")" = "$(held_out "$out/zero.jsonl")" ] || fail "--steps 0: expected the same loss"
[ "$(cat "$out/none.jsonl" "$out/zero.jsonl" | grep -c '"event": "step"')" -eq 0 ] || fail "--steps 6 at step 6: expected no step"
[ "$(held_out "$out/none.jsonl" | tr -dc 0-9.)" = "$(digits held_out_loss_after "$out/whole.jsonl" | tr -dc 0-9.)" ] ||
    fail "--steps 6 at step 6: expected the loss that the run ended with"
refused 2 'expected --steps of at least 6, the step of the checkpoint in' "${sizes[@]}" --steps 5 --resume "$out/whole"

echo "== what is written for others loads again: the same loss, the same sample"
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 6 --save "$out/saved" --export hf --sample "In the" --sample-bytes 30 \
    --log "$out/saved.jsonl" >/dev/null
"$hptrain" "${run[@]}" --model "$out/saved/hf" --steps 0 --sample "In the" --sample-bytes 30 --log "$out/loaded.jsonl" >/dev/null
jq -es 'map(select(.event == "end")) | (.[0].held_out_loss_after - .[1].held_out_loss_before | fabs) < 1e-6' \
    "$out/saved.jsonl" "$out/loaded.jsonl" >/dev/null || fail "--export hf: another held-out loss"
[ "$(grep '"event": "sample"' "$out/saved.jsonl")" = "$(grep '"event": "sample"' "$out/loaded.jsonl")" ] || fail "--export hf: another sample"
"$hptrain" "${run[@]}" --model "$out/saved/hf" --steps 1 --save "$out/again" --export hf --export-dtype bf16 >/dev/null
[ "$(stat -c %s "$out/again/hf/model.safetensors")" -lt "$(stat -c %s "$out/saved/hf/model.safetensors")" ] ||
    fail "--export-dtype bf16: expected a smaller file"
"$hptrain" "${run[@]}" --model "$out/again/hf" --steps 0 >/dev/null || fail "--export-dtype bf16: expected that it loads"

echo "== a sample is so many bytes behind the prompt, and the likeliest one is always the same"
for seed in 1 2; do
    "$hptrain" "${run[@]}" --model "$out/saved/hf" --steps 0 --sample "In the" --sample-bytes 50 --temperature 0 \
        --seed $seed --quiet --output text >"$out/sample.$seed"
done
[ "$(stat -c %s "$out/sample.1")" -eq 57 ] || fail "--sample-bytes 50: expected 6 + 50 bytes and a line's end, given $(cat "$out/sample.1")"
[ "$(head -c 6 "$out/sample.1")" = "In the" ] || fail "--sample: expected the prompt first"
cmp "$out/sample.1" "$out/sample.2" || fail "--temperature 0: expected the same for each seed"
"$hptrain" "${run[@]}" --model "$out/saved/hf" --steps 0 --sample "In the" --sample-bytes 50 --top-k 1 \
    --quiet --output text | cmp - "$out/sample.1" || fail "--top-k 1: expected the likeliest"

echo "== a directory with config.json alone: first weights"
mkdir "$out/fresh"
cp "$out/saved/hf/config.json" "$out/fresh"
"$hptrain" "${run[@]}" --model "$out/fresh" --steps 1 >/dev/null || fail "config.json alone: expected first weights"

grep -q '"weights": "first"' "$out/none.jsonl" && fail "--resume: expected the checkpoint's weights"
grep -q '"weights": "checkpoint"' "$out/none.jsonl" || fail "--resume: expected it to say so"
jq -es --arg dir "$out/saved/hf" '.[0].weights == $dir' "$out/loaded.jsonl" >/dev/null || fail "--model DIR: expected it to say so"

echo "== the rate: low for weights that have learnt, as given in any case"
first_rate() { "$hptrain" "${run[@]}" --steps 1 --warmup 0 "$@" | jq -es 'map(select(.event == "step"))[0].lr'; }
[ "$(first_rate --model "$out/saved/hf")" = "5e-05" ] || fail "--model DIR: $(first_rate --model "$out/saved/hf")"
[ "$(first_rate --model "$out/saved/hf" --lr 1e-3)" = "0.001" ] || fail "--lr: expected it as given"
[ "$(first_rate --model "$out/fresh")" = "0.006" ] || fail "config.json alone: $(first_rate --model "$out/fresh")"

echo "== files of a tokenizer are carried over to the export"
cp -r "$out/saved/hf" "$out/other"
for file in tokenizer.json merges.txt chat_template.jinja generation_config.json; do
    printf 'the text of %s: \303\244\n' $file >"$out/other/$file"
done
echo "not carried" >"$out/other/notes.txt"
"$hprun" -n 2 "$hptrain" "${run[@]}" --model "$out/other" --steps 1 --save "$out/carried" --export hf >/dev/null
for file in tokenizer.json merges.txt chat_template.jinja generation_config.json; do
    cmp "$out/other/$file" "$out/carried/hf/$file" || fail "--export: expected $file"
done
[ "$(find "$out/carried/hf" -type f | wc -l)" -eq 6 ] || fail "--export: $(ls "$out/carried/hf")"
printf 'a\0b' >"$out/other/vocab.json"
refused 1 "expected $out/other/vocab.json to be a text, byte 1 of it is 0" --model "$out/other" --save "$out/carried" --export hf
rm "$out/other/vocab.json"
mkfifo "$out/other/vocab.json"
refused 1 "expected $out/other/vocab.json to be a regular file" --model "$out/other" --save "$out/carried" --export hf

echo "== positions of a model grow with --seq: the model is made, and the checkpoint looked for"
refused 1 "$out/nowhere" --hidden-size 4 --layers 1 --heads 1 --kv-heads 1 --head-dim 2 --intermediate-size 4 \
    --seq 40000 --batch 1 --eval-samples 1 --resume "$out/nowhere"

echo "== weights that are not finite are not saved, even where no sample reads them"
cp -r "$out/saved/hf" "$out/nan"
# Byte 255 is in no text; its row of the embedding is 32 numbers of 4 bytes.
header=$(od -An -tu8 -N8 "$out/nan/model.safetensors" | tr -d ' ')
begin=$(head -c $((8 + header)) "$out/nan/model.safetensors" | tail -c "$header" | jq '.["model.embed_tokens.weight"].data_offsets[0]')
printf '\0\0\300\177' | dd of="$out/nan/model.safetensors" bs=1 seek=$((8 + header + begin + 255 * 128)) conv=notrunc status=none
"$hptrain" "${run[@]}" --model "$out/nan" --steps 0 >/dev/null || fail "a NaN that nobody reads: expected that it evaluates"
if "$hprun" -n 2 "$hptrain" "${run[@]}" --model "$out/nan" --steps 1 --save "$out/nan.saved" --export hf >/dev/null 2>"$out/said"; then
    fail "a NaN in the weights: expected a failure"
fi
[ "$(grep -c 'expected finite weights, unit embed holds -\?nan after step 1' "$out/said")" -eq 1 ] || fail "a NaN in the weights: $(cat "$out/said")"
[ -z "$(ls "$out/nan.saved")" ] || fail "a NaN in the weights: expected nothing saved, given $(ls "$out/nan.saved")"

echo "== broken directories: the file is named, and the tensor"
broken() { # TEXT...: each is said of the model in $out/broken
    refused 1 "$1" --model "$out/broken"
    local text
    for text in "$@"; do
        grep -qF -- "$text" "$out/refused.txt" || fail "expected \"$text\", given $(cat "$out/refused.txt")"
    done
}
model() { # a copy of the good one
    rm -rf "$out/broken"
    cp -r "$out/saved/hf" "$out/broken"
}
refused 2 'expected no --layers with --model' --model "$out/fresh" --layers 2
model
mv "$out/broken/model.safetensors" "$out/broken/pytorch_model.bin"
broken "expected weights in model.safetensors or model.safetensors.index.json of --model $out/broken, found pytorch_model.bin alone"
mv "$out/broken/pytorch_model.bin" "$out/broken/model-00001-of-00002.safetensors"
broken "found model-00001-of-00002.safetensors alone"
model
ln -sf nowhere "$out/broken/model.safetensors"
broken "found model.safetensors alone"
ln -sf model.safetensors "$out/broken/model.safetensors"
broken "expected to look for $out/broken/model.safetensors: "
model
head -c 2000 "$out/saved/hf/model.safetensors" >"$out/broken/model.safetensors"
broken model.safetensors
model
sed -i 's/"vocab_size": 256/"vocab_size": 300/' "$out/broken/config.json"
broken "expected shape [300, 32]" model.safetensors weight
model
sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' "$out/broken/config.json"
broken model.layers.2
model
sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "$out/broken/config.json"
broken model.layers.1
model
sed -i 's/"hidden_size": 32/"hidden_size": "32"/' "$out/broken/config.json"
broken config.json hidden_size
model
echo '{' >"$out/broken/config.json"
broken config.json
model
sed -i 's/"vocab_size": 256/"vocab_size": 200/' "$out/broken/config.json"
rm "$out/broken/model.safetensors"
refused 1 'expected tokens below 200' --model "$out/broken"
