#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hprun: what it tells the ranks, what it says when a job ends badly, and that it can always be ended.
set -euo pipefail
build=$1
hprun=$build/bin/hprun
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hprun: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

expect() { # STATUS TEXT ARGUMENT...: hprun ends with STATUS and says TEXT
    local status=0 expected=$1 text=$2
    shift 2
    "$hprun" "$@" >"$out/said" 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || fail "$*: expected exit status $expected, given $status"
    grep -qF -- "$text" "$out/said" || fail "$*: expected \"$text\""
}

echo "== what a rank is told"
# shellcheck disable=SC2016 # expanded by the ranks
"$hprun" -n 3 bash -c 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:${MASTER_PORT:?}"' |
    sort | cut -d: -f1 >"$out/told"
printf '%s\n' '0/3 0/3 127.0.0.1' '1/3 1/3 127.0.0.1' '2/3 2/3 127.0.0.1' | cmp - "$out/told" ||
    fail "expected the names of torchrun, given $(cat "$out/told")"

echo "== wrong command lines"
expect 64 'expected a program to start' -n 2
expect 64 'expected -n to be a number from 1 to 1024, given "0"' -n 0 true
expect 127 'no-such-program' -n 2 no-such-program

echo "== how a job ended"
"$hprun" -n 4 true || fail "expected status 0 where every rank has it"
expect 3 'so did 3 other ranks' -n 4 bash -c 'exit 3'
expect 2 'by the program' -n 4 bash -c 'echo by the program; exit 2'
! grep -q hprun "$out/said" || fail "expected nothing to be added to what ranks say of their command line"
# shellcheck disable=SC2016
expect 2 'rank 1 (pid' -n 2 bash -c '[ "$RANK" = 0 ] && exec sleep 60; exit 2'
# shellcheck disable=SC2016
expect 137 'rank 1 (pid' -n 2 bash -c '[ "$RANK" = 0 ] && exec sleep 60; kill -KILL $$'
grep -q 'was killed by SIGKILL' "$out/said" || fail "expected how rank 1 ended"
expect 124 'deadline' -n 2 --deadline 0.2 sleep 60

echo "== what is printed goes into no file or memory where standard output is closed"
train() { # NAME LAUNCHER...: its losses, as they are written
    local name=$1
    shift
    "$@" "$build/bin/hptrain" --model bytes-mlp --width 24 --hidden 40 --blocks 2 --window 8 --batch 4 \
        --steps 20 --eval-every 4 --eval-samples 16 --log "$out/$name.jsonl" --save "$out/$name"
    grep -oE '"(loss|held_out_loss)": [^,}]*' "$out/$name.jsonl" >"$out/$name.losses"
    [ -s "$out/$name.losses" ] || fail "expected losses in the log"
}
same() { # NAME NAME
    cmp "$out/$1.losses" "$out/$2.losses" || fail "$2: expected the losses of $1"
}
train open "$hprun" -n 2 >/dev/null
train closed "$hprun" -n 2 >&-
same open closed
train all_closed "$hprun" -n 2 <&- >&- 2>&-
same open all_closed
train alone env >/dev/null
train alone_closed env <&- >&- 2>&-
same alone alone_closed

echo "== to be asked twice in a row, as timeout does, is to be asked once"
# shellcheck disable=SC2016
"$hprun" -n 2 --grace 0 bash -c 'trap "" INT TERM; touch '"$out"'/twice.$RANK; sleep 1' >"$out/said" 2>&1 &
launcher=$!
until [ -e "$out/twice.0" ] && [ -e "$out/twice.1" ]; do sleep 0.05; done
kill -STOP $launcher # so that it finds both at once
kill -TERM $launcher
kill -INT $launcher
kill -CONT $launcher
wait $launcher || fail "asked twice in a row: expected status 0, given $?: $(cat "$out/said")"

echo "== a second SIGTERM ends ranks that do not listen"
# shellcheck disable=SC2016
"$hprun" -n 2 bash -c 'trap "" TERM; touch '"$out"'/ready.$RANK; while :; do sleep 0.1; done' >"$out/said" 2>&1 &
launcher=$!
until [ -e "$out/ready.0" ] && [ -e "$out/ready.1" ]; do sleep 0.05; done
kill -TERM $launcher
sleep 0.5
kill -0 $launcher || fail "expected it to go on after one signal that its ranks ignore"
kill -TERM $launcher
status=0
wait $launcher || status=$?
[ "$status" -eq 137 ] || fail "expected 137, given $status"

echo "== nobody outlives hprun, whoever started the rank"
"$hprun" -n 2 sh -c "'$build/bin/hptrain' --steps 1000000 --eval-every 0 --eval-samples 1 >'$out/step.'\$RANK; true" &
launcher=$!
until grep -q '"step": 1,' "$out/step.0" 2>/dev/null; do sleep 0.1; done
ranks=$(pgrep -f "^$build/bin/hptrain --steps 1000000 " | tr '\n' ' ')
kill -KILL $launcher
wait $launcher 2>/dev/null || true
for _ in $(seq 100); do
    # shellcheck disable=SC2086 # several numbers
    kill -0 $ranks 2>/dev/null || break
    sleep 0.1
done
for rank in $ranks; do
    ! kill -0 "$rank" 2>/dev/null || fail "expected rank process $rank to end with hprun"
done
