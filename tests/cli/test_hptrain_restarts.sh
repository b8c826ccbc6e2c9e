#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hptrain under hprun --max-restarts: after a kill it goes on from the newest checkpoint in --save,
# with the losses of a run that nobody killed, and what is lost is the steps since that checkpoint.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

steps=30
short=("${qwen3[@]}" --steps "$steps")
"$hprun" -n 2 "$hptrain" "${short[@]}" --log "$out/whole.jsonl" >/dev/null

# Kills itself, being rank 1, when the log has the step of this try: AT has one for each.
cat >"$out/mortal" <<'END'
#!/bin/bash
read -ra at <<<"$AT"
step=${at[$TORCHELASTIC_RESTART_COUNT]:-}
if [ "$RANK" = 1 ] && [ -n "$step" ]; then
    me=$$
    (until grep -q "\"event\": \"$step\|\"step\": $step," "$LOG" 2>/dev/null; do sleep 0.005; done; kill -KILL $me) &
fi
exec "$@"
END
chmod +x "$out/mortal"

run() { # NAME AT ARGUMENT...: killed as AT says, again and again, until it is done
    export LOG=$out/$1.jsonl AT=$2
    local name=$1
    shift 2
    "$hprun" -n 2 --max-restarts 5 "$out/mortal" "$hptrain" "${short[@]}" --save "$out/$name" --log "$LOG" "$@" \
        >/dev/null 2>"$out/said" || fail "$name: expected success, given $(cat "$out/said")"
}

# Each step that any try made has the loss of the run that was not killed; all were made.
check_losses() { # NAME
    jq -s 'map(select(.event == "step") | {(.step | tostring): .loss}) | unique | length' "$out/$1.jsonl" >"$out/n"
    [ "$(cat "$out/n")" -eq $steps ] || fail "$1: expected one loss for each of $steps steps, given $(cat "$out/n")"
    cmp <(grep -o '"step": [0-9]*, "loss": [^,]*' "$out/whole.jsonl") \
        <(grep -o '"step": [0-9]*, "loss": [^,]*' "$out/$1.jsonl" | sort -t : -k 2n -u) ||
        fail "$1: expected the losses of the whole run"
}

echo "== two kills cost the steps since the last checkpoint, and nothing else"
run twice "11 23" --save-every 5
check_losses twice
jq -es 'map(select(.event == "begin")) | length == 3 and map(.restart) == [0, 1, 2] and
    map(.weights) == ["first", "checkpoint", "checkpoint"] and all(.[]; .first_step % 5 == 0)' "$out/twice.jsonl" >/dev/null ||
    fail "twice: expected three beginnings, given $(grep begin "$out/twice.jsonl" | cut -c 1-600)"
# Of a try that ended at step s, the next begins at most 5 before: the checkpoint of s may not be there yet.
jq -es '[foreach .[] as $e ({last: 0, lost: null};
        if $e.event == "begin" then .lost = .last - $e.first_step
        elif $e.event == "step" then .last = $e.step | .lost = null else .lost = null end; .lost) | select(. != null)]
    | length == 3 and .[0] == 0 and all(.[]; . <= 5)' "$out/twice.jsonl" >/dev/null ||
    fail "twice: expected at most 5 steps lost each time, given $(grep -o '"first_step": [0-9]*\|"step": [0-9]*' "$out/twice.jsonl" | tr '\n' ' ')"

echo "== what a kill has left of a line goes, however long it is, and all else of the log stays"
for half in '' '{"event": "st' "$(printf 'x%.0s' {1..5000})"; do
    printf '{"event": "kept"}\n%s' "$half" >"$out/half.jsonl"
    TORCHELASTIC_RESTART_COUNT=1 "$hptrain" "${qwen3[@]}" --steps 1 --log "$out/half.jsonl" >/dev/null
    jq -es '.[0].event == "kept" and .[1].event == "begin" and .[-1].event == "end"' "$out/half.jsonl" >/dev/null ||
        fail "half a line: $(cut -c 1-300 "$out/half.jsonl")"
done
printf 'x' >"$out/half.jsonl"
TORCHELASTIC_RESTART_COUNT=1 "$hptrain" "${qwen3[@]}" --steps 1 --log "$out/half.jsonl" >/dev/null
jq -es '.[0].event == "begin"' "$out/half.jsonl" >/dev/null || fail "nothing but half a line: $(cut -c 1-300 "$out/half.jsonl")"

echo "== before the first checkpoint it begins afresh, and the log goes on"
# Slowed down: else 17 steps may be over before the shell has seen the third.
HYPER_PARALLEL_DELAY="kind=*,rank=0,us=4000,seed=1" run early "held_out 3" --save-every 20
check_losses early
jq -es 'map(select(.event == "begin")) | map([.restart, .first_step, .weights]) == [[0, 0, "first"], [1, 0, "first"], [2, 0, "first"]]' \
    "$out/early.jsonl" >/dev/null || fail "early: $(grep begin "$out/early.jsonl" | cut -c 1-600)"

echo "== a run that was resumed by hand goes on from what it has saved since"
cp -r "$out/twice" "$out/base"
rm -r "$out/base/step-000000$steps"
echo "step-00000025" >"$out/base/latest"
run by_hand 28 --save-every 2 --resume "$out/base"
jq -es 'map(select(.event == "begin").first_step) | .[0] == 25 and .[1] >= 26' "$out/by_hand.jsonl" >/dev/null ||
    fail "by hand: expected to go on behind step 25, given $(grep -o '"first_step": [0-9]*' "$out/by_hand.jsonl")"
cmp <(losses "$out/whole.jsonl" | tail -n 1) <(losses "$out/by_hand.jsonl" | tail -n 1) || fail "by hand: expected the last loss of the whole run"

echo "== what ends a run for good is no reason to start it again"
"$hprun" -n 2 --max-restarts 3 "$hptrain" "${qwen3[@]}" --steps 1000000 --save "$out/told" --log "$out/told.jsonl" >/dev/null 2>"$out/said" &
pid=$!
wait_for '"step": 1,' "$out/told.jsonl"
kill -TERM $pid
wait $pid || fail "SIGTERM: expected status 0, given $?"
[ "$(grep -c '"event": "begin"' "$out/told.jsonl")" -eq 1 ] || fail "SIGTERM: expected no restart"
status=0
"$hprun" -n 2 --max-restarts 3 "$hptrain" "${short[@]}" --save "$out/told" >/dev/null 2>"$out/said" || status=$?
[ $status -eq 2 ] || fail "checkpoints of another run: expected status 2, given $status"
[ "$(wc -l <"$out/said")" -eq 1 ] || fail "checkpoints of another run: expected one line, given $(cat "$out/said")"

echo "== a launcher that starts what was refused again: not from another run's checkpoints"
status=0
TORCHELASTIC_RESTART_COUNT=1 "$hptrain" "${short[@]}" --seed 2 --save "$out/twice" >/dev/null 2>"$out/said" || status=$?
[ $status -eq 2 ] || fail "another run: expected status 2, given $status"
grep -qF "expected --save $out/twice to hold checkpoints of this run, started again, it has those of another: " "$out/said" ||
    fail "another run: $(cat "$out/said")"
grep -qF 'seed 1 -> 2' "$out/said" || fail "another run: expected what differs, given $(cat "$out/said")"

echo "== with --mesh -1xS it may start again with fewer ranks: a step has the tokens that it had"
"$hprun" -n 2 "$hptrain" "${short[@]}" --mesh 2x1 --log "$out/two.jsonl" >/dev/null
"$hprun" -n 2 "$hptrain" "${short[@]}" --mesh -1x1 --save "$out/fewer" --save-every 10 --log "$out/fewer.jsonl" >/dev/null
same "-1x1" "$out/two.jsonl" "$out/fewer.jsonl"
rm -r "$out/fewer/step-00000030"
echo "step-00000020" >"$out/fewer/latest"
TORCHELASTIC_RESTART_COUNT=1 "$hptrain" "${short[@]}" --mesh -1x1 --save "$out/fewer" --log "$out/one.jsonl" >/dev/null
jq -es 'map(select(.event == "begin")) | .[0].first_step == 20 and .[0].tokens_per_step == 128 and .[0].options.accumulate == 2' \
    "$out/one.jsonl" >/dev/null || fail "-1x1: $(grep begin "$out/one.jsonl" | cut -c 1-600)"
# the same samples, added up in another order
jq -es --slurpfile two "$out/two.jsonl" 'map(select(.event == "step")) | length == 10 and
    all(.[]; . as $one | $two[] | select(.event == "step" and .step == $one.step) | (.loss - $one.loss | fabs) < 1e-4)' \
    "$out/one.jsonl" >/dev/null || fail "-1x1: expected the losses of two ranks, given $(losses "$out/one.jsonl")"
status=0
TORCHELASTIC_RESTART_COUNT=1 "$hptrain" "${short[@]}" --seed 2 --mesh -1x1 --save "$out/fewer" >/dev/null 2>"$out/said" || status=$?
[ $status -eq 2 ] || fail "-1x1 of another run: expected status 2, given $status"
