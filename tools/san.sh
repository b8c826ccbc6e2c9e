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
# settings that those about modes and meshes try one by one; and ranks that are processes run under
# the first two alone. compile: what short needs, built and not run.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=/usr/bin:$PATH
build=$1
form=${2:-all}
not_under_address='^$'
not_under_thread='^(fault|cli)\.|^model\.(bytes_mlp|qwen3_(attention|config|kernels|layers))$'
if [ "$form" != all ]; then
    not_under_address='^cli\.(cluster|examples|hpreport_page|hpperf|hpperf_overlap|hpperf_fused|hprun|hprun_restarts|transport|hptrain_(output|data|modes|qwen3|restarts|tensor))$'
    not_under_address+='|^model\.qwen3_(attention|layers|bits|tensor)$|^field\.(fsdp|fsdp_buffers|fsdp_loop|schedule)$|^conformance\.(coll_exchange|wire)$|^unit\.(fsdp_(bits|modes|accumulate|by_hand)|mapped|trace)$|^fault\.(kill_start|save_killed|weights_crash)$'
    not_under_thread+='|^unit\.(fsdp_(bits|modes|accumulate|units|reset|verify|by_hand|order|defer)|mapped|mapped_saved|clip|weights|matmul|steady)$|^unit\.(kernel_versions|hpperf_values|verify_orders|virtual_orders)$|^field\.(fsdp|fsdp_buffers|fsdp_loop|schedule)$|^model\.qwen3_(bits|tensor)$|^conformance\.(across|backward|coll_exchange|coll_misuse|direct|wire)$'
fi

# build FOLDER SANITIZERS EXCEPT: the quick tests but EXCEPT, and what they start.
build() {
    local targets
    tools/build.sh "$1" "-DHP_SANITIZE=$2" -- objects
    mapfile -t targets < <(ctest --test-dir "$1" -N -L quick -E "$3" |
        sed -nE 's/^ *Test +#[0-9]+: //p' | sed -E 's/^cli\..*/cli/; s/\./_test_/' | sort -u)
    tools/build.sh "$1" -- "${targets[@]}"
}

build "$build/asan" address,undefined "$not_under_address"
build "$build/tsan" thread "$not_under_thread"
[ "$form" != compile ] || exit 0

status=0
echo "== address and undefined behaviour"
ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
UBSAN_OPTIONS=print_stacktrace=1 \
    tools/run_tests.sh "$build/asan" -L quick -E "$not_under_address" || status=1

echo "== threads"
[ "$form" = all ] || export HP_TEST_THREADS_ONLY=1
TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
    tools/run_tests.sh "$build/tsan" -L quick -E "$not_under_thread" || status=1
exit $status
