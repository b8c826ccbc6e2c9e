#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# compare_loss.sh - what equal training time buys: the Qwen3 of tools/train.sh against bytes-mlp.
#
# usage: tools/compare_loss.sh BUILD      environment: JOBS, STEPS (of Qwen3, for a try)
#
# Both train as 8 ranks, 2 replicas of 4 shards. bytes-mlp gets as many steps as fill the time of
# Qwen3's steps, at a constant rate and with cosine decay. Losses are means over the whole held-out
# text, windows end to end; time is that of the steps, without evaluation. Of the words of three or
# more letters in 1,000 sampled bytes, those count that occur in the text that was trained on. The
# exit status is 1 unless Qwen3 has the lowest loss and at least half of its words count. Takes
# about five minutes; tools/train.sh leaves its run in BUILD/train.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
text=data/genesis_to_deuteronomy.txt
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "compare_loss: $*" >&2
    exit 1
}

# whole_text SEQ: windows of SEQ bytes that cover the held-out tenth.
held_out_bytes=$(($(stat -c %s "$text") / 10))
whole_text() {
    echo --eval-every 0 --eval-samples $((held_out_bytes / $1))
}

training_seconds() { # LOG
    jq -s 'map(select(.event == "step").step_ms) | add / 1000' "$1"
}
loss_after() { # LOG
    jq 'select(.event == "end").held_out_loss_after' "$1"
}
less() { # A B
    jq -en "$1 < $2" >/dev/null
}

# train_mlp NAME STEPS OPTION...: the byte model, as it was trained before there was Qwen3.
train_mlp() {
    local name=$1 steps=$2
    shift 2
    # shellcheck disable=SC2046 # words
    "$build/bin/hprun" -n 8 "$build/bin/hptrain" --mesh 2x4 --model bytes-mlp --data "$text" \
        --batch 8 --seq 64 --steps "$steps" --lr 3e-3 --warmup 0 --weight-decay 0.01 --beta2 0.999 \
        $(whole_text 64) --quiet --log "$out/$name.jsonl" "$@"
}

report() { # NAME LOG
    printf '%-28s %7d %10.1f %14.4f\n' "$1" "$(jq 'select(.event == "end").step' "$2")" \
        "$(training_seconds "$2")" "$(loss_after "$2")"
}

command -v jq >/dev/null || fail "expected the program jq (tools/setup.sh test)"

# shellcheck disable=SC2046 # words
tools/train.sh "$build" --data "$text" --seq 128 $(whole_text 128) --sample-bytes 1000 \
    ${STEPS:+--steps "$STEPS"}
qwen3=$build/train/run.jsonl

echo "== bytes-mlp for as long"
train_mlp short 50 --lr-decay none
steps=$(jq -n "$(training_seconds "$qwen3") / $(training_seconds "$out/short.jsonl") * 50 | ceil")
train_mlp constant "$steps" --lr-decay none
train_mlp cosine "$steps" --lr-decay cosine

jq -rj 'select(.event == "sample").text' "$qwen3" | grep -oE '[A-Za-z]{3,}' >"$out/sampled" ||
    fail "expected words in the sample, there are none"
head -c "$(jq 'select(.event == "begin").n_train' "$qwen3")" "$text" | grep -oE '[A-Za-z]{3,}' |
    sort -u >"$out/words"
n_sampled=$(wc -l <"$out/sampled")
n_known=$(grep -cFxf "$out/words" "$out/sampled" || true)

printf '\n%-28s %7s %10s %14s\n' "8 ranks, 2x4" steps seconds "held-out loss"
report qwen3 "$qwen3"
report "bytes-mlp, constant rate" "$out/constant.jsonl"
report "bytes-mlp, cosine decay" "$out/cosine.jsonl"
echo "words of the sample that occur in the text: $n_known of $n_sampled"

for name in constant cosine; do
    less "$(loss_after "$qwen3")" "$(loss_after "$out/$name.jsonl")" ||
        fail "expected qwen3 to have a lower loss than bytes-mlp, $name"
done
[ $((2 * n_known)) -ge "$n_sampled" ] || fail "expected half of the words to occur in the text"
