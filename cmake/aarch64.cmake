# SPDX-License-Identifier: Apache-2.0
#
# A build for 64-bit Arm on a machine of another kind: Debian's cross compiler, libraries of the
# foreign architecture arm64, tests under qemu-user. See tools/aarch64.sh.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
# A library of this machine's own architecture is no substitute.
set(CMAKE_LIBRARY_PATH /usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
