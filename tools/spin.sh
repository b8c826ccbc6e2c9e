#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# spin.sh - the models of tests/protocol against every order of their steps, and their mutants.
#
# usage: tools/spin.sh BUILD [MODEL...]      environment: CC
#
# Each model must hold on the weak memory (Arm), which allows all that x86 (tso) does and more. The
# table in its head comment names its mutants: one that "fails" must be refused, or the model could
# not have found the mistake; one that "holds" shows that an order is stronger than this part needs.
# The models are looked at side by side. Ends with "N passed, N failed".
set -euo pipefail
if [ $# -lt 1 ]; then
    echo "usage: tools/spin.sh BUILD [MODEL...]" >&2
    exit 2
fi
build=$(realpath -m "$1")/protocol
shift
cd "$(dirname "$0")/.."
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(tests/protocol/*.pml)

# verify MODEL MUTANT MEMORY WANTED TEXT: a line that begins with "passed" or "failed", and the log
# of what failed.
verify() {
    local name=$1 mutant=$2 memory=$3 wanted=$4 text=$5 outcome states
    local log=$build/$name/$mutant.$memory.log
    (cd "$build/$name" && MUTANT=$mutant WEAK=$([ "$memory" = weak ] && echo 1 || echo 0) \
        ./pan -m10000 -w20 >"$log" 2>&1) || true
    outcome=broken # a search that was cut short proves nothing
    if grep -q 'max search depth too small\|out of memory\|Search not completed' "$log" &&
        ! grep -q 'errors: [1-9]' "$log"; then
        :
    elif grep -q 'errors: 0$' "$log"; then
        outcome=holds
    elif grep -q 'errors: [1-9]' "$log"; then
        outcome=fails
    fi
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$log")
    if [ "$outcome" = "$wanted" ]; then
        printf 'passed %-9s %2s %-4s %s (%s states): %s\n' "$name" "$mutant" "$memory" \
            "$outcome" "${states:-?}" "$text"
    else
        printf 'failed %s: mutant %s on %s memory (%s): expected that it %s, given: %s\n' \
            "$name" "$mutant" "$memory" "$text" "$wanted" "$outcome"
        tail -n 30 "$log"
    fi
}

# One model and its mutants.
check() {
    local model=$1 name mutants mutant memory wanted text
    name=$(basename "$model" .pml)
    mutants=$(sed -nE 's/^ \*  +([0-9]+) (tso|weak) +(holds|fails) +(.*)/\1 \2 \3 \4/p' "$model")
    if [ -z "$mutants" ]; then
        echo "failed $name: expected mutants in its head comment, there are none"
        return
    fi
    mkdir -p "$build/$name"
    cp tests/protocol/*.inc "$model" "$build/$name"
    if ! (cd "$build/$name" && spin -a "$name.pml" && ${CC:-cc} -O1 -w -DSAFETY -o pan pan.c) >"$build/$name/build.log" 2>&1; then
        echo "failed $name: no verifier comes of it"
        cat "$build/$name/build.log"
        return
    fi
    verify "$name" 0 weak holds "as it is"
    while read -r mutant memory wanted text; do
        verify "$name" "$mutant" "$memory" "$wanted" "$text"
    done <<<"$mutants"
}

mkdir -p "$build"
printf '%s\n' "${models[@]}" | (
    export build
    export -f check verify
    # shellcheck disable=SC2016 # the inner shell expands it
    xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'check "$1" >"$build/$(basename "$1").log"' - {}
)
n_passed=0
n_failed=0
for model in "${models[@]}"; do
    log=$build/$(basename "$model").log
    sed 's/^passed //' "$log"
    n_passed=$((n_passed + $(grep -c '^passed ' "$log" || true)))
    n_failed=$((n_failed + $(grep -c '^failed ' "$log" || true)))
done
echo "$n_passed passed, $n_failed failed"
[ "$n_failed" -eq 0 ] && [ "$n_passed" -gt 0 ]
