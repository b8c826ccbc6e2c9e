/* SPDX-License-Identifier: Apache-2.0
 *
 * small.c - few bytes go to all ranks, which meet once.
 *
 *     [what I call | my input | my gradient]     of every rank, gathered
 *
 * Each looks for the winner of every element and keeps what is its own; what the others keep goes
 * to a place that nobody reads. Of an all_reduce's gradients the sum is the tree over ranks, as
 * anywhere; where they are equal on all ranks, none travels.
 */
#include "won.h"

enum { MOST_BYTES = 3 << 10 }; /* that a rank sends */

/* What a rank sends, bytes: its parts, packed; and the gradient behind them. */
static uint64_t gradient_bytes(const hpi_won *w) {
    const bool is_sent = w->n_parts > 1 || w->is_summed;
    return is_sent ? w->longest * w->size : 0;
}
static uint64_t sent_bytes(const hpi_won *w) {
    return sizeof(hpi_won_said) + w->total * w->size + gradient_bytes(w);
}

bool hpi_won_is_small(const hpi_won *w) {
    return w->wire == HP_WIRE_FULL && w->total <= MOST_BYTES && sent_bytes(w) <= MOST_BYTES;
}

typedef struct small {
    const hpi_won *w;
    unsigned char *sent, *all; /* [sent_bytes], [n * sent_bytes] */
    unsigned char *unread;     /* [longest] elements */
    unsigned char *summed;     /* the same */
    unsigned char *scratch;    /* of the sum */
    const void **from;         /* [n] */
    void **to;                 /* [n] */
} small;

static const unsigned char *sent_by(const small *s, int i) {
    return s->all + (uint64_t)i * sent_bytes(s->w);
}
static const unsigned char *gradient_of(const small *s, int i) {
    return sent_by(s, i) + sent_bytes(s->w) - gradient_bytes(s->w);
}

static void copy(void *to, const void *from, uint64_t bytes) {
    if (bytes)
        memcpy(to, from, bytes);
}

static void pack(const small *s) {
    const hpi_won *w = s->w;
    const hpi_won_said said = hpi_won_say(w);
    unsigned char *at = s->sent;
    memcpy(at, &said, sizeof said);
    at += sizeof said;
    for (int p = 0; p < w->n_parts; p++) {
        const uint64_t bytes = hpi_won_counts(w)[p] * w->size;
        copy(at, w->in + hpi_won_begins(w)[p] * w->size, bytes);
        at += bytes;
    }
    const uint64_t own = w->n_parts > 1 ? hpi_won_counts(w)[w->rank] : w->longest;
    if (gradient_bytes(w)) {
        copy(at, w->out_grad, own * w->size);
        memset(at + own * w->size, 0, (w->longest - own) * w->size); /* it is sent too */
    }
}

static hp_status gather(const small *s) {
    const hpi_coll c = {.in = s->sent,
                        .out = s->all,
                        .count = sent_bytes(s->w),
                        .blocks = 1,
                        .dtype = HP_UINT8,
                        .out_dtype = HP_UINT8};
    return hpi_won_gather(s->w, &c);
}

static const void *sum(const small *s) {
    const hpi_won *w = s->w;
    for (int i = 0; i < w->n; i++)
        s->from[i] = gradient_of(s, i);
    hpi_won_sum(w, s->from, w->longest, s->scratch, s->summed);
    return s->summed;
}

static const void *gradient_at(const small *s, int part) {
    const hpi_won *w = s->w;
    if (w->n_parts > 1)
        return gradient_of(s, part);
    return w->is_summed ? sum(s) : w->out_grad;
}

static void give(const small *s) {
    const hpi_won *w = s->w;
    uint64_t at = sizeof(hpi_won_said);
    for (int p = 0; p < w->n_parts; p++) {
        const uint64_t count = hpi_won_counts(w)[p];
        const void *gradient = gradient_at(s, p);
        for (int i = 0; i < w->n; i++) {
            s->from[i] = sent_by(s, i) + at;
            s->to[i] = s->unread;
        }
        at += count * w->size;
        s->to[w->rank] = w->in_grad + hpi_won_begins(w)[p] * w->size;
        if (count)
            hpi_give_gradient(w->dtype, w->op, s->from, w->n, gradient, s->to, count);
    }
}

/* Returns how much it is. */
static uint64_t lay_out(small *s, unsigned char *memory) {
    const hpi_won *w = s->w;
    const uint64_t n = (uint64_t)w->n;
    uint64_t at = 0;
    s->sent = hpi_won_take(memory, &at, sent_bytes(w));
    s->all = hpi_won_take(memory, &at, sent_bytes(w) * n);
    s->unread = hpi_won_take(memory, &at, w->longest * w->size);
    s->summed = hpi_won_take(memory, &at, w->is_summed ? w->longest * w->size : 0);
    s->scratch = hpi_won_take(memory, &at, hpi_won_scratch_bytes(w));
    s->from = hpi_won_take(memory, &at, n * sizeof *s->from);
    s->to = hpi_won_take(memory, &at, n * sizeof *s->to);
    return at;
}

hp_status hpi_won_run_small(const hpi_won *w) {
    small s = {.w = w};
    _Alignas(64) unsigned char few[16 << 10]; /* of two ranks; not zeroed, as what is taken */
    const uint64_t bytes = lay_out(&s, NULL);
    unsigned char *memory = bytes <= sizeof few ? few : hpi_alloc_aligned(64, bytes);
    if (!memory) {
        hpi_group_fail(w->group); /* the others will wait for this rank */
        return HP_ERR_MEMORY;
    }
    lay_out(&s, memory);
    pack(&s);
    const hp_status status = gather(&s);
    if (status == HP_OK)
        give(&s);
    if (memory != few)
        hpi_free(memory);
    return status;
}
