#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test_hpperf_virtual.sh - hpperf overlap in virtual time: the bound is kept in every row.
#
# usage: test_hpperf_virtual.sh BUILD
#
# Times are exact here, so a row of schedule full is compared with its bound, and with serial, as it
# is printed. The rows of the preset are counted, and their serial steps are the seed's "before".
set -euo pipefail
build=$1
hpperf=$build/bin/hpperf
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "expected $1" >&2
    exit 1
}

# The value of a field in a line of JSON on standard input.
field() { sed -n "s/.*\"$1\": \"\{0,1\}\([^,\"}]*\).*/\1/p"; }

# Every row with schedule full of the file: at most 1.01 of its bound, never slower than serial.
check_rows() {
    grep '"schedule": "full"' "$1" |
        sed 's/.*"over_bound": \([0-9.]*\), "over_serial": \([0-9.]*\).*/\1 \2/' |
        awk '{ n++ } NF != 2 || $1 > 1.01 || $2 > 1 { print "row " n ": over bound, over serial: " $0; bad = 1 }
             END { exit bad || !n }' || fail "every row of $1 within 1% of its bound, no slower than serial"
}

# 32 units, communication as long as compute, every mode and mesh.
"$hpperf" overlap --virtual --json --comm all --schedule all --mesh 1x8,2x4,4x2,8x1 \
    --compute-ms 5,5 --comm-ms 5 >"$scratch/equal"
[ "$(wc -l <"$scratch/equal")" = 60 ] || fail "60 rows, given $(wc -l <"$scratch/equal")"
check_rows "$scratch/equal"
# Nothing of the schedule without overlap is hidden: the sum of all parts, to the digit.
serial=$(grep '"serial", "comm": "per-param".*\[2, 4\]' "$scratch/equal" | field step_ms)
[ "$serial" = 955.0000 ] || fail "a serial step of 32 x (5 + 5) + 63 x 5 + 64 x 5 ms, given $serial"

# The seed's tables.
"$hpperf" overlap --virtual --json --preset seed >"$scratch/seed"
[ "$(wc -l <"$scratch/seed")" = 30 ] || fail "15 rows of two schedules, given $(wc -l <"$scratch/seed")"
check_rows "$scratch/seed"
step_of() { grep "\"$1\", \"schedule\": \"serial\"" "$scratch/seed" | field step_ms; }
[ "$(step_of configuration-1)" = 1556.5600 ] || fail "1556.56, given $(step_of configuration-1)"
[ "$(step_of configuration-2)" = 1459.8800 ] || fail "1459.88, given $(step_of configuration-2)"
[ "$(step_of configuration-3)" = 1738.7800 ] || fail "1738.78, given $(step_of configuration-3)"
first=$(grep '"scenario-1", "schedule": "serial"' "$scratch/seed")
[ "$(field forward_ms <<<"$first")" = 943.0000 ] || fail "a forward of 943 ms, given $first"
[ "$(field backward_ms <<<"$first")" = 2067.0000 ] || fail "a backward of 2067 ms, given $first"
split=$(grep '"follow-up-4", "schedule": "full"' "$scratch/seed")
[ "$(field collective_ms <<<"$split")" = 1847.0000 ] || fail "gathers of 1847 ms, given $split"

# Nothing is faster than its bound, though ranks are delayed differently.
"$hpperf" overlap --virtual --json --comm all --schedule all --mesh 4x2,2x4 --units 4 --params 1 \
    --prefetch 3 --compute-ms 0,0.1 --comm-ms 5,16,0 --inject 511 >"$scratch/injected"
"$hpperf" overlap --virtual --json --comm all --schedule all --mesh 4x2,8x1 --units 3 \
    --compute-ms 0 --comm-ms 1,20,25 --inject 815 >>"$scratch/injected"
while read -r row; do
    awk -v step="$(field step_ms <<<"$row")" -v bound="$(field bound_ms <<<"$row")" \
        'BEGIN { exit step + 0.001 < bound }' || fail "a step not below its bound, given $row"
done <"$scratch/injected"

# What is put together from other times has their limit too.
! "$hpperf" overlap --virtual --compute-ms 1e-300,60000 --comm-ms 60000 2>"$scratch/error" || fail "an error"
grep -q 'expected reduce-scatters of at most 60000 ms' "$scratch/error" || fail "a limit, given $(cat "$scratch/error")"
! "$hpperf" overlap --virtual --mesh 1024x1024 2>"$scratch/error" || fail "an error"
grep -q 'of at most 1024 ranks' "$scratch/error" || fail "a limit, given $(cat "$scratch/error")"

# A seed is a seed; another one is another run; and what cannot be is refused.
run() { "$hpperf" overlap --virtual --json --inject "$1"; }
[ "$(run 3)" = "$(run 3)" ] || fail "the same times from the same seed"
[ "$(run 3)" != "$(run 4)" ] || fail "other times from another seed"
! "$hpperf" overlap --virtual --preset other >/dev/null 2>"$scratch/error" || fail "an error"
grep -q 'expected --preset seed, given "other"' "$scratch/error" || fail "a name of a preset"
! "$hpperf" overlap --virtual --inject 1 --mesh 128x8 >/dev/null 2>"$scratch/error" || fail "an error"
grep -q 'expected at most 64 ranks' "$scratch/error" || fail "a limit, given $(cat "$scratch/error")"
