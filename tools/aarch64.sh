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

# Left out whole: cli tests, whose scripts start programs of the build by name, without qemu; and
# fault.starved, whose limits of memory and files would be limits of qemu's own.
left_out='^cli\.|^fault\.starved$'
# Cases that qemu cannot pass, and why; all other cases of these programs must.
cannot='
unit.symm test_processes                         qemu ignores MADV_WIPEONFORK: a child does not notice
unit.queue test_after_fork                       MADV_WIPEONFORK
unit.start test_fork                             MADV_WIPEONFORK
fault.lives a_forked_child_is_told_by_every_call MADV_WIPEONFORK
conformance.coll N4_as_processes                 qemu has no process_vm_readv
unit.start test_no_memory_among_processes        gives 200 ms to a start, processes of qemu need more
fault.hostile strangers_at_the_sockets           qemu drops descriptors, open, for which there is no room
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
# qemu keeps 16 bytes for each page that a program maps, so heaps of the size of the machine would
# take half of it.
export SYMMETRIC_MEMORY_HEAP_SIZE=64M

# A program some of whose cases may fail.
run_but() {
    local test=$1 said case
    said=$(timeout 600 qemu-aarch64 "$build/tests/${test/.//test_}" 2>&1) || true
    if ! grep -q '^\[==========\] [0-9]* test(s) run' <<<"$said"; then
        printf '%s\n%s did not end well\n' "$said" "$test"
        return 1
    fi
    while read -r case; do
        if [ -n "$case" ] && ! grep -q "^$test $case " <<<"$cannot"; then
            printf '%s\n%s: %s failed\n' "$said" "$test" "$case"
            return 1
        fi
    done <<<"$(sed -nE 's/^\[  FAILED  \] ([a-z_0-9]*[a-z_][a-z_0-9]*)$/\1/p' <<<"$said")"
    grep "^$test " <<<"$cannot" | sed 's/^/left out: /'
}

status=0
programs=$left_out
while read -r test; do
    [ -n "$test" ] || continue
    programs+="|^${test/./\\.}\$"
    [ $# -gt 0 ] || run_but "$test" || status=1
done <<<"$(cut -d' ' -f1 <<<"$cannot" | sort -u)"
tools/run_tests.sh "$build" -L quick -E "$programs" "$@" || status=1
exit $status
