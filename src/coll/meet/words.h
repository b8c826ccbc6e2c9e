/* SPDX-License-Identifier: Apache-2.0
 *
 * meet/words.h - what a rank says on its ENTER line: the layout of the words.
 */
#ifndef HPI_WORDS_H
#define HPI_WORDS_H

#include "../inside.h"

/* The words; TYPES packs collective, dtypes, op, forced algorithm, tag, and the root of a broadcast
 * or the pass of any other. */
enum {
    HPI_WORD_TYPES,
    HPI_WORD_COUNT,
    HPI_WORD_BLOCKS,
    HPI_WORD_PLACES,
    HPI_N_WORDS = HPI_ENTER_WORDS
};
_Static_assert(HPI_N_WORDS == HPI_WORD_PLACES + HPI_SMALL_WORDS,
               "the last words are places or an input");
_Static_assert(2 * HPI_N_WORDS <= 15, "two sets of words fit into a line");

typedef struct hpi_types {
    unsigned what, dtype, out_dtype, op, only, wire, wire_result, root, pass, tag;
} hpi_types;
_Static_assert(HPI_LAST_COLLECTIVE < 16 && HPI_N_DTYPES <= 16 && HPI_LAST_REDUCE < 4 &&
                   HPI_LAST_WIRE < 8 && HPI_PASS_BITS == 16 && HPI_MAX_LOCAL <= 0xffff + 1,
               "what pack_types packs fits into its bits");

static inline uint64_t hpi_pack_types(const hpi_types *t) {
    const unsigned root_or_pass = t->what == HP_BROADCAST ? t->root : t->pass;
    return t->what | t->dtype << 4 | t->out_dtype << 8 | t->op << 12 | t->only << 14 |
           t->wire << 20 | t->wire_result << 23 | (uint64_t)(root_or_pass & 0xffff) << 24 |
           (uint64_t)t->tag << 40;
}

static inline hpi_types hpi_unpack_types(uint64_t word) {
    const bool is_rooted = (word & 15) == HP_BROADCAST;
    const unsigned root_or_pass = word >> 24 & 0xffff;
    return (hpi_types){.what = word & 15,
                       .dtype = word >> 4 & 15,
                       .out_dtype = word >> 8 & 15,
                       .op = word >> 12 & 3,
                       .only = word >> 14 & 63,
                       .wire = word >> 20 & 7,
                       .wire_result = word >> 23 & 1,
                       .root = is_rooted ? root_or_pass : 0,
                       .pass = is_rooted ? 0 : root_or_pass,
                       .tag = (unsigned)(word >> 40)};
}

/* ---- compare.c ---- */

/* Does `peer`, who said these words, make the same call as this rank? MISMATCH naming what
 * differs. */
hp_status hpi_words_compare(const hpi_run *run, int peer, const uint64_t *theirs);

#endif
