#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The commands of docs/diagnosis.md do what it says, one section after the other. Each row of the
# table there has its part here.
set -euo pipefail
build=$(realpath "$1")
hprun=$build/bin/hprun
diagnose=$build/bin/examples/diagnose
root=$PWD
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_diagnosis: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

has() { grep -qE -- "$1" "$out/said" || fail "expected $1"; }

run() { "$hprun" -n 2 "$diagnose" "$@" >"$out/said" 2>&1; }

echo "== log levels"
for level in DEBUG INFO WARNING ERROR 0 1 2 3; do
    HYPER_PARALLEL_SHMEM_LOG_LEVEL=$level SHMEM_LOG_TO_STDOUT=1 run wrong || fail "$level: expected status 0"
    case $level in
    DEBUG | 0) has ' DEBUG +coll +barrier #1 of world' ;;&
    DEBUG | INFO | 0 | 1) has ' INFO +world +start: 2 ranks on this node, processes' ;;
    *) ! grep -qE 'INFO|DEBUG' "$out/said" || fail "$level: expected no lines below it" ;;
    esac
    has ' ERROR +coll +broadcast: expected a root from 0 to 1, given 7'
done
! HYPER_PARALLEL_SHMEM_LOG_LEVEL=LOUD run memory || fail "expected an unknown level to be refused"
has 'HYPER_PARALLEL_SHMEM_LOG_LEVEL to be DEBUG\|INFO\|WARNING\|ERROR'

echo "== log files"
(cd "$out" && HYPER_PARALLEL_SHMEM_LOG_LEVEL=INFO "$hprun" -n 2 "$diagnose" memory >"$out/said")
cat "$out"/hyperparallel.rank0.*.log >"$out/said"
has 'end: 1572864 bytes of symmetric memory at most, 0 now'
[ "$(grep -c . "$out"/hyperparallel.rank1.*.log)" -gt 3 ] || fail "expected a file of rank 1"
mkdir "$out/logs"
HYPER_PARALLEL_LOG_DIR=$out/logs HYPER_PARALLEL_SHMEM_LOG_LEVEL=ERROR run memory
rmdir "$out/logs" || fail "expected no file where there was nothing to say"

echo "== memory statistics"
run memory || fail "expected status 0"
has '^two +allocated 1572864, peak 1572864, free [0-9]+ bytes in 2 allocations$'
has '^one +allocated 524288, peak 1572864, free [0-9]+ bytes in 1 allocations$'

echo "== a time-out names who waited for whom in what, and the job ends"
! SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS=300 run late 30 || fail "expected a failure"
has 'rank 0 waited for rank 1 \(rank 1 of world\) in barrier #1 for 300 ms'
has '^hprun: rank 0 \(pid [0-9]+\) ended with status 1$'
has '^hprun: rank 1 was '
HYPER_PARALLEL_SLOW_WAIT_MS=100 HYPER_PARALLEL_SHMEM_LOG_LEVEL=WARNING SHMEM_LOG_TO_STDOUT=1 run late 0.5 ||
    fail "expected a late rank to be waited for"
has 'WARNING world +rank 0 waited for rank 1 \(rank 1 of world\) in barrier #1 for 100 ms and waits on'

echo "== arguments are checked before anything is touched"
run wrong || fail "expected the job to go on"
[ "$(grep -c HP_ERR "$out/said")" -eq 6 ] || fail "expected three refusals on each rank"
has 'expected live memory, given the all-zero handle'

echo "== a trace of calls"
run trace "$out/trace" || fail "expected status 0"
tools/check_trace.sh "$out/trace.0.json" "$out/trace.1.json" >"$out/said"
has 'trace.0.json: 14 spans'
jq -r '.traceEvents[] | select(.ph == "B") | "\(.name) \(.args.unit) \(.args.bytes)"' \
    "$out/trace.1.json" >"$out/said"
for span in 'symm_alloc world 4096' 'put_signal null 4096' 'symm_wait null 0' 'all_reduce world 4096' \
    'barrier world 0' 'symm_free null 0'; do
    has "^$span$"
done

echo "== USDT probes"
if [ -e /usr/include/sys/sdt.h ] || [ -e "/usr/include/$(gcc -print-multiarch)/sys/sdt.h" ]; then
    readelf -n "$build/libhyperparallel.so" >"$out/said"
    has 'Provider: hyperparallel'
    while read -r name; do
        has "Name: ${name}__begin$"
        has "Name: ${name}__end$"
    done < <(sed -n '/^## Public calls/,$s/^| `\([a-z_]*\)` .*/\1/p' docs/events.md)
else
    echo "   skipped: no sys/sdt.h, so no probes"
fi

echo "== hpinfo, availability, versions"
"$build/bin/hpinfo" >"$out/said" || fail "expected the library to be available"
has '^  available +yes$'
has '^  version +[0-9]+\.[0-9]+\.[0-9]+$'
! run newer || fail "expected headers of a later version to be refused"
has 'expected a program compiled with headers that this library, [0-9.]+, serves'

echo "== every file, option and program that the page names is there"
while read -r name; do
    [ -e "$root/$name" ] || fail "docs/diagnosis.md: expected $name in the tree"
done < <(grep -oE '\]\([a-z_./-]+\.md' "$root/docs/diagnosis.md" | sed 's|](|docs/|' | sort -u)
while read -r name; do
    grep -q "\"$name\"" src/base/options.def || fail "docs/diagnosis.md: expected an option $name"
done < <(grep -oE '(HYPER_PARALLEL|SYMMETRIC_MEMORY|SHMEM)_[A-Z_]+' docs/diagnosis.md | sort -u)
