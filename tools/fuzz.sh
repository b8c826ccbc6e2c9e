#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh - the readers of files against libFuzzer, with address and undefined-behaviour sanitizers.
#
# usage: tools/fuzz.sh BUILD [SECONDS]     seconds for each of tests/fuzz/fuzz_*.c, 300 unless told
#
# The few files that read what others wrote are compiled with clang into BUILD/fuzz, and each target
# runs on a copy of its seeds, which its own findings join (BUILD/fuzz/corpus). An input that breaks
# it is written to BUILD/fuzz and named; what was found in earlier runs is in tests/fuzz/corpus, so
# that it is tried first. Below 30 seconds each target does the same every time: the seeds alone, a
# fixed number of inputs and a fixed start of its random numbers.
set -euo pipefail
if [ $# -lt 1 ] || ! [[ ${2:-300} =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: tools/fuzz.sh BUILD [SECONDS]" >&2
    exit 2
fi
build=$(realpath -m "$1")/fuzz
seconds=${2:-300}
cc=${FUZZ_CC:-clang-14}
cd "$(dirname "$0")/.."

mkdir -p "$build"
flags=(-std=c17 -D_GNU_SOURCE -DHP_PLAIN_KERNELS=1 -O1 -g -fno-omit-frame-pointer -ffp-contract=off
    "-fsanitize=fuzzer,address,undefined" -fno-sanitize-recover=all -Iinclude -Isrc -Imodels)
readers=(src/base/*.c src/fsdp/checkpoint/{json,files,safetensors}.c src/fsdp/weights/index.c
    models/qwen3/config{,_read}.c)

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
    if ! "${still[@]}" "$build/$name" "${extent[@]}" -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="$build/$name." -print_final_stats=1 \
        -dict=tests/fuzz/json.dict "$corpus" >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        echo "fuzz: $name failed; the input is the last of: $build/$name.*" >&2
        return 1
    fi
    printf '%-22s %s executions, %s\n' "$name" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
        "$(sed -n 's/.*\(cov: [0-9]* ft: [0-9]* corp: [0-9]*\).*/\1/p' "$log" | tail -n 1)"
}

failed=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    "$cc" "${flags[@]}" "$source" "${readers[@]}" -lcjson -lpthread -lm -o "$build/$name"
    run "$name" || failed=1
done
exit "$failed"
