#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain on token files: that one of bytes trains as the text that it was made of, that a prompt and
# its sample are ids then, and that a header or an id that is wrong is refused, naming the file.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

# Numbers of standard input, one a line, little-endian in so many bytes, as escapes of printf %b.
little() { # BYTES
    awk -v n="$1" '{ for (i = 0; i < n; i++) { printf "\\0%03o", $1 % 256; $1 = int($1 / 256) } }'
}

# A token file of the ids that stand on standard input, one a line.
token_file() { # VERSION WIDTH COUNT VOCABULARY
    printf 'HPTOKENS%b%b%b%b' "$(little 4 <<<"$1")" "$(little 4 <<<"$2")" "$(little 8 <<<"$3")" \
        "$(little 4 <<<"$4")"
    head -c 36 /dev/zero
    printf '%b' "$(little "$2")"
}

echo "== a token file of bytes trains as the text does, with ids of 2 and of 4 bytes"
head -c 8000 data/genesis_to_deuteronomy.txt >"$out/text"
od -An -v -tu1 -w1 "$out/text" >"$out/ids"
token_file 1 2 8000 256 <"$out/ids" >"$out/two"
token_file 1 4 8000 256 <"$out/ids" >"$out/four"
for data in text two four; do
    "$hptrain" "${qwen3[@]}" --steps 3 --data "$out/$data" --log "$out/$data.jsonl" >/dev/null
done
same "text and ids of 2 bytes" "$out/text.jsonl" "$out/two.jsonl"
same "text and ids of 4 bytes" "$out/text.jsonl" "$out/four.jsonl"
[ "$(held_out "$out/text.jsonl")" = "$(held_out "$out/two.jsonl")" ] || fail "held-out losses differ"
jq -es '.[0].unit == "byte"' "$out/text.jsonl" >/dev/null || fail "expected bytes"
jq -es '.[0].unit == "token" and .[0].n_train == 7200' "$out/two.jsonl" >/dev/null || fail "expected tokens"

echo "== the model takes the file's vocabulary, ids beyond 255 included"
awk '{ print $1 * 300 }' "$out/ids" | token_file 1 4 8000 70000 >"$out/large"
"$hptrain" "${qwen3[@]}" --steps 1 --data "$out/large" --sample "9600 19500" --sample-bytes 5 >"$out/large.jsonl"
jq -es 'map(select(.event == "sample"))[0] | .prompt == "9600 19500" and
    (.text | test("^( [0-9]+){5}$"))' "$out/large.jsonl" >/dev/null || fail "--sample: $(tail -n 2 "$out/large.jsonl")"

echo "== what is wrong is refused, naming the file"
refused 2 'expected --sample to be ids below 256' "${sizes[@]}" --data "$out/two" --sample "65 256"
refused 2 'expected --sample to be ids below 256' "${sizes[@]}" --data "$out/two" --sample "And"
broken() { # TEXT: of the file $out/broken
    refused 1 "$1" "${sizes[@]}" --data "$out/broken"
    grep -q "$out/broken" "$out/refused.txt" || fail "$1: expected the file's name"
}
token_file 2 2 8000 256 <"$out/ids" >"$out/broken"
broken 'expected a token file of version 1'
token_file 1 3 8000 256 <"$out/ids" >"$out/broken"
broken 'expected tokens of 2 or 4 bytes'
token_file 1 2 8001 256 <"$out/ids" >"$out/broken"
broken 'expected the 8001 tokens of 2 bytes that its header names'
token_file 1 2 7999 256 <"$out/ids" >"$out/broken"
broken 'expected the 7999 tokens of 2 bytes that its header names'
head -c 16001 "$out/two" >"$out/broken"
broken 'expected the 8000 tokens of 2 bytes that its header names'
head -c 63 "$out/two" >"$out/broken"
broken 'expected a token file'"'"'s header of 64 bytes'
token_file 1 2 9223372036854775808 256 <"$out/ids" >"$out/broken"
broken 'tokens of 2 bytes that its header names'
: >"$out/broken"
broken 'expected --data to hold something'
refused 2 'expected no --layers with --model bytes-mlp' --model bytes-mlp --layers 2 --data "$out/two"
refused 1 'expected tokens below 256' "${mlp[@]}" --data "$out/large"
token_file 1 2 8000 0 <"$out/ids" >"$out/unknown"
refused 2 'to name its vocabulary' "${sizes[@]}" --data "$out/unknown"

echo "== an id that the model has not is found where it is used, by name and place"
sed '4000s/.*/ 300/' "$out/ids" | token_file 1 2 8000 256 >"$out/broken"
if "$hptrain" "${qwen3[@]}" --steps 300 --batch 64 --data "$out/broken" >/dev/null 2>"$out/said"; then
    fail "an id of 300: expected a failure"
fi
grep -q "expected ids below 256, the model's vocab_size; in $out/broken token 3999 is 300" "$out/said" ||
    fail "an id of 300: $(cat "$out/said")"
if "$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 3000 --batch 8 --data "$out/broken" >/dev/null 2>"$out/said"; then
    fail "an id of 300: expected a failure of two ranks"
fi
[ "$(grep -c '^hptrain: ' "$out/said")" -eq 1 ] || fail "an id of 300, two ranks: expected one sentence, given $(cat "$out/said")"
grep -q 'token 3999 is 300' "$out/said" || fail "an id of 300, two ranks: $(cat "$out/said")"
sed '7201s/.*/ 300/' "$out/ids" | token_file 1 2 8000 256 >"$out/broken"
broken 'token 7200 is 300' # held out: before the first step

echo "== a file that is cut short while it is read is an error, not a crash"
cp "$out/two" "$out/cut"
"$hptrain" "${qwen3[@]}" --steps 100000000 --data "$out/cut" >"$out/lines" 2>"$out/said" &
wait_for '"event": "step"' "$out/lines"
: >"$out/cut"
status=0
wait $! || status=$?
[ "$status" -eq 1 ] || fail "a file cut short: expected exit status 1, given $status: $(cat "$out/said")"
grep -q "of --data $out/cut: it became shorter" "$out/said" || fail "a file cut short: $(cat "$out/said")"

echo "== tools/make_tokens.py writes such a file"
if command -v python3 >/dev/null; then
    tools/make_tokens.py bytes "$out/text" "$out/made" >/dev/null
    cmp "$out/made" "$out/two" || fail "make_tokens.py: expected the same file"
    [ "$(tools/make_tokens.py bytes --decode 65 110 '100')" = And ] || fail "--decode: expected And"
else
    echo "   not tried: there is no python3"
fi
