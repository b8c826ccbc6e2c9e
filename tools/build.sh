#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# build.sh - configure and build in one go, quiet while all is well.
#
# usage: tools/build.sh BUILD [-DNAME=VALUE...] [-- TARGET...]      environment: JOBS, CC
#
# Debian's own cmake and ninja are taken first: wrappers of the same names may stand before them in
# PATH. Configuring again is cheap and notices packages that have come since.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/bin:$PATH

build=$1
shift
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
[ $# -eq 0 ] || shift

mkdir -p "$build"
if ! cmake -S . -B "$build" -G Ninja "${options[@]}" >"$build/configure.log" 2>&1; then
    cat "$build/configure.log" >&2
    exit 1
fi
# A line per file is for terminals; elsewhere only what goes wrong is said.
quiet=()
[ -t 1 ] || quiet=(-- --quiet)
exec cmake --build "$build" -j "${JOBS:-$(nproc)}" "${@/#/--target=}" "${quiet[@]}"
