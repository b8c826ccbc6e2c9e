#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# aarch64.sh - the quick tests as a program for 64-bit Arm, under qemu-user.
#
# usage: tools/aarch64.sh BUILD [CTEST OPTION...]      environment: JOBS
#
# Installs the cross compiler, qemu and the few libraries of Debian's architecture arm64, as root or
# through sudo, builds into BUILD/aarch64 (cmake/aarch64.cmake) and runs the tests whose names are
# not in the list below. It shows that nothing rests on the word size, the signedness of char, the
# instructions or the system calls of x86. It shows nothing about the order of memory: qemu-user
# runs under this machine's. tools/spin.sh and tools/weaken.py are about that.
set -euo pipefail
if [ $# -lt 1 ]; then
    echo "usage: tools/aarch64.sh BUILD [CTEST OPTION...]" >&2
    exit 2
fi
cd "$(dirname "$0")/.."
build=$1/aarch64
shift

# Tests that cannot run here, and why: a pattern of ctest, then the reason.
left_out='
^cli\.                    scripts start programs of the build by their names, without qemu
'

packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    libcmocka-dev:arm64 libcjson-dev:arm64 libxxhash-dev:arm64)

install_packages() {
    local as_root=() missing=() package
    for package in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || {
        echo "aarch64: this is no Debian; expected the equivalents of: ${missing[*]}" >&2
        exit 1
    }
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    echo "Installing what is missing: ${missing[*]}"
    "${as_root[@]}" dpkg --add-architecture arm64
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install_packages
tools/build.sh "$build" "-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64.cmake"
patterns=()
while read -r pattern reason; do
    [ -n "$pattern" ] || continue
    patterns+=("$pattern")
    echo "left out: $pattern: $reason"
done <<<"$left_out"
# qemu keeps 16 bytes for each page that a program maps, so heaps of the size of the machine would
# take half of it.
export SYMMETRIC_MEMORY_HEAP_SIZE=64M
tools/run_tests.sh "$build" -L quick -E "$(IFS='|' && echo "${patterns[*]}")" "$@"
