#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make_text.sh - make data/genesis_to_deuteronomy.txt again, byte for byte.
#
# The `bible` program prints "Ge1:1 In the beginning ..." for each verse. The reference is cut off:
# a verse is a line, and an empty line stands between chapters. The result is compared with the
# checksum below, so another version of the text cannot slip in unnoticed.
set -eu

target=${1:-$(dirname "$0")/../data/genesis_to_deuteronomy.txt}
expected=32905cb77b3ca80d1254c86ff2e5f1e355dc66de90d36198bf38ae38097f3aa5

command -v bible >/dev/null || {
    echo "make_text.sh: expected the program bible; apt-get install bible-kjv bible-kjv-text" >&2
    exit 1
}

bible -f 'gen1:1-deut34:12' | LC_ALL=C awk '
    {
        split($1, place, ":")
        if (NR > 1 && place[1] != chapter) print ""
        chapter = place[1]
        sub(/^[^ ]+ /, "")
        print
    }' >"$target.new"

given=$(sha256sum <"$target.new" | cut -d " " -f 1)
if [ "$given" != "$expected" ]; then
    echo "make_text.sh: expected sha256 $expected, made $given (left in $target.new)" >&2
    exit 1
fi
mv "$target.new" "$target"
