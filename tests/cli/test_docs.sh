#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test_docs.sh - the generated pages of docs/ are what the tables of the source say, and the figures
# of low-precision.md what the program prints.
#
# usage: tests/cli/test_docs.sh BUILD
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

tools/gen_docs.sh "$build" "$folder"
status=0
for page in "$folder"/*.md; do
    diff -u "docs/$(basename "$page")" "$page" || status=1
done
[ $status -eq 0 ] || echo "a page of docs/ differs from what it is made of: run \`make docs\` and check it in"
# every page was made, and a page that does not exist is refused
[ "$(find "$folder" -name '*.md' | wc -l)" -eq 4 ] || status=1
if "$build/tools/gen_docs" nothing >/dev/null 2>&1; then
    echo "expected gen_docs to refuse a page that does not exist"
    status=1
fi
exit $status
