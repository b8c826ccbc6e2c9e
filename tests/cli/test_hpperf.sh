#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpperf: every collective in every way it can be called gives right results; what it prints can be
# read by a program; what it does not understand it says once.
set -euo pipefail
build=$1
hprun=$build/bin/hprun
hpperf=$build/bin/hpperf
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpperf: $*" >&2
    cat "$out/said" "$out/error" >&2 2>/dev/null || true
    exit 1
}

perf() { # RANKS ARGUMENT...: into $out/said; ends with 0
    local n=$1
    shift
    "$hprun" -n "$n" --deadline 60 "$hpperf" "$@" >"$out/said" 2>"$out/error" ||
        fail "$n ranks, $*: expected exit status 0"
    [ ! -s "$out/error" ] || fail "$n ranks, $*: expected nothing on standard error"
}

refuses() { # RANKS TEXT ARGUMENT...: ends with 2 and says TEXT, once
    local n=$1 text=$2 status=0
    shift 2
    "$hprun" -n "$n" --deadline 60 "$hpperf" "$@" >"$out/said" 2>"$out/error" || status=$?
    [ "$status" -eq 2 ] || fail "$*: expected exit status 2, given $status"
    grep -qF -- "$text" "$out/error" || fail "$*: expected \"$text\""
    [ "$(wc -l <"$out/error")" -eq 1 ] || fail "$*: expected one line"
}

few=(-n 3 -w 1 --batch 2)

echo "== every collective, type and reduction, where the buffers lie and how they overlap"
# Two sizes of 28 pairs of a type and a reduction that it has, for two collectives; of 8 types for four
# (one rank has nobody to send to); and a barrier.
for n in 1 2 3 4; do
    for memory in symm private; do
        perf $n all -b 8 -e 4K -f 512 "${few[@]}" -d all -o all --memory $memory
        rows=$(grep -vc '^#' "$out/said")
        [ "$rows" -eq $((n == 1 ? 161 : 177)) ] || fail "$n ranks: expected every pair, given $rows rows"
        perf $n all -b 4K -e 4K "${few[@]}" -d all --memory $memory --in-place
    done
done

echo "== on a stream, without touching, out of step with cache lines, in parts of the world"
perf 2 all -b 8 -e 300K -f 1000 "${few[@]}" --stream
perf 3 all -b 8 -e 300K -f 1000 "${few[@]}" --stream --memory private
perf 2 all -b 8 -e 300K -f 1000 "${few[@]}" --mode classic
perf 3 all -b 8 -e 300K -f 1000 "${few[@]}" --mode classic --memory private --in-place
perf 2 all -b 1 -e 300K -f 1000 "${few[@]}" --misalign 1 -d all
perf 3 all -b 1 -e 300K -f 1000 "${few[@]}" --misalign 3 --memory private --root 2
perf 4 all -b 8 -e 300K -f 1000 "${few[@]}" --group-split 2
perf 4 all -b 8 -e 300K -f 1000 "${few[@]}" --group-split 4 --stream
grep -q '^# all_reduce: 1 rank in each of 4 groups' "$out/said" || fail "expected the groups in the head"

echo "== in low precision on the wire"
for wire in fp16 bf16 fp8_e4m3 fp8_e5m2; do
    perf 3 all_reduce -b 8 -e 300K -f 1000 "${few[@]}" --wire $wire -d all -o all
    perf 2 reduce_scatter -b 8 -e 300K -f 1000 "${few[@]}" --wire $wire -d all --memory private
done
perf 2 all -b 64K -e 64K "${few[@]}" --wire fp8_e4m3 --stream

echo "== latencies"
for what in put get signal; do
    perf 2 --latency $what -b 8 -e 300K -f 1000 "${few[@]}" -d all
    perf 3 --latency $what -b 8 -e 300K -f 1000 "${few[@]}" --memory private --misalign 8
    perf 2 --latency $what -b 8 -e 300K -f 1000 "${few[@]}" --mode classic --stream
done

echo "== backwards, in turns with their calls"
for what in all_gather "reduce_scatter -o max" "all_reduce --in-place" broadcast send_recv barrier "all_to_all --stream"; do
    # shellcheck disable=SC2086 # words
    perf 2 $what --sizes 300K "${few[@]}" --backward sum --json
    grep -q '"backward_us": [0-9]' "$out/said" || fail "$what: expected the time of a backward"
done

echo "== plain copies, which bring the same values"
for how in all_gather "all_gather --in-place" all_to_all; do
    # shellcheck disable=SC2086 # two words
    perf 2 $how --sizes 8,300K,2M "${few[@]}" --plain --json
    [ "$(grep -c '"over_plain": [0-9]' "$out/said")" -eq 3 ] || fail "$how: expected three ratios"
done

echo "== how often and what sizes follow from the options"
perf 2 all_reduce -b 10 -e 64 -i 20 "${few[@]}" -q -d fp16
awk '{ print $1, $2, $3, $4, $NF }' "$out/said" >"$out/rows"
printf '%s\n' '10 5 fp16 sum 0' '30 15 fp16 sum 0' '50 25 fp16 sum 0' | cmp - "$out/rows" ||
    fail "expected sizes 10, 30 and 50"
perf 2 all_reduce --sizes 8,24,1K "${few[@]}" -q
[ "$(awk '{ print $1 }' "$out/said" | xargs)" = '8 24 1024' ] || fail "expected the sizes of the list"
perf 3 all_gather -b 1 -e 16 -f 2 "${few[@]}" -q # what is not a multiple is less, but one element
[ "$(awk '{ print $1 }' "$out/said")" = 12 ] || fail "expected one size, of an element a part"
perf 2 broadcast -b 64 -e 64 --no-check -q -n 1 -w 0
[ "$(awk '{ print $NF }' "$out/said")" = - ] || fail "expected that nothing was checked"

echo "== JSON"
cat >"$out/check.py" <<'PYTHON'
import json, sys
fields = "op ranks bytes dtype memory mode time_us p99_us algbw_GBps busbw_GBps moved_over_bound wrong"
rows = [json.loads(line) for line in sys.stdin]
assert rows and all(list(row)[:12] == fields.split() for row in rows), rows
extra = {name for row in rows for name in list(row)[12:]}
assert extra == set(sys.argv[2:]), extra
for row in rows:
    assert row["ranks"] == int(sys.argv[1]) and row["time_us"] >= 0 and row["p99_us"] >= row["time_us"]
    if row["op"] == "barrier":
        assert row["dtype"] is None and row["wrong"] is None and row["moved_over_bound"] is None
        continue
    assert row["wrong"] == 0 and row["moved_over_bound"] >= 1, row
    n, op = row["ranks"], row["op"]
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "send_recv": 1}.get(op, (n - 1) / n)
    assert abs(row["busbw_GBps"] - factor * row["algbw_GBps"]) <= 1e-4 * (1 + row["algbw_GBps"]), row
    if row["time_us"] > 1:
        assert abs(row["bytes"] / row["time_us"] / 1e3 - row["algbw_GBps"]) <= 1e-3, row
print(*sorted({row["op"] for row in rows}))
PYTHON
json() { # RANKS FIELDS ARGUMENT...: valid, with these fields besides those of every line
    local n=$1 extra=$2
    shift 2
    perf "$n" --json "${few[@]}" "$@"
    # shellcheck disable=SC2086 # a list of words
    python3 "$out/check.py" "$n" $extra <"$out/said" >"$out/ops" || fail "$*: expected JSON lines as documented"
}
if command -v python3 >/dev/null; then
    json 3 '' all -b 8 -e 300K -f 1000
    [ "$(cat "$out/ops")" = 'all_gather all_reduce all_to_all barrier broadcast reduce_scatter send_recv' ] ||
        fail "expected every collective, given $(cat "$out/ops")"
    json 2 'in_place misalign reduce stream' all_reduce -b 64K -e 64K --in-place --misalign 2 -o all --stream
    json 2 'reduce wire' reduce_scatter -b 64K -e 64K --wire bf16 -o max
else
    echo "skipped: no python3"
fi

echo "== help, version, wrong command lines"
perf 2 --help
grep -q -- '--group-split' "$out/said" || fail "expected the options in the help"
[ "$(grep -c '^Usage' "$out/said")" -eq 1 ] || fail "expected the help once"
perf 2 -V
perf 2 --version
grep -qF "hpperf (HyperParallel in C)" "$out/said" || fail "expected the version"
refuses 2 'expected a collective, like all_reduce'
refuses 2 'expected WHAT to be all_reduce' all_reduc
refuses 2 'expected one collective, given "barrier" too' all_reduce barrier
refuses 2 'expected no collective with --latency' all_reduce --latency put
refuses 2 'expected --latency to be put, get or signal, given "send"' --latency send
refuses 2 'expected -b to be bytes' all_reduce -b 0
refuses 2 'expected -b to be bytes' all_reduce -b 8Q
refuses 2 'expected -e to be at least -b 4096, given 8' all_reduce -b 4K -e 8
refuses 2 'expected -f or -i, given both' all_reduce -f 2 -i 8
refuses 2 'expected --sizes to ascend, given "16,8"' all_reduce --sizes 16,8
refuses 2 'expected --sizes or -b, -e, -f and -i, given both' all_reduce --sizes 16 -e 32
refuses 2 'expected -f to be a whole number from 2' all_reduce -f 1
refuses 2 'expected -d to be fp64' all_reduce -d fp8
refuses 2 'expected -o to be sum' all_reduce -o prod
refuses 2 'expected -d fp64, fp32, fp16 or bf16 with -o avg, given int32' all_reduce -d int32 -o avg
refuses 2 'expected -d fp32, fp16 or bf16 with --wire, given fp64' all_reduce -d fp64 --wire bf16
refuses 2 'expected --backward to be identity or sum, given "max"' all_reduce --backward max
refuses 2 'expected no --in-place with --backward and -o max or min' all_reduce --in-place -o max --backward sum
refuses 2 'expected no --backward with --latency' --latency get --backward sum
refuses 2 'expected --plain with all_gather, or with all_to_all' all_reduce --plain
refuses 2 'expected no --memory private with --plain' all_gather --plain --memory private
refuses 3 'expected 2 ranks with --plain, given 3' all_gather --plain
refuses 2 'expected no --wire with all_gather' all_gather --wire bf16
refuses 2 'expected no --in-place with broadcast' broadcast --in-place
refuses 2 'expected --memory to be symm or private, given "gpu"' all_reduce --memory gpu
refuses 3 'expected --group-split to divide the 3 ranks, given 2' all_reduce --group-split 2
refuses 3 'expected --root to be a rank from 0 to 2, given 3' broadcast --root 3
refuses 1 'expected at least 2 ranks in a group for send_recv, given 1' send_recv
refuses 2 'unknown or ambiguous option, or missing value: --fast' all_reduce --fast
refuses 2 'unknown or ambiguous option, or missing value: --fast' --fast all_reduce -e 5
refuses 2 'unknown or ambiguous option, or missing value: -z' -b8 -z all_reduce -e 5
refuses 2 'unknown or ambiguous option, or missing value: -json' all_reduce -b 8 -json --quiet
refuses 2 'unknown or ambiguous option, or missing value: -json' --quiet -json all_reduce
refuses 2 'unknown or ambiguous option, or missing value: -qz' all_reduce -qz -b8
refuses 2 'unknown or ambiguous option, or missing value: -b' all_reduce -e 8 -b
refuses 2 'unknown or ambiguous option, or missing value: --json=5' --json=5 all_reduce
refuses 2 'unknown or ambiguous option, or missing value: --m' --m symm all_reduce

echo "== what does not fit is refused with the numbers, and all that was taken is given back"
status=0
SYMMETRIC_MEMORY_HEAP_SIZE=1M "$hprun" -n 2 "$hpperf" all_reduce -b 2M -e 2M --stream >"$out/said" 2>"$out/error" || status=$?
[ $status -eq 1 ] || fail "expected 1, given $status" # a sanitizer's would be another
grep -qF 'hpperf: rank 0: expected room for 2097152 bytes of symmetric memory' "$out/error" || fail "expected the numbers"

echo "== what cannot be written is a failure"
for what in 'all_reduce -b 8 -e 8' --help; do
    # shellcheck disable=SC2086 # a list of words
    ! "$hprun" -n 2 "$hpperf" $what >/dev/full 2>"$out/error" || fail "$what: expected a failure on a full disk"
    grep -qF 'hpperf: rank 0: expected to write the results' "$out/error" || fail "$what: expected to be told why"
done
