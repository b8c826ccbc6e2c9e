#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A program of a user builds against the installed library, through pkg-config, with the shared and
# with the static library, starts, reports the version of the headers, and finds the plug-ins; so does
# the first example. What was built in part is not installed at all.
set -euo pipefail
build=$1
PATH=/usr/bin:$PATH # Debian's own cmake
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

fail() {
    echo "test_install: $*" >&2
    exit 1
}

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
# As README.md says it; nothing else tells the program where the library lies.
unset LD_LIBRARY_PATH
read -ra flags <<<"$("${config[@]}" --cflags --libs)"
flags+=(-lm "-Wl,-rpath,$("${config[@]}" --variable=libdir)")
gcc -std=c17 "$prefix/user.c" "${flags[@]}" -o "$prefix/shared"
# shellcheck disable=SC2046 # flags are words
gcc -std=c17 "$prefix/user.c" $("${config[@]}" --cflags) \
    "$(find "$prefix" -name libhyperparallel.a)" -pthread -lm -o "$prefix/bin/static"
for said in "$("$prefix/shared")" "$("$prefix/bin/static")"; do
    [ "$said" = "$expected" ] || fail "expected '$expected', given '$said'"
done

gcc -std=c17 examples/linear.c "${flags[@]}" -o "$prefix/linear"
"$prefix/bin/hprun" -n 2 "$prefix/linear" "$prefix/checkpoint" >"$prefix/said"
grep -q '^step 100: loss 0\.0' "$prefix/said" || fail "linear: $(cat "$prefix/said")"

# The text that is installed, and not the one of this tree.
"$prefix/bin/hptrain" --model bytes-mlp --steps 1 --eval-every 0 --output json --log "$prefix/log" >"$prefix/said"
grep -q "$prefix/share/hyperparallel/genesis_to_deuteronomy.txt" "$prefix/log" ||
    fail "hptrain: expected the installed text, given $(cat "$prefix/log")"

cmake -S . -B "$prefix/unbuilt" -G Ninja >/dev/null
! cmake --install "$prefix/unbuilt" --prefix "$prefix/half" >"$prefix/said" 2>&1 ||
    fail "expected no install of what is not built"
grep -q 'expected everything to be built' "$prefix/said" || fail "unbuilt: $(cat "$prefix/said")"
[ ! -e "$prefix/half" ] || fail "expected nothing, found $(find "$prefix/half")"
