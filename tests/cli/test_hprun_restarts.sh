#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hprun --max-restarts: a job whose rank dies starts again and is told so; one that was told to end
# does not, nor one whose command line is wrong.
set -euo pipefail
build=$1
hprun=$build/bin/hprun
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hprun_restarts: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

expect() { # STATUS LINES ARGUMENT...: hprun ends with STATUS and says so many lines with "restart"
    local status=0 expected=$1 lines=$2
    shift 2
    rm -f "$out"/try.*
    "$hprun" "$@" >"$out/said" 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || fail "$*: expected exit status $expected, given $status"
    [ "$(grep -c 'restart' "$out/said")" -eq "$lines" ] || fail "$*: expected $lines lines about restarts"
}
n_tries() { find "$out" -name 'try.*' | wc -l; }
export out

echo "== a rank that is killed, one that fails before it has joined: again, until it works"
# shellcheck disable=SC2016 # expanded by the ranks
expect 0 2 -n 2 --max-restarts 3 bash -c 'touch "$out/try.$TORCHELASTIC_RESTART_COUNT.$TORCHELASTIC_MAX_RESTARTS"
    [ "$RANK" = 0 ] || [ "$TORCHELASTIC_RESTART_COUNT" = 2 ] || kill -KILL $$'
[ "$(cd "$out" && echo try.*)" = "try.0.3 try.1.3 try.2.3" ] || fail "expected three tries, given $(ls "$out")"
grep -q '^hprun: rank 1 (pid [0-9]*) was killed by SIGKILL$' "$out/said" || fail "expected the reason"
grep -q '^hprun: restart 2 of 3' "$out/said" || fail "expected the number of the restart"

echo "== no more often than it says; the status is that of the last try"
# shellcheck disable=SC2016
expect 6 2 -n 2 --max-restarts 1 bash -c 'exit $((5 + TORCHELASTIC_RESTART_COUNT))'
grep -q '^hprun: it has failed after each of 1 restart: no more$' "$out/said" || fail "expected that there are no more"

echo "== without the option, and where a restart cannot help, there is none"
expect 3 0 -n 2 bash -c 'exit 3'
expect 2 0 -n 2 --max-restarts 3 bash -c 'exit 2'
expect 127 0 -n 2 --max-restarts 3 no-such-program
expect 64 1 -n 2 --max-restarts -1 true
grep -qF 'expected --max-restarts to be a number from 0 to 1000000, given "-1"' "$out/said" || fail "expected why"

echo "== SIGTERM, SIGINT and SIGHUP end it, in a try and in the pause before one"
told() { # SIGNAL STATUS AFTER-TRIES COMMAND: after so many tries have begun
    local status=0 launcher
    rm -f "$out"/try.*
    # shellcheck disable=SC2016 # expanded by the ranks
    # what a script puts into the background ignores SIGINT, and so would its ranks
    env --default-signal=INT "$hprun" -n 2 --max-restarts 9 bash -c 'touch "$out/try.$TORCHELASTIC_RESTART_COUNT"; '"$4" >"$out/said" 2>&1 &
    launcher=$!
    until [ "$(n_tries)" -ge "$3" ]; do sleep 0.02; done
    sleep 0.05
    kill "-$1" $launcher
    wait $launcher || status=$?
    [ "$status" -eq "$2" ] || fail "SIG$1: expected status $2, given $status"
    [ "$(n_tries)" -le $(($3 + 1)) ] || fail "SIG$1: expected no more tries, given $(ls "$out")"
}
told TERM 143 1 'exec sleep 60'
told INT 130 1 'exec sleep 60'
told HUP 129 1 'exec sleep 60'
told TERM 5 3 'exit 5'
told INT 5 3 'exit 5'

echo "== a second try is no child of the first: what a rank has started is gone"
# shellcheck disable=SC2016
expect 0 1 -n 1 --max-restarts 1 bash -c 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then sleep 600 & echo $! >"$out/left"; exit 4; fi
    ! grep -qs "^State:[[:space:]]*[RSDT]" "/proc/$(cat "$out/left")/status"'
