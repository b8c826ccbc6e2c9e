#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A program of a user builds against the installed library, through pkg-config, with the shared and
# with the static library, reports the version of the headers, and finds the plug-ins.
set -euo pipefail
build=$1
PATH=/usr/bin:$PATH # Debian's own cmake
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$build" --prefix "$prefix" >/dev/null
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name hyperparallel.pc)")
config=(pkg-config hyperparallel)

cat >"$prefix/user.c" <<'END'
#include <hyperparallel/hyperparallel.h>
#include <stdio.h>
int main(void) {
    hp_world *world;
    if (hp_world_create(NULL, &world) != HP_OK)
        return fprintf(stderr, "%s\n", hp_last_error()), 1;
    hp_matmul *matmul;
    if (hp_matmul_open("auto", 1, &matmul) != HP_OK)
        return fprintf(stderr, "%s\n", hp_last_error()), 1;
    printf("%s %d %s\n", hp_version(), hp_world_size(world), matmul->name);
    hp_matmul_close(matmul);
    hp_world_destroy(world);
    return 0;
}
END
engine=plain
[ ! -f "$prefix/lib/hyperparallel/matmul_onednn.so" ] || engine=onednn
expected="$("${config[@]}" --modversion) 1 $engine"
# shellcheck disable=SC2046 # flags are words
gcc -std=c17 "$prefix/user.c" $("${config[@]}" --cflags --libs) -o "$prefix/shared"
# shellcheck disable=SC2046
gcc -std=c17 "$prefix/user.c" $("${config[@]}" --cflags) \
    "$(find "$prefix" -name libhyperparallel.a)" -pthread -lm -o "$prefix/bin/static"

lib=$(dirname "$(find "$prefix" -name libhyperparallel.so)")
for said in "$(LD_LIBRARY_PATH=$lib "$prefix/shared")" "$("$prefix/bin/static")"; do
    [ "$said" = "$expected" ] || { echo "expected '$expected', given '$said'"; exit 1; }
done
