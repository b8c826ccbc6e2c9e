#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# python.sh - the Python package, in place: its sources here, its library from the build folder.
#
# usage: tools/python.sh BUILD          environment: JOBS, as of build.sh
#
# The package is installed into build/python, an environment that tools/setup.sh python has filled with
# what the tests want, or a small one made here. A source file that changes is seen at once, a header
# or the library after this again; when none has changed it does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$(realpath -m "$1")
python=build/python
stamp=$python/package

is_current() {
    [ "$(cat "$stamp" 2>/dev/null)" = "$build" ] &&
        [ -z "$(find -L include python/*.py python/pyproject.toml "$build/libhyperparallel.so.0" \
            "$build/lib/hyperparallel" "$build/bin/hprun" -newer "$stamp")" ]
}

exec {turn}>build/python.lock # tests ask for it at the same time
flock "$turn"
! is_current || exit 0
[ -x "$python/bin/python" ] || python3 -m venv "$python"
"$python/bin/python" -c 'import cffi, setuptools, wheel' 2>/dev/null ||
    "$python/bin/python" -m pip install -qq cffi setuptools wheel
export HYPER_PARALLEL_BUILD=$build
if ! "$python/bin/python" -m pip install -qq --no-deps --no-build-isolation -e python \
    >"$build/python.log" 2>&1; then
    cat "$build/python.log" >&2
    exit 1
fi
echo "$build" >"$stamp"
