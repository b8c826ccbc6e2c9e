#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run_tests.sh - run tests under ctest and count the cases inside them.
#
# usage: tools/run_tests.sh BUILD [CTEST OPTION...]      environment: JOBS
#
# ctest counts programs; what a person wants to know is how many cases passed. A cmocka program
# counts as its cases, anything else as one; a program that died counts as one failure more. Says
# why a test was skipped (the line that it printed last) and ends with "N passed, N failed, N skipped".
set -euo pipefail
PATH=/usr/bin:$PATH

build=$(realpath "$1")
shift
results=$build/results.xml

rm -f "$results"
status=0
ctest --test-dir "$build" -j "${JOBS:-$(nproc)}" --output-on-failure --no-tests=error \
    --test-output-size-passed 10000000 --test-output-size-failed 10000000 \
    --output-junit "$results" "$@" || status=$?
[ -f "$results" ] || exit 1

awk '
function plain(text) {
    sub(/^.*<system-out>/, "", text)
    gsub(/&quot;/, "\"", text); gsub(/&lt;/, "<", text); gsub(/&gt;/, ">", text)
    gsub(/&amp;/, "\\&", text)
    return text
}
/<testcase / {
    split($0, quoted, "\"")
    test = quoted[2]
    state = $0 ~ /status="run"/ ? "run" : $0 ~ /status="fail"/ ? "fail" : "missing"
    cases = bad = 0
    last = ""
}
/<skipped message="SKIP_RETURN_CODE/ { state = "skip" }
match($0, /\[  (PASSED |FAILED |SKIPPED|ERROR  ) \] [0-9]+ test\(s\)/) {
    n = substr($0, RSTART + 13) + 0
    cases += n
    if ($0 ~ /PASSED/) passed += n
    else if ($0 ~ /SKIPPED/) skipped += n
    else { failed += n; bad += n }
}
/^\[  SKIPPED \] [^0-9]/ && !((test, $4) in said) {
    said[test, $4] = 1
    print "skipped: " test ", " $4 ": " (last ~ /^\[/ ? "no reason given" : last)
}
/<\/testcase>/ {
    if (state == "skip") { skipped++; print "skipped: " test ": " last }
    else if (state == "run" && !cases) passed++
    else if (state == "missing" || (state == "fail" && !bad)) failed++
}
{ line = plain($0); if (line !~ /^[ \t]*</ && line != "") last = line }
END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
' "$results"
exit "$status"
