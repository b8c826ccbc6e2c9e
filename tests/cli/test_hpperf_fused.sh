#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpperf ag_matmul, matmul_rs, ag_weight_grad: rows for every number of ranks and dtype whose two
# forms agree, one object a line; what it does not understand it says once. How fast they are is no
# test's business.
set -euo pipefail
build=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpperf_fused: $*" >&2
    cat "$out/said" "$out/error" >&2 2>/dev/null || true
    exit 1
}

run() { # RANKS ARGUMENT...: into $out/said; ends with 0
    local n=$1
    shift
    "$build/bin/hprun" -n "$n" --deadline 60 "$build/bin/hpperf" "$@" >"$out/said" 2>"$out/error" ||
        fail "$n ranks, $*: expected exit status 0"
}

refuses() { # TEXT ARGUMENT...: ends with 2 and says TEXT, once
    local text=$1 status=0
    shift
    "$build/bin/hprun" -n 2 --deadline 60 "$build/bin/hpperf" "$@" >"$out/said" 2>"$out/error" ||
        status=$?
    [ "$status" -eq 2 ] || fail "$*: expected exit status 2, given $status"
    grep -qF -- "$text" "$out/error" || fail "$*: expected \"$text\""
    [ "$(wc -l <"$out/error")" -eq 1 ] || fail "$*: expected one line"
}

holds() { # CONDITION over the rows that were printed, a list of dicts
    python3 - "$out/said" "$1" <<'PYTHON' || fail "expected $1"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(0 if eval(sys.argv[2]) else 1)
PYTHON
}

for ranks in 1 2 4; do
    run "$ranks" ag_matmul --shape 0.6b-kv --tokens 6,17 --pairs 1 --json
    holds "[r['tokens'] for r in rows] == [6, 17] and all(r['wrong'] == 0 for r in rows)"
    holds "all(r['op'] == 'ag_matmul' and r['n'] * $ranks == 1024 and r['ratio'] > 0 for r in rows)"
done
run 2 matmul_rs --shape expert-down --tokens 7 --pairs 1 --dtype bf16 --json
holds "len(rows) == 1 and rows[0]['k'] == 384 and rows[0]['wrong'] == 0"
run 2 ag_matmul --shape 0.6b-kv --tokens 8 --pairs 1 --delay --dtype fp16 --json
holds "rows[0]['delay_us'] > 0 and rows[0]['wrong'] == 0"
run 2 ag_weight_grad --shape expert-gate --tokens 9 --pairs 2 --dtype bf16 --json
holds "rows[0]['op'] == 'ag_weight_grad' and rows[0]['n'] == 384 and rows[0]['wrong'] == 0"
holds "all(r['product_us'] > 0 and r['collective_share'] < 1 for r in rows)"
holds "all(r['ratio_least'] <= r['ratio'] <= r['ratio_most'] for r in rows)"
run 2 matmul_rs --shape 0.6b-o,expert-down --tokens 4 --pairs 1
[ "$(grep -vc '^#' "$out/said")" -eq 2 ] || fail "expected two rows"

refuses 'expected a shape of ag_matmul for --shape, given "0.6b-o"' ag_matmul --shape 0.6b-o
refuses 'expected --dtype fp32, bf16 or fp16, given "fp64"' matmul_rs --dtype fp64
refuses "missing value: --tokens; see hpperf matmul_rs --help" matmul_rs --tokens
run 1 ag_matmul --help
grep -q -- --delay "$out/said" || fail "expected its options"
