/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_enter.c - any words on the ENTER line of a peer: how a call that differs is put into text.
 *
 * The describing is the static one of compare.c, which is taken in whole. Any words give a text
 * that ends, and words that differ give the name of what differs.
 */
#include "coll/meet/compare.c"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    fuzz_input in = {data, n_bytes};
    uint64_t mine[HPI_N_WORDS], theirs[HPI_N_WORDS];
    enum { SIZE = 200 }; /* as fail_mismatch has it */
    fuzz_take(&in, mine, sizeof mine);
    fuzz_take(&in, theirs, sizeof theirs);
    char *text = malloc(SIZE);
    MUST(text);
    describe(mine, text, SIZE);
    MUST(memchr(text, 0, SIZE) && text[0]);
    describe(theirs, text, SIZE);
    MUST(memchr(text, 0, SIZE) && text[0]);
    MUST(difference(mine, theirs)[0]);
    const hpi_types t = hpi_unpack_types(mine[HPI_WORD_TYPES]);
    MUST(hpi_pack_types(&t) == mine[HPI_WORD_TYPES]);
    free(text);
    return 0;
}
