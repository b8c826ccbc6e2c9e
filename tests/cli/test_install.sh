#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A program of a user builds against the installed library, through pkg-config, with the shared and
# with the static library, and reports the version of the headers.
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
    printf("%s %d\n", hp_version(), hp_world_size(world));
    hp_world_destroy(world);
    return 0;
}
END
expected="$("${config[@]}" --modversion) 1"
# shellcheck disable=SC2046 # flags are words
gcc -std=c17 "$prefix/user.c" $("${config[@]}" --cflags --libs) -o "$prefix/shared"
# shellcheck disable=SC2046
gcc -std=c17 "$prefix/user.c" $("${config[@]}" --cflags) \
    "$(find "$prefix" -name libhyperparallel.a)" -pthread -lm -o "$prefix/static"

lib=$(dirname "$(find "$prefix" -name libhyperparallel.so)")
for said in "$(LD_LIBRARY_PATH=$lib "$prefix/shared")" "$("$prefix/static")"; do
    [ "$said" = "$expected" ] || { echo "expected '$expected', given '$said'"; exit 1; }
done
