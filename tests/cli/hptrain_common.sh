# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# hptrain_common.sh - what the tests of hptrain share: read by them with the build folder as $1.
#
# $out is a folder that goes with the test. A model of a few thousand numbers keeps each run short.
build=$1
hprun=$build/bin/hprun
hptrain=$build/bin/hptrain
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The two models, small; the arrays are the tests' to use.
# shellcheck disable=SC2034
mlp=(--model bytes-mlp --width 24 --hidden 40 --blocks 2 --window 8)
sizes=(--hidden-size 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 8 --intermediate-size 48)
run=(--seq 16 --batch 4 --eval-every 0 --eval-samples 16)
# shellcheck disable=SC2034
qwen3=("${sizes[@]}" "${run[@]}")

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# The digits of an event's field as they were written: jq would round them.
digits() { # FIELD FILE
    grep -o "\"$1\": [^,}]*" "$2"
}
losses() { digits loss "$1"; }

same() { # WHAT FILE FILE
    cmp <(losses "$2") <(losses "$3") || fail "$1: expected equal losses, given
$(losses "$2")
$(losses "$3")"
}

# The last held-out loss of a log.
held_out() { digits held_out_loss "$1" | tail -n 1; }

wait_for() { # TEXT FILE: at most a minute
    local i
    for i in $(seq 600); do
        ! grep -q -- "$1" "$2" 2>/dev/null || return 0
        sleep 0.1
    done
    fail "expected \"$1\" in $2, given $(cat "$2"), after $i looks"
}

refused() { # STATUS TEXT ARGUMENT...: exactly one of two ranks says TEXT, nothing is written
    local status=0 expected=$1 text=$2
    shift 2
    "$hprun" -n 2 "$hptrain" "${run[@]}" --steps 2 --log "$out/refused.jsonl" "$@" \
        >"$out/refused.out" 2>"$out/refused.txt" || status=$?
    [ "$status" -eq "$expected" ] || fail "$*: expected exit status $expected, given $status: $(cat "$out/refused.txt")"
    [ "$(grep -cF -- "$text" "$out/refused.txt")" -eq 1 ] || fail "$*: expected once \"$text\", given
$(cat "$out/refused.txt")"
    [ ! -e "$out/refused.jsonl" ] || fail "$*: expected no log"
    [ ! -s "$out/refused.out" ] || fail "$*: expected nothing on standard output"
}
