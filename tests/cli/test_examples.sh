#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The examples run, their loss falls, that of linear.c by the same numbers whatever the
# ranks are, and a call that fails ends them with its reason. Those that check themselves find that
# they are right, over any number of ranks.
set -euo pipefail
build=$(realpath "$1")
hprun=$build/bin/hprun
examples=$build/bin/examples
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_examples: $*" >&2
    exit 1
}

losses() { sed -n 's/^step [0-9]*: loss \([0-9.]*\),.*/\1/p' "$1"; }

falls() { # FILE FACTOR: ten losses, the last below the first times FACTOR
    losses "$1" | awk -v f="$2" '{ v[NR] = $1 } END { exit !(NR == 10 && v[10] < f * v[1]) }' ||
        fail "expected ten losses that fall, given $(cat "$1")"
}

echo "== linear: the loss falls, the same over 1, 2 and 4 ranks up to rounding"
for n in 1 2 4; do
    "$hprun" -n $n "$examples/linear" "$out/checkpoint-$n" >"$out/linear-$n"
    falls "$out/linear-$n" 0.1
    paste <(losses "$out/linear-1") <(losses "$out/linear-$n") |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.01 * $1) exit 1 }' ||
        fail "$n ranks: expected the losses of one, given $(cat "$out/linear-$n")"
    [ -e "$out/checkpoint-$n/latest" ] || fail "$n ranks: expected a checkpoint"
done
"$examples/linear" "$out/alone" >"$out/linear-alone" # without hprun
cmp "$out/linear-1" "$out/linear-alone" || fail "expected a program by itself to be one rank"

echo "== linear: what fails is said"
! "$hprun" -n 2 "$examples/linear" /dev/null/x >"$out/said" 2>&1 || fail "/dev/null/x: expected a failure"
grep -q 'linear: .*/dev/null/x.*HP_ERR_FILE' "$out/said" || fail "/dev/null/x: $(cat "$out/said")"
! "$hprun" -n 3 "$examples/linear" "$out/three" >"$out/said" 2>&1 || fail "3 ranks: expected a failure"
grep -q 'divides 32, given 3' "$out/said" || fail "3 ranks: $(cat "$out/said")"

echo "== train_bytes: the loss falls (one rank: two would be most of what this test takes)"
"$examples/train_bytes" data/genesis_to_deuteronomy.txt >"$out/bytes"
falls "$out/bytes" 0.9

echo "== plan_ahead: five plans of 64 ranks that do not exist; fewer shards, a shorter step"
"$examples/plan_ahead" >"$out/plans"
[ "$(wc -l <"$out/plans")" = 5 ] || fail "expected five plans, given $(cat "$out/plans")"
sed 's/.* a step of \([0-9]*\) ms.*/\1/' "$out/plans" |
    awk 'NR > 1 && !($1 < last) { exit 1 } { last = $1 } END { if (last < 1296) exit 1 }' ||
    fail "expected steps that get shorter, none shorter than its compute, given $(cat "$out/plans")"

for name in moe_dispatch gradient_sync context_parallel tensor_parallel broadcast_params; do
    echo "== $name: right over 1, 2, 3 and 4 ranks"
    for n in 1 2 3 4; do
        "$hprun" -n $n "$examples/$name" >"$out/said" 2>&1 || fail "$name, $n ranks: $(cat "$out/said")"
        [ "$(grep -c '^right: ' "$out/said")" = 1 ] || fail "$name, $n ranks: $(cat "$out/said")"
        ! grep -q '^wrong' "$out/said" || fail "$name, $n ranks: $(cat "$out/said")"
    done
done
losses_of_versions=$(sed -n 's/^version [0-9]*: loss //p' "$out/said")
[ "$(echo "$losses_of_versions" | wc -l)" = 5 ] || fail "expected five versions, given $(cat "$out/said")"
echo "$losses_of_versions" | awk 'NR > 1 && $1 >= last { exit 1 } { last = $1 }' ||
    fail "expected the loss of each version below the last one's, given $(cat "$out/said")"
