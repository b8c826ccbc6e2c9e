#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpinfo: what it says of this machine, that text and JSON agree, that its limits are those that jobs
# hit, and its exit status.
set -euo pipefail
build=$1
hpinfo=$build/bin/hpinfo
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpinfo: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

has() { grep -qE -- "$1" "$out/said" || fail "expected $1"; }

echo "== a page for people"
"$hpinfo" -n 3 >"$out/said" || fail "expected exit status 0, given $?"
for section in machine limits 'a job of 3 ranks here' library; do has "^$section$"; done
has "^  processor +.*$(uname -m)"
has "^  cores +[0-9]+ online, $(nproc) allowed"
has '^  memory +[0-9.]+ [KMGT]iB, [0-9.]+ [KMGT]iB available'
has '^  heap +[0-9.]+ [KMGT]iB for each when all fill theirs \('
has '^  available +yes$'
! grep -qE ' $' "$out/said" || fail "expected no blanks at the ends of lines"

echo "== as JSON"
"$hpinfo" --json -n 3 >"$out/json"
jq -e '.machine.cores_allowed >= 1 and .job.ranks == 3 and .job.can_start and .library.available
    and .job.heap_bytes > 0 and .limits.descriptors > 3' "$out/json" >"$out/said" || fail "$(cat "$out/json")"
total_kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
[ "$(jq .machine.memory_bytes "$out/json")" = $((total_kib * 1024)) ] ||
    fail "expected MemTotal as it stands in /proc/meminfo"

echo "== the options, each with where it comes from"
SYMMETRIC_MEMORY_HEAP_SIZE=64M "$hpinfo" --options >"$out/said"
has '^SYMMETRIC_MEMORY_HEAP_SIZE = 64M \(from the environment\)$'
has '^SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS = 300000 \(the default\)$'
! grep -q 'no such option' "$out/said" || fail "expected options alone"
SYMMETRIC_MEMORY_HEAP_SIZZE=64M "$build/bin/hprun" -n 1 "$hpinfo" --options >"$out/said"
[ "$(grep 'no such option' "$out/said")" = 'SYMMETRIC_MEMORY_HEAP_SIZZE is set, but there is no such option' ] ||
    fail "expected a name that is none to be told, and no other"
"$hpinfo" --options --json | jq -r '.[].name' | sort >"$out/listed"
# shellcheck disable=SC2016 # markdown
sed -n 's/^| `\([A-Z_]*\)` .*/\1/p' docs/options.md | sort | cmp - "$out/listed" ||
    fail "expected the options of docs/options.md"

echo "== which algorithm runs, and why"
"$hpinfo" --algorithms -n 2 >"$out/said" || fail "expected exit status 0, given $?"
for op in all_reduce reduce_scatter all_gather all_to_all broadcast all_gather_v; do has "^$op$"; done
has '^  stream +[0-9]+[KMG]? '
has '^  symmetric memory, ranks: 2'
has '^    8 to 32 +words +1 step; '
has '^    .* to 64M +push +2 steps; inputs and outputs are in symmetric memory; not words'
! grep -qE ' $' "$out/said" || fail "expected no blanks at the ends of lines"
"$hpinfo" --algorithms --json >"$out/json"
jq -e 'all(.[]; .from_bytes <= .to_bytes and (.why | length > 0) and (.algorithm | length > 0)) and
    ([.[].ranks] | unique) == [2, 4, 8]' "$out/json" >"$out/said" || fail "$(cat "$out/json")"
# the ranges of one setting leave no size out
jq -e 'group_by([.op, .ranks, .crowded, .memory, .in_place]) | all(.[];
    sort_by(.from_bytes) | . as $r | .[0].from_bytes == ([8, .[0].ranks] | max) and .[-1].to_bytes == 67108864 and
    all(range(1; length); $r[.].from_bytes - $r[. - 1].to_bytes <= $r[.].ranks))' "$out/json" \
    >"$out/said" || fail "expected ranges without gaps: $(cat "$out/json")"
HYPER_PARALLEL_THRESHOLDS=stream=5M "$hpinfo" --algorithms -n 2 >"$out/said"
has '^  in place of them: HYPER_PARALLEL_THRESHOLDS=stream=5M$'
status=0
HYPER_PARALLEL_THRESHOLDS=nonsense "$hpinfo" --algorithms >"$out/said" 2>&1 || status=$?
[ $status -eq 1 ] || fail "expected 1 for an option that is none, given $status"
has 'expected HYPER_PARALLEL_THRESHOLDS to be NAME=BYTES'

echo "== limits are those that a job hits"
(ulimit -n 64 && "$hpinfo" --json -n 40) >"$out/json"
most=$(jq .job.most_ranks "$out/json")
(ulimit -n 64 && "$build/bin/hprun" -n "$most" true) || fail "expected $most ranks to start with 64 descriptors"
! (ulimit -n 64 && "$build/bin/hprun" -n $((most + 3)) true) 2>/dev/null ||
    fail "expected more than $most ranks not to start with 64 descriptors"
status=0
SYMMETRIC_MEMORY_HEAP_SIZE=60T "$hpinfo" -n 2 >"$out/said" || status=$?
[ $status -eq 1 ] || fail "expected 1 for a job that cannot start, given $status"
has '^  cannot start +.*SYMMETRIC_MEMORY_HEAP_SIZE'
(ulimit -f 262144 && "$hpinfo" -n 2) >"$out/said"
has 'RLIMIT_FSIZE'

echo "== command lines"
"$hpinfo" --version | grep -qE '^hpinfo \(HyperParallel in C\) [0-9.]+$' || fail "expected a version"
for wrong in '-n 0' '-n x' 'word' '--nothing'; do
    status=0
    # shellcheck disable=SC2086 # two words
    "$hpinfo" $wrong >"$out/said" 2>&1 || status=$?
    [ $status -eq 64 ] || fail "$wrong: expected 64, given $status"
done
! "$hpinfo" >/dev/full 2>"$out/error" || fail "expected a failure where nothing can be written"
grep -q "^hpinfo: expected to write to standard output$" "$out/error" || fail "expected to be told of it"
