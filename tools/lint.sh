#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# lint.sh - everything that can be said about the source without running it.
#
# usage: tools/lint.sh BUILD [STEP...]      environment: JOBS
#
# Steps: format layers shell spelling cppcheck clang tidy; all of these when none is named. In the place
# of tidy, tidy_short follows paths through the rooms that handle what others give, and is most of CI's
# lint all the same. Each step
# runs even when one before it failed. The build with clang is the second opinion on warnings, and its
# compile commands are what clang-tidy reads.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/bin:$PATH
build=$1
shift
jobs=${JOBS:-$(nproc)}

mapfile -t c_files < <(git ls-files -co --exclude-standard '*.c' '*.h')
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' make .ci/run)

format() {
    local bad
    # clang-format fails where it finds one, which pipefail would pass on for the whole line.
    bad=$({ printf '%s\0' "${c_files[@]}" |
        xargs -0 -P "$jobs" -n 40 clang-format-14 --dry-run -Werror 2>&1 || true; } |
        sed -n 's/^\([^ :]*\):[0-9:]* error:.*/\1/p' | sort -u)
    [ -n "$bad" ] || return 0
    printf '%s\n' "$bad" "expected the layout of .clang-format: clang-format-14 -i FILE"
    return 1
}
layers() { tools/check_layers.sh; }
shell() { shellcheck "${scripts[@]}"; }
spelling() { codespell -q 3 --ignore-words-list=mattern,cann,fro --skip='./build,./data,./.git'; }
cppcheck_() {
    cppcheck --quiet --error-exitcode=1 --std=c11 -j "$jobs" --inline-suppr \
        --enable=warning,performance,portability \
        -D_GNU_SOURCE -DHP_PLAIN_KERNELS=1 -Iinclude -Isrc -Itests -Imodels \
        src plugins models programs examples tools
}
clang() { CC=clang-14 tools/build.sh "$build/clang"; }
tidy_of() { # FOLDERS [OPTION...]
    run-clang-tidy-14 -quiet -p "$build/clang" -j "$jobs" "${@:2}" "$PWD/($1)/" >"$build/tidy.log" 2>&1 && return
    # A finding in a header comes once per file that includes it; the path to it is in tidy.log.
    grep -E '(error|warning): ' "$build/tidy.log" | sed 's/\x1b\[[0-9;]*m//g' | sort -u
    return 1
}

tidy() { tidy_of 'src|plugins|models|programs|examples|tools'; }
tidy_short() {
    local status=0
    tidy_of 'src/(base|world|transport|symm|coll|fused)|plugins' || status=1
    tidy_of 'src/(trace|stream|matmul|fsdp)|models|programs|examples|tools' \
        -checks='-clang-analyzer-*' || status=1
    return $status
}

[ $# -gt 0 ] || set -- format layers shell spelling cppcheck clang tidy
failed=()
for step in "$@"; do
    echo "== $step"
    name=${step/cppcheck/cppcheck_}
    begin=$SECONDS
    "$name" || failed+=("$step")
    [ $((SECONDS - begin)) -lt 10 ] || echo "   $((SECONDS - begin)) s"
done
[ ${#failed[@]} -eq 0 ] || { echo "lint: failed: ${failed[*]}" >&2; exit 1; }
