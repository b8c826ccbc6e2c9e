#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# san.sh - the quick tests under sanitizers, in builds of their own.
#
# usage: tools/san.sh BUILD [short|compile]      environment: JOBS
#
# AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer see every test. ThreadSanitizer sees
# ranks as threads of one process; two processes on one memory are beyond it, so the tests that are
# about processes (fault, cli) are left out there, and of those of one thread the slow ones.
# short, for CI: without the slow tests whose code others run too. unit.same_bits has every pair of
# settings that those about modes and meshes try one by one. compile: the builds alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
not_under_address='^$'
not_under_thread='^(fault|cli)\.|^model\.(bytes_mlp|qwen3_(attention|config|kernels|layers))$'
if [ "${2:-}" = short ]; then
    not_under_address='^cli\.(cluster|examples|hpreport_page|hpperf|hpperf_overlap|hpperf_fused|hprun|hprun_restarts|transport|hptrain_(output|data|modes|qwen3|restarts))$'
    not_under_address+='|^model\.qwen3_(layers|bits)$|^field\.schedule$|^unit\.(fsdp_(bits|modes|accumulate|by_hand)|mapped|trace)$|^fault\.kill_start$'
    not_under_thread+='|^unit\.(fsdp_(bits|modes|accumulate|units|reset|verify|by_hand|order|defer)|mapped|mapped_saved|clip|weights|matmul|steady)$|^unit\.(kernel_versions|hpperf_values|verify_orders|virtual_orders)$|^field\.(fsdp|fsdp_buffers|fsdp_loop|schedule)$|^model\.qwen3_bits$|^conformance\.(backward|coll_exchange|coll_misuse|direct|wire)$'
fi

if [ "${2:-}" = compile ]; then
    tools/build.sh "$build/asan" -DHP_SANITIZE=address,undefined
    exec tools/build.sh "$build/tsan" -DHP_SANITIZE=thread
fi

echo "== address and undefined behaviour"
tools/build.sh "$build/asan" -DHP_SANITIZE=address,undefined
status=0
ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
UBSAN_OPTIONS=print_stacktrace=1 \
    tools/run_tests.sh "$build/asan" -L quick -E "$not_under_address" || status=1

echo "== threads"
tools/build.sh "$build/tsan" -DHP_SANITIZE=thread
TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
    tools/run_tests.sh "$build/tsan" -L quick -E "$not_under_thread" || status=1
exit $status
