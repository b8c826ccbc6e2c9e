#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test_evidence.sh - every test that docs/evidence.md names is there, and runs: it stands in the
# list of its program. A file that is named alone is there. A row's id begins the name of at least
# one of its tests.
#
# usage: tests/cli/test_evidence.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
page=docs/evidence.md
status=0
n=0

while IFS=': ' read -r file name; do
    n=$((n + 1))
    # once where it is defined, once where it is run; pytest finds what it runs
    if [ "$(grep -cwE "$name" "tests/$file" 2>/dev/null)" -lt "$([[ $file == *.py ]] && echo 1 || echo 2)" ]; then
        echo "$page names $name in tests/$file: expected to find it there, defined and run"
        status=1
    fi
done < <(grep -oE "\`[a-z]+/test_[a-z0-9_]+\.(c|py): [A-Za-z0-9_]+\`" "$page" | tr -d '`')
while read -r file; do
    if [ ! -e "tests/$file" ] && [ ! -e "$file" ]; then
        echo "$page names $file: expected to find it, here or in tests"
        status=1
    fi
done < <(grep -oE "\`[a-z]+/[a-z0-9_]+\.(c|sh)\`" "$page" | tr -d '`')
if [ "$n" -lt 60 ]; then
    echo "expected at least 60 tests in $page, found $n"
    status=1
fi

while IFS='|' read -r _ id _ tests; do
    id=${id// /}
    if ! grep -qiE ": (test_)?${id}_" <<<"$tests"; then
        echo "$page: expected a test of row $id whose name begins with it"
        status=1
    fi
done < <(grep -E '^\| [SNRF][0-9]+ \|' "$page")
# No row of the specification is left out.
for id in A{1..12} C{1..3}; do
    if ! grep -qE "^\| $id \|" "$page"; then
        echo "$page: expected a promise of row $id, and its test"
        status=1
    fi
done
exit $status
