#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What hptrain says and to whom: JSON lines and nothing else in a pipe, text on a terminal (script(1)
# makes one); and how it ends when it is asked to, once and twice, by itself and under hprun. Ranks
# that were started by hand with different options are told which.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

# Run a command on a terminal: what it shows is what script shows, its status is script's.
on_terminal() {
    script -qec "$(printf '%q ' "$@")" /dev/null
}

echo "== in a pipe: JSON lines alone, the same in --log"
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --eval-every 2 --steps 4 --save "$out/saved" --sample $'In "the"\n' \
    --log "$out/log.jsonl" >"$out/lines" 2>"$out/said"
[ ! -s "$out/said" ] || fail "expected nothing on standard error, given $(cat "$out/said")"
jq -es --arg saved "$out/saved" 'map(.event) == ["begin", "held_out", "step", "step", "step", "step", "sample", "end"] and
    .[0].n_ranks == 2 and .[0].steps == 4 and .[0].n_parameters > 0 and .[1].step == 0 and
    (map(select(.event == "step") | has("held_out_loss")) == [false, true, false, true]) and
    .[6].prompt == "In \"the\"\n" and .[7].checkpoint == $saved and .[7].is_stopped == false and
    .[7].held_out_loss_after == .[5].held_out_loss' "$out/lines" >/dev/null || fail "JSON lines: $(cat "$out/lines")"
cmp "$out/lines" "$out/log.jsonl" || fail "--log: expected the lines of standard output"

echo "== --quiet: the sample alone"
"$hptrain" "${qwen3[@]}" --steps 1 --quiet --sample In >"$out/lines"
jq -es 'map(.event) == ["sample"]' "$out/lines" >/dev/null || fail "--quiet: $(cat "$out/lines")"
"$hptrain" "${qwen3[@]}" --steps 1 --quiet --output text >"$out/lines"
[ ! -s "$out/lines" ] || fail "--quiet: expected nothing, given $(cat "$out/lines")"

echo "== on a terminal: one live line, the curve, no JSON"
on_terminal "$hptrain" "${qwen3[@]}" --steps 50 >"$out/shown" </dev/null
grep -q $'\rstep 50/50' "$out/shown" || fail "expected a live line, given $(cat "$out/shown")"
[ "$(grep -c 'step [0-9]*/50' "$out/shown")" -eq 1 ] || fail "expected one live line, given $(cat "$out/shown")"
grep -q 'held-out loss .* nats per byte' "$out/shown" || fail "expected the held-out loss"
! grep -q '"event"' "$out/shown" || fail "expected no JSON on a terminal"

echo "== JSON into a file, text on the terminal"
on_terminal sh -c 'exec "$@" >'"$out/lines" sh "$hptrain" "${qwen3[@]}" --steps 5 >"$out/shown" </dev/null
jq -es 'length == 8' "$out/lines" >/dev/null || fail "expected the lines in the file, given $(cat "$out/lines")"
grep -q 'step 5/5' "$out/shown" || fail "expected the text on the terminal, given $(cat "$out/shown")"

# Long enough that nobody waits for its end.
endless=("${qwen3[@]}" --steps 1000000 --warmup 0 --lr 1e-4)

echo "== asked once, alone and under hprun: a checkpoint, status 0"
# shellcheck disable=SC2034 # read by name
alone=("$hptrain" "${endless[@]}")
ranks=("$hprun" -n 2 "$hptrain" "${endless[@]}")
for who in alone ranks; do
    declare -n command=$who
    "${command[@]}" --save "$out/$who" >"$out/lines" &
    pid=$!
    wait_for '"step": 1,' "$out/lines"
    kill -TERM $pid
    wait $pid || fail "$who, SIGTERM: expected status 0, given $?"
    jq -es 'last | .event == "end" and .is_stopped' "$out/lines" >/dev/null || fail "$who: expected to be stopped"
    [ -s "$out/$who/latest" ] || fail "$who: expected a checkpoint"
done

# A step that lasts for minutes: only a second signal ends it before.
long=(--accumulate 65536)

echo "== asked twice, alone and under hprun: it ends within the step, with the signal's status"
for who in alone ranks; do
    declare -n command=$who
    "${command[@]}" "${long[@]}" --save "$out/$who.twice" >"$out/lines" 2>"$out/said" &
    pid=$!
    wait_for '"event": "held_out"' "$out/lines"
    kill -INT $pid
    sleep 0.5
    kill -INT $pid 2>/dev/null || fail "$who, SIGINT: expected it to end its step"
    status=0
    wait $pid || status=$?
    [ $status -eq 130 ] || fail "$who, SIGINT twice: expected status 130, given $status: $(cat "$out/said")"
    [ ! -e "$out/$who.twice/latest" ] || fail "$who, SIGINT twice: expected no checkpoint"
done

echo "== Ctrl-C on a terminal does the same, under hprun"
: >"$out/lines"
{
    wait_for '"step": 1,' "$out/lines"
    printf '\003'
    wait_for '"event": "end"' "$out/lines"
} | on_terminal "${ranks[@]}" --save "$out/key" --log "$out/lines" >"$out/shown" ||
    fail "Ctrl-C: expected status 0, given $(cat "$out/shown")"
[ -s "$out/key/latest" ] || fail "Ctrl-C: expected a checkpoint"
: >"$out/lines"
status=0
{
    wait_for '"event": "held_out"' "$out/lines"
    printf '\003'
    sleep 0.5
    printf '\003'
    sleep 0.5
} | on_terminal "${ranks[@]}" "${long[@]}" --log "$out/lines" >"$out/shown" || status=$?
[ $status -eq 130 ] || fail "Ctrl-C twice: expected status 130, given $status: $(cat "$out/shown")"

echo "== ranks that were started by hand with different options are told which"
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000))
RANK=1 LOCAL_RANK=1 "$hptrain" "${qwen3[@]}" --steps 2 --lr 1e-3 >"$out/said.1" 2>&1 &
pid=$!
status=0
RANK=0 LOCAL_RANK=0 "$hptrain" "${qwen3[@]}" --steps 2 --lr 2e-3 >"$out/said.0" 2>&1 || status=$?
[ $status -eq 2 ] || fail "--lr differs: expected status 2, given $status: $(cat "$out/said.0")"
! wait $pid || fail "--lr differs: expected rank 1 to fail too"
[ "$(cat "$out/said.0" "$out/said.1")" = \
    "hptrain: rank 0: expected the same options on every rank, --lr differs between them" ] ||
    fail "--lr differs: $(cat "$out/said.0" "$out/said.1")"
