#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every public header compiles alone, as C17 and as C++17, and every file of ours names its licence.
set -euo pipefail
flags=(-Iinclude -Wall -Wextra -Werror -Wpedantic -fsyntax-only)

failed=0
complain() {
    echo "$1"
    failed=1
}

for header in include/hyperparallel/*.h; do
    name=hyperparallel/$(basename "$header")
    # Twice: the guard must hold.
    printf '#include <%s>\n#include <%s>\n' "$name" "$name" >"${TMPDIR:-/tmp}/header.$$"
    gcc -std=c17 "${flags[@]}" -xc "${TMPDIR:-/tmp}/header.$$" || complain "$header: not C17 by itself"
    g++ -std=c++17 "${flags[@]}" -xc++ "${TMPDIR:-/tmp}/header.$$" || complain "$header: not C++17 by itself"
    # cffi and other binders read declarations, not code.
    ! grep -nE '^(static )?inline|^static ' "$header" || complain "$header: expected declarations alone"
done
rm -f "${TMPDIR:-/tmp}/header.$$"

# Files whose format has room for a comment; the first lines suffice.
while read -r file; do
    head -n 5 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
        complain "$file: expected 'SPDX-License-Identifier: Apache-2.0' at its head"
done < <(find include src programs models examples tests tools cmake CMakeLists.txt Makefile make .ci \
    -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.map' -o -name '*.sh' -o -name '*.cmake' \
    -o -name CMakeLists.txt -o -name Makefile -o -name make -o -name run \))

exit $failed
