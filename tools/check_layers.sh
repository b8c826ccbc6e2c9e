#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check_layers.sh - holds every #include to src/LAYERS.
#
# usage: tools/check_layers.sh [ROOT]
#
# A room includes its own files, the doors (src/ROOM/ROOM.h) and public headers of the rooms that its
# row allows, and nothing else of ours; rows name only rooms above them, so there is no cycle.
# Programs, models and examples see public headers alone. The environment is read in
# src/base/options.c and nowhere else. Prints each offence as FILE:LINE and fails.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# Prints what is wrong with the table itself: unknown or later rooms in a row, folders without a row.
check_table() {
    awk -F: '
    /^#/ || NF < 2 { next }
    {
        n = split($2, allowed, " ")
        for (i = 1; i <= n; i++)
            if (!(allowed[i] in above))
                printf "src/LAYERS:%d: room %s may include only rooms above it, given %s\n", NR, $1, allowed[i]
        above[$1] = 1
    }' src/LAYERS
    local folder
    for folder in src/*/; do
        folder=$(basename "$folder")
        grep -q "^$folder:" src/LAYERS || echo "src/$folder: expected a row in src/LAYERS"
        [ -f "src/$folder/$folder.h" ] || echo "src/$folder: expected its door, src/$folder/$folder.h"
    done
}

# Prints the includes that the table does not allow. A public header belongs to the room of its name.
check_includes() {
    grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.[ch]' src include/hyperparallel |
        grep -v '^include/hyperparallel/hyperparallel.h:' |
        awk '
    BEGIN {
        room_of["machine"] = "world" # a header that is not named after its room
        while ((getline row < "src/LAYERS") > 0) {
            split(row, part, ":")
            n = split(part[2], allowed, " ")
            for (i = 1; i <= n; i++) may[part[1], allowed[i]] = 1
        }
    }
    {
        split($0, place, ":")
        split(place[1], path, "/")
        room = path[2]
        if (path[1] == "include") { room = path[3]; sub(/\.h$/, "", room) }
        if (room in room_of) room = room_of[room]
        given = $0
        sub(/^[^<"]*[<"]/, "", given)
        sub(/[>"].*/, "", given)
        if (given ~ /^hyperparallel\//) {
            split(given, part, "/"); target = part[2]; sub(/\.h$/, "", target); door = 1
            if (target in room_of) target = room_of[target]
        } else if (given ~ /^\.\.\//) {
            # Up from the folder of the file: where it leads, seen from src.
            depth = gsub("/", "/", place[1])
            while (given ~ /^\.\.\//) { given = substr(given, 4); depth-- }
            if (depth >= 2) next # inside the room
            split(given, part, "/"); target = part[1]; door = part[2] == target ".h" && !(3 in part)
            if (target == room) door = 1
            delete part
        } else if (given ~ /\//  && $0 ~ /"/) { # down from the folder of the file, if it is there
            here = place[1]
            sub(/[^\/]*$/, given, here)
            if ((getline line < here) >= 0) { close(here); next }
            target = given; door = 0
        }
        else next
        where = place[1] ":" place[2] ": "
        if (!door)
            print where "expected the door of a room (../ROOM/ROOM.h), given " given
        else if (target != room && !((room, target) in may))
            print where "room " room " may not include room " target " (src/LAYERS)"
    }'
}

check_outside() {
    local folder folders=()
    for folder in programs models examples; do
        [ ! -d $folder ] || folders+=("$folder")
    done
    [ ${#folders[@]} -eq 0 ] || grep -rnE '#[[:space:]]*include[[:space:]]*"([^"]*/)?src/' \
        --include='*.[ch]' "${folders[@]}" | sed 's/$/   <- expected public headers alone/' || true
    grep -rnwE '(secure_)?getenv' --include='*.[ch]' src "${folders[@]}" |
        grep -v '^src/base/options\.c:' | grep -vE ':[[:space:]]*(/?\*|//)' |
        grep -vE '^programs/.*getenv\("TORCHELASTIC_' | # world.h tells every program to look there
        sed 's/$/   <- the environment is read in src\/base\/options.c alone/' || true
}

offences=$(check_table; check_includes; check_outside)
if [ -n "$offences" ]; then
    printf '%s\n' "$offences" >&2
    exit 1
fi
