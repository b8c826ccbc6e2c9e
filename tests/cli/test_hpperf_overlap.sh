#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpperf overlap on real ranks: every mode and schedule gives right values, and one object a line;
# what it does not understand it says once; communication that lasts as long as compute hides behind
# it. Ratios are taken within one run, where compute and communication are timed sleeps.
set -euo pipefail
build=$1
hprun=$build/bin/hprun
hpperf=$build/bin/hpperf
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpperf_overlap: $*" >&2
    cat "$out/said" "$out/error" >&2 2>/dev/null || true
    exit 1
}

overlap() { # RANKS ARGUMENT...: into $out/said; ends with 0
    local n=$1
    shift
    "$hprun" -n "$n" --deadline 60 "$hpperf" overlap "$@" >"$out/said" 2>"$out/error" ||
        fail "$n ranks, $*: expected exit status 0"
    [ ! -s "$out/error" ] || fail "$n ranks, $*: expected nothing on standard error"
}

refuses() { # RANKS TEXT ARGUMENT...: ends with 2 and says TEXT, once
    local n=$1 text=$2 status=0
    shift 2
    "$hprun" -n "$n" --deadline 60 "$hpperf" overlap "$@" >"$out/said" 2>"$out/error" || status=$?
    [ "$status" -eq 2 ] || fail "$*: expected exit status 2, given $status"
    grep -qF -- "$text" "$out/error" || fail "$*: expected \"$text\""
    [ "$(wc -l <"$out/error")" -eq 1 ] || fail "$*: expected one line"
}

holds() { # CONDITION over the rows that were printed, a list of dicts
    python3 - "$out/said" "$1" <<'PYTHON' || fail "expected $1"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(not eval(sys.argv[2]))
PYTHON
}

few=(--units 3 --width 4K --runs 2 --compute-ms 1 --json)

echo "== every mode and schedule on each mesh, with delays at random: right values, an object a line"
overlap 2 "${few[@]}" --comm all --schedule all --mesh 1x2,2x1 --inject 7
holds 'len(rows) == 30 and not any(r["wrong"] for r in rows)'
holds '[r["schedule"] for r in rows[:3]] == ["serial", "prefetch", "full"]'
holds 'all(r["mode"] == r["comm"] for r in rows if r["comm"] != "auto")'
holds 'all(r["mode"] != "auto" and r["step_ms"] > 0 and r["bound_ms"] > 0 for r in rows)'
holds 'all(r["collective_ms"] == 0 for r in rows if r["mesh"] == [2, 1])'
holds 'all(r["pack_ms"] > 0 for r in rows if r["comm"] == "fused" and r["mesh"] == [1, 2])'
overlap 4 "${few[@]}" --comm all --mesh 2x2 --compute busy --comm-ms 0 --params 1 --prefetch 2
holds 'len(rows) == 10 and not any(r["wrong"] for r in rows)'
overlap 1 "${few[@]}" --comm per-param,fused --width 10000
holds 'all(r["comm_ms"] == 0 and not r["wrong"] for r in rows)'

echo "== the fields"
for field in schedule comm mesh compute step_ms bound_ms compute_ms comm_ms exposed_ms over_bound \
    pack_ms collective_ms wait_ms over_serial; do
    grep -q "\"$field\": " "$out/said" || fail "expected the field $field"
done
holds 'all(set(r["exposed_ms"]) == {"unshard", "reduce", "replicate"} for r in rows)'

echo "== communication as long as compute hides behind it"
overlap 4 --mesh 2x2 --units 8 --width 16K --compute-ms 8 --runs 3 --json --trace "$out" \
    --schedule full
holds 'rows[0]["over_serial"] < 1 / 1.5 and rows[0]["over_bound"] < 1.5'
holds 'sum(rows[0]["exposed_ms"].values()) < rows[0]["comm_ms"] / 2'
for rank in 0 1 2 3; do
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))["traceEvents"][0]' \
        "$out/trace-$rank.json" || fail "expected a trace of rank $rank"
done

echo "== a table for people"
overlap 2 --units 2 --width 4K --runs 1 --compute-ms 1 --schedule serial
[ "$(grep -c '^#' "$out/said")" -eq 2 ] || fail "expected two lines of head"
grep -q '^serial  *per-param  *1x2 ' "$out/said" || fail "expected a row"
overlap 1 --help
grep -q -- '--compute-ms=F' "$out/said" || fail "expected the options"

echo "== what does not fit is refused"
refuses 2 'for 2 ranks, given 2x2' --mesh 2x2
refuses 2 '--schedule: expected a schedule' --schedule serial,fast
refuses 2 '--comm: expected a mode' --comm all-of-them
refuses 2 'given "3"' --mesh 3
refuses 1 'given "1,2,3"' --compute-ms 1,2,3
refuses 1 'given "-1"' --comm-ms -1
refuses 1 'given "nan"' --comm-ms nan
refuses 1 'options alone' all_reduce
refuses 1 '--nope' --nope
refuses 1 'at least 4 bytes for each of 4 parameters' --width 8
refuses 1 'one case with --trace' --trace "$out"
refuses 1 '--units' --units 0
