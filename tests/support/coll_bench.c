/* SPDX-License-Identifier: Apache-2.0
 *
 * coll_bench.c - the engine of the conformance tests.
 *
 * Every operand is a list of pieces: what is adjacent in memory and has one origin. Where piece q
 * of a rank's input or output lies, and which input pieces an output piece comes from, is written
 * down here from the words of coll.h alone.
 */
#include "support/coll_bench.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { GUARD = 128 };
static const char *const memory_names[] = {"symmetric", "ordinary", "shifted",
                                           "odd",       "apart",    "mixed"};
static const char *const skew_names[] = {"even", "with zeros", "alone"};
static const char *const layout_names[] = {"packed", "backwards", "each its own way"};

/* ---- pieces ---- */

static bool is_v(const coll_case *c) {
    return c->what == HP_ALL_GATHER_V || c->what == HP_REDUCE_SCATTER_V ||
           c->what == HP_ALL_TO_ALL_V;
}
static bool is_reduction(const coll_case *c) {
    return c->what == HP_REDUCE_SCATTER || c->what == HP_REDUCE_SCATTER_V ||
           c->what == HP_ALL_REDUCE;
}

/* Elements of the part that `from` has for `to`; -1: for or from all. */
static uint64_t part_length(const bench *b, const coll_case *c, int from, int to) {
    const int key = (from < 0 ? 0 : from) + 2 * (to < 0 ? 0 : to);
    if (!is_v(c) || c->skew == EVEN)
        return c->count;
    if (c->skew == ZEROS)
        return c->count * (uint64_t)(key % 3);
    return key == (from < 0 ? 0 : b->n - 1) + 2 * (to < 0 ? 0 : b->n - 1) ? c->count : 0;
}

static int n_in_pieces(const bench *b, const coll_case *c) {
    switch (c->what) {
    case HP_ALL_GATHER:
        return (int)c->blocks;
    case HP_REDUCE_SCATTER:
        return (int)c->blocks * b->n;
    case HP_REDUCE_SCATTER_V:
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        return b->n;
    default:
        return 1;
    }
}
static int n_out_pieces(const bench *b, const coll_case *c) {
    switch (c->what) {
    case HP_ALL_GATHER:
        return (int)c->blocks * b->n;
    case HP_REDUCE_SCATTER:
        return (int)c->blocks;
    case HP_ALL_GATHER_V:
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        return b->n;
    default:
        return 1;
    }
}

static uint64_t in_length(const bench *b, const coll_case *c, int rank, int q) {
    switch (c->what) {
    case HP_ALL_GATHER_V:
        return part_length(b, c, rank, -1);
    case HP_REDUCE_SCATTER_V:
        return part_length(b, c, -1, q);
    case HP_ALL_TO_ALL_V:
        return part_length(b, c, rank, q);
    default:
        return c->count;
    }
}
static uint64_t out_length(const bench *b, const coll_case *c, int rank, int q) {
    switch (c->what) {
    case HP_ALL_GATHER_V:
        return part_length(b, c, q, -1);
    case HP_REDUCE_SCATTER_V:
        return part_length(b, c, -1, rank);
    case HP_ALL_TO_ALL_V:
        return part_length(b, c, q, rank);
    default:
        return c->count;
    }
}

/* Where piece q begins, in elements, of pieces that `length` measures. */
static uint64_t begin_of(const bench *b, const coll_case *c, int q, int n_pieces,
                         uint64_t (*length)(const bench *, const coll_case *, int, int)) {
    const bool is_packed = !is_v(c) || c->layout == PACKED || n_pieces == 1;
    const uint64_t gap = c->layout == OWN_WAY ? 3 + (uint64_t)b->rank : 3;
    uint64_t begin = is_packed ? 0 : gap;
    for (int k = is_packed ? 0 : n_pieces - 1; k != q; k += is_packed ? 1 : -1)
        begin += length(b, c, b->rank, k) + (is_packed ? 0 : gap);
    return begin;
}
static uint64_t in_begin(const bench *b, const coll_case *c, int q) {
    return begin_of(b, c, q, n_in_pieces(b, c), in_length);
}
static uint64_t out_begin(const bench *b, const coll_case *c, int q) {
    return begin_of(b, c, q, n_out_pieces(b, c), out_length);
}

/* The input piece of rank i that output piece q is made from; *out_from: of which rank, -1: all. */
static int origin_of(const bench *b, const coll_case *c, int q, int *out_from) {
    *out_from = q % b->n;
    switch (c->what) {
    case HP_ALL_GATHER:
        return q / b->n;
    case HP_ALL_GATHER_V:
        return 0;
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        return b->rank;
    case HP_BROADCAST:
        *out_from = c->root;
        return 0;
    default:
        *out_from = -1;
        return c->what == HP_ALL_REDUCE ? 0 : q * b->n + b->rank;
    }
}

/* Rank i's input piece q in `inputs`. */
static unsigned char *input_of(const bench *b, const coll_case *c, int i, int q) {
    uint64_t begin = 0;
    for (int k = 0; k < q; k++)
        begin += in_length(b, c, i, k);
    return b->inputs + (uint64_t)i * b->arena_bytes + begin * hp_dtype_size(c->dtype);
}

/* ---- memory ---- */

void bench_open(bench *b, hp_world *world, hp_group *group, uint64_t most_bytes) {
    void *base = NULL;
    *b = (bench){.group = group, .rank = hp_group_rank(group), .n = hp_group_size(group)};
    b->arena_bytes = hpi_align_up(most_bytes, 64) + 4096;
    hp_group *inner = hpi_group_inner(group); /* those who share memory */
    RANK_OK(hp_symm_alloc(world, inner, 2 * b->arena_bytes, 64, &b->memory));
    RANK_OK(hp_symm_pointer(b->memory, hp_group_rank(inner), inner, &base));
    for (int i = 0; i < 2; i++) {
        b->symmetric[i] = (unsigned char *)base + (uint64_t)i * b->arena_bytes;
        b->ordinary[i] = malloc(b->arena_bytes);
        RANK_CHECK(b->ordinary[i]);
    }
    b->inputs = malloc((size_t)b->n * b->arena_bytes);
    b->expected = malloc(b->arena_bytes);
    b->image = malloc(b->arena_bytes);
    RANK_CHECK(b->inputs && b->expected && b->image);
}

void bench_close(bench *b) {
    for (int i = 0; i < 2; i++)
        free(b->ordinary[i]);
    free(b->inputs);
    free(b->expected);
    free(b->image);
    RANK_OK(hp_symm_free(b->memory));
}

static unsigned char *arena_of(const bench *b, const coll_case *c, int arena) {
    const bool is_ordinary = c->where == ORDINARY || (c->where == MIXED && b->rank % 2 == 1);
    return (is_ordinary ? b->ordinary : b->symmetric)[arena];
}

static unsigned char *place(const bench *b, const coll_case *c, int arena) {
    unsigned char *at = arena_of(b, c, arena) + GUARD;
    if (c->where == SHIFTED)
        at += hp_dtype_size(c->dtype);
    if (c->where == ODD)
        at += 3;
    if (c->where == APART)
        at += 64 * b->rank;
    return at;
}

bool bench_can_be_in_place(const coll_case *c) {
    return c->dtype == c->out_dtype && c->what != HP_BROADCAST && c->what != HP_ALL_TO_ALL_V &&
           c->blocks == 1;
}

/* In place both operands lie in one arena, where coll.h says. */
static void place_both(const bench *b, const coll_case *c, unsigned char **out_in,
                       unsigned char **out_out) {
    const uint64_t size = hp_dtype_size(c->dtype);
    *out_in = place(b, c, 0);
    *out_out = place(b, c, c->in_place ? 0 : 1);
    if (c->in_place && (c->what == HP_ALL_GATHER || c->what == HP_ALL_GATHER_V))
        *out_in += out_begin(b, c, b->rank) * size;
    if (c->in_place && (c->what == HP_REDUCE_SCATTER || c->what == HP_REDUCE_SCATTER_V))
        *out_out += in_begin(b, c, b->rank) * size;
    if (c->what == HP_BROADCAST)
        *out_out = *out_in;
}

/* ---- before the call ---- */

/* Bytes of an arena that the case can touch, and a margin. */
static uint64_t reach(const bench *b, const coll_case *c) {
    const uint64_t size = hpi_max(hp_dtype_size(c->dtype), hp_dtype_size(c->out_dtype));
    const uint64_t gap = 3 + BENCH_MAX_RANKS;
    uint64_t in = gap, out = gap;
    for (int q = 0; q < n_in_pieces(b, c); q++)
        in += in_length(b, c, b->rank, q) + gap;
    for (int q = 0; q < n_out_pieces(b, c); q++)
        out += out_length(b, c, b->rank, q) + gap;
    return hpi_min(b->arena_bytes, hpi_max(in, out) * size + 1024);
}

static void fill(const bench *b, const coll_case *c, unsigned char *in, uint64_t seed) {
    const uint64_t size = hp_dtype_size(c->dtype);
    for (int i = 0; i < b->n; i++)
        for (int q = 0; q < n_in_pieces(b, c); q++)
            oracle_fill(c->dtype, input_of(b, c, i, q), in_length(b, c, i, q),
                        seed + (uint64_t)(i * 64 + q));
    for (int q = 0; q < n_in_pieces(b, c); q++)
        memcpy(in + in_begin(b, c, q) * size, input_of(b, c, b->rank, q),
               in_length(b, c, b->rank, q) * size);
}

/* Output piece q, made by the oracle. */
static void expect(const bench *b, const coll_case *c, int q) {
    const void *all[BENCH_MAX_RANKS];
    int from;
    const int piece = origin_of(b, c, q, &from);
    const uint64_t length = out_length(b, c, b->rank, q);
    for (int i = 0; i < b->n; i++)
        all[i] = input_of(b, c, i, piece);
    if (from < 0)
        oracle_reduce(c->dtype, c->out_dtype, c->op, all, b->n, b->expected, length);
    else
        memcpy(b->expected, all[from], length * hp_dtype_size(c->dtype));
}

/* ---- the call ---- */

typedef struct arrays {
    uint64_t in_counts[BENCH_MAX_RANKS], in_offsets[BENCH_MAX_RANKS];
    uint64_t out_counts[BENCH_MAX_RANKS], out_offsets[BENCH_MAX_RANKS];
} arrays;

static void fill_arrays(const bench *b, const coll_case *c, arrays *a) {
    memset(a, 0, sizeof *a);
    for (int i = 0; i < b->n && n_in_pieces(b, c) == b->n; i++) {
        a->in_counts[i] = in_length(b, c, b->rank, i);
        a->in_offsets[i] = in_begin(b, c, i);
    }
    for (int i = 0; i < b->n && n_out_pieces(b, c) == b->n; i++) {
        a->out_counts[i] = out_length(b, c, b->rank, i);
        a->out_offsets[i] = out_begin(b, c, i);
    }
}

static uint64_t own_count(const bench *b, const coll_case *c) {
    return c->what == HP_ALL_GATHER_V ? in_length(b, c, b->rank, 0) : out_length(b, c, b->rank, 0);
}

static hp_status call_short(const bench *b, const coll_case *c, const void *in, void *out,
                            const arrays *a) {
    switch (c->what) {
    case HP_ALL_GATHER:
        return hp_all_gather(b->group, in, out, c->count, c->dtype);
    case HP_ALL_GATHER_V:
        return hp_all_gather_v(b->group, in, out, a->out_counts, c->dtype);
    case HP_REDUCE_SCATTER:
        return hp_reduce_scatter(b->group, in, out, c->count, c->dtype, c->op);
    case HP_REDUCE_SCATTER_V:
        return hp_reduce_scatter_v(b->group, in, out, a->in_counts, c->dtype, c->op);
    case HP_ALL_REDUCE:
        return hp_all_reduce(b->group, in, out, c->count, c->dtype, c->op);
    case HP_ALL_TO_ALL:
        return hp_all_to_all(b->group, in, out, c->count, c->dtype);
    case HP_ALL_TO_ALL_V:
        return hp_all_to_all_v(b->group, in, a->in_counts, out, a->out_counts, c->dtype);
    default:
        return hp_broadcast(b->group, out, c->count, c->dtype, c->root);
    }
}

/* Fields that the call does not name hold what would be refused, were it looked at. */
static hp_status call_full(const bench *b, const coll_case *c, const void *in, void *out,
                           const arrays *a) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = c->what;
    call.group = b->group;
    call.in = c->what == HP_BROADCAST ? (const char *)out + 1 : in;
    call.out = out;
    call.count = is_v(c) ? own_count(b, c) : c->count;
    call.in_counts = a->in_counts;
    call.out_counts = a->out_counts;
    call.in_offsets = c->layout == PACKED && is_v(c) ? NULL : a->in_offsets;
    call.out_offsets = c->layout == PACKED && is_v(c) ? NULL : a->out_offsets;
    call.dtype = c->dtype;
    call.op = is_reduction(c) ? c->op : (hp_reduce)77;
    call.rank = c->what == HP_BROADCAST ? c->root : -5;
    call.wire = is_reduction(c) ? HP_WIRE_FULL : (hp_wire)77;
    return hp_coll_run(&call);
}

static hp_status call_door(const bench *b, const coll_case *c, const void *in, void *out,
                           const arrays *a, uint64_t *out_seq) {
    const bool has_layout = c->layout != PACKED;
    const hpi_coll k = {.in = in,
                        .out = out,
                        .count = is_v(c) ? own_count(b, c) : c->count,
                        .blocks = c->blocks,
                        .dtype = c->dtype,
                        .out_dtype = c->out_dtype,
                        .op = c->op,
                        .in_counts = a->in_counts,
                        .in_offsets = has_layout ? a->in_offsets : NULL,
                        .out_counts = a->out_counts,
                        .out_offsets = has_layout ? a->out_offsets : NULL,
                        .root = c->root};
    return hpi_coll_run(b->group, c->what, &k, false, out_seq);
}

/* In three ways in turn; in two phases *out_seq is what is left to drain, else 0. */
static hp_status call(const bench *b, const coll_case *c, const void *in, void *out,
                      uint64_t *out_seq) {
    arrays a;
    fill_arrays(b, c, &a);
    if (c->blocks > 1 || c->dtype != c->out_dtype || b->n_cases % 3 == 0)
        return call_door(b, c, in, out, &a, out_seq);
    if (b->n_cases % 3 == 1 && c->layout == PACKED)
        return call_short(b, c, in, out, &a);
    return call_full(b, c, in, out, &a);
}

/* ---- after the call ---- */

static void describe(const bench *b, const coll_case *c, char *text, size_t size) {
    snprintf(text, size,
             "%s of %llu %s in %llu blocks to %s by %s, parts %s, %s, %s%s, n %d, algorithm %s",
             hpi_collective_name(c->what), (unsigned long long)c->count, hp_dtype_name(c->dtype),
             (unsigned long long)c->blocks, hp_dtype_name(c->out_dtype), hpi_reduce_name(c->op),
             skew_names[c->skew], layout_names[c->layout], memory_names[c->where],
             c->in_place ? ", in place" : "", b->n, hpi_coll_last(b->group));
}

static void fail_case(const bench *b, const coll_case *c, const char *what, int q,
                      uint64_t element) {
    char text[320];
    describe(b, c, text, sizeof text);
    print_error("%s: %s, piece %d, element %llu\n", text, what, q, (unsigned long long)element);
    ranks_fail(__FILE__, __LINE__, "the case as the oracle has it", 0);
}

/* Every piece is right, and all that is not a piece is as it was: `image` is the arena before. */
static void check(const bench *b, const coll_case *c, const unsigned char *out,
                  const unsigned char *arena) {
    const uint64_t size = hp_dtype_size(c->out_dtype);
    for (int q = 0; q < n_out_pieces(b, c); q++) {
        const uint64_t length = out_length(b, c, b->rank, q);
        const unsigned char *at = out + out_begin(b, c, q) * size;
        uint64_t first = 0;
        expect(b, c, q);
        if (!oracle_same(c->out_dtype, at, b->expected, length, &first))
            fail_case(b, c, "wrong", q, first);
        memcpy(b->image + (at - arena), at, length * size);
    }
    if (memcmp(arena, b->image, reach(b, c)) != 0)
        fail_case(b, c, "written outside", -1, 0);
}

static bool input_is_kept(const bench *b, const coll_case *c, const unsigned char *in) {
    const uint64_t size = hp_dtype_size(c->dtype);
    for (int q = 0; q < n_in_pieces(b, c); q++)
        if (memcmp(in + in_begin(b, c, q) * size, input_of(b, c, b->rank, q),
                   in_length(b, c, b->rank, q) * size) != 0)
            return false;
    return true;
}

void bench_run(bench *b, const coll_case *c) {
    unsigned char *in, *out;
    uint64_t to_drain = 0;
    const uint64_t n_bytes = reach(b, c);
    const bool is_one = c->in_place || c->what == HP_BROADCAST;
    unsigned char *arena = arena_of(b, c, is_one ? 0 : 1);
    b->n_cases++; /* the same on all ranks */
    place_both(b, c, &in, &out);
    memset(arena, 0xee, n_bytes);
    fill(b, c, in, b->n_cases * 1024);
    memcpy(b->image, arena, n_bytes);
    if (call(b, c, in, out, &to_drain) < 0)
        fail_case(b, c, hp_last_error(), -1, 0);
    check(b, c, out, arena); /* valid when done, before it is drained */
    RANK_OK(hpi_coll_drain(b->group, to_drain));
    if (!is_one && !input_is_kept(b, c, in))
        fail_case(b, c, "the input was written", -1, 0);
}

/* ---- lists of cases ---- */

/* The reductions of one dtype: every op, and where the sum type is wider, that result too. */
static void each_reduction(bench *b, coll_case c, void (*run)(bench *b, coll_case c)) {
    static const hp_collective reductions[] = {HP_REDUCE_SCATTER, HP_REDUCE_SCATTER_V,
                                               HP_ALL_REDUCE};
    for (c.op = HP_SUM; c.op <= HP_MIN; c.op++) {
        if (c.op == HP_AVG && !hpi_dtype_is_float(c.dtype))
            continue;
        for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
            c.what = reductions[i];
            c.out_dtype = c.dtype;
            run(b, c);
            c.out_dtype = hpi_sum_dtype(c.dtype);
            if (c.out_dtype != c.dtype)
                run(b, c);
        }
    }
}

void bench_each_kind(bench *b, coll_case c, void (*run)(bench *b, coll_case c)) {
    static const hp_collective moves[] = {HP_ALL_GATHER, HP_ALL_GATHER_V, HP_ALL_TO_ALL,
                                          HP_ALL_TO_ALL_V, HP_BROADCAST};
    for (c.dtype = HP_FP64; c.dtype <= HP_UINT8; c.dtype++) {
        if (hpi_kernel_of(c.dtype))
            each_reduction(b, c, run);
        c.op = HP_SUM;
        c.out_dtype = c.dtype;
        for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
            c.what = moves[i];
            run(b, c);
        }
    }
}
