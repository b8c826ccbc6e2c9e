#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The models of tests/protocol hold and their mutants do not (tools/spin.sh). Skipped without spin,
# except in CI. The check itself must notice: a model that is wrong, and a mutant that is no mistake.
set -euo pipefail
build=$1
if ! command -v spin >/dev/null; then
    echo "spin is not there: tools/setup.sh test installs it"
    [ "${CI:-}" = true ] && exit 1
    exit 77
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

tools/spin.sh "$build"

# refused NAME SED-EXPRESSION: the model ahead, damaged so, is not taken.
refused() {
    sed -E "$2" tests/protocol/ahead.pml >"$out/$1.pml"
    if tools/spin.sh "$out" "$out/$1.pml" >"$out/said"; then
        echo "$1: expected that it is refused"
        cat "$out/said"
        exit 1
    fi
}
refused wrong 's/^#define N_ENTRIES.*/#define N_ENTRIES 1/'
refused harmless 's/^( \*   1 weak )holds/\1fails/'
refused empty '/^ \*   [0-9]/d'
