#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The rooms include only what src/LAYERS allows, and the check notices when they do not: each kind of
# offence is planted in a copy of the tree.
set -euo pipefail
root=$PWD
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

"$root/tools/check_layers.sh"

# plant FILE TEXT WANTED: with TEXT added to FILE the check fails and says WANTED.
plant() {
    rm -rf "${copy:?}"/*
    cp -r src include programs models examples "$copy"
    mkdir -p "$(dirname "$copy/$1")"
    printf '%s\n' "$2" >>"$copy/$1"
    if said=$("$root/tools/check_layers.sh" "$copy" 2>&1); then
        echo "expected the check to refuse '$2' in $1"
        exit 1
    fi
    if [[ $said != *"$3"* ]]; then
        echo "expected '$3', given '$said'"
        exit 1
    fi
}

plant src/base/clock.c '#include "../world/world.h"' "room base may not include room world"
plant src/base/clock.c '#include <hyperparallel/fsdp.h>' "room base may not include room fsdp"
plant src/fsdp/plan.c '#include "../world/control.h"' "expected the door of a room"
plant src/fsdp/checkpoint/json.c '#include "../../world/control.h"' "expected the door of a room"
plant src/coll/coll.h '#include "../fsdp/fsdp.h"' "room coll may not include room fsdp"
plant include/hyperparallel/base.h '#include <hyperparallel/world.h>' "room base may not include room world"
plant programs/planted.c '#include "../src/base/base.h"' "expected public headers alone"
plant src/world/planted.c 'const char *home = getenv("HOME");' "src/base/options.c alone"
plant src/LAYERS 'ring: base ring' "only rooms above it, given ring"
plant src/attic/attic.c '' "src/attic: expected a row"
