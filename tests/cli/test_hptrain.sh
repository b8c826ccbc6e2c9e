#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain on a small model: what it writes, that meshes agree bit for bit, that a resumed run goes
# on bit for bit, that a signal ends it in order, and that each wrong command line is refused with
# what was expected and given, before anything is written.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

small=("${mlp[@]}" "${run[@]}")

echo "== --help names every option of the table"
"$hptrain" --help >"$out/help"
while read -r name; do
    grep -qE -- "--$name( |=|$)" "$out/help" || fail "--help: expected --$name, found none"
done < <(sed -n 's/^X([a-z_0-9]*, [A-Z]*, "\([a-z0-9-]*\)".*/\1/p' programs/hptrain/options.def)
"$hptrain" --version | grep -qE '^hptrain [0-9]+\.[0-9]+\.[0-9]+$' || fail "--version: no version"

echo "== one rank: log, curve, trace, checkpoint, and the loss falls"
"$hptrain" "${small[@]}" --steps 40 --log "$out/one/run.jsonl" --curve "$out/one/loss.svg" \
    --trace "$out/one/trace" --save "$out/one/checkpoint" --lr 3e-3 --warmup 0 --output text >"$out/one.txt"
jq -es 'map(select(.event == "step")) | length == 40 and (map(.step) == [range(1; 41)]) and .[39].loss < .[0].loss - 1
    and .[0].loss < 6 and all(.[]; .step_ms > 0 and .tokens_per_s > 0 and .peak_bytes > 0
    and .exposed_ms.unshard >= 0 and .exposed_ms.reduce >= 0 and .exposed_ms.replicate >= 0)
    and .[39].held_out_loss < 5' "$out/one/run.jsonl" >/dev/null ||
    fail "log: unexpected, $(tail -n 1 "$out/one/run.jsonl")"
grep -qE '"loss": [0-9]\.[0-9]{14,}' "$out/one/run.jsonl" || fail "log: fewer than 17 digits"
[ "$(tail -n 1 "$out/one/loss.svg")" = "</svg>" ] || fail "--curve: no whole picture"
tools/check_trace.sh "$out/one/trace/trace-0.json"
grep -q '^held-out loss' "$out/one.txt" || fail "expected the held-out loss at the end"

echo "== meshes agree bit for bit, and so does one rank with the same global batch"
for mesh in 1x4 2x2 4x1; do
    "$hprun" -n 4 "$hptrain" "${small[@]}" --batch 2 --mesh $mesh --steps 8 \
        --log "$out/$mesh.jsonl" >/dev/null
done
"$hptrain" "${small[@]}" --batch 8 --steps 8 --log "$out/1x1.jsonl" >/dev/null
same "1x4 and 2x2" "$out/1x4.jsonl" "$out/2x2.jsonl"
same "1x4 and 4x1" "$out/1x4.jsonl" "$out/4x1.jsonl"
same "1x4 and one rank" "$out/1x4.jsonl" "$out/1x1.jsonl"

echo "== executors and schedules agree bit for bit"
"$hprun" -n 2 "$hptrain" "${small[@]}" --lr-decay none --steps 6 --log "$out/overlap.jsonl" >/dev/null
"$hprun" -n 2 "$hptrain" "${small[@]}" --lr-decay none --steps 6 --executor inline --log "$out/inline.jsonl" >/dev/null
"$hprun" -n 2 "$hptrain" "${small[@]}" --lr-decay none --steps 6 --schedule serial --log "$out/serial.jsonl" >/dev/null
same "thread and inline" "$out/overlap.jsonl" "$out/inline.jsonl"
same "overlap and serial" "$out/overlap.jsonl" "$out/serial.jsonl"

echo "== a resumed run goes on bit for bit, on another mesh too"
"$hprun" -n 2 "$hptrain" "${small[@]}" --lr-decay none --steps 3 --save "$out/half" --log "$out/half.jsonl" >/dev/null
"$hprun" -n 2 "$hptrain" "${small[@]}" --lr-decay none --steps 6 --mesh 2x1 --resume "$out/half" \
    --log "$out/half.jsonl" >/dev/null
same "resumed and not" "$out/overlap.jsonl" "$out/half.jsonl"

echo "== a signal ends the run after a whole step, with a checkpoint"
"$hprun" -n 2 "$hptrain" "${small[@]}" --steps 1000000 --save "$out/stopped" --output text \
    --log "$out/stopped.jsonl" >"$out/stopped.txt" &
pid=$!
wait_for '"step": 1,' "$out/stopped.jsonl"
kill -TERM $pid
wait $pid || fail "SIGTERM: expected exit status 0, given $?; $(tail -n 3 "$out/stopped.txt")"
grep -q '^stopped by a signal after step' "$out/stopped.txt" || fail "SIGTERM: it does not say so"
n_done=$(jq 'select(.event == "end").step' "$out/stopped.jsonl")
"$hprun" -n 2 "$hptrain" "${small[@]}" --steps $((n_done + 1)) --resume "$out/stopped" \
    --log "$out/after.jsonl" >/dev/null
[ "$(jq 'select(.event == "step").step' "$out/after.jsonl")" = $((n_done + 1)) ] || fail "SIGTERM: the checkpoint is not of step $n_done"

echo "== a run that diverges fails, and keeps the last checkpoint"
"$hptrain" "${small[@]}" --steps 3 --save "$out/diverge" >/dev/null
before=$(cat "$out/diverge/latest")
if "$hprun" -n 2 "$hptrain" "${small[@]}" --batch 2 --resume "$out/diverge" --save "$out/diverge" --steps 60 \
    --lr 1e6 --clip 0 >"$out/diverge.txt" 2>&1; then
    fail "diverging: expected a failure, given success"
fi
[ "$(grep -c "expected a finite loss" "$out/diverge.txt")" -eq 1 ] || fail "diverging: $(cat "$out/diverge.txt")"
[ "$(cat "$out/diverge/latest")" = "$before" ] || fail "diverging: expected the old checkpoint"
# The loss of the third step and all weights before it are finite, its gradient is not.
if "$hptrain" "${sizes[@]}" "${run[@]}" --optimizer sgd --lr 1e6 --clip 0 --warmup 0 --steps 3 \
    --save "$out/diverge.3" >/dev/null 2>"$out/said"; then
    fail "diverging in 3 steps: expected a failure, given success"
fi
[ "$(grep -c "expected a finite .*, step 3 gave .*: the run has diverged" "$out/said")" -eq 1 ] || fail "diverging: $(cat "$out/said")"
[ ! -e "$out/diverge.3/latest" ] || fail "diverging in 3 steps: expected no checkpoint"
"$hptrain" "${small[@]}" --steps 2 --clip 0 | jq -es 'map(select(.event == "step")) | all(.[]; .grad_norm > 0)' >/dev/null ||
    fail "--clip 0: expected the norm all the same"

echo "== a log that cannot be written ends the run on all ranks, after the checkpoint that was due"
"$hprun" -n 2 "$hptrain" "${small[@]}" --steps 1 --save "$out/full" >/dev/null
limit=262144 # KB: a segment and its heap, room for a few steps of the log, whose begin is a hole
truncate -s $((limit * 1024 - 2001)) "$out/full.jsonl"
echo >>"$out/full.jsonl"
status=0
(
    trap '' XFSZ
    ulimit -f $limit
    exec "$hprun" -n 2 "$hptrain" "${small[@]}" --resume "$out/full" --save "$out/full" --steps 1000 --save-every 1 \
        --log "$out/full.jsonl" >/dev/null 2>"$out/said"
) || status=$?
[ $status -eq 1 ] || fail "a full log: expected status 1, given $status: $(cat "$out/said")"
[ "$(grep -c '^hptrain: ' "$out/said")" -eq 1 ] || fail "a full log: expected one sentence, given $(cat "$out/said")"
grep -q "hptrain: rank 0: could not write $out/full.jsonl: " "$out/said" || fail "a full log: $(cat "$out/said")"
tail -c +$((limit * 1024 - 1999)) "$out/full.jsonl" >"$out/logged"
n_done=$(grep -c '"event": "step".*}$' "$out/logged")
[ "$n_done" -ge 1 ] || fail "a full log: expected a step before, given $(cat "$out/logged")"
[ "$(cat "$out/full/latest")" = "step-$(printf %08d $((n_done + 2)))" ] ||
    fail "a full log: expected the checkpoint of step $((n_done + 2)), given $(cat "$out/full/latest")"

echo "== what to do next keeps the rate that the run ended with"
"$hptrain" "${small[@]}" --steps 4 --warmup 2 --lr 1e-3 --save "$out/next" --output text |
    grep '^  hptrain --model bytes-mlp ' >"$out/said" || fail "try next: expected a command"
grep -qF -- "--save $out/next --resume $out/next --output text --steps 8 --warmup 0 --lr-decay none --lr 2e-05" "$out/said" ||
    fail "try next: expected the lowest rate, given $(cat "$out/said")"
eval "\"\$(dirname '$hptrain')\"/$(sed 's/^  //' "$out/said")" | grep -q '^step 8/8' || fail "try next: expected that the command runs"

echo "== wrong command lines"
# of every row of the table that does not take any text
n=0
while IFS='|' read -r kind name; do
    case $kind in
    COUNT) given=nonsense expected="expected --$name to be a whole number from " ;;
    REAL) given=-1 expected="expected --$name to be a number from " ;;
    CHOICE | MODE | SCHEDULE) given=nonsense expected="expected --$name to be " ;;
    *) continue ;;
    esac
    status=0
    "$hptrain" "--$name=$given" >"$out/said" 2>&1 || status=$?
    [ $status -eq 2 ] || fail "--$name=$given: expected status 2, given $status"
    grep -F -- "$expected" "$out/said" | grep -qF -- "given \"$given\"" ||
        fail "--$name=$given: expected \"$expected\", given $(cat "$out/said")"
    n=$((n + 1))
done < <(sed -n 's/^X([a-z_0-9]*, \([A-Z]*\), "\([a-z0-9-]*\)".*/\1|\2/p' programs/hptrain/options.def)
[ $n -gt 40 ] || fail "expected more than 40 options with values of their own, found $n"
refused 2 'expected --steps to be a whole number from 0 to 1000000000, given "ten"' --steps ten
refused 2 'expected --prefetch to be a whole number from 0 to 16, given "17"' --prefetch 17
refused 2 'expected --lr to be a number from 0 to 1e+06, given "nan"' --lr nan
refused 2 'expected --optimizer to be adamw|sgd, given "adam"' --optimizer adam
refused 2 'expected --model to be qwen3, bytes-mlp or a directory with config.json, given no/such: ' --model no/such
refused 2 'expected no --width with --model qwen3' --width 8
refused 2 'expected no --sample with --model bytes-mlp' --model bytes-mlp --sample And
refused 2 'expected no --layers with --model bytes-mlp' --model bytes-mlp --layers 2
refused 2 'expected --save DIR with --export hf, given none' --export hf
refused 2 'expected --lr-min to be at most --lr 0.001, given 0.01' --lr 1e-3 --lr-min 1e-2
refused 2 'expected --lr-min to be at most --lr 0.006, given 0.01' --lr-min 1e-2
refused 2 'expected --param-dtype to be fp32|bf16, given "fp16"' --param-dtype fp16
refused 2 'expected --accumulate to be a whole number from 1 to 65536, given "0"' --accumulate 0
refused 2 'expected --mesh to be RxS, replicas x shards, like 2x4 or -1x4, given "2by1"' --mesh 2by1
refused 2 'expected --mesh RxS with R x S = 2, the number of ranks, given 2x4 = 8' --mesh 2x4
refused 2 'unknown option --no-such-option; see hptrain --help' --no-such-option
refused 2 'unknown option --stpes (did you mean --steps?)' --stpes 3
refused 2 'unknown option --no-such-option; see hptrain --help' --no-such-option --steps 3
refused 2 'unknown option -lr (did you mean --lr?)' --quiet -lr 3
refused 2 'expected --steps N, given no value' --steps
refused 2 'expected --quiet without a value, given "--quiet=2"' --quiet=2
refused 2 'expected --seed to be a whole number from 0 to 9223372036854775807, given "9223372036854775808"' --seed 9223372036854775808
refused 2 'expected options alone (see --help), given "text"' text
refused 1 'expected --data to be a file that can be read, given /nowhere/at/all: ' --data /nowhere/at/all
refused 1 'expected --data to be a regular file, given /' --data /
mkfifo "$out/fifo" # nobody is at its other end
refused 1 "expected --data to be a regular file, given $out/fifo" --data "$out/fifo"
refused 1 "expected --log to be a file, given $out/fifo, a FIFO that nobody reads" "${small[@]}" --log "$out/fifo"
printf 'In the beginning' >"$out/short"
refused 1 'expected --data to hold at least 170 bytes' --data "$out/short"
refused 1 'expected --save at a place that can be written, given /proc/nowhere: ' --save /proc/nowhere
refused 1 'expected --curve at a place that can be written, given /proc/nowhere/' --curve /proc/nowhere/x.svg
mkdir -p "$out/places"
touch "$out/places/hf"
refused 1 "expected --curve to be a file, given $out/places, a directory" --curve "$out/places"
refused 1 "expected --log to be a file, given $out/places, a directory" --log "$out/places"
refused 1 "expected a directory at $out/places/hf, for --export, given a file" --save "$out/places" --export hf
