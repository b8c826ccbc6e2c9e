/* SPDX-License-Identifier: Apache-2.0
 *
 * meet/words.h - what a rank says when it enters a collective: the layout of the words.
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
_Static_assert((int)HPI_N_WORDS == (int)HPI_SAID_WORDS, "the words fill an entry of the ring");

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

/* The word BLOCKS: their number in the lower half; in the upper one a hash of all calls so far. */
static inline uint64_t hpi_pack_blocks(uint64_t blocks, uint64_t history) {
    return (blocks & UINT32_MAX) | history >> 32 << 32;
}
static inline uint32_t hpi_unpack_blocks(uint64_t word) {
    return (uint32_t)word;
}

/* ---- enter.c ---- */

/* Write this rank's words into its entry: state->said, where `payload` stands behind the call.
 * hpi_said_post publishes them. */
void hpi_words_write(hpi_run *run, const uint64_t payload[HPI_SMALL_WORDS]);
/* Wait for a peer's words and compare; out_payload: what stands behind the call. */
hp_status hpi_words_hear(hpi_run *run, int peer, uint64_t out_payload[HPI_SMALL_WORDS]);

/* Of one number for each rank. */
uint64_t hpi_words_hash(const hpi_run *run, const uint64_t *numbers);

/* ---- offer.c ---- */

/* The key of an input that was copied for all to read; its offset counts from the begin of its
 * rank's heap, and may be before that. No allocation has it. */
#define HPI_CARRIED UINT64_MAX
/* Beside the place of an input: its rank has found the others afar. */
#define HPI_IS_AFAR (UINT64_C(1) << 63)
/* An input without an element is as good as placed: nobody reads it. */
static const hpi_place hpi_nowhere = {0, 1};

/* Where `rank` puts what it carries in a pocket; of two ranks, into the one that the other rank put
 * its own in the last time. */
static inline unsigned char *hpi_pocket_of(const hpi_run *run, int rank) {
    const uint64_t number = run->state->n_pocketed;
    if (run->n == 2)
        return hpi_group_pocket(run->group, number & 1 ? rank : 1 - rank, 0);
    return hpi_group_pocket(run->group, rank, number);
}

/* What this rank says of its operands, with the input itself where that travels with the meeting;
 * fills its state->entered, and run->is_carried. */
const uint64_t *hpi_offer(hpi_run *run, uint64_t room[HPI_SMALL_WORDS]);

/* ---- barrier.c ---- */

/* A barrier's meeting. */
hp_status hpi_barrier_meet(hpi_run *run);

/* ---- ahead.c ---- */

/* Of the last so many numbers a rank's entry is whole, whatever its peers do meanwhile. */
enum { HPI_MOST_AHEAD = HPI_N_SAID / 2 };

hp_status hpi_ahead_catch_up(hpi_run *run);
/* Wait until this rank is not too far ahead of any other to say its next words. */
static inline hp_status hpi_ahead_wait(hpi_run *run) {
    return run->seq <= run->state->floor + HPI_MOST_AHEAD ? HP_OK : hpi_ahead_catch_up(run);
}
/* Everybody has left the collectives before this one. */
static inline void hpi_ahead_met(hpi_run *run) {
    run->state->floor = run->seq - 1;
}
/* This rank has left one that had no meeting. */
void hpi_ahead_leave(hpi_run *run);

/* ---- compare.c ---- */

/* Has `peer` made the calls that this rank made, up to number seq, which both have left? MISMATCH
 * naming the first that differs. */
hp_status hpi_words_compare_past(const hpi_run *run, int peer, uint64_t seq);

/* Its words of collective `seq` are not ours: MISMATCH naming what differs. Of the payload the
 * third word is looked at, the length of a rank's own part. */
hp_status hpi_words_mismatch(const hpi_run *run, uint64_t seq, const uint64_t *mine, int peer,
                             const uint64_t *theirs);
/* `peer`, whose entry this is, makes another call than this rank, or has made: MISMATCH naming what
 * differs. */
hp_status hpi_words_differ(const hpi_run *run, int peer, const hpi_said *entry);

#endif
