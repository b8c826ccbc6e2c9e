#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What hptrain says and to whom: JSON lines and nothing else in a pipe, text on a terminal (script(1)
# makes one); and how it ends when it is asked to, once and twice, by itself and under hprun. Ranks
# that were started by hand with different options are told which.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
. tests/cli/hptrain_common.sh

# Run a command on a terminal: what it shows is what script shows, its status is script's. exec, since
# a shell in between would get the Ctrl-C too, and some end by it; bash, since %q is its own quoting.
on_terminal() {
    SHELL=$(command -v bash) script -qec "exec $(printf '%q ' "$@")" /dev/null
}

echo "== in a pipe: JSON lines alone, the same in --log"
"$hprun" -n 2 "$hptrain" "${qwen3[@]}" --matmul plain --eval-every 2 --steps 4 --save "$out/saved" --sample $'In "the"\n' \
    --log "$out/log.jsonl" >"$out/lines" 2>"$out/said"
[ ! -s "$out/said" ] || fail "expected nothing on standard error, given $(cat "$out/said")"
jq -es --arg saved "$out/saved" 'map(.event) == ["begin", "held_out", "step", "step", "step", "step", "sample", "end"] and
    .[0].n_ranks == 2 and .[0].options.lr == 6e-3 and .[0].options.batch == 4 and .[0].options["param-dtype"] == "fp32" and
    (.[0].options | has("width") | not) and .[0].steps == 4 and .[0].n_parameters > 0 and .[1].step == 0 and
    (map(select(.event == "step") | has("held_out_loss")) == [false, true, false, true]) and
    .[6].prompt == "In \"the\"\n" and .[7].checkpoint == $saved and .[7].is_stopped == false and
    .[7].held_out_loss_after == .[5].held_out_loss' "$out/lines" >/dev/null || fail "JSON lines: $(cat "$out/lines")"
cmp "$out/lines" "$out/log.jsonl" || fail "--log: expected the lines of standard output"

echo "== a log is what a FIFO's reader gets"
mkfifo "$out/fifo"
cat "$out/fifo" >"$out/lines" &
"$hptrain" "${qwen3[@]}" --steps 2 --quiet --log "$out/fifo"
wait $!
jq -es 'length == 5 and last.event == "end"' "$out/lines" >/dev/null || fail "a FIFO: $(cat "$out/lines")"

echo "== a reader who has enough ends the run, with its checkpoint"
for how in json text; do
    "$hprun" -n 2 "$hptrain" "${qwen3[@]}" --steps 1000000 --output $how --matmul plain --save "$out/head.$how" 2>"$out/said" | head -n 1 >"$out/lines" ||
        fail "head, $how: expected status 0: $(cat "$out/said")"
    [ -s "$out/head.$how/latest" ] || fail "head, $how: expected a checkpoint"
    [ "$(cat "$out/said")" = "hptrain: nobody reads standard output: stopping after this step" ] || fail "head, $how: $(cat "$out/said")"
done

echo "== a trace takes room for the steps of the run"
"$hptrain" "${qwen3[@]}" --steps 1 --trace "$out/trace" --trace-steps 100000 >/dev/null || fail "--trace-steps: expected little room"

echo "== few steps make no curve, and no line ends in blanks"
"$hptrain" "${qwen3[@]}" --steps 19 --output text >"$out/few"
"$hptrain" "${qwen3[@]}" --steps 20 --output text >"$out/enough"
! grep -q 'the line is training' "$out/few" || fail "19 steps: expected no curve"
grep -q 'the line is training' "$out/enough" || fail "20 steps: expected a curve"
! grep -q ' $' "$out/enough" || fail "the curve: expected no blanks at the end of a line"
grep -q '^step 20/20 .*  held out [0-9.]*@20 ' "$out/enough" || fail "expected the step of the held-out loss"
grep -q '^nothing will be saved (no --save)$' "$out/few" || fail "expected to hear that nothing is saved"

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

echo "== the live line fits the terminal, the step first"
# The pieces between returns, without the codes that clear the rest of a line.
rows() { tr '\r' '\n' <"$1" | sed $'s/\033\\[K//'; }
for columns in 20 60 80 200; do
    # shellcheck disable=SC2016 # of the shell on the terminal
    on_terminal sh -c 'stty cols "$1"; shift; exec "$@"' sh $columns "$hptrain" "${qwen3[@]}" --steps 30 >"$out/shown" </dev/null
    longest=$(rows "$out/shown" | grep '^step [0-9]*/30' | awk '{ if (length > n) n = length } END { print n }')
    [ "${longest:-999}" -lt $columns ] || fail "$columns columns: expected a line that fits, given $longest"
done
rows "$out/shown" | grep -q '^step 30/30  loss .*  held out .* tokens/s  exposed .*  peak .*  ETA ' || fail "200 columns: expected the whole line"

echo "== a failure stands on a line of its own"
on_terminal "$hptrain" "${qwen3[@]}" --steps 30 --optimizer sgd --lr 1e6 --clip 0 --warmup 0 >"$out/shown" </dev/null || true
rows "$out/shown" | grep -q '^hptrain: .*the run has diverged' || fail "expected a line of its own, given $(cat "$out/shown")"

echo "== plain loops in place of oneDNN are told of, on standard error where programs read"
mkdir "$out/alone" # no plug-in lies beside or above it
cp "$hptrain" "$out/alone"
"$hprun" -n 2 "$out/alone/hptrain" "${qwen3[@]}" --steps 1 --matmul auto \
    --data data/genesis_to_deuteronomy.txt >"$out/lines" 2>"$out/said"
[ "$(grep -cE '^matrix products: plain loops, .* (is not in lib/hyperparallel|sanitizers see nothing of generated code)' "$out/said")" -eq 1 ] || fail "plain loops: $(cat "$out/said")"
"$hptrain" "${qwen3[@]}" --steps 1 --matmul plain >"$out/lines" 2>"$out/said"
[ ! -s "$out/said" ] || fail "--matmul plain: expected nothing on standard error, given $(cat "$out/said")"

# Sanitizer builds multiply with plain loops, which have no threads.
engine=$("$hptrain" "${qwen3[@]}" --steps 0 2>/dev/null | jq -ers '.[0].matmul')
echo "== threads that share cores sleep while they wait, unless the environment says otherwise ($engine)"
policy() { # of OpenMP, as it reports it when it is loaded
    OMP_DISPLAY_ENV=true "$hptrain" "${qwen3[@]}" --steps 0 --threads 512 2>&1 >/dev/null | grep -o "OMP_WAIT_POLICY = .*"
}
if [ "$engine" = onednn ]; then
    [ "$(policy)" = "OMP_WAIT_POLICY = 'PASSIVE'" ] || fail "--threads: expected threads that sleep, given $(policy)"
    [ "$(OMP_WAIT_POLICY=active policy)" = "OMP_WAIT_POLICY = 'ACTIVE'" ] || fail "--threads: expected what the environment says"
fi

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
    "${command[@]}" --save "$out/$who" >"$out/lines" 2>"$out/said" &
    pid=$!
    wait_for '"step": 1,' "$out/lines"
    kill -TERM $pid
    wait $pid || fail "$who, SIGTERM: expected status 0, given $?"
    [ "$(grep -c '^hptrain: stopping after this step (again: at once)$' "$out/said")" -eq 1 ] || fail "$who, SIGTERM: $(cat "$out/said")"
    jq -es 'last | .event == "end" and .is_stopped' "$out/lines" >/dev/null || fail "$who: expected to be stopped"
    [ -s "$out/$who/latest" ] || fail "$who: expected a checkpoint"
    jq -es 'map(select(.event == "step")) | last | has("held_out_loss") | not' "$out/lines" >/dev/null ||
        fail "$who: expected no evaluation behind the last step"
done

echo "== asked once while it evaluates or samples: not to the end of it"
for who in alone ranks; do
    declare -n command=$who
    for what in begin step; do # the first evaluation follows on the one, the sample on the other
        much=(--eval-samples 300000)
        [ $what = begin ] || much=(--steps 1 --sample In --sample-bytes 1000000)
        rm -f "$out/lines"
        "${command[@]}" "${much[@]}" --save "$out/$who.$what" >"$out/lines" &
        pid=$!
        wait_for "\"event\": \"$what\"" "$out/lines"
        kill -INT $pid
        wait $pid || fail "$who, SIGINT after $what: expected status 0, given $?"
        jq -es --arg what $what 'last.is_stopped and if $what == "begin" then map(.event) == ["begin", "end"]
            else (map(select(.event == "sample"))[0].text | length) < 1000000 end' "$out/lines" >/dev/null ||
            fail "$who, SIGINT after $what: $(cut -c 1-300 "$out/lines")"
        [ -s "$out/$who.$what/latest" ] || fail "$who, SIGINT after $what: expected a checkpoint"
    done
done

# A step that lasts for minutes: only a second signal ends it before.
long=(--accumulate 65536)

echo "== asked twice, alone and under hprun: it ends within the step, with the signal's status"
for who in alone ranks; do
    declare -n command=$who
    rm -f "$out/lines"
    "${command[@]}" "${long[@]}" --save "$out/$who.twice" >"$out/lines" 2>"$out/said" &
    pid=$!
    wait_for '"event": "held_out"' "$out/lines"
    kill -INT $pid
    sleep 0.5
    kill -INT $pid 2>/dev/null || fail "$who, SIGINT: expected it to end its step"
    status=0
    wait $pid || status=$?
    [ $status -eq 130 ] || fail "$who, SIGINT twice: expected status 130, given $status: $(cat "$out/said")"
    [ "$(grep -c '^hptrain: stopped at once; nothing more is saved$' "$out/said")" -eq 1 ] || fail "$who, SIGINT twice: $(cat "$out/said")"
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
[ "$(rows "$out/shown" | grep -c '^hptrain: stopping after this step')" -eq 1 ] || fail "Ctrl-C: expected a line that says so, given $(cat "$out/shown")"
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
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT
by_hand() { # WHAT STATUS SENTENCE: of the commands in of_rank_0 and of_rank_1
    local pid status=0
    MASTER_PORT=$((20000 + (RANDOM + $$) % 10000))
    RANK=1 LOCAL_RANK=1 env "${of_rank_1[@]}" >"$out/said.1" 2>&1 &
    pid=$!
    RANK=0 LOCAL_RANK=0 env "${of_rank_0[@]}" >"$out/said.0" 2>&1 || status=$?
    [ $status -eq "$2" ] || fail "$1 differs: expected status $2, given $status: $(cat "$out/said.0")"
    ! wait $pid || fail "$1 differs: expected rank 1 to fail too"
    [ "$(cat "$out/said.0" "$out/said.1")" = "hptrain: $3" ] || fail "$1 differs: $(cat "$out/said.0" "$out/said.1")"
}
of_rank_0=("$hptrain" "${qwen3[@]}" --steps 2 --lr 2e-3)
of_rank_1=("$hptrain" "${qwen3[@]}" --steps 2 --lr 1e-3)
by_hand --lr 2 "rank 0: expected the same options on every rank, --lr differs between them"
if [ "$engine" = onednn ]; then
    of_rank_0=("$hptrain" "${qwen3[@]}" --steps 2)
    of_rank_1=(HYPER_PARALLEL_MATMUL=plain "${of_rank_0[@]}")
    by_hand HYPER_PARALLEL_MATMUL 1 \
        "rank 1: expected the engine of matrix products as on rank 0, onednn, given plain"
fi
