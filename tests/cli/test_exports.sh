#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Three lists must be one: the functions that the public headers declare, the names that
# src/hyperparallel.map lists, and what libhyperparallel.so exports. So no declaration lacks a body,
# and nothing internal leaks.
set -euo pipefail
build=$1
export LC_ALL=C

# A declaration is hp_NAME( outside comments; pointers to functions stand as (*name)(.
declared=$(for header in include/hyperparallel/*.h; do
    gcc -E -P -Iinclude "$header"
done | grep -oE '\bhp_[a-z0-9_]+\(' | tr -d '(' | sort -u)
listed=$(sed -n 's/^ *\(hp_[a-z0-9_]*\);$/\1/p' src/hyperparallel.map)
exported=$(nm -D --defined-only "$build/libhyperparallel.so" | awk '$2 != "A" { print $3 }' |
    sed 's/@.*//' | sort)

# compare NAME LIST NAME LIST
failed=0
compare() {
    if [ "$2" != "$4" ]; then
        echo "$1 (<) and $3 (>) differ:"
        diff <(echo "$2") <(echo "$4") || true
        failed=1
    fi
}
[ "$(wc -w <<<"$declared")" -gt 50 ] || { echo "expected declarations, found: $declared"; exit 1; }
compare "headers" "$declared" "src/hyperparallel.map" "$listed"
compare "headers" "$declared" "libhyperparallel.so" "$exported"

# The static library's names stay in our own two families; sys/sdt.h has one of its own, weak, where
# there are probes.
strangers=$(nm --defined-only -g "$build/libhyperparallel.a" 2>/dev/null | awk 'NF == 3 { print $3 }' |
    grep -vE '^(hp_|hpi_|_\.stapsdt\.base$)' || true)
[ -z "$strangers" ] || { echo "expected hp_ or hpi_ in front of: $strangers"; failed=1; }

# dlopen has room for some 1,600 bytes of each thread that must lie at a fixed place; ours need more,
# error texts above all.
if readelf -dW "$build/libhyperparallel.so" | grep -q STATIC_TLS; then
    echo "expected thread-local variables that dlopen can place, found the flag STATIC_TLS"
    failed=1
fi
exit $failed
