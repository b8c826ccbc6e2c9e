/* SPDX-License-Identifier: Apache-2.0
 *
 * spans.c - max and min of what peers cannot see, a span at a time, so that what is looked at twice
 * is still in a cache.
 *
 *     all_reduce, whose results are everywhere
 *         own       a bit for each element: is my contribution the result?
 *         gathered  these words of all ranks
 *         kept      own, but where a lower rank has the bit
 *     reduce_scatter
 *         inputs    to the rank that has their results, and so the gradients, which gives these to
 *         in_grads  the winners, with zeros for the others: back where the inputs came from
 */
#include "won.h"

#include "../staged/wire.h"

enum {
    SPAN = 16 << 10, /* elements, of all parts together */
    LEAST = 128,     /* of one part: whole words, whole blocks of a wire */
    WORD = 64
};

/* Of all parts elements [at, at + most), as far as a part goes. */
typedef struct span {
    const hpi_won *w;
    uint64_t most, at;
    float *wide;             /* own contributions as the wire made them ... */
    unsigned char *narrowed; /* ... in the dtype, of all parts; NULL without a wire */
    /* all_reduce */
    uint64_t *own, *all; /* what is said, then a bit for each element; the same of each rank */
    /* reduce_scatter */
    unsigned char *sent, *got; /* a piece of each part, and of each rank's input: [n * most] */
    uint64_t *counts, *begins; /* of each part in this span, and where its piece begins in `in` */
    uint64_t *own_counts;      /* of this rank's part, for each rank */
    uint64_t *packed;          /* where pieces begin in `narrowed` */
    const void **from;
    void **to;
} span;

enum { SAID = sizeof(hpi_won_said) / sizeof(uint64_t) };
static uint64_t words_of(const span *s) {
    return SAID + s->most / WORD;
}

static uint64_t count_of(const span *s, int part) {
    const uint64_t count = hpi_won_counts(s->w)[part];
    return count > s->at ? hpi_min(count - s->at, s->most) : 0;
}

/* What this rank contributed to the elements of a part; over a wire they come to `room`. */
static hp_status contributed(const span *s, int part, unsigned char *room, const void **out) {
    const hpi_won *w = s->w;
    const uint64_t count = count_of(s, part);
    *out = w->in + (hpi_won_begins(w)[part] + s->at) * w->size;
    if (w->wire == HP_WIRE_FULL || count == 0)
        return HP_OK;
    hpi_wire_round(w->wire, w->dtype, *out, count, s->wide);
    *out = room;
    if (w->dtype != HP_FP32)
        return hpi_convert(s->wide, HP_FP32, room, w->dtype, count);
    memcpy(room, s->wide, count * w->size);
    return HP_OK;
}

/* ---- all_reduce ---- */

/* Where this is all that ranks tell each other, it says what they call, too. */
static hp_status gather_words(const span *s) {
    const hpi_won_said said = hpi_won_say(s->w);
    const hpi_coll c = {.in = s->own,
                        .out = s->all,
                        .count = words_of(s),
                        .blocks = 1,
                        .dtype = HP_INT64,
                        .out_dtype = HP_INT64};
    memcpy(s->own, &said, sizeof said);
    return hpi_won_gather(s->w, &c);
}

/* An element that a lower rank holds is not ours. */
static void leave_to_lower(const span *s) {
    for (int i = 0; i < s->w->rank; i++) {
        const uint64_t *lower = s->all + (uint64_t)i * words_of(s);
        for (uint64_t k = SAID; k < words_of(s); k++)
            s->own[k] &= ~lower[k];
    }
}

static hp_status keep_own(const span *s) {
    const hpi_won *w = s->w;
    const uint64_t offset = s->at * w->size, count = count_of(s, 0);
    const unsigned char *gradient = w->is_summed ? w->in_grad : w->out_grad;
    const void *mine;
    HP_TRY(contributed(s, 0, s->narrowed, &mine));
    if (count)
        hpi_same_values(w->dtype, mine, w->out + offset, s->own + SAID, count);
    HP_TRY(gather_words(s));
    leave_to_lower(s);
    if (count)
        hpi_keep_values(w->dtype, s->own + SAID, gradient + offset, w->in_grad + offset, count);
    return HP_OK;
}

/* ---- reduce_scatter ---- */

/* The pieces of this rank's contributions, where they begin, and from what. */
typedef struct pieces {
    const void *base;
    const uint64_t *begins;
} pieces;

static hp_status find_contributions(const span *s, pieces *out) {
    const hpi_won *w = s->w;
    uint64_t at = 0;
    *out = (pieces){w->in, s->begins};
    if (w->wire == HP_WIRE_FULL)
        return HP_OK;
    *out = (pieces){s->narrowed, s->packed};
    for (int p = 0; p < w->n_parts; p++) {
        const void *unused;
        s->packed[p] = at;
        HP_TRY(contributed(s, p, s->narrowed + at * w->size, &unused));
        at += s->counts[p];
    }
    return HP_OK;
}

static hp_status exchange(const span *s, const hpi_coll *shape) {
    hpi_coll c = *shape;
    c.blocks = 1;
    c.dtype = c.out_dtype = s->w->dtype;
    return hpi_coll_run(s->w->group, HP_ALL_TO_ALL_V, &c, true, NULL);
}

static hp_status bring_inputs(const span *s) {
    pieces mine;
    HP_TRY(find_contributions(s, &mine));
    return exchange(s, &(hpi_coll){.in = mine.base,
                                   .in_counts = s->counts,
                                   .in_offsets = mine.begins,
                                   .out = s->got,
                                   .out_counts = s->own_counts});
}

static void give(const span *s) {
    const hpi_won *w = s->w;
    const uint64_t count = s->own_counts[0];
    for (int i = 0; i < w->n; i++) {
        s->from[i] = s->got + (uint64_t)i * count * w->size;
        s->to[i] = s->sent + (uint64_t)i * count * w->size;
    }
    if (count)
        hpi_give_gradient(w->dtype, w->op, s->from, w->n, w->out_grad + s->at * w->size, s->to,
                          count);
}

static hp_status bring_back(const span *s) {
    return exchange(s, &(hpi_coll){.in = s->sent,
                                   .in_counts = s->own_counts,
                                   .out = s->w->in_grad,
                                   .out_counts = s->counts,
                                   .out_offsets = s->begins});
}

static hp_status give_parts(const span *s) {
    const hpi_won *w = s->w;
    for (int p = 0; p < w->n_parts; p++) {
        s->counts[p] = count_of(s, p);
        s->begins[p] = hpi_won_begins(w)[p] + s->at;
        s->own_counts[p] = count_of(s, w->rank);
    }
    HP_TRY(bring_inputs(s));
    give(s);
    return bring_back(s);
}

/* ---- all of it ---- */

/* Returns how much it is. */
static uint64_t lay_out(span *s, unsigned char *memory) {
    const hpi_won *w = s->w;
    const uint64_t n_parts = (uint64_t)w->n_parts, has_wire = w->wire != HP_WIRE_FULL;
    const uint64_t word_bytes = n_parts == 1 ? words_of(s) * sizeof(uint64_t) : 0;
    const uint64_t n_cut = n_parts > 1 ? n_parts : 0, part_bytes = s->most * w->size;
    uint64_t at = 0;
    s->wide = hpi_won_take(memory, &at, has_wire * s->most * sizeof(float));
    s->narrowed = hpi_won_take(memory, &at, has_wire * n_parts * part_bytes);
    s->own = hpi_won_take(memory, &at, word_bytes);
    s->all = hpi_won_take(memory, &at, word_bytes * (uint64_t)w->n);
    s->sent = hpi_won_take(memory, &at, n_cut * part_bytes);
    s->got = hpi_won_take(memory, &at, n_cut * part_bytes);
    s->counts = hpi_won_take(memory, &at, n_cut * sizeof(uint64_t));
    s->begins = hpi_won_take(memory, &at, n_cut * sizeof(uint64_t));
    s->own_counts = hpi_won_take(memory, &at, n_cut * sizeof(uint64_t));
    s->packed = hpi_won_take(memory, &at, n_cut * sizeof(uint64_t));
    s->from = hpi_won_take(memory, &at, n_cut * sizeof(void *));
    s->to = hpi_won_take(memory, &at, n_cut * sizeof(void *));
    return at;
}

static hp_status run(span *s) {
    const hpi_won *w = s->w;
    if (w->is_summed)
        HP_TRY(hpi_coll_run(w->group, HP_ALL_REDUCE, &w->sum, true, NULL));
    hp_status status;
    do /* without any element the ranks meet once, all the same */
        status = w->n_parts > 1 ? give_parts(s) : keep_own(s);
    while (status == HP_OK && (s->at += s->most) < w->longest);
    return status;
}

hp_status hpi_won_run_spans(const hpi_won *w) {
    span s = {.w = w};
    s.most = hpi_max(SPAN / (uint64_t)w->n_parts / LEAST * LEAST, LEAST);
    s.most = hpi_min(s.most, hpi_align_up(hpi_max(w->longest, 1), LEAST));
    _Alignas(64) unsigned char few[4096]; /* what a small call needs */
    const uint64_t bytes = lay_out(&s, NULL);
    unsigned char *memory = bytes <= sizeof few ? few : hpi_alloc_aligned(64, bytes);
    if (!memory) {
        hpi_group_fail(w->group); /* the others will wait for this rank */
        return HP_ERR_MEMORY;
    }
    lay_out(&s, memory);
    const hp_status status = run(&s);
    if (memory != few)
        hpi_free(memory);
    return status;
}
