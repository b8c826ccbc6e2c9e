#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Our Qwen3 against Transformers' on PyTorch: tests/model/transformers/agree.py says how. It runs in
# the Python of `tools/setup.sh python`, else in one that has both packages already. Without them it
# is skipped, except in CI, where a skip would hide everything that this test is for.
set -euo pipefail
build=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1

can_run() { "$1" -c 'import torch, transformers' 2>/dev/null; }

for python in build/python/bin/python python3; do
    if can_run "$python"; then
        "$python" tests/model/transformers/agree.py "$build/bin" "$build/tests/model/qwen3_probe" "$out"
        exit
    fi
done
echo "no Python with torch and transformers here: tools/setup.sh python installs them"
[ "${CI:-}" = true ] && exit 1
exit 77
