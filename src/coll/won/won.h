/* SPDX-License-Identifier: Apache-2.0
 *
 * won/won.h - the backward of max and min: which rank the gradient of each element goes to.
 *
 *     small     every rank has the inputs and gradients of all, and takes what it has won   small.c
 *     staged    of a reduce_scatter: inputs go through cells to who has their results, and
 *               so the gradients; these come back, with zeros for who has not won          staged.c
 *     placed    large ones in symmetric memory: each rank reads its column of all inputs,
 *               and stores gradients and zeros straight into every rank's in_grad          placed.c
 *     spans     of an all_reduce: ranks have the results, and tell each other a bit for
 *               each element; over wires and between nodes also as staged, by all_to_alls  spans.c
 *
 * A result is one of the contributions, bit by bit, or a NaN where one of them is, so that every
 * element has a winner: of the ranks that hold the result, the lowest.
 */
#ifndef HPI_WON_H
#define HPI_WON_H

#include "../inside.h"

/* One backward of max or min, as a stream takes it. */
typedef struct hpi_won {
    uint64_t bytes; /* of all this */
    hp_group *group;
    const char *name;              /* a literal: "all_reduce" */
    const unsigned char *in, *out; /* of the forward, as it left them */
    const unsigned char *out_grad;
    unsigned char *in_grad;
    hpi_coll sum; /* where is_summed: of all out_grads, into in_grad */
    hp_collective what;
    hp_dtype dtype;
    hp_reduce op;
    hp_wire wire; /* HP_WIRE_FULL, or what the forward rounded contributions to */
    bool is_summed, is_on_stream;
    int rank, n;
    int n_parts;      /* 1, of an all_reduce; else each rank has the results of a part */
    uint64_t size;    /* of an element */
    uint64_t longest; /* elements of a part */
    uint64_t total;   /* of all parts */
    /* Counts, then begins, of the parts in `in`: [n_parts] each; and what ranks say: [2 * n]. */
    uint64_t numbers[];
} hpi_won;

static inline const uint64_t *hpi_won_counts(const hpi_won *w) {
    return w->numbers;
}
static inline const uint64_t *hpi_won_begins(const hpi_won *w) {
    return w->numbers + w->n_parts;
}

/* ---- won.c ---- */

/* Find the winners and leave their gradients, zero where another rank has won; or put that on the
 * stream. Errors: ARGUMENT, MEMORY, MISMATCH, and those of the collectives that it takes. */
hp_status hpi_won_start(const hp_coll_backward_call *b, const hp_coll_call *mirror);

/* What ranks must agree on. */
typedef struct hpi_won_said {
    uint64_t call, count;
} hpi_won_said;
hpi_won_said hpi_won_say(const hpi_won *w);
/* An all_gather of what begins with that: MISMATCH naming what differs, and the group has failed.
 */
hp_status hpi_won_gather(const hpi_won *w, const hpi_coll *c);

/* The next piece of a block of memory; of NULL, which has none, only *at moves on. */
static inline void *hpi_won_take(unsigned char *memory, uint64_t *at, uint64_t bytes) {
    void *taken = memory ? memory + *at : NULL;
    *at += hpi_align_up(bytes, 64);
    return taken;
}

/* Of the sum of gradients: none where they are few and it needs registers alone. */
static inline uint64_t hpi_won_scratch_bytes(const hpi_won *w) {
    const bool is_leaf = w->n <= HPI_LEAVES && (w->n & (w->n - 1)) == 0;
    return w->is_summed && !is_leaf ? hpi_scratch_bytes(w->n) : 0;
}

/* An all_reduce's slice of [0, longest) that a rank adds up: cut at lines, so owners share none. */
static inline uint64_t hpi_won_slice(const hpi_won *w, uint64_t count, int rank,
                                     uint64_t *out_begin) {
    const uint64_t share = hpi_align_up(hpi_ceil_div(count, (uint64_t)w->n), 64 / w->size);
    *out_begin = hpi_min((uint64_t)rank * share, count);
    return hpi_min(share, count - *out_begin);
}

/* The sum of all gradients, in[i][0..count) by rank, as an all_reduce has it. scratch:
 * hpi_won_scratch_bytes. */
void hpi_won_sum(const hpi_won *w, const void *const *in, uint64_t count, unsigned char *scratch,
                 void *out);

/* ---- small.c ---- */

/* Are there so few bytes that all of them go to all ranks? The same answer on every rank. */
bool hpi_won_is_small(const hpi_won *w);
hp_status hpi_won_run_small(const hpi_won *w);

/* ---- placed.c ---- */

/* Is it worth a look where operands lie? The same answer on every rank. */
bool hpi_won_may_be_placed(const hpi_won *w);
/* The ranks meet, and if all have all operands in symmetric memory, it is done. */
hp_status hpi_won_run_placed(const hpi_won *w, bool *out_is_done);

/* ---- staged.c ---- */

/* A reduce_scatter's, on one node, when the ranks have met. */
hp_status hpi_won_run_staged(const hpi_won *w);

/* ---- spans.c ---- */

hp_status hpi_won_run_spans(const hpi_won *w);

#endif
