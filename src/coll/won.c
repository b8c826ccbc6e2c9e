/* SPDX-License-Identifier: Apache-2.0
 *
 * won.c - who has won a max or min: of the ranks that hold the result, the lowest.
 *
 *     own       a bit for each element: is my contribution the result?
 *     gathered  these words of all ranks
 *     kept      own, but where a lower rank has the bit
 *
 * A result is one of the contributions, bit by bit, or a NaN where one of them is, so that every
 * element has exactly one winner. It goes span by span, so that what is looked at twice is still in
 * a cache and the words of all ranks fit beside it. Of a reduce_scatter each rank has its own
 * results and gradients, and they are gathered first, both at once.
 */
#include "won.h"

#include "staged/wire.h"

enum {
    SPAN = 16 << 10, /* elements, of all parts together */
    LEAST = 128,     /* of one part: whole words, whole blocks of a wire */
    WORD = 64
};

/* ---- made from the call ---- */

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    return a_bytes && b_bytes && (uintptr_t)a < (uintptr_t)b + b_bytes &&
           (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* `run` is the mirror's, which has the shape of the forward turned around. */
static hp_status check_forward(const hp_coll_backward_call *b, const hpi_run *run) {
    const hp_coll_call *f = b->forward;
    const uint64_t in_bytes = run->out_bytes, out_bytes = run->in_bytes;
    const char *name = hpi_collective_name(f->what), *op = hpi_reduce_name(f->op);
    if ((in_bytes && !f->in) || (out_bytes && !f->out))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected in and out of the forward call for the backward of %s, given "
                        "NULL",
                        name, op);
    if (overlap(f->in, in_bytes, f->out, out_bytes))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected the input as it was before the forward call for the backward "
                        "of %s, given one in place, which the results have overwritten",
                        name, op);
    if (overlap(b->in_grad, in_bytes, f->in, in_bytes) ||
        overlap(b->in_grad, in_bytes, f->out, out_bytes))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected in_grad to be apart from in and out of the forward call for "
                        "the backward of %s, given one that overlaps them",
                        name, op);
    return HP_OK;
}

/* Once more rounded, with other scales, a result is nobody's contribution. */
static hp_status choose_wire(const hp_coll_call *f, hp_wire *out_wire) {
    const char *name = hpi_collective_name(f->what);
    HP_TRY(hpi_wire_choose(f->group, f->dtype, f->wire, name, out_wire));
    if (f->what == HP_ALL_REDUCE && f->wire_result &&
        (*out_wire == HP_WIRE_FP8_E4M3 || *out_wire == HP_WIRE_FP8_E5M2))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected no wire_result with fp8 for the backward of %s, whose "
                        "results no rank has contributed",
                        name, hpi_reduce_name(f->op));
    return HP_OK;
}

static void lay_parts(hpi_won *w, const hp_coll_call *f) {
    uint64_t *counts = w->numbers, *begins = counts + w->n_parts, packed = 0;
    for (int i = 0; i < w->n_parts; i++) {
        counts[i] = w->is_v ? f->in_counts[i] : f->count;
        begins[i] = w->is_v && f->in_offsets ? f->in_offsets[i] : packed;
        packed += counts[i];
        w->longest = hpi_max(w->longest, counts[i]);
    }
}

hp_status hpi_won_create(const hp_coll_backward_call *b, const hp_coll_call *mirror,
                         hpi_won **out_won) {
    const hp_coll_call *f = b->forward;
    hp_wire wire;
    hpi_run run;
    HP_TRY(hpi_coll_check_call(mirror, &run));
    HP_TRY(choose_wire(f, &wire));
    HP_TRY(check_forward(b, &run));
    const int n_parts = f->what == HP_ALL_REDUCE ? 1 : run.n;
    const uint64_t bytes = sizeof(hpi_won) + 2 * (uint64_t)n_parts * sizeof(uint64_t);
    hpi_won *w = hpi_alloc(1, bytes);
    if (!w)
        return HP_ERR_MEMORY;
    *w = (hpi_won){.bytes = bytes,
                   .group = f->group,
                   .name = hpi_collective_name(f->what),
                   .in = f->in,
                   .out = f->out,
                   .gradient = b->out_grad,
                   .in_grad = b->in_grad,
                   .dtype = f->dtype,
                   .op = f->op,
                   .wire = wire,
                   .is_on_stream = b->stream != NULL,
                   .is_v = hpi_is_v(f->what),
                   .n_parts = n_parts};
    lay_parts(w, f);
    *out_won = w;
    return HP_OK;
}

/* ---- a span ---- */

/* Of all parts elements [at, at + most), as far as a part goes; `words` for each part. */
typedef struct span {
    const hpi_won *w;
    int rank, n;
    uint64_t size, most, words, at;
    uint64_t *own, *all;     /* [1 + n_parts * words]; the same of each rank */
    uint64_t *counts;        /* [n_parts], of this span */
    uint64_t *doubled;       /* twice these */
    unsigned char *results;  /* of each part, and its gradients, packed; or they lie at w->out */
    float *wide;             /* own contributions as the wire made them ... */
    unsigned char *narrowed; /* ... in the dtype; NULL without a wire */
} span;

static uint64_t stride_of(const span *s) {
    return 1 + (uint64_t)s->w->n_parts * s->words;
}

/* The next piece of the memory, whose begin may be NULL. */
static void *take(unsigned char *memory, uint64_t *at, uint64_t bytes) {
    void *taken = memory ? memory + *at : NULL;
    *at += hpi_align_up(bytes, 64);
    return taken;
}

/* Returns how much it is. */
static uint64_t lay_out(span *s, unsigned char *memory) {
    const hpi_won *w = s->w;
    const uint64_t n_parts = (uint64_t)w->n_parts, has_wire = w->wire != HP_WIRE_FULL;
    const uint64_t word_bytes = stride_of(s) * sizeof(uint64_t);
    uint64_t at = 0;
    s->own = take(memory, &at, word_bytes);
    s->all = take(memory, &at, word_bytes * (uint64_t)s->n);
    s->counts = take(memory, &at, n_parts * sizeof(uint64_t));
    s->doubled = take(memory, &at, n_parts * sizeof(uint64_t));
    s->results = take(memory, &at, n_parts > 1 ? 2 * n_parts * s->most * s->size : 0);
    s->wide = take(memory, &at, has_wire * s->most * sizeof(float));
    s->narrowed = take(memory, &at, has_wire * s->most * s->size);
    return at;
}

static const unsigned char *at_element(const span *s, const unsigned char *base, uint64_t element) {
    return base ? base + element * s->size : NULL;
}

static void copy(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    if (bytes)
        memcpy(to, from, bytes);
}

/* Of every part the results of this span, and behind them their gradients. */
static hp_status get_results(span *s) {
    const hpi_won *w = s->w;
    uint64_t begin = 0;
    for (int i = 0; i < w->n_parts; i++)
        s->counts[i] = w->numbers[i] > s->at ? hpi_min(w->numbers[i] - s->at, s->most) : 0;
    if (w->n_parts == 1)
        return HP_OK;
    for (int i = 0; i < w->n_parts; i++) {
        s->doubled[i] = 2 * s->counts[i];
        begin += i < s->rank ? s->doubled[i] : 0;
    }
    unsigned char *own = s->results + begin * s->size;
    const uint64_t bytes = s->counts[s->rank] * s->size;
    copy(own, at_element(s, w->out, s->at), bytes);
    copy(own + bytes, at_element(s, w->gradient, s->at), bytes);
    const hpi_coll c = {.in = own,
                        .out = s->results,
                        .count = s->doubled[s->rank],
                        .blocks = 1,
                        .dtype = w->dtype,
                        .out_dtype = w->dtype,
                        .out_counts = s->doubled,
                        .wire = HP_WIRE_FULL};
    return hpi_coll_run(w->group, w->is_v ? HP_ALL_GATHER_V : HP_ALL_GATHER, &c, true, NULL);
}

/* What this rank contributed to the elements from `begin` on. */
static hp_status contributed(const span *s, uint64_t begin, uint64_t count, const void **out) {
    const hpi_won *w = s->w;
    *out = w->in + begin * s->size;
    if (w->wire == HP_WIRE_FULL)
        return HP_OK;
    hpi_wire_round(w->wire, w->dtype, *out, count, s->wide);
    *out = w->dtype == HP_FP32 ? (void *)s->wide : s->narrowed;
    return w->dtype == HP_FP32 ? HP_OK
                               : hpi_convert(s->wide, HP_FP32, s->narrowed, w->dtype, count);
}

static hp_status mark_own(const span *s) {
    const hpi_won *w = s->w;
    const unsigned char *result = w->n_parts == 1 ? at_element(s, w->out, s->at) : s->results;
    for (int i = 0; i < w->n_parts; i++) {
        const uint64_t count = s->counts[i], begin = w->numbers[w->n_parts + i] + s->at;
        const void *mine;
        if (count == 0)
            continue;
        HP_TRY(contributed(s, begin, count, &mine));
        hpi_same_values(w->dtype, mine, result, s->own + 1 + (uint64_t)i * s->words, count);
        result += 2 * count * s->size;
    }
    return HP_OK;
}

/* The first word says what the ranks must agree on: nothing else here would tell. */
static uint64_t said_of(const hpi_won *w) {
    return w->numbers[0] << 2 | (uint64_t)w->op;
}

static hp_status compare(const span *s) {
    const uint64_t mine = said_of(s->w);
    for (int i = 0; i < s->n; i++) {
        const uint64_t theirs = s->all[(uint64_t)i * stride_of(s)];
        if (theirs != mine)
            return HPI_FAIL_RANK(
                HP_ERR_MISMATCH, hp_group_world_rank(s->w->group, i),
                "expected one backward of %s on all ranks of %s, rank %d (world %d) calls that of "
                "%s over %llu elements, rank %d that of %s over %llu",
                s->w->name, hpi_group_name(s->w->group), i, hp_group_world_rank(s->w->group, i),
                hpi_reduce_name((hp_reduce)(theirs & 3)), (unsigned long long)(theirs >> 2),
                s->rank, hpi_reduce_name(s->w->op), (unsigned long long)s->w->numbers[0]);
    }
    return HP_OK;
}

static hp_status gather_words(const span *s) {
    const hpi_coll c = {.in = s->own,
                        .out = s->all,
                        .count = stride_of(s),
                        .blocks = 1,
                        .dtype = HP_INT64,
                        .out_dtype = HP_INT64,
                        .wire = HP_WIRE_FULL};
    s->own[0] = said_of(s->w);
    HP_TRY(hpi_coll_run(s->w->group, HP_ALL_GATHER, &c, true, NULL));
    const hp_status status = compare(s);
    if (status < 0)
        hpi_group_fail(s->w->group);
    return status;
}

/* An element that a lower rank holds is not ours. */
static void leave_to_lower(const span *s) {
    for (int i = 0; i < s->rank; i++) {
        const uint64_t *lower = s->all + (uint64_t)i * stride_of(s);
        for (uint64_t k = 1; k < stride_of(s); k++)
            s->own[k] &= ~lower[k];
    }
}

static void keep_own(const span *s) {
    const hpi_won *w = s->w;
    const unsigned char *pair = s->results;
    for (int i = 0; i < w->n_parts; i++) {
        const uint64_t offset = (w->numbers[w->n_parts + i] + s->at) * s->size;
        const uint64_t bytes = s->counts[i] * s->size;
        const unsigned char *gradient =
            w->n_parts == 1 ? at_element(s, w->gradient, s->at) : pair + bytes;
        if (bytes)
            hpi_keep_values(w->dtype, s->own + 1 + (uint64_t)i * s->words, gradient,
                            w->in_grad + offset, s->counts[i]);
        pair += 2 * bytes;
    }
}

static hp_status run_span(span *s) {
    HP_TRY(get_results(s));
    HP_TRY(mark_own(s));
    HP_TRY(gather_words(s));
    leave_to_lower(s);
    keep_own(s);
    return HP_OK;
}

/* Without any element the ranks meet once, all the same. */
static hp_status run_spans(span *s) {
    hp_status status;
    do
        status = run_span(s);
    while (status == HP_OK && (s->at += s->most) < s->w->longest);
    return status;
}

hp_status hpi_won_run(void *won) {
    const hpi_won *w = won;
    span s = {.w = w,
              .rank = hp_group_rank(w->group),
              .n = hp_group_size(w->group),
              .size = hp_dtype_size(w->dtype)};
    s.most = hpi_max(SPAN / (uint64_t)w->n_parts / LEAST * LEAST, LEAST);
    s.most = hpi_min(s.most, hpi_align_up(hpi_max(w->longest, 1), LEAST));
    s.words = s.most / WORD;
    if (w->is_on_stream)
        hpi_thread_never_spins();
    _Alignas(64) unsigned char few[4096]; /* what a small call needs */
    const uint64_t bytes = lay_out(&s, NULL);
    unsigned char *memory = bytes <= sizeof few ? few : hpi_alloc_aligned(64, bytes);
    if (!memory) {
        hpi_group_fail(w->group); /* the others will wait for this rank */
        return HP_ERR_MEMORY;
    }
    lay_out(&s, memory);
    memset(s.own, 0, stride_of(&s) * sizeof *s.own);
    const hp_status status = run_spans(&s);
    if (memory != few)
        hpi_free(memory);
    return status;
}
