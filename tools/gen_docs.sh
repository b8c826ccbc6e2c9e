#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gen_docs.sh - write the generated pages of docs/ again.
#
# usage: tools/gen_docs.sh BUILD [FOLDER]
#
# BUILD is a finished build. FOLDER is where the pages go, docs/ when it is left out. A page is
# complete or left as it was.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
folder=${2:-docs}

mkdir -p "$folder"
for page in status options events; do
    "$build/tools/gen_docs" "$page" >"$folder/$page.md.tmp"
    mv "$folder/$page.md.tmp" "$folder/$page.md"
done

# low-precision.md is written by hand, but for the tables between its two markers.
page=low-precision.md
"$build/tools/wire_errors" >"$folder/$page.tables"
awk -v tables="$folder/$page.tables" '
    /^<!-- tools\/wire_errors ends -->$/ { inside = 0 }
    !inside { print }
    /^<!-- tools\/wire_errors begins -->$/ {
        inside = 1
        while ((getline line < tables) > 0) print line
        print ""
    }' "docs/$page" >"$folder/$page.tmp"
rm "$folder/$page.tables"
mv "$folder/$page.tmp" "$folder/$page"
