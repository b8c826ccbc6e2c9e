#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpreport: its figures of traces written by hand, exact to the digit, and of a real run, which
# counted the same itself; what it says of files that are cut, of another version or wrong.
set -euo pipefail
# shellcheck source=tests/cli/hptrain_common.sh
source tests/cli/hptrain_common.sh
hpreport=$build/bin/hpreport
traces=$out/run
mkdir "$traces"

# ---- traces by hand: moments in microseconds since 5 s ----
begin() { # RANK TID NAME STEP ID BYTES UNIT AT
    printf ',\n{"ph":"B","pid":%d,"tid":%d,"ts":%s,"name":"%s","args":{"step":%d,"bytes":%d,"id":%d,"unit":"%s"}}' \
        "$1" "$2" "$(moment "$8")" "$3" "$4" "$6" "$5" "$7"
}
end() { # RANK TID AT
    printf ',\n{"ph":"E","pid":%d,"tid":%d,"ts":%s}' "$1" "$2" "$(moment "$3")"
}
span() { # RANK TID NAME STEP ID BYTES UNIT FROM TO
    begin "${@:1:8}"
    end "$1" "$2" "$9"
}
moment() {
    local whole=${1%.*} part=000
    [[ $1 != *.* ]] || part=${1#*.}00
    printf '%d.%s' $((5000000 + whole)) "${part:0:3}"
}
stream() { # RANK TID NAME
    printf ',\n{"ph":"M","pid":%d,"tid":%d,"name":"thread_name","args":{"name":"%s"}}' "$@"
}
pass_span() { # RANK STEP UNIT AT
    printf ',\n{"ph":"B","pid":%d,"tid":0,"ts":%s,"name":"step","args":{"step":%d,"bytes":0%s}}' \
        "$1" "$(moment "$4")" "$2" "$3"
}

trace() { # RANK REPLICATE_AT: a training step and an evaluation
    local r=$1
    printf '{"otherData":{"library":"hyperparallel 0.1.0","dropped_spans":0},\n"traceEvents":[\n'
    printf '{"ph":"M","pid":%d,"tid":0,"name":"process_name","args":{"name":"rank %d"}}' "$r" "$r"
    stream "$r" 0 compute
    stream "$r" 1 unshard
    stream "$r" 2 reduce
    stream "$r" 3 replicate
    pass_span "$r" 0 '' 0
    span "$r" 0 allocate 0 0 1000 a 0 0
    span "$r" 0 wait 0 1 0 a 0 $((40 + 10 * r))
    span "$r" 0 allocate 0 6 500 b 200 200
    span "$r" 0 forward 0 4294967295 0 a 200 500
    span "$r" 0 wait 0 2 0 b 500 530
    span "$r" 0 drain 0 3 0 a 530 535
    span "$r" 0 wait 0 9 0 a 535 545 # for an operation of compute: not exposed
    span "$r" 0 release 0 4 1000 a 545 545
    span "$r" 0 release 0 7 500 b 550 550
    end "$r" 0 600
    begin "$r" 0 optimizer 0 4294967295 0 '' 600
    span "$r" 0 update 0 5 0 a 610 620
    end "$r" 0 650
    pass_span "$r" 1 ',"unit":"evaluate"' 1000
    span "$r" 0 wait 1 1 0 a 1000 1020
    end "$r" 0 1100
    span "$r" 1 all_gather 0 1 64 a $((10 * r)) $((100 + 10 * r))
    span "$r" 1 all_gather 1 1 64 a 1005 1025
    begin "$r" 2 reduce_scatter 0 2 32 b $((r == 3 ? 507 : 500))
    span "$r" 2 put 0 4294967295 8 '' 510 515 # inside: counted once
    end "$r" 2 530
    span "$r" 3 all_reduce 0 3 16 a "$2" 535
    printf '\n]}\n'
}
trace 0 530 >"$traces/trace-0.json"
trace 1 531 >"$traces/trace-1.json"
trace 2 530.5 >"$traces/trace-2.json"
trace 3 531 >"$traces/trace-3.json"
cat >"$traces/verdict.json" <<'JSON'
{"sound": false, "rule": "use outside a life", "text": "operation 4 <release> \"a\"", "ranks": 4, "steps": 3,
 "operations": 77, "peak_bytes": 1500, "bound_bytes": 2000, "mode": "fused", "mesh": [2, 2],
 "schedule": "full", "prefetch": 1, "later": [{"x": null}, 1.5e3]}
JSON

echo "== figures of traces written by hand"
"$hpreport" --json "$traces" >"$out/figures.json" || fail "expected figures"
cat >"$out/expected.json" <<'JSON'
{
  "run": {"name": "run", "library": "hyperparallel 0.1.0", "ranks": 4, "traces": [0, 1, 2, 3], "mesh": [2, 2], "spans": 76, "dropped_spans": 0, "ms": 1.100000},
  "summary": [
    "4 ranks (mesh 2 x 2), 1 training step, 1 evaluation in 1.10 ms.",
    "A step took 650 µs in the median, from 650 µs to 650 µs.",
    "32% of communication was hidden: per step and rank it took 133 µs, and compute stood still for 90.0 µs (unshard 55.0 µs, reduce 30.0 µs, replicate 5.00 µs).",
    "Rank 3 came last in 50% of its collectives, by 8.50 µs in the median and 10.0 µs at most.",
    "What steps take and give back reached 1.5 KiB (rank 0); the bound on all memory is 2.0 KiB.",
    "The verifier found the run unsound."],
  "steps": {"train": 1, "no_sync": 0, "defer_replicate": 0, "evaluate": 1, "median_ms": 0.650000, "min_ms": 0.650000, "max_ms": 0.650000},
  "communication": {"busy_ms": {"unshard": 0.400000, "reduce": 0.113000, "replicate": 0.017500}, "exposed_ms": {"unshard": 0.220000, "reduce": 0.120000, "replicate": 0.020000},
    "hidden_percent": 32.139,
    "evaluate_busy_ms": {"unshard": 0.080000, "reduce": 0.000000, "replicate": 0.000000}, "evaluate_exposed_ms": {"unshard": 0.080000, "reduce": 0.000000, "replicate": 0.000000},
    "units": [
      {"unit": "a", "busy_ms": {"unshard": 0.400000, "reduce": 0.000000, "replicate": 0.017500}, "exposed_ms": {"unshard": 0.220000, "reduce": 0.000000, "replicate": 0.020000}},
      {"unit": "b", "busy_ms": {"unshard": 0.000000, "reduce": 0.113000, "replicate": 0.000000}, "exposed_ms": {"unshard": 0.000000, "reduce": 0.120000, "replicate": 0.000000}}]},
  "memory": {"bound_bytes": 2000, "steady_bytes": 0, "ranks": [
    {"rank": 0, "peak_bytes": 1500, "peak_at_ms": 0.200000, "end_bytes": 0, "changes": 4},
    {"rank": 1, "peak_bytes": 1500, "peak_at_ms": 0.200000, "end_bytes": 0, "changes": 4},
    {"rank": 2, "peak_bytes": 1500, "peak_at_ms": 0.200000, "end_bytes": 0, "changes": 4},
    {"rank": 3, "peak_bytes": 1500, "peak_at_ms": 0.200000, "end_bytes": 0, "changes": 4}]},
  "skew": {"collectives": 8, "median_ms": 0.000250, "max_ms": 0.010000,
    "ranks": [
      {"rank": 0, "collectives": 4, "last": 0, "median_ms": 0.000000, "max_ms": 0.000000, "total_ms": 0.000000},
      {"rank": 1, "collectives": 4, "last": 1, "median_ms": 0.010000, "max_ms": 0.010000, "total_ms": 0.010000},
      {"rank": 2, "collectives": 4, "last": 1, "median_ms": 0.000500, "max_ms": 0.000500, "total_ms": 0.000500},
      {"rank": 3, "collectives": 4, "last": 2, "median_ms": 0.008500, "max_ms": 0.010000, "total_ms": 0.017000}],
    "by_collective": [
      {"stream": "unshard", "name": "all_gather", "unit": "a", "n": 4, "median_ms": 0.005000, "max_ms": 0.010000, "total_ms": 0.020000, "last_rank": 1, "last": 1},
      {"stream": "reduce", "name": "reduce_scatter", "unit": "b", "n": 2, "median_ms": 0.003500, "max_ms": 0.007000, "total_ms": 0.007000, "last_rank": 3, "last": 1},
      {"stream": "replicate", "name": "all_reduce", "unit": "a", "n": 2, "median_ms": 0.000250, "max_ms": 0.000500, "total_ms": 0.000500, "last_rank": 2, "last": 1}]},
  "passes": [
    {"step": 0, "kind": "train", "at_ms": 0.000000, "ms": 0.650000, "exposed_ms": {"unshard": 0.220000, "reduce": 0.120000, "replicate": 0.020000}, "skew_ms": 0.010000, "last_rank": 1},
    {"step": 1, "kind": "evaluate", "at_ms": 1.000000, "ms": 0.100000, "exposed_ms": {"unshard": 0.080000, "reduce": 0.000000, "replicate": 0.000000}, "skew_ms": 0.000000, "last_rank": null}],
  "verdict": {"sound": false, "rule": "use outside a life", "text": "operation 4 \u003crelease> \"a\"", "mode": "fused", "schedule": "full", "prefetch": 1, "ranks": 4, "steps": 3, "operations": 77, "peak_bytes": 1500, "bound_bytes": 2000}
}
JSON
diff "$out/expected.json" "$out/figures.json" || fail "expected the figures above (<), given others (>)"
jq -e . "$out/figures.json" >/dev/null || fail "expected JSON"

echo "== first and last arrival of each collective"
"$hpreport" --arrivals "$traces" >"$out/arrivals.csv"
[ "$(wc -l <"$out/arrivals.csv")" -eq 9 ] || fail "expected 8 arrivals: $(cat "$out/arrivals.csv")"
grep -qxF '0,2,reduce,"reduce_scatter","b",32,2,2,0.500000,3,0.507000,0.007000' "$out/arrivals.csv" ||
    fail "expected the late arrival of rank 3: $(cat "$out/arrivals.csv")"

echo "== the mesh by option, and not known"
rm "$traces/verdict.json"
"$hpreport" --json --mesh 2x2 "$traces" | jq -e '.skew.collectives == 8 and .verdict == null and .memory.bound_bytes == null' \
    >/dev/null || fail "expected the groups of --mesh 2x2"
"$hpreport" --json "$traces" | jq -e '.run.mesh == null and .skew.collectives == 4 and .skew.max_ms == 0.03 and
    any(.summary[]; test("mesh is not known"))' >/dev/null || fail "expected arrivals over all ranks"

echo "== passes whose gradients a later one adds up are no steps"
mkdir "$out/early"
for kind in no_sync defer_replicate; do
    for r in 0 1 2 3; do sed "s/\"unit\":\"evaluate\"/\"unit\":\"$kind\"/" "$traces/trace-$r.json" >"$out/early/trace-$r.json"; done
    "$hpreport" --json "$out/early" | jq -e --arg kind $kind '.steps.train == 1 and .steps[$kind] == 1 and .steps.evaluate == 0 and
        .steps.max_ms == 0.65 and .passes[1].kind == $kind and .communication.exposed_ms.unshard == 0.3' >/dev/null ||
        fail "$kind: expected one step and a pass before it"
done
"$hpreport" --json "$out/early" | jq -e '.summary | any(test("1 training step, 1 pass without all-reduce in "))' >/dev/null ||
    fail "expected the passes in words"

echo "== a rank without a trace, spans that were dropped"
mkdir "$out/gap"
cp "$traces"/trace-[012].json "$out/gap"
sed -i 's/"dropped_spans":0/"dropped_spans":7/' "$out/gap/trace-1.json"
"$hpreport" --json --mesh 2x2 "$out/gap" | jq -e '.run.ranks == 4 and .run.traces == [0, 1, 2] and .run.dropped_spans == 7 and
    .summary[0] == "Traces of 1 of 4 ranks are missing." and (.summary[1] | test("7 spans did not fit"))' >/dev/null ||
    fail "expected the gaps to be told"

echo "== memory that is held all the time is part of the curve when the verdict names it"
echo '{"sound": true, "steady_bytes": 10000, "bound_bytes": 12000, "mesh": [2, 2]}' >"$out/gap/verdict.json"
"$hpreport" --json "$out/gap" | jq -e '.memory.ranks[0].peak_bytes == 11500 and .memory.ranks[0].end_bytes == 10000 and
    any(.summary[]; . == "Memory reached 11.2 KiB (rank 0), 96% of its bound of 11.7 KiB.")' \
    >/dev/null || fail "expected 10,000 bytes more"

echo "== names go into the page without harm"
mkdir "$out/odd"
sed 's|"unit":"a"|"unit":"</script><b>\\"\\u00e9"|' "$traces/trace-0.json" >"$out/odd/trace-0.json"
[ "$("$hpreport" "$out/odd")" = "$out/odd/report.html" ] || fail "expected the name of the page"
[ "$(grep -c '</script>' "$out/odd/report.html")" -eq 3 ] || fail "expected the ends of the page's own scripts alone"
"$hpreport" --json "$out/odd" | jq -e '.communication.units[0].unit == "</script><b>\"é"' >/dev/null ||
    fail "expected the unit's name"
! grep -qE '(src|href)="?http|@import|url\(' "$out/odd/report.html" || fail "expected a page that fetches nothing"
"$hpreport" -o "$out/elsewhere.html" "$out/odd" >/dev/null
cmp "$out/odd/report.html" "$out/elsewhere.html" || fail "expected the same page under another name"
! compgen -G "$out/odd/*.tmp-*" >/dev/null || fail "expected nothing left beside the page"

# ---- files that are not what they should be ----
mkdir "$out/bad"
bad() { # TEXT: said of $out/bad, with exit status 1
    local status=0
    "$hpreport" --json "$out/bad" >"$out/said" 2>&1 || status=$?
    [ $status -eq 1 ] || fail "expected exit status 1, given $status: $(head -c 500 "$out/said")"
    grep -qF -- "$1" "$out/said" || fail "expected \"$1\", given $(cat "$out/said")"
    [ "$(wc -l <"$out/said")" -eq 1 ] || fail "expected one line, given $(cat "$out/said")"
}
change() { sed "$1" "$traces/trace-0.json" >"$out/bad/trace-0.json"; }

echo "== traces that are cut, of another version, or wrong"
size=$(stat -c %s "$traces/trace-0.json")
for n in 0 1 17 60 100 700 $((size / 2)) $((size / 2 + 37)) $((size - 30)) $((size - 3)); do
    head -c "$n" "$traces/trace-0.json" >"$out/bad/trace-0.json"
    bad "$out/bad/trace-0.json:"
    grep -qE ':[0-9]+:[0-9]+: expected .*was it cut' "$out/said" || fail "cut at $n: given $(cat "$out/said")"
done
change 's/hyperparallel 0\.1\.0/hyperparallel 7.0.0/'
bad 'trace-0.json:1:25: expected a trace of hyperparallel 0.x, given one of "hyperparallel 7.0.0"'
change 's/"library":"[^"]*",//'
bad 'expected otherData.library in this trace, there is none'
change 's/"pid":0/"pid":5/'
bad 'trace-0.json:3:1: expected pid 0, as the file'
change '0,/"ph":"E"/s/"ph":"E"/"ph":"X"/'
bad 'expected an event of phase B, E or M'
change 's/"tid":3/"tid":9/'
bad 'expected a tid below 8, given 9'
change '8,9s/"ph":"B"/"ph":"E"/'
bad 'expected a begin before this end'
change '9s/"ts":5000000/"ts":4000000/'
bad 'trace-0.json:9:1: expected a time (ts) that is not before'
change 's/{"ph":"E","pid":0,"tid":3,[^}]*}/{"ph":"M","pid":0,"tid":3,"name":"x"}/'
bad 'expected every span to end, 1 of stream 3 did not'
change 's/"bytes":1000/"bytes":-1000/'
bad 'expected a number that is not negative, given "-"'
change 's/"bytes":1000/"bytes":99999999999999999999/'
bad 'expected a number up to 18446744073709551615'
change 's/"bytes":1000/"bytes":9007199254740993/'
bad 'trace-0.json:9:1: expected step and id below 2^32, and bytes up to 2^53'
change 's/"bytes":1000/"bytes":1e3/'
bad 'expected the end of the number, given "e"'
change 's/"unit":"b"/"unit":"\\q"/'
bad 'expected an escape of JSON'
change 's/"bytes":1000/"deep":'"$(printf '[%.0s' {1..70})"'/'
bad 'expected at most 64 values inside each other'
echo '{"otherData":{"library":"hyperparallel 0.1.0"},"traceEvents":[]} x' >"$out/bad/trace-0.json"
bad 'expected nothing more, given "x"'
echo '{"otherData":{"library":"hyperparallel 0.1.0"},"traceEvents":[]}' >"$out/bad/trace-0.json"
bad 'expected spans in these traces, there are none'
rm "$out/bad/trace-0.json"
bad "expected trace-0.json and so on in $out/bad, there is none"
cp "$traces/trace-3.json" "$out/bad"
echo '{"sound": true, "mesh": [1, 2]}' >"$out/bad/verdict.json"
bad 'expected ranks of a mesh of 1x2'
echo '{"sound": 1}' >"$out/bad/verdict.json"
bad 'verdict.json:1:11: expected true or false'
echo '{"mesh": [0, 2]}' >"$out/bad/verdict.json"
bad 'verdict.json:1:9: expected a mesh'
echo '{}' >"$out/bad/verdict.json"
bad 'expected "sound" in this verdict'

echo "== command lines"
"$hpreport" --version | grep -qE '^hpreport \(HyperParallel in C\) [0-9.]+$' || fail "expected a version"
for wrong in '' 'a b' '--mesh 2 x' '--mesh 0x2 x' '--mesh 99x99 x' '--json -o f x' '--nothing'; do
    status=0
    # shellcheck disable=SC2086 # words
    "$hpreport" $wrong >"$out/said" 2>&1 || status=$?
    [ $status -eq 64 ] || fail "$wrong: expected 64, given $status"
done
status=0
"$hpreport" "$out/none" >"$out/said" 2>&1 || status=$?
[ $status -eq 1 ] || fail "expected 1 for a folder that is not there, given $status"
grep -q "expected the folder of a trace, $out/none" "$out/said" || fail "given $(cat "$out/said")"
! "$hpreport" --json "$traces" >/dev/full 2>/dev/null || fail "expected a failure where nothing can be written"
! "$hpreport" -o /dev/full/x "$traces" 2>/dev/null || fail "expected a failure where there can be no page"

echo "== a real run: exposed time is what the run itself counted"
"$hprun" -n 4 "$hptrain" --width 24 --hidden 40 --blocks 2 --window 8 --model bytes-mlp --mesh 2x2 --seq 16 --batch 8 \
    --eval-every 0 --eval-samples 16 --steps 6 --trace "$out/real" --verify --output json >"$out/real.jsonl" ||
    fail "expected a run"
"$hpreport" --json "$out/real" >"$out/real.json"
jq -s -r '.[] | select(.event == "step") | "\(.step) \(.exposed_ms.unshard) \(.exposed_ms.reduce) \(.exposed_ms.replicate)"' \
    "$out/real.jsonl" >"$out/counted"
jq -r '[.passes[] | select(.kind == "train")] | to_entries[] | .value.exposed_ms as $e |
    "\(.key + 1) \($e.unshard / 4) \($e.reduce / 4) \($e.replicate / 4)"' "$out/real.json" >"$out/seen"
[ "$(wc -l <"$out/seen")" -eq 6 ] || fail "expected 6 training steps, given $(cat "$out/seen")"
paste -d ' ' "$out/counted" "$out/seen" |
    awk '$1 != $5 { exit 1 } { for (i = 2; i <= 4; i++) { d = $i - $(i + 4); if (d < -0.001 || d > 0.001) exit 1 } }' ||
    fail "expected the exposed time of each step as it was counted:
$(paste "$out/counted" "$out/seen")"
jq -e '.verdict.sound and .run.mesh == [2, 2] and (.memory.steady_bytes as $steady | .memory.bound_bytes as $bound |
    .memory.ranks | all(.end_bytes == $steady and .peak_bytes > $steady and .peak_bytes <= $bound))' \
    "$out/real.json" >/dev/null || fail "expected that what is allocated is released, within the bound: $(jq -c .memory "$out/real.json")"
jq -e '.verdict.peak_bytes + .memory.steady_bytes >= (.memory.ranks | map(.peak_bytes) | max)' "$out/real.json" >/dev/null ||
    fail "expected the verifier's peak not to be exceeded: $(jq -c .memory,.verdict "$out/real.json")"
jq -e '.skew.collectives > 100 and (.skew.ranks | map(.last) | add) <= .skew.collectives' "$out/real.json" >/dev/null ||
    fail "expected collectives: $(jq -c .skew.ranks "$out/real.json")"
