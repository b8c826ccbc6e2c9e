#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - a file of Python tests, as ctest runs it: tests/python/run.sh BUILD FILE
#
# In build/python, as tools/setup.sh python fills it; without what it needs there the file is skipped,
# except in CI, where a skip would hide everything that it is for.
set -euo pipefail
build=$1
python=build/python/bin/python

# Found, not imported: that takes seconds.
has_all() {
    "$python" -c 'import importlib.util as i, sys
sys.exit(not all(map(i.find_spec, sys.argv[1:])))' pytest cffi torch transformers mindspore 2>/dev/null
}
if ! has_all; then
    echo "no build/python with PyTorch and MindSpore here: make python-test installs them"
    [ "${CI:-}" = true ] && exit 1
    exit 77
fi
tools/python.sh "$build"
HYPER_PARALLEL_BUILD=$build exec "$python" -m pytest -q -m "not full" "$2"
