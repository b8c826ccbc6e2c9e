#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpperf tune: rows around a threshold for what it matters to, and an option that the library takes.
set -euo pipefail
build=$1
run=("$build/bin/hprun" -n 2 "$build/bin/hpperf" tune)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpperf_tune: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

echo "== a threshold between algorithms, one inside of them, one of calls in place"
"${run[@]}" --thresholds direct_reduce,stream,in_place --pairs 1 -e 1M >"$out/said" 2>&1 || fail "expected status 0, given $?"
grep -qE '^# tune: 2 ranks, (roomy|crowded)$' "$out/said" || fail "expected who the ranks are"
grep -qE '^  direct_reduce +all_reduce +private +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$' "$out/said" || fail "expected rows"
! grep -qE '^  direct_reduce .* symm ' "$out/said" || fail "expected no row where it does not matter"
grep -qE '^  stream +all_reduce +symm ' "$out/said" || fail "expected rows of what no choice shows"
grep -qE '^  in_place +all_reduce in place +symm ' "$out/said" || fail "expected rows in place"
! grep -E '^  in_place ' "$out/said" | grep -qv 'all_reduce in place' || fail "expected no other row of in_place"
option=$(tail -1 "$out/said")
[[ $option =~ ^HYPER_PARALLEL_THRESHOLDS=in_place=[0-9]+[KMG]?,stream=[0-9]+[KMG]?,direct_reduce=[0-9]+[KMG]?$ ]] || fail "unexpected: $option"
env "$option" "$build/bin/hpinfo" --algorithms -n 2 >"$out/said" || fail "expected the library to take $option"
env "$option" "$build/bin/hprun" -n 2 "$build/bin/hpperf" all_reduce -b 1K -e 1K -n 3 -q >"$out/said" 2>&1 ||
    fail "expected ranks to start with $option"

echo "== what is refused"
for wrong in '--thresholds nonsense' '--thresholds direct,nonsense' '--thresholds=' '--pairs 0' '-e x' 'all_reduce' '--nonsense'; do
    status=0
    # shellcheck disable=SC2086 # two words
    "${run[@]}" $wrong >"$out/said" 2>&1 || status=$?
    [ $status -eq 2 ] || fail "expected 2 for $wrong, given $status"
    [ "$(grep -c '^hpperf: .*expected' "$out/said")" = 1 ] || fail "expected to be told once: $wrong"
    ! grep -q '^#' "$out/said" || fail "expected no table: $wrong"
done
"${run[@]}" --thresholds direct,nonsense >"$out/said" 2>&1 || true
grep -q 'to be of one_shot, .*, given "nonsense"$' "$out/said" || fail "expected the name, and those that there are"
"${run[@]}" --pairs 1 --nonsense >"$out/said" 2>&1 || true
grep -q 'given "--nonsense"$' "$out/said" || fail "expected the word that is no option"
status=0
"$build/bin/hpperf" tune >"$out/said" 2>&1 || status=$?
{ [ $status -eq 2 ] && grep -q 'expected 2 ranks or more' "$out/said"; } || fail "expected one rank to be refused"
"$build/bin/hpperf" tune --help >"$out/said" || fail "expected help for one rank"
status=0
"${run[@]}" --thresholds pull --pairs 1 -e 64K 2>"$out/said" >/dev/full || status=$?
{ [ $status -eq 1 ] && grep -q 'expected to write the results' "$out/said"; } || fail "expected a full disk to be told"
"${run[@]}" --help >"$out/said" || fail "expected help"
[ "$(grep -c -e '--pairs' "$out/said")" = 1 ] || fail "expected help once"
