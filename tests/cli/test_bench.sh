#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The writer of docs/performance.md on a few recorded rows: the strongest peer is found, what is below
# its goal is marked, and plots are well formed. The real page keeps its markers, and its tables where
# only some were measured. Nothing is measured.
set -euo pipefail
build=$1
sample=tests/cli/bench_sample
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
command -v python3 >/dev/null || { echo "skipped: python3 is not there"; exit 77; }

fail() {
    echo "test_bench: $*" >&2
    cat "$out/page.md" >&2 2>/dev/null || true
    exit 1
}
has() { grep -qF -- "$1" "$out/page.md" || fail "expected: $1"; }

echo "== tables"
sed '/<!-- tools\/bench begins -->/,/<!-- tools\/bench ends -->/{/<!--/!d}' docs/performance.md >"$out/page.md"
tools/bench/page.py "$sample" "$out/page.md"
# the strongest is the one with the least ratio; our time is the median beside all of them
has '| 64 KiB | 11.0 | 20.0 | 19.0 | 1.70 | 1.50 to 1.80 | 1.6 | 7.80 | 71% |'
has '| 1 MiB | 100 | 300 | 151 | **1.50** | 1.40 to 1.60 | 1.9 | 64.6 | 65% |'
has '- Below the goal: 1 MiB: '
has '- Below 85% of the limit: 64 KiB'
has '| 64 B | 20.0 | 50.0 | 2.51 | 2.30 to 2.60 | 2 |'
has '| - | 0.20 | 0.50 | 2.50 | 2.40 to 2.60 | 1.6 | 0.15 | 75% |'
has '| 1 MiB | 250 | 200 | **0.80** | 0.70 to 0.90 | 1 |'
has '| all_reduce | 1 MiB | 100 | 110 (**1.10**) |'
has '| all_reduce | 262144 | 100 | 80.0 (1.25) | 60.0 (**0.75**) |'
has '| put | 1 MiB | 80.0 | 70.0 | **1.14** |'
has '| signal | 8 B | 0.20 | 0.18 | 1.11 |'
has 'add fp32 avx512 <12.5> GB/s'
# shellcheck disable=SC2016 # markdown
has '- `hprun -n 2 hpperf broadcast`: no end within 120 s'
has '| gloo | does not run here: not installed / at all |'
has '| oneccl | left out of this run |'
has '| a word from core to core | 0.06 us (1 runs) |'
has '| huge pages | our symmetric memory: yes, shared memory of others: never |'
has '11 rows have a goal; 6 reach it, 5 are below'
[ "$(grep -c '^<!-- tools/bench' "$out/page.md")" = 4 ] || fail "expected both pairs of markers"
has '4 rows; 2 reach their goal, 2 are below, 1 of them equal within the spread.'
has '| 0.6b-kv | 128 | 1200 | **0.97** (2%) | - | **1.05** (20%) | - | - | - |'
has '| 0.6b-kv | 512 | 4800 | 1.00 (0%) | - | - | - | - | - |'
has '| 0.6b-kv | 512 | 4700 | 1.33 | - | - |'
has '- Below the goal: 0.6b-kv 128, 2 ranks, fp32: equal within the spread of the pairs.'
has '- Below the goal: 0.6b-kv 128, 8 ranks, fp32: '
[ "$(sed '/begins -->/,$d' "$out/page.md")" = "$(sed '/begins -->/,$d' docs/performance.md)" ] ||
    fail "expected the text before the marker as it was"
awk -F'|' '/^\|/ { if (n && NF != n) exit 1; n = NF; next } { n = 0 }' "$out/page.md" ||
    fail "expected tables whose rows have as many cells as their heads"

echo "== the same again"
has 'measured 5 of the 6 rows a second time on 2026-01-02'
has 'Half of them moved by at most 32%, nine of ten by at most 50%; the middle one is 1.05 times the first.'
has '3 went up, 1 down. By the first ratios 3 of these rows reach their goal, by the second 3.'
has '| 2 ranks | 3 | 2 | 2 | 2 | 1 | 0 |'
has '| 8 ranks | 1 | 0 | 0 | 0 | 1 | 1 |'
has '| all | 5 | 2 | 2 | 2 | 3 | 2 |'
has '1 saw the cores at more than one distance, 1 did not but have pairs that overlap, and of 1 nothing is known'
has '| 1.70 (1.50 to 1.80) | 2.55 (2.40 to 2.60) | a line took 0.06, then 0.06 to 0.24 us; ours took 2.00, the peer 3.00'

echo "== what is said of a row below its goal"
python3 -B - <<'END' || fail "expected reasons by what the row is"
import sys
sys.path.insert(0, "tools/bench")
import page
writer = page.Writer([], [], [], {})
writer.limits = [
    {"of": "ratio", "ops": ["all_gather"], "ranks": [2], "reason": "level"},
    {"of": "slower", "ops": ["all_gather"], "ranks": [2], "in_place": False, "to": 64, "reason": "2 copies"}]
def said(ratio, least, most, n, goal, in_place=False):
    row = page.Row(page.Key("all_gather", in_place, 2, "symm"), n)
    row.add({"time_us": 1, "peer": "mpich", "peer_us": ratio, "ratio": ratio, "ratio_least": least,
             "ratio_most": most})
    return writer.reason_below(row, goal)
equal, unknown = "equal within the spread of the pairs.", "a peer is faster, so the machine allows it: not explained yet."
assert said(0.96, 0.9, 1.1, 64, 1.0) == equal
assert said(0.96, 0.9, 0.99, 64, 1.0) == "level"  # no pair in which ours was as fast
assert said(0.96, 0.9, 1.1, 64, 1.1) == "level"  # more is wanted than equal
assert said(0.90, 0.8, 1.1, 64, 1.0) == "a peer is faster: 2 copies"
assert said(0.90, 0.8, 1.1, 128, 1.0) == unknown
assert said(0.90, 0.8, 1.1, 64, 1.0, True) == unknown
assert (writer.n_equal, writer.n_unexplained) == (1, 2)
END
sed 's/"reason": "[^"]*"/"reason": "no figure"/; s/"of": "ratio"/"of": "slower"/' tools/bench/limits.json >"$out/limits.json"
! python3 -Bc 'import sys; sys.path.insert(0, "tools/bench"); import page; page.load_json = lambda _: __import__("json").load(open(sys.argv[1])); page.load_limits()' \
    "$out/limits.json" 2>"$out/said" || fail "expected reasons of what is slower to name a figure"
grep -q 'expected a figure in: no figure' "$out/said" || fail "expected to be told the reason"

echo "== no row without a goal"
python3 -B - <<'END' || fail "expected a goal for every collective, number of ranks and size"
import sys
sys.path.insert(0, "tools/bench")
import page
goals = page.load_json("goals.json")
sizes = [8, *(16 * 4**k for k in range(12))]
missing = [(op, in_place, ranks, n) for op, in_place in page.TITLES for ranks in (2, 4, 8)
           for n in ([0] if op == "barrier" else sizes)
           if page.goal_of(goals, page.Key(op, in_place, ranks, "symm"), n) is None]
print(missing or "all have one")
sys.exit(bool(missing))
END

echo "== plots"
[ -s "$out/images/speed-all_reduce.svg" ] || fail "expected a plot"
for plot in "$out"/images/*.svg docs/images/speed-*.svg; do
    [ -e "$plot" ] || continue
    python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$plot" || fail "expected XML: $plot"
    [ "$(wc -c <"$plot")" -lt 20000 ] || fail "expected a small file: $plot"
    ! grep -qE 'nan|inf"' "$plot" || fail "expected numbers in $plot"
done
[ "$(grep -c '<polyline' "$out/images/speed-all_reduce.svg")" = 4 ] || fail "expected ours, two peers, the limit"
grep -q 'prefers-color-scheme: dark' "$out/images/speed-all_reduce.svg" || fail "expected dark colours too"

echo "== twice is as once"
cp "$out/page.md" "$out/once.md"
tools/bench/page.py "$sample" "$out/page.md"
cmp "$out/once.md" "$out/page.md" || fail "expected the same page"

echo "== what is refused"
echo "no markers" >"$out/other.md"
! tools/bench/page.py "$sample" "$out/other.md" 2>"$out/said" || fail "expected a page with markers"
grep -q 'once each' "$out/said" || fail "expected to be told about the markers"
! tools/bench/run.py "$build" --part nonsense --no-page 2>"$out/said" || fail "expected a part that there is"
grep -q 'expected a part of all_reduce, ' "$out/said" || fail "expected the parts"

echo "== the plan"
tools/bench/run.py "$build" --list --no-page --part dtypes,wire --peers '' >"$out/said" 2>&1 ||
    fail "expected a list: $(cat "$out/said")"
grep -qE '^\[4/4, [0-9]+ s\] wire-reduce_scatter$' "$out/said" || fail "expected 4 jobs: $(cat "$out/said")"
tools/bench/run.py "$build" --list --no-page --part fused >"$out/said" 2>&1 || fail "expected a list: $(cat "$out/said")"
[ "$(tail -1 "$out/said" | sed 's/.*\] //')" = fused-late-8 ] || fail "expected jobs of fused products: $(cat "$out/said")"

mkdir -p "$out/twice"
ln -s "$(realpath "$build")/bin" "$out/twice/bin"
cp -r "$sample" "$out/twice/bench"
tools/bench/run.py "$out/twice" --again --list --no-page >"$out/said" 2>&1 || fail "expected a list: $(cat "$out/said")"
[ "$(sed 's/.*\] //' "$out/said" | xargs)" = "again/all_reduce-all_reduce-2-symm-apart-mpich \
again/all_reduce-all_reduce-8-symm-apart-openmpi again/all_gather-all_gather-2-symm-in-place-openmpi \
again/barrier-barrier-2-symm-apart-openmpi again/private-all_reduce-2-private-apart-openmpi" ] ||
    fail "expected each row beside its strongest: $(cat "$out/said")"

echo "== a part alone leaves the page as it was"
mkdir -p "$out/built/bin" "$out/built/tools"
cat >"$out/built/bin/hprun" <<'END'
#!/bin/sh
case "$*" in
*"--beside ?"*) echo 'hpperf: expected --beside to be one of openmpi, mpich, given "?"' >&2 && exit 2 ;;
*put*) [ -z "$INTERRUPT" ] || kill -INT $PPID ;;
esac
echo '{"op": "put", "bytes": 8, "dtype": "fp32", "mode": "touched", "time_us": 2, "plain_us": 1, "over_plain": 2}'
END
echo 'echo "{}"' | tee "$out/built/bin/hpinfo" >"$out/built/tools/byte_limits"
sed -i '1i#!/bin/sh' "$out/built/bin/hpinfo" "$out/built/tools/byte_limits"
cp "$out/built/bin/hpinfo" "$out/built/bin/hpperf"
sed -i 's/{}/{\\"machine\\": {\\"cores_allowed\\": 2}}/' "$out/built/bin/hpinfo"
chmod +x "$out"/built/*/*
run=(tools/bench/run.py "$out/built" --page "$out/page.md" --part one_sided)
"${run[@]}" --quick >"$out/said" 2>&1 || fail "expected status 0: $(cat "$out/said")"
cmp "$out/once.md" "$out/page.md" || fail "expected the page as it was"
grep -q "no rows of all_reduce, .*: $out/page.md stays as it was" "$out/said" || fail "expected to be told that it stays"
grep -q "^bench: wrote $out/built/bench/page.md$" "$out/said" || fail "expected to be told where the page is"
grep -qF '| put | 8 B | 2.00 | 1.00 | **2.00** |' "$out/built/bench/page.md" || fail "expected what was measured"
cp "$sample/fused.jsonl" "$out/built/bench/"
tools/bench/page.py "$sample" "$out/page.md"
sed -i 's/| 4800 |/| old |/; s/ 1.33 / old /' "$out/page.md"
tools/bench/run.py "$out/built" --page "$out/page.md" --part fused --missing --quick >"$out/said" 2>&1 ||
    fail "expected status 0: $(cat "$out/said")"
diff <(sed '/^Measured /d' "$out/once.md") <(sed '/^Measured /d' "$out/page.md") ||
    fail "expected the tables of fused products anew, and no others"
"${run[@]}" --missing >"$out/said" 2>&1 || fail "expected status 0: $(cat "$out/said")"
grep -q 'a quick run |$' "$out/built/bench/page.md" || fail "expected rows of a quick run to be told as such"

echo "== what ends a run"
status=0
INTERRUPT=1 env --default-signal=INT "${run[@]}" >"$out/said" 2>&1 || status=$?
[ $status -eq 1 ] || fail "expected 1 of an interrupted run, given $status"
[ "$(tail -1 "$out/said")" = "bench: interrupted; what was measured is kept, --missing goes on" ] ||
    fail "expected a line, no traceback: $(cat "$out/said")"
said=$( (ulimit -f 0 && ! "${run[@]}" 2>&1) | tail -2) || fail "expected no success where nothing can be written"
[[ $said == *$'\n''bench: [Errno '* ]] || fail "expected a line, no traceback: $said"
! tools/bench/run.py "$out/built" --no-page --part barrier --peers gl00 2>"$out/said" || fail "expected peers that there are"
grep -qx 'bench: expected peers of openmpi, mpich, given gl00' "$out/said" || fail "expected the peers"
