/* SPDX-License-Identifier: Apache-2.0
 *
 * test_backward.c - gradients of the collectives.
 *
 * An engine runs a forward call and its backward on data that every rank can make for every rank,
 * and holds in_grad against plain loops, bit for bit: which pieces of which rank's out_grad it is
 * the sum of, and who has won. Written from the words of coll.h. Beside it: directional derivatives
 * of a loss that is not linear, the order of messages, and what goes wrong.
 */
#include "coll/inside.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_RANKS = 8, MOST = 170000, GAP = 3, ROOT = 1 };

typedef struct trial {
    hp_collective what; /* HP_SEND: even ranks send to the next one */
    hp_dtype dtype;
    hp_reduce op;
    hp_backward_mode mode;
    hp_wire wire;
    uint64_t count;
    bool is_symmetric, is_in_place, has_gaps, has_stream;
    bool is_afar;  /* every rank has found the others so */
    bool is_mixed; /* odd ranks go without symmetric memory and without gaps */
} trial;

static bool is_other(const trial *t, int rank) {
    return t->is_mixed && rank % 2;
}

/* ---- where the pieces of an operand lie ---- */

typedef struct layout {
    int n;
    uint64_t counts[MOST_RANKS], begins[MOST_RANKS], extent;
} layout;

static void lay(layout *l, bool has_gaps) {
    uint64_t at = 0;
    for (int k = 0; k < l->n; k++) { /* with gaps from the last to the first */
        const int q = has_gaps ? l->n - 1 - k : k;
        at += has_gaps ? GAP : 0;
        l->begins[q] = at;
        at += l->counts[q];
    }
    l->extent = at;
}

static layout one_piece(uint64_t count) {
    return (layout){.n = 1, .counts = {count}, .extent = count};
}

/* Of all parts; of a v form 0, 1 and 2 times `count`. */
static layout parts_of(const trial *t, int rank, int n) {
    layout l = {.n = n};
    for (int i = 0; i < n; i++)
        l.counts[i] = t->count * (uint64_t)(hpi_is_v(t->what) ? (i + 1) % 3 : 1);
    lay(&l, t->has_gaps && hpi_is_v(t->what) && !is_other(t, rank));
    return l;
}

static layout exchanged(const trial *t, int rank, int n, bool is_in) {
    layout l = {.n = n};
    for (int i = 0; i < n; i++) {
        const int from = is_in ? rank : i, to = is_in ? i : rank;
        l.counts[i] = t->count * (uint64_t)(t->what == HP_ALL_TO_ALL_V ? (from + 2 * to) % 3 : 1);
    }
    lay(&l, t->has_gaps && t->what == HP_ALL_TO_ALL_V && !is_in);
    return l;
}

static layout in_of(const trial *t, int rank, int n) {
    switch (t->what) {
    case HP_ALL_GATHER_V:
        return one_piece(parts_of(t, rank, n).counts[rank]);
    case HP_REDUCE_SCATTER:
    case HP_REDUCE_SCATTER_V:
        return parts_of(t, rank, n);
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        return exchanged(t, rank, n, true);
    default:
        return one_piece(t->count);
    }
}
static layout out_of(const trial *t, int rank, int n) {
    switch (t->what) {
    case HP_ALL_GATHER:
    case HP_ALL_GATHER_V:
        return parts_of(t, rank, n);
    case HP_REDUCE_SCATTER_V:
        return one_piece(parts_of(t, rank, n).counts[rank]);
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        return exchanged(t, rank, n, false);
    default:
        return one_piece(t->count);
    }
}

/* ---- the data of every rank ---- */

typedef struct bed {
    hp_group *group;
    hp_stream *stream;
    int rank, n;
    hp_symm memory;
    unsigned char *base[2];                            /* ordinary, symmetric: four operands each */
    unsigned char *ins[MOST_RANKS], *outs[MOST_RANKS]; /* forward inputs, out_grads, of each rank */
    unsigned char *expected, *result, *neutral, *turned[MOST_RANKS];
    float *wide;
} bed;

enum { ROOM = MOST * 8 };

static void bed_open(bed *b, hp_world *world) {
    void *base;
    *b = (bed){
        .group = hp_world_group(world), .rank = hp_world_rank(world), .n = hp_world_size(world)};
    RANK_OK(hp_stream_create(NULL, &b->stream));
    RANK_OK(hp_symm_alloc(world, NULL, 4 * ROOM, 0, &b->memory));
    RANK_OK(hp_symm_pointer(b->memory, b->rank, NULL, &base));
    b->base[0] = malloc(4 * ROOM);
    b->base[1] = base;
    b->expected = malloc((size_t)(4 + 3 * MOST_RANKS) * ROOM);
    RANK_CHECK(b->base[0] && b->expected);
    b->result = b->expected + ROOM;
    b->neutral = b->result + ROOM;
    b->wide = (void *)(b->neutral + ROOM);
    for (int i = 0; i < MOST_RANKS; i++) {
        b->ins[i] = b->expected + (size_t)(4 + 3 * i) * ROOM;
        b->outs[i] = b->ins[i] + ROOM;
        b->turned[i] = b->outs[i] + ROOM;
    }
}

static void bed_close(bed *b) {
    hp_stream_destroy(b->stream);
    RANK_OK(hp_symm_free(b->memory));
    free(b->base[0]);
    free(b->expected);
}

static bool picks(const trial *t) {
    return t->op == HP_MAX || t->op == HP_MIN;
}

/* Every third element is the same on all ranks; element 1 is a zero whose sign is not. */
static void make_ties(const trial *t, unsigned char *data, uint64_t n, int rank) {
    const size_t size = hp_dtype_size(t->dtype);
    unsigned char *common = malloc(n * size + 1);
    oracle_fill(t->dtype, common, n, 77);
    for (uint64_t k = 0; k < n; k += 3)
        memcpy(data + k * size, common + k * size, size);
    if (n > 1 && hpi_dtype_is_float(t->dtype)) {
        memset(data + size, 0, size);
        data[2 * size - 1] = rank % 2 ? 0 : 0x80;
    }
    free(common);
}

static void fill_all(bed *b, const trial *t) {
    const bool is_equal = t->what == HP_ALL_REDUCE && t->mode == HP_BACKWARD_IDENTITY;
    for (int i = 0; i < b->n; i++) {
        const uint64_t n = in_of(t, i, b->n).extent;
        oracle_fill(t->dtype, b->ins[i], n, 1000 + (uint64_t)i);
        if (picks(t))
            make_ties(t, b->ins[i], n, i);
        oracle_fill(t->dtype, b->outs[i], out_of(t, i, b->n).extent,
                    is_equal ? 5 : 2000 + (uint64_t)i);
    }
}

/* ---- plain loops ---- */

/* What `from` becomes on a wire, in its own dtype. */
static void travelled(const bed *b, const trial *t, const unsigned char *from, uint64_t count,
                      unsigned char *to) {
    if (t->wire == HP_WIRE_FULL) {
        memcpy(to, from, count * hp_dtype_size(t->dtype));
        return;
    }
    oracle_wire(t->wire, t->dtype, from, b->wide, count);
    for (uint64_t k = 0; k < count; k++) {
        const uint16_t half =
            t->dtype == HP_BF16 ? oracle_to_bf16(b->wide[k]) : oracle_to_fp16(b->wide[k]);
        memcpy(to + k * hp_dtype_size(t->dtype),
               t->dtype == HP_FP32 ? (void *)&b->wide[k] : (void *)&half, hp_dtype_size(t->dtype));
    }
}

/* The sum of a piece of all out_grads, as it arrives over the wire. */
static void sum_grads(bed *b, const trial *t, int part, hp_reduce op, uint64_t count, void *out) {
    const void *terms[MOST_RANKS];
    const size_t size = hp_dtype_size(t->dtype);
    for (int i = 0; i < b->n; i++) {
        const layout l = out_of(t, i, b->n);
        const unsigned char *from = b->outs[i] + l.begins[l.n > 1 ? part : 0] * size;
        if (t->wire == HP_WIRE_FULL) {
            terms[i] = from;
            continue;
        }
        oracle_wire(t->wire, t->dtype, from, (float *)(void *)b->turned[i], count);
        terms[i] = b->turned[i];
    }
    if (t->wire == HP_WIRE_FULL) {
        oracle_reduce(t->dtype, t->dtype, op, terms, b->n, out, count);
        return;
    }
    oracle_reduce(HP_FP32, HP_FP32, op, terms, b->n, b->wide, count);
    for (uint64_t k = 0; k < count; k++) {
        const uint16_t half =
            t->dtype == HP_BF16 ? oracle_to_bf16(b->wide[k]) : oracle_to_fp16(b->wide[k]);
        memcpy((unsigned char *)out + k * size,
               t->dtype == HP_FP32 ? (void *)&b->wide[k] : (void *)&half, size);
    }
}

/* x / n, rounded once: the mean of x and n - 1 times -0, which changes no sum. */
static void divided(bed *b, const trial *t, const void *from, uint64_t count, void *out) {
    const size_t size = hp_dtype_size(t->dtype);
    const void *terms[MOST_RANKS] = {from};
    memset(b->neutral, 0, count * size);
    for (uint64_t k = 0; k < count; k++)
        b->neutral[(k + 1) * size - 1] = 0x80;
    for (int i = 1; i < b->n; i++)
        terms[i] = b->neutral;
    oracle_reduce(t->dtype, t->dtype, HP_AVG, terms, b->n, out, count);
}

/* In `piece` of the inputs, at *gradient: 0 where another rank is the first to hold the result. */
static void keep_won(bed *b, const trial *t, int piece, uint64_t count, unsigned char *gradient) {
    const size_t size = hp_dtype_size(t->dtype);
    const void *terms[MOST_RANKS];
    for (int i = 0; i < b->n; i++) {
        const layout l = in_of(t, i, b->n);
        travelled(b, t, b->ins[i] + l.begins[piece] * size, count, b->turned[i]);
        terms[i] = b->turned[i];
    }
    oracle_reduce(t->dtype, t->dtype, t->op, terms, b->n, b->result, count);
    for (uint64_t k = 0; k < count; k++) {
        int winner = 0;
        uint64_t first;
        while (
            !oracle_same(t->dtype, b->turned[winner] + k * size, b->result + k * size, 1, &first))
            winner++;
        RANK_CHECK(winner < b->n);
        if (winner != b->rank)
            memset(gradient + k * size, 0, size);
    }
}

static void expect_piece(bed *b, const trial *t, int q, uint64_t count, unsigned char *to) {
    const size_t size = hp_dtype_size(t->dtype);
    const layout theirs = out_of(t, q, b->n);
    switch (t->what) {
    case HP_ALL_GATHER:
    case HP_ALL_GATHER_V:
        sum_grads(b, t, b->rank, HP_SUM, count, to);
        return;
    case HP_REDUCE_SCATTER:
    case HP_REDUCE_SCATTER_V:
        memcpy(to, b->outs[q], count * size);
        if (t->op == HP_AVG)
            divided(b, t, b->outs[q], count, to);
        break;
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        memcpy(to, b->outs[q] + theirs.begins[b->rank] * size, count * size);
        return;
    case HP_BROADCAST:
        memset(to, 0, count * size);
        if (b->rank == ROOT % b->n)
            sum_grads(b, t, 0, HP_SUM, count, to);
        return;
    case HP_SEND:
        memcpy(to, b->outs[b->rank + 1], count * size);
        return;
    default:
        memcpy(to, b->outs[b->rank], count * size);
        if (t->mode == HP_BACKWARD_SUM)
            sum_grads(b, t, 0, t->op == HP_AVG ? HP_AVG : HP_SUM, count, to);
        else if (t->op == HP_AVG)
            divided(b, t, b->outs[b->rank], count, to);
    }
    if (picks(t))
        keep_won(b, t, q, count, to);
}

/* ---- a trial ---- */

enum { OF_IN, OF_OUT, OF_IN_GRAD, OF_OUT_GRAD };
static unsigned char *operand(const bed *b, const trial *t, int which) {
    return b->base[t->is_symmetric && !is_other(t, b->rank)] + (size_t)which * ROOM;
}

static bool is_scatter(hp_collective what) {
    return what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V;
}

/* Places for the gradients: apart, or one in the other as the forward's operands may be. */
static void place(const bed *b, const trial *t, unsigned char **in_grad, unsigned char **out_grad) {
    const size_t size = hp_dtype_size(t->dtype);
    const layout in = in_of(t, b->rank, b->n), out = out_of(t, b->rank, b->n);
    *in_grad = operand(b, t, OF_IN_GRAD);
    *out_grad = operand(b, t, OF_OUT_GRAD);
    if (!t->is_in_place || t->what == HP_ALL_TO_ALL_V || t->what == HP_SEND)
        return;
    if (t->what == HP_ALL_GATHER || t->what == HP_ALL_GATHER_V)
        *in_grad = *out_grad + out.begins[b->rank] * size;
    else
        *out_grad = *in_grad + (is_scatter(t->what) ? in.begins[b->rank] * size : 0);
}

static hp_coll_call forward_of(const bed *b, const trial *t, layout *in, layout *out) {
    hp_coll_call f = HP_COLL_CALL_INIT;
    *in = in_of(t, b->rank, b->n);
    *out = out_of(t, b->rank, b->n);
    f.what = t->what == HP_SEND && b->rank % 2 ? HP_RECV : t->what;
    f.group = b->group;
    f.in = operand(b, t, OF_IN);
    f.out = operand(b, t, OF_OUT);
    f.count = !hpi_is_v(t->what) ? t->count : is_scatter(t->what) ? out->counts[0] : in->counts[0];
    f.in_counts = in->counts;
    f.out_counts = out->counts;
    f.in_offsets = t->has_gaps ? in->begins : NULL;
    f.out_offsets = t->has_gaps ? out->begins : NULL;
    f.dtype = t->dtype;
    f.op = t->op;
    f.rank = t->what == HP_SEND ? b->rank ^ 1 : ROOT % b->n;
    f.wire = t->wire;
    return f;
}

static hp_status run_trial(const bed *b, const trial *t, unsigned char *in_grad,
                           const unsigned char *out_grad) {
    layout in, out;
    hp_coll_call f = forward_of(b, t, &in, &out);
    if (picks(t)) {
        memcpy(operand(b, t, OF_IN), b->ins[b->rank], in.extent * hp_dtype_size(t->dtype));
        HP_TRY(hp_coll_run(&f));
        hpi_coll_state *state = hpi_group_attached(b->group, HPI_SLOT_COLL);
        if (t->is_afar)
            state->distance.n_slow = HPI_SLOW_FOR_SURE;
    } else
        f.in = f.out = NULL; /* nobody looks */
    hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
    call.forward = &f;
    call.out_grad = out_grad;
    call.in_grad = in_grad;
    call.mode = t->mode;
    call.stream = t->has_stream ? b->stream : NULL;
    const hp_status status = hp_coll_backward(&call);
    memset(&in, 0xff, sizeof in); /* what it names is copied */
    memset(&out, 0xff, sizeof out);
    memset(&f, 0xff, sizeof f);
    return status == HP_OK && t->has_stream ? hp_stream_synchronize(b->stream) : status;
}

static void try_it(bed *b, const trial *t) {
    const size_t size = hp_dtype_size(t->dtype);
    const layout in = in_of(t, b->rank, b->n), out = out_of(t, b->rank, b->n);
    unsigned char *in_grad, *out_grad;
    uint64_t first = 0;
    if (t->what == HP_SEND && (b->rank ^ 1) >= b->n)
        return;
    fill_all(b, t);
    place(b, t, &in_grad, &out_grad);
    memset(in_grad, 0x5a, in.extent * size);
    memset(b->expected, 0x5a, in.extent * size);
    memcpy(out_grad, b->outs[b->rank], out.extent * size);
    RANK_OK(run_trial(b, t, in_grad, out_grad));
    if (t->what == HP_SEND && b->rank % 2)
        return;
    for (int q = 0; q < in.n; q++)
        expect_piece(b, t, q, in.counts[q], b->expected + in.begins[q] * size);
    if (!oracle_same(t->dtype, in_grad, b->expected, in.extent, &first))
        fprintf(stderr,
                "backward of %s: %s, op %d, mode %d, wire %d, count %llu, symmetric %d, in place "
                "%d, gaps %d, stream %d, mixed %d: rank %d of %d differs at %llu\n",
                hpi_collective_name(t->what), hp_dtype_name(t->dtype), t->op, t->mode, t->wire,
                (unsigned long long)t->count, t->is_symmetric, t->is_in_place, t->has_gaps,
                t->has_stream, t->is_mixed, b->rank, b->n, (unsigned long long)first);
    RANK_CHECK(oracle_same(t->dtype, in_grad, b->expected, in.extent, &first));
}

/* ---- all of them ---- */

static bool has_op(hp_collective what) {
    return what == HP_ALL_REDUCE || what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V;
}

static void each_reduction(bed *b, trial t) {
    const int last_op = has_op(t.what) ? HP_MIN : HP_SUM;
    const int last_mode = t.what == HP_ALL_REDUCE ? HP_BACKWARD_SUM : HP_BACKWARD_IDENTITY;
    for (int op = HP_SUM; op <= last_op; op++)
        for (int mode = 0; mode <= last_mode; mode++) {
            t.op = (hp_reduce)op;
            t.mode = (hp_backward_mode)mode;
            if (t.op != HP_AVG || hpi_dtype_is_float(t.dtype))
                try_it(b, &t);
        }
}

static const hp_collective collectives[] = {HP_ALL_GATHER,       HP_ALL_GATHER_V, HP_REDUCE_SCATTER,
                                            HP_REDUCE_SCATTER_V, HP_ALL_REDUCE,   HP_ALL_TO_ALL,
                                            HP_ALL_TO_ALL_V,     HP_BROADCAST,    HP_SEND};
#define FOR_EACH_COLLECTIVE(i) for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)

static void every_kind_body(hp_world *world, void *argument) {
    static const uint64_t counts[] = {0, 1, 130, 1000};
    bed b;
    unsigned turn = 0;
    (void)argument;
    bed_open(&b, world);
    FOR_EACH_COLLECTIVE(i)
    for (int dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        for (int c = 0; c < 4; c++, turn++) {
            trial t = {.what = collectives[i],
                       .dtype = (hp_dtype)dtype,
                       .wire = HP_WIRE_FULL,
                       .count = counts[c],
                       .is_symmetric = turn % 2,
                       .is_in_place = turn / 2 % 2,
                       .has_gaps = turn / 4 % 2,
                       .has_stream = turn % 3 == 0};
            each_reduction(&b, t);
        }
    bed_close(&b);
}

/* Longer than a span of what is looked at together, and off it. */
static void long_ones_body(hp_world *world, void *argument) {
    bed b;
    (void)argument;
    bed_open(&b, world);
    FOR_EACH_COLLECTIVE(i) {
        trial t = {.what = collectives[i],
                   .dtype = i % 2 ? HP_BF16 : HP_FP32,
                   .wire = HP_WIRE_FULL,
                   .count = collectives[i] == HP_ALL_REDUCE ? 70000
                            : b.n == 2                      ? 20000
                                                            : 12000,
                   .is_symmetric = true};
        each_reduction(&b, t);
        t.is_in_place = t.has_gaps = true;
        each_reduction(&b, t);
    }
    bed_close(&b);
}

/* Of max and min from where their gradients are stored straight into the others' in_grad on; and
 * with some of them where nobody can. */
static void placed_body(hp_world *world, void *argument) {
    static const hp_collective reductions[] = {HP_REDUCE_SCATTER, HP_REDUCE_SCATTER_V,
                                               HP_ALL_REDUCE};
    const uint64_t n_parts[] = {(uint64_t)hp_world_size(world), 3, 1}; /* 1 + 2 + 0 */
    bed b;
    (void)argument;
    bed_open(&b, world);
    for (int i = 0; i < 3; i++)
        for (int how = 0; how < 4; how++) {
            const trial t = {.what = reductions[i],
                             .dtype = how % 2 ? HP_INT64 : HP_FP64,
                             .op = how / 2 ? HP_MAX : HP_MIN,
                             .mode = HP_BACKWARD_SUM,
                             .wire = HP_WIRE_FULL,
                             .count = 165000 / n_parts[i],
                             .is_symmetric = true,
                             .is_in_place = how % 2,
                             .is_afar = how == 1,
                             .has_gaps = how > 0,
                             .has_stream = how == 2,
                             .is_mixed = how == 3};
            try_it(&b, &t);
        }
    bed_close(&b);
}

/* ---- at random ---- */

static uint64_t below(uint64_t *state, uint64_t end) {
    return hpi_random_next(state) % end;
}

/* The same trial on every rank. Lengths are of any order of magnitude. */
static trial any_trial(uint64_t *state, int n) {
    trial t = {.what = collectives[below(state, 3) ? 2 + below(state, 3) : below(state, 9)],
               .dtype = (hp_dtype)below(state, HPI_N_DTYPES),
               .wire = HP_WIRE_FULL,
               .is_symmetric = below(state, 2),
               .is_in_place = below(state, 2),
               .has_gaps = below(state, 2),
               .has_stream = below(state, 4) == 0,
               .is_mixed = below(state, 3) == 0};
    const uint64_t most = UINT64_C(1) << (1 + below(state, 13));
    t.count =
        below(state, most) / (t.what == HP_ALL_REDUCE ? 1 : (uint64_t)n) * (most > 4000 ? 3 : 1);
    t.op = has_op(t.what) ? (hp_reduce)below(state, 4) : HP_SUM;
    if (t.op == HP_AVG && !hpi_dtype_is_float(t.dtype))
        t.op = HP_MAX;
    t.mode = (hp_backward_mode)below(state, 2);
    return t;
}

static void random_body(hp_world *world, void *argument) {
    const int *n_trials = argument;
    uint64_t state = 20 + (uint64_t)hp_world_size(world);
    bed b;
    bed_open(&b, world);
    for (int i = 0; i < *n_trials; i++) {
        const trial t = any_trial(&state, b.n);
        try_it(&b, &t);
    }
    bed_close(&b);
}

static void wires_body(hp_world *world, void *argument) {
    static const hp_collective sums[] = {HP_ALL_GATHER,   HP_REDUCE_SCATTER, HP_REDUCE_SCATTER_V,
                                         HP_ALL_GATHER_V, HP_ALL_REDUCE,     HP_BROADCAST};
    bed b;
    (void)argument;
    bed_open(&b, world);
    for (int i = 0; i < 6; i++)
        for (int wire = HP_WIRE_FP16; wire <= HP_WIRE_FP8_E5M2; wire++)
            for (int dtype = HP_FP32; dtype <= HP_BF16; dtype++) {
                if ((wire == HP_WIRE_FP16 && dtype == HP_FP16) ||
                    (wire == HP_WIRE_BF16 && dtype == HP_BF16))
                    continue; /* is FULL, and the oracle rounds to it */
                trial t = {.what = sums[i],
                           .dtype = (hp_dtype)dtype,
                           .wire = (hp_wire)wire,
                           .count = 517,
                           .is_symmetric = wire % 2,
                           .has_stream = dtype % 2};
                each_reduction(&b, t);
            }
    bed_close(&b);
}

/* ---- directional derivatives ---- */

enum { FEW = 1200 };

/* What rank r makes of its output: sum of weight * sin. IDENTITY: once, by weights equal on all. */
typedef struct loss {
    hp_coll_call f;
    hp_backward_mode mode;
    uint64_t n_in, n_out;
    int rank;
} loss;

static double weight(const loss *l, uint64_t k) {
    const bool is_one = l->f.what == HP_ALL_REDUCE && l->mode == HP_BACKWARD_IDENTITY;
    return sin(1.3 * (double)k + (is_one ? 0 : 2.1 * l->rank)) + 0.2;
}

static double loss_at(const loss *l, const double *x, double *y) {
    hp_coll_call f = l->f;
    double sum = 0;
    memcpy(y, x, FEW * sizeof *y); /* of a broadcast */
    f.in = x;
    f.out = y;
    RANK_OK(hp_coll_run(&f));
    if (f.what == HP_ALL_REDUCE && l->mode == HP_BACKWARD_IDENTITY && l->rank > 0)
        return 0;
    for (uint64_t k = 0; k < l->n_out; k++)
        sum += weight(l, k) * sin(y[k]);
    return sum;
}

static double over_ranks(hp_group *group, double x) {
    RANK_OK(hp_all_reduce(group, &x, &x, 1, HP_FP64, HP_SUM));
    return x;
}

static void check_direction(loss *l) {
    double x[2 * FEW], moved[2 * FEW], y[2 * FEW], direction[2 * FEW], out_grad[2 * FEW],
        in_grad[2 * FEW] = {0}, slope = 0;
    const double step = 1e-6;
    for (int k = 0; k < 2 * FEW; k++) {
        x[k] = sin(k * 0.7 + l->rank * 1.9 + k * l->rank * 0.37);
        direction[k] = cos(k * 1.1 + l->rank);
        y[k] = 0;
    }
    double values[2];
    for (int side = 0; side < 2; side++) {
        for (int k = 0; k < 2 * FEW; k++)
            moved[k] = x[k] + (side ? step : -step) * direction[k];
        values[side] = over_ranks(l->f.group, loss_at(l, moved, y));
    }
    (void)loss_at(l, x, y);
    for (uint64_t k = 0; k < l->n_out; k++)
        out_grad[k] = weight(l, k) * cos(y[k]);
    l->f.in = x;
    l->f.out = y;
    hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
    call.forward = &l->f;
    call.out_grad = out_grad;
    call.in_grad = in_grad;
    call.mode = l->mode;
    RANK_OK(hp_coll_backward(&call));
    for (uint64_t k = 0; k < l->n_in; k++)
        slope += in_grad[k] * direction[k];
    slope = over_ranks(l->f.group, slope);
    RANK_CHECK(fabs((values[1] - values[0]) / (2 * step) - slope) < 1e-7 * (1 + fabs(slope)));
}

static void derivatives_body(hp_world *world, void *argument) {
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    const uint64_t *count = argument;
    for (int what = HP_ALL_GATHER; what <= HP_BROADCAST; what++)
        for (int op = HP_SUM; op <= (has_op((hp_collective)what) ? HP_MIN : HP_SUM); op++)
            for (int mode = 0; mode <= (what == HP_ALL_REDUCE); mode++) {
                loss l = {.f = HP_COLL_CALL_INIT, .mode = (hp_backward_mode)mode, .rank = rank};
                layout in, out;
                const bed b = {.group = hp_world_group(world), .rank = rank, .n = n};
                const trial t = {.what = (hp_collective)what,
                                 .dtype = HP_FP64,
                                 .op = (hp_reduce)op,
                                 .wire = HP_WIRE_FULL,
                                 .count = *count};
                l.f = forward_of(&b, &t, &in, &out);
                l.n_in = in.extent;
                l.n_out = out.extent;
                check_direction(&l);
            }
}

/* ---- there and back ---- */

/* The input again, exactly. */
static void round_trip_body(hp_world *world, void *argument) {
    enum { COUNT = 700 };
    hp_group *group = hp_world_group(world);
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_FP16, HP_BF16};
    unsigned char *all = malloc((size_t)n * COUNT * 8), *back = malloc(COUNT * 8);
    float x[COUNT];
    unsigned char in[COUNT * 8];
    (void)argument;
    RANK_CHECK(all && back);
    for (int k = 0; k < COUNT; k++)
        x[k] = sinf((float)(k + 31 * rank)) * (k % 7 ? 1.0F : 3e-5F);
    for (int d = 0; d < 4; d++) {
        const size_t bytes = COUNT * hp_dtype_size(dtypes[d]);
        RANK_OK(hp_convert(x, HP_FP32, in, dtypes[d], COUNT));
        RANK_OK(hp_all_gather(group, in, all, COUNT, dtypes[d]));
        RANK_OK(hp_reduce_scatter(group, all, back, COUNT, dtypes[d], HP_AVG));
        RANK_CHECK(memcmp(in, back, bytes) == 0);
        /* and the other way: the backward of the mean, then the backward of the gather */
        hp_coll_call f = HP_COLL_CALL_INIT;
        hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
        f.what = HP_REDUCE_SCATTER;
        f.group = group;
        f.count = COUNT;
        f.dtype = dtypes[d];
        f.op = HP_AVG;
        f.wire = HP_WIRE_FULL;
        call.forward = &f;
        call.out_grad = in;
        call.in_grad = all;
        if (dtypes[d] == HP_FP16)
            continue; /* its subnormals lose a bit when they are halved */
        RANK_OK(hp_coll_backward(&call));
        f.what = HP_ALL_GATHER;
        call.out_grad = all;
        call.in_grad = back;
        RANK_OK(hp_coll_backward(&call));
        RANK_CHECK(memcmp(in, back, bytes) == 0);
    }
    free(all);
    free(back);
}

/* Messages of lengths of their own: in any other order counts would differ. */
static void messages_body(hp_world *world, void *argument) {
    enum { N = 6, LONGEST = 40000 };
    hp_group *group = hp_world_group(world);
    const int rank = hp_world_rank(world);
    hp_stream *stream;
    int32_t *data = calloc(N * LONGEST, sizeof *data);
    (void)argument;
    RANK_CHECK(data);
    RANK_OK(hp_stream_create(NULL, &stream));
    for (int on_stream = 0; on_stream < 2; on_stream++) {
        hp_coll_call f[N];
        for (int i = 0; i < N; i++) {
            f[i] = (hp_coll_call)HP_COLL_CALL_INIT;
            f[i].what = rank ? HP_RECV : HP_SEND;
            f[i].group = group;
            f[i].in = f[i].out = data + i * LONGEST;
            f[i].count = i == 3 ? 0 : (uint64_t)(LONGEST / N) * (uint64_t)i + 1;
            f[i].dtype = HP_INT32;
            f[i].rank = 1 - rank;
            f[i].stream = on_stream ? stream : NULL;
            RANK_OK(hp_coll_run(&f[i]));
        }
        RANK_OK(hp_stream_synchronize(stream));
        for (int i = 0; i < N * LONGEST; i++)
            data[i] = rank ? i + 1 : 0;
        for (int i = N - 1; i >= 0; i--) {
            hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
            call.forward = &f[i];
            call.out_grad = call.in_grad = data + i * LONGEST;
            call.stream = f[i].stream;
            RANK_OK(hp_coll_backward(&call));
        }
        RANK_OK(hp_stream_synchronize(stream));
        for (int i = 0; i < N && rank == 0; i++)
            for (uint64_t k = 0; k < f[i].count; k++)
                RANK_CHECK(data[i * LONGEST + (int)k] == i * LONGEST + (int)k + 1);
    }
    hp_stream_destroy(stream);
    free(data);
}

/* ---- part of the ranks, and ranks of several nodes ---- */

static void subgroup_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *half;
    bed b;
    (void)argument;
    bed_open(&b, world);
    RANK_OK(hp_group_split(hp_world_group(world), rank % 2, -rank, &half));
    b.group = half;
    b.rank = hp_group_rank(half);
    b.n = hp_group_size(half);
    FOR_EACH_COLLECTIVE(i) {
        const trial t = {.what = collectives[i],
                         .dtype = HP_FP32,
                         .wire = HP_WIRE_FULL,
                         .count = 90,
                         .is_symmetric = true};
        each_reduction(&b, t);
    }
    RANK_OK(hp_barrier(hp_world_group(world)));
    hp_group_destroy(half);
    bed_close(&b);
}

/* ---- what goes wrong ---- */

static void misuse_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    float in[64] = {0}, out[64] = {0}, out_grad[64] = {0}, in_grad[64] = {0};
    hp_coll_call f = HP_COLL_CALL_INIT;
    hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
    (void)argument;
    RANK_FAILS(hp_coll_backward(NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT); /* of no forward */
    f.what = HP_ALL_REDUCE;
    f.in = in;
    f.out = out;
    f.count = 8;
    call.forward = &f;
    call.out_grad = out_grad;
    call.in_grad = in_grad;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT); /* on no group */
    f.group = group;
    call.size--;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    call.size++;
    f.size--;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    f.size++;
    f.what = (hp_collective)11;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    f.what = HP_ALL_REDUCE;
    call.mode = (hp_backward_mode)2;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    call.mode = HP_BACKWARD_IDENTITY;
    call.out_grad = NULL;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    call.out_grad = in_grad + 1; /* overlap */
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    call.out_grad = out_grad;
    for (int what = HP_REDUCE_SCATTER; what <= HP_ALL_REDUCE; what++) {
        uint64_t counts[8] = {8, 8, 8, 8, 8, 8, 8, 8};
        f.what = (hp_collective)what;
        f.in_counts = counts;
        f.op = (hp_reduce)4;
        RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
        f.op = HP_AVG;
        f.dtype = HP_INT32;
        RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
        f.op = HP_MAX;
        f.in = NULL;
        RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
        RANK_CHECK(strstr(hp_last_error(), "in and out of the forward"));
        f.in = out;
        RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
        RANK_CHECK(strstr(hp_last_error(), "in place"));
        f.in = in_grad;
        RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
        RANK_CHECK(strstr(hp_last_error(), "apart from"));
        f.in = in;
        f.wire = HP_WIRE_FP16; /* of integers */
        RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
        f.wire = HP_WIRE_DEFAULT;
        f.dtype = HP_FP32;
    }
    f.wire = HP_WIRE_FP8_E4M3;
    f.wire_result = 1;
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    f.what = HP_BROADCAST;
    f.rank = hp_group_size(group);
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    f.what = HP_SEND;
    f.rank = hp_group_rank(group);
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_ARGUMENT);
    f.what = HP_BARRIER; /* nothing has happened to the group */
    RANK_OK(hp_coll_backward(&call));
}

/* Ranks that differ in what only this room compares: the reduction, or else the count. */
typedef struct difference {
    hp_collective what;
    hp_backward_mode mode;
    uint64_t count;
    bool is_op;
    const char *said;
} difference;

static void mismatch_body(hp_world *world, void *argument) {
    const difference *d = argument;
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    const uint64_t room = d->count * (uint64_t)n;
    float *data = calloc(4 * room, sizeof *data);
    hp_coll_call f = HP_COLL_CALL_INIT;
    hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
    RANK_CHECK(data);
    f.what = d->what;
    f.group = hp_world_group(world);
    f.in = data;
    f.out = data + room;
    f.op = d->is_op && rank == 1 ? HP_MIN : HP_MAX;
    f.count = !d->is_op && rank == 1 ? d->count - 1 : d->count;
    call.forward = &f;
    call.out_grad = data + 2 * room;
    call.in_grad = data + 3 * room;
    call.mode = d->mode;
    RANK_OK(
        hp_barrier(f.group)); /* a large one asks where operands lie, when ranks have met before */
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), d->said));
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_MISMATCH); /* the group stays failed */
    free(data);
}

/* A rank ends between two spans' worth of calls: who waits for it is told. */
static void dead_peer_body(hp_world *world, void *argument) {
    enum { COUNT = 50000 };
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    const hp_collective *what = argument;
    float *data = calloc((size_t)(4 * n) * COUNT, sizeof *data);
    hp_coll_call f = HP_COLL_CALL_INIT;
    hp_coll_backward_call call = HP_COLL_BACKWARD_CALL_INIT;
    RANK_CHECK(data);
    f.what = *what;
    f.group = hp_world_group(world);
    f.in = data;
    f.out = data + (size_t)n * COUNT;
    f.count = COUNT;
    f.op = has_op(*what) ? HP_MAX : HP_SUM;
    call.forward = &f;
    call.out_grad = data + (size_t)(2 * n) * COUNT;
    call.in_grad = data + (size_t)(3 * n) * COUNT;
    RANK_OK(hp_coll_backward(&call));
    if (rank == 1) {
        free(data);
        ranks_die();
    }
    RANK_FAILS(hp_coll_backward(&call), HP_ERR_PEER);
    RANK_CHECK(strstr(hp_last_error(), "rank 1"));
    free(data);
}

/* ---- the tests ---- */

static void B5_every_kind_bit_by_bit(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, every_kind_body, NULL);
    ranks_run(3, RANKS_THREADS, every_kind_body, NULL);
    ranks_run(2, RANKS_PROCESSES, every_kind_body, NULL);
}
static void B5_long_ones(void **state) {
    (void)state;
    ranks_run(5, RANKS_THREADS, long_ones_body, NULL);
    ranks_run(2, RANKS_THREADS, long_ones_body, NULL);
}
static void B5_over_wires(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, wires_body, NULL);
}
static void B5_directional_derivatives(void **state) {
    static const uint64_t counts[] = {3, 150};
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t count = counts[i];
        ranks_run(4, RANKS_THREADS, derivatives_body, &count);
    }
}
static void B5_placed(void **state) {
    (void)state;
    setenv("HYPER_PARALLEL_THRESHOLDS", "carried=256K,apart=256K", 1);
    ranks_run(2, RANKS_PROCESSES, placed_body, NULL);
    ranks_run(3, RANKS_THREADS, placed_body, NULL);
    unsetenv("HYPER_PARALLEL_THRESHOLDS");
}
static void B5_at_random(void **state) {
    int n_trials = 40;
    (void)state;
    for (int n = 4; n <= MOST_RANKS; n += 2)
        ranks_run(n, RANKS_THREADS, random_body, &n_trials);
    ranks_run(2, RANKS_PROCESSES, random_body, &n_trials);
    ranks_run_nodes(4, 2, random_body, &n_trials);
}
static void B5_gather_then_mean_is_the_input(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, round_trip_body, NULL);
    ranks_run(4, RANKS_THREADS, round_trip_body, NULL);
}
static void B5_messages_mirrored_in_order(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, messages_body, NULL);
    ranks_run(2, RANKS_PROCESSES, messages_body, NULL);
}
static void test_subgroups(void **state) {
    (void)state;
    ranks_run(5, RANKS_THREADS, subgroup_body, NULL);
}
static void test_misuse(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse_body, NULL);
}
static void test_mismatch(void **state) {
    static const difference all[] = {
        {HP_ALL_REDUCE, HP_BACKWARD_IDENTITY, 40000, false, "39999"},
        {HP_ALL_REDUCE, HP_BACKWARD_IDENTITY, 40000, true, "by min over 40000"},
        {HP_ALL_REDUCE, HP_BACKWARD_SUM, 40000, true, "by min over 40000"},
        {HP_ALL_REDUCE, HP_BACKWARD_SUM, 8, true, "by min over 8"},
        {HP_REDUCE_SCATTER, HP_BACKWARD_IDENTITY, 8, true, "reduce_scatter by min over 8"},
        {HP_REDUCE_SCATTER, HP_BACKWARD_IDENTITY, 40000, true, "reduce_scatter by min over 40000"},
        {HP_REDUCE_SCATTER, HP_BACKWARD_IDENTITY, 40000, false, "39999"},
        {HP_REDUCE_SCATTER, HP_BACKWARD_IDENTITY, 240000, true, "by min over 240000"}};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        difference each = all[i];
        ranks_run(3, RANKS_THREADS, mismatch_body, &each);
    }
}
static void test_dead_peer(void **state) {
    static const hp_collective what[] = {HP_ALL_GATHER, HP_REDUCE_SCATTER, HP_ALL_REDUCE,
                                         HP_BROADCAST};
    char text[1024];
    (void)state;
    for (int i = 0; i < 4; i++) {
        hp_collective each = what[i];
        assert_int_equal(ranks_try(3, RANKS_THREADS, dead_peer_body, &each, text, sizeof text), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(B5_every_kind_bit_by_bit),
        cmocka_unit_test(B5_long_ones),
        cmocka_unit_test(B5_placed),
        cmocka_unit_test(B5_at_random),
        cmocka_unit_test(B5_over_wires),
        cmocka_unit_test(B5_directional_derivatives),
        cmocka_unit_test(B5_gather_then_mean_is_the_input),
        cmocka_unit_test(B5_messages_mirrored_in_order),
        cmocka_unit_test(test_subgroups),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_dead_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
