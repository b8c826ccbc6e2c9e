#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# lint.sh - everything that can be said about the source without running it.
#
# usage: tools/lint.sh BUILD [STEP...]      environment: JOBS
#
# Steps: format layers shell spelling cppcheck clang tidy; all of these when none is named. Each runs
# even when one before it failed. CI has tidy_short in the place of tidy, which gives up on a function
# after a tenth of the paths, and takes a fourth of the time. Clang compiles every file for its
# warnings, a second opinion, and links nothing; clang-tidy reads its compile commands.
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
clang() {
    local objects
    CC=clang-14 tools/build.sh "$build/clang" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 -- objects
    mapfile -t objects < <(ninja -C "$build/clang" -t targets all | sed -n 's/: C_COMPILER__.*//p')
    ninja -C "$build/clang" -j "$jobs" --quiet "${objects[@]}"
}
tidy_of() { # FOLDERS [OPTION...]
    run-clang-tidy-14 -quiet -p "$build/clang" -j "$jobs" "${@:2}" "$PWD/($1)/" >"$build/tidy.log" 2>&1 && return
    # A finding in a header comes once per file that includes it; the path to it is in tidy.log.
    grep -E '(error|warning): ' "$build/tidy.log" | sed 's/\x1b\[[0-9;]*m//g' | sort -u
    return 1
}

everywhere='src|plugins|models|programs|examples|tools'
tidy() { tidy_of "$everywhere"; }
tidy_short() {
    local words=() word
    for word in -Xclang -analyzer-config -Xclang max-nodes=20000; do # 225000 otherwise
        words+=("-extra-arg=$word")
    done
    tidy_of "$everywhere" "${words[@]}"
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
