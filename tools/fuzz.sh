#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh - the readers of what others wrote (files, messages, shared memory) against libFuzzer, with
# address and undefined-behaviour sanitizers.
#
# usage: tools/fuzz.sh BUILD [SECONDS [TARGET...]]      environment: JOBS
#
# Seconds for each of tests/fuzz/fuzz_*.c, 300 unless told. The library is compiled with clang into
# BUILD/fuzz, and each target runs on a copy of its seeds, which its own findings join
# (BUILD/fuzz/corpus). An input that breaks it is written to BUILD/fuzz and named; what was found in
# earlier runs is in tests/fuzz/corpus, so that it is tried first. Below 30 seconds each target does
# the same every time: the seeds alone, a fixed number of inputs and a fixed start of its random
# numbers. A target may take in a source file whole, to reach what is static there: the archive's
# object of that file is then left out by the linker.
set -euo pipefail
if [ $# -lt 1 ] || ! [[ ${2:-300} =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: tools/fuzz.sh BUILD [SECONDS [TARGET...]]" >&2
    exit 2
fi
build=$(realpath -m "$1")/fuzz
seconds=${2:-300}
targets=("${@:3}")
cc=${FUZZ_CC:-clang-14}
cd "$(dirname "$0")/.."

mkdir -p "$build"
flags=(-std=c17 -D_GNU_SOURCE -DHP_PLAIN_KERNELS=1 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off
    "-fsanitize=fuzzer,address,undefined" -fno-sanitize-recover=all -Iinclude -Isrc -Imodels)

# The library as an archive, without what no target reaches: the linker would say so. The sums alone
# would take half of the time. All is compiled again when anything in the tree has changed.
unreached='^src/(coll/.*/|fused/|matmul/|stream/v|fsdp/(memory|optimize|plan|proof|step|together)/)'
objects=$build/objects
stamp=$objects/stamp
mkdir -p "$objects"
if [ ! -f "$stamp" ] || [ -n "$(find src include models -newer "$stamp" -name '*.[chd]*' -print -quit)" ]; then
    touch "$stamp.begun"
    rm -f "$build/library.a" "$objects"/*.o
    export cc objects all_flags="${flags[*]} -fsanitize=fuzzer-no-link"
    # shellcheck disable=SC2016 # the inner shell expands it
    printf '%s\n' src/*/*.c src/*/*/*.c models/*/*.c | grep -vE "$unreached" |
        xargs -P "${JOBS:-$(nproc)}" -I{} bash -c \
            '$cc ${all_flags/fuzzer,/} -c "$1" -o "$objects/${1//\//_}.o"' - {}
    ar rcs "$build/library.a" "$objects"/*.o
    mv "$stamp.begun" "$stamp"
fi

still=()
if [ "$seconds" -lt 30 ]; then
    # libFuzzer learns from compared values, addresses among them: where it may, they stay the same.
    ! setarch -R true 2>/dev/null || still=(setarch -R)
    corpora=$build/short
    rm -rf "$corpora"
    extent=(-seed=1 -reload=0 "-runs=$((seconds * 5000))")
else
    corpora=$build/corpus
    extent=("-max_total_time=$seconds")
fi

# run TARGET: prints how far it came, or its last words and false.
run() {
    local name=$1 corpus=$corpora/$1 log=$build/$1.log
    mkdir -p "$corpus"
    [ ! -d "tests/fuzz/corpus/$name" ] || cp "tests/fuzz/corpus/$name"/* "$corpus"
    local dictionary=()
    case $name in
    *json | *config | *safetensors | *index | *trace) dictionary=(-dict=tests/fuzz/json.dict) ;;
    esac
    if ! "${still[@]}" "$build/$name" "${extent[@]}" -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="$build/$name." -print_final_stats=1 \
        "${dictionary[@]}" "$corpus" >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        echo "fuzz: $name failed; the input is the last of: $build/$name.*" >&2
        return 1
    fi
    printf '%-22s %s executions, %s\n' "$name" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
        "$(sed -n 's/.*\(cov: [0-9]* ft: [0-9]* corp: [0-9]*\).*/\1/p' "$log" | tail -n 1)"
}

[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/fuzz_*.c; do
    targets+=("$(basename "$source" .c)")
done
failed=0
for name in "${targets[@]}"; do
    parts=()
    if [ "$name" = fuzz_trace ]; then # its head says why
        parts=(-Iprograms -Dfree=given_back)
        for part in programs/hpreport/*.c; do
            [[ $part =~ /(die|assets|reader|run)\.c$ ]] || parts+=("$part")
        done
    fi
    "$cc" "${flags[@]}" "${parts[@]}" "tests/fuzz/$name.c" "$build/library.a" -lcjson -lpthread -lm -ldl \
        -o "$build/$name"
    run "$name" || failed=1
done
exit "$failed"
