/* SPDX-License-Identifier: Apache-2.0
 *
 * test_coll.c - every collective against the serial oracle, bit for bit.
 *
 * One engine runs a case (collective, dtypes, op, count, blocks, memory, in place or not) on every
 * rank: fill, call, compare with what the oracle makes of all ranks' inputs, and look that nothing
 * else was written. The tests differ in the lists of cases that they feed it: groups of 1 to 9 over
 * everything (N4), counts around every threshold (N10), each algorithm by name.
 */
#include "coll/inside.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { GUARD = 128, MAX_RANKS = 9 };

/* Where the operands of a rank lie. */
typedef enum whereabouts {
    SYMMETRIC,
    ORDINARY,
    SHIFTED, /* symmetric, an element off the cache line */
    ODD,     /* symmetric, at an odd address */
    APART,   /* symmetric, at another offset on every rank */
    MIXED,   /* symmetric on even ranks, ordinary on odd ones */
    N_MEMORIES
} whereabouts;
static const char *const memory_names[] = {"symmetric", "ordinary", "shifted",
                                           "odd",       "apart",    "mixed"};

typedef struct coll_case {
    hp_collective what;
    hp_dtype dtype, out_dtype;
    hp_reduce op;
    uint64_t count, blocks;
    whereabouts where;
    bool in_place;
    int root;
} coll_case;

/* What a rank runs cases with. */
typedef struct bench {
    hp_group *group;
    int rank, n;
    hp_symm memory;
    unsigned char *symmetric[2], *ordinary[2]; /* in, out */
    unsigned char *inputs;                     /* every rank's, side by side */
    unsigned char *expected, *before;
    uint64_t arena_bytes, n_cases;
} bench;

static uint64_t arena_of(uint64_t most_bytes) {
    return hpi_align_up(most_bytes, 64) + 4096;
}

static void bench_open(bench *b, hp_world *world, hp_group *group, uint64_t most_bytes) {
    void *base = NULL;
    *b = (bench){.group = group, .rank = hp_group_rank(group), .n = hp_group_size(group)};
    b->arena_bytes = arena_of(most_bytes);
    RANK_OK(hp_symm_alloc(world, group, 2 * b->arena_bytes, 64, &b->memory));
    RANK_OK(hp_symm_pointer(b->memory, b->rank, group, &base));
    for (int i = 0; i < 2; i++) {
        b->symmetric[i] = (unsigned char *)base + (uint64_t)i * b->arena_bytes;
        b->ordinary[i] = malloc(b->arena_bytes);
        RANK_CHECK(b->ordinary[i]);
    }
    b->inputs = malloc((size_t)b->n * b->arena_bytes);
    b->expected = malloc(b->arena_bytes);
    b->before = malloc(b->arena_bytes);
    RANK_CHECK(b->inputs && b->expected && b->before);
}

static void bench_close(bench *b) {
    for (int i = 0; i < 2; i++)
        free(b->ordinary[i]);
    free(b->inputs);
    free(b->expected);
    free(b->before);
    RANK_OK(hp_symm_free(b->memory));
}

/* ---- one case ---- */

static uint64_t in_elements(const bench *b, const coll_case *c) {
    return c->count * c->blocks * (c->what == HP_REDUCE_SCATTER ? (uint64_t)b->n : 1);
}
static uint64_t out_elements(const bench *b, const coll_case *c) {
    return c->count * c->blocks * (c->what == HP_ALL_GATHER ? (uint64_t)b->n : 1);
}

static unsigned char *place(const bench *b, const coll_case *c, int arena) {
    const bool is_ordinary = c->where == ORDINARY || (c->where == MIXED && b->rank % 2 == 1);
    unsigned char *at = (is_ordinary ? b->ordinary : b->symmetric)[arena] + GUARD;
    if (c->where == SHIFTED)
        at += hp_dtype_size(c->dtype);
    if (c->where == ODD)
        at += 3;
    if (c->where == APART)
        at += 64 * b->rank;
    return at;
}

/* In place both operands lie in one arena, where coll.h says. */
static void place_both(const bench *b, const coll_case *c, unsigned char **out_in,
                       unsigned char **out_out) {
    const uint64_t part = c->count * hp_dtype_size(c->dtype);
    *out_in = place(b, c, 0);
    *out_out = place(b, c, c->in_place ? 0 : 1);
    if (c->in_place && c->what == HP_ALL_GATHER)
        *out_in += (uint64_t)b->rank * part;
    if (c->in_place && c->what == HP_REDUCE_SCATTER)
        *out_out += (uint64_t)b->rank * part;
    if (c->what == HP_BROADCAST)
        *out_out = *out_in;
}

/* Row b of rank i of a [blocks][n][count] tensor. */
static uint64_t row_at(const bench *b, const coll_case *c, uint64_t block, int rank) {
    return (block * (uint64_t)b->n + (uint64_t)rank) * c->count * hp_dtype_size(c->dtype);
}

static void expect(const bench *b, const coll_case *c) {
    const void *rows[MAX_RANKS];
    const uint64_t row = c->count * hp_dtype_size(c->dtype);
    const uint64_t in_bytes = in_elements(b, c) * hp_dtype_size(c->dtype);
    if (c->what == HP_BROADCAST)
        memcpy(b->expected, b->inputs + (uint64_t)c->root * in_bytes, in_bytes);
    for (uint64_t block = 0; block < c->blocks; block++) {
        for (int i = 0; i < b->n; i++) {
            const unsigned char *in = b->inputs + (uint64_t)i * in_bytes;
            rows[i] = in + block * row;
            if (c->what == HP_REDUCE_SCATTER)
                rows[i] = in + row_at(b, c, block, b->rank);
            if (c->what == HP_ALL_GATHER)
                memcpy(b->expected + row_at(b, c, block, i), rows[i], row);
        }
        if (c->what == HP_REDUCE_SCATTER || c->what == HP_ALL_REDUCE)
            oracle_reduce(c->dtype, c->out_dtype, c->op, rows, b->n,
                          b->expected + block * c->count * hp_dtype_size(c->out_dtype), c->count);
    }
}

/* In two phases every other time; then *out_seq is what is left to drain, else 0. */
static hp_status call(const bench *b, const coll_case *c, const void *in, void *out,
                      uint64_t *out_seq) {
    const hpi_coll k = {.in = in,
                        .out = out,
                        .count = c->count,
                        .blocks = c->blocks,
                        .dtype = c->dtype,
                        .out_dtype = c->out_dtype,
                        .op = c->op,
                        .root = c->root};
    const bool is_public = c->blocks == 1 && c->dtype == c->out_dtype && b->n_cases % 2;
    switch (c->what) {
    case HP_ALL_GATHER:
        return is_public ? hp_all_gather(b->group, in, out, c->count, c->dtype)
                         : hpi_all_gather(b->group, &k, out_seq);
    case HP_REDUCE_SCATTER:
        return is_public ? hp_reduce_scatter(b->group, in, out, c->count, c->dtype, c->op)
                         : hpi_reduce_scatter(b->group, &k, out_seq);
    case HP_ALL_REDUCE:
        return is_public ? hp_all_reduce(b->group, in, out, c->count, c->dtype, c->op)
                         : hpi_all_reduce(b->group, &k, out_seq);
    default:
        return is_public ? hp_broadcast(b->group, out, c->count, c->dtype, c->root)
                         : hpi_broadcast(b->group, &k, out_seq);
    }
}

static void describe(const bench *b, const coll_case *c, char *text, size_t size) {
    snprintf(text, size, "%s of %llu %s in %llu blocks to %s by %s, %s%s, n %d, algorithm %s",
             hpi_collective_name(c->what), (unsigned long long)c->count, hp_dtype_name(c->dtype),
             (unsigned long long)c->blocks, hp_dtype_name(c->out_dtype), hpi_reduce_name(c->op),
             memory_names[c->where], c->in_place ? ", in place" : "", b->n,
             hpi_coll_last(b->group));
}

static void check_result(const bench *b, const coll_case *c, const unsigned char *out,
                         const unsigned char *arena) {
    char text[256];
    uint64_t first = 0;
    const uint64_t out_bytes = out_elements(b, c) * hp_dtype_size(c->out_dtype);
    const uint64_t offset = (uint64_t)(out - arena);
    const bool is_right = oracle_same(c->out_dtype, out, b->expected, out_elements(b, c), &first);
    /* In place the rest of the input lies around the output and stays as it was. */
    const bool is_clean = memcmp(arena, b->before, offset) == 0 &&
                          memcmp(out + out_bytes, b->before + offset + out_bytes,
                                 b->arena_bytes - offset - out_bytes) == 0;
    if (is_right && is_clean)
        return;
    describe(b, c, text, sizeof text);
    print_error("%s: %s at element %llu\n", text, is_right ? "written outside" : "wrong",
                (unsigned long long)first);
    RANK_CHECK(is_right && is_clean);
}

/* The arena that holds an operand. */
static unsigned char *arena_around(const bench *b, const unsigned char *operand) {
    unsigned char *const arenas[] = {b->symmetric[0], b->symmetric[1], b->ordinary[0],
                                     b->ordinary[1]};
    int i = 0;
    while ((uintptr_t)operand - (uintptr_t)arenas[i] >= b->arena_bytes)
        i++;
    return arenas[i];
}

static void run_case(bench *b, const coll_case *c) {
    unsigned char *in, *out;
    const uint64_t n_in = in_elements(b, c), in_bytes = n_in * hp_dtype_size(c->dtype);
    const uint64_t seed = ++b->n_cases * 16; /* the same on all ranks */
    uint64_t to_drain = 0;
    place_both(b, c, &in, &out);
    unsigned char *arena = arena_around(b, out);
    for (int i = 0; i < b->n; i++)
        oracle_fill(c->dtype, b->inputs + (uint64_t)i * in_bytes, n_in, seed + (uint64_t)i);
    memset(arena, 0xee, b->arena_bytes);
    memcpy(in, b->inputs + (uint64_t)b->rank * in_bytes, in_bytes);
    memcpy(b->before, arena, b->arena_bytes);
    expect(b, c);
    const hp_status status = call(b, c, in, out, &to_drain);
    if (status < 0) {
        char text[256];
        describe(b, c, text, sizeof text);
        print_error("%s: %s\n", text, hp_last_error());
        RANK_CHECK(status == HP_OK);
    }
    check_result(b, c, out, arena); /* valid when done, before it is drained */
    RANK_OK(hpi_coll_drain(b->group, to_drain));
    if (!c->in_place && c->what != HP_BROADCAST)
        RANK_CHECK(memcmp(in, b->inputs + (uint64_t)b->rank * in_bytes, in_bytes) == 0);
}

/* ---- lists of cases ---- */

/* The reductions of one dtype: every op, and where the sum type is wider, that result too. */
static void run_reductions(bench *b, coll_case c, void (*run)(bench *, coll_case)) {
    for (c.op = HP_SUM; c.op <= HP_MIN; c.op++) {
        if (c.op == HP_AVG && c.dtype == HP_INT64)
            continue;
        for (int what = HP_REDUCE_SCATTER; what <= HP_ALL_REDUCE; what += 2) {
            c.what = (hp_collective)what;
            c.out_dtype = c.dtype;
            run(b, c);
            c.out_dtype = hpi_sum_dtype(c.dtype);
            if (c.out_dtype != c.dtype)
                run(b, c);
        }
    }
}

static void run_all(bench *b, coll_case c, void (*run)(bench *, coll_case)) {
    static const hp_dtype summed[] = {HP_FP64, HP_FP32, HP_BF16, HP_INT64};
    for (size_t i = 0; i < sizeof summed / sizeof *summed; i++) {
        c.dtype = summed[i];
        run_reductions(b, c, run);
    }
    c.op = HP_SUM;
    for (c.dtype = HP_FP64; c.dtype <= HP_UINT8; c.dtype++) {
        c.out_dtype = c.dtype;
        c.what = HP_ALL_GATHER;
        run(b, c);
        c.what = HP_BROADCAST;
        run(b, c);
    }
}

/* A few counts of the list for each memory, others the next time. */
static void run_everywhere(bench *b, coll_case c) {
    static const uint64_t counts[] = {1, 3, 4, 5, 8, 9, 16, 17, 31, 64, 65, 67, 255, 300};
    for (int where = 0; where < N_MEMORIES; where++)
        for (int in_place = 0; in_place < 2; in_place++) {
            if (in_place && (c.dtype != c.out_dtype || c.what == HP_BROADCAST))
                continue;
            c.where = (whereabouts)where;
            c.in_place = in_place;
            c.root = (int)(b->n_cases % (uint64_t)b->n);
            for (int k = 0; k < 2; k++) {
                c.count = counts[(b->n_cases * 7 + 3) % (sizeof counts / sizeof *counts)];
                run_case(b, &c);
            }
        }
    c.count = 0;
    run_case(b, &c);
}

static void everything_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), MAX_RANKS * 300 * 8);
    run_all(&b, (coll_case){.blocks = 1}, run_everywhere);
    bench_close(&b);
}

/* Inner dimensions: [blocks][n][count], gather and scatter only. */
static void run_blocks(bench *b, coll_case c) {
    if (c.what != HP_ALL_GATHER && c.what != HP_REDUCE_SCATTER)
        return;
    for (int where = 0; where < N_MEMORIES; where++) {
        c.where = (whereabouts)where;
        c.blocks = 1 + b->n_cases % 5;
        c.count = 1 + b->n_cases * 5 % 23;
        run_case(b, &c);
    }
}

static void blocks_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), MAX_RANKS * 5 * 23 * 8);
    run_all(&b, (coll_case){.blocks = 1}, run_blocks);
    bench_close(&b);
}

/* Counts around the kernels' chunk and the cells of the staging area, and ten times that (N10). */
enum { CHUNK_FP32 = HPI_CHUNK_BYTES / 4, CELL_FP32 = 128 * 1024 / 4 };

static void thresholds_body(hp_world *world, void *argument) {
    static const uint64_t counts[] = {CHUNK_FP32 - 1, CHUNK_FP32,    CHUNK_FP32 + 1,
                                      CELL_FP32 - 1,  CELL_FP32,     CELL_FP32 + 1,
                                      2 * CELL_FP32,  10 * CELL_FP32};
    static const hp_collective moves[] = {HP_ALL_GATHER, HP_REDUCE_SCATTER, HP_ALL_REDUCE,
                                          HP_BROADCAST};
    const bool with_largest = hp_world_size(world) == 2;
    const size_t n_counts = sizeof counts / sizeof *counts - (with_largest ? 0 : 2);
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world),
               counts[n_counts - 1] * 4 * (uint64_t)hp_world_size(world));
    for (size_t k = 0; k < n_counts; k++)
        for (size_t w = 0; w < sizeof moves / sizeof *moves; w++)
            for (int where = SYMMETRIC; where <= ORDINARY; where++) {
                const hp_collective what = moves[w];
                coll_case c = {.what = what,
                               .dtype = HP_FP32,
                               .out_dtype = HP_FP32,
                               .count = counts[k],
                               .blocks = 1,
                               .where = (whereabouts)where,
                               .in_place = k % 2 == 0};
                if (k % 3 == 2 && (what == HP_REDUCE_SCATTER || what == HP_ALL_REDUCE)) {
                    c.dtype = HP_BF16;
                    c.in_place = false;
                }
                /* gather and scatter stage a part of a cell per rank */
                if (what != HP_ALL_REDUCE && what != HP_BROADCAST && k < 6)
                    c.count /= (uint64_t)b.n;
                if (c.what == HP_BROADCAST)
                    c.in_place = false;
                run_case(&b, &c);
            }
    bench_close(&b);
}

/* ---- algorithms by name ---- */

static void run_forced(bench *b, const hpi_algorithm *a) {
    static const uint64_t counts[] = {1, 2, 7, 100, 5000};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            coll_case c = {.what = a->what,
                           .dtype = HP_FP32,
                           .out_dtype = HP_FP32,
                           .op = (hp_reduce)(k % 4),
                           .count = counts[k],
                           .blocks = 1,
                           .where = a->needs == HPI_NEEDS_WORDS ? ORDINARY : SYMMETRIC,
                           .in_place = in_place && a->what != HP_BROADCAST,
                           .root = b->n - 1};
            if (a->needs == HPI_NEEDS_WORDS && in_elements(b, &c) * 4 > HPI_SMALL_BYTES)
                continue;
            run_case(b, &c);
            RANK_CHECK(b->n == 1 || strcmp(hpi_coll_last(b->group), a->name) == 0);
        }
}

static void forced_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), MAX_RANKS * 5000 * 4);
    for (int i = 0; i < hpi_n_algorithms; i++) {
        if (hpi_is_v(hpi_algorithms[i].what) || hpi_algorithms[i].what == HP_ALL_TO_ALL)
            continue;
        RANK_OK(hpi_coll_only(b.group, hpi_algorithms[i].name));
        run_forced(&b, &hpi_algorithms[i]);
    }
    bench_close(&b);
}

/* ---- one call after another ---- */

enum { N_BACK_TO_BACK = 20000, FEW = 48 };

/* Exact small integers, different in every collective, so any mix-up of two of them shows. */
static void back_to_back_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    hp_symm memory;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, group, 2 * FEW * sizeof(float) * (size_t)n, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, group, &base));
    float *in = base, *out = in + FEW * n;
    for (int i = 0; i < N_BACK_TO_BACK; i++) {
        const uint64_t count = i % 3 == 0 ? 1 : FEW;
        for (uint64_t k = 0; k < count; k++)
            in[k] = (float)(i % 1000 * 10 + rank);
        if (i % 4 == 3) {
            RANK_OK(hp_all_gather(group, in, out, count, HP_FP32));
            for (int r = 0; r < n; r++)
                RANK_CHECK(out[(uint64_t)r * count] == (float)(i % 1000 * 10 + r));
        } else {
            RANK_OK(hp_all_reduce(group, in, i % 4 == 2 ? in : out, count, HP_FP32, HP_SUM));
            const float *sum = i % 4 == 2 ? in : out;
            RANK_CHECK(sum[count - 1] == (float)(i % 1000 * 10 * n + n * (n - 1) / 2));
        }
    }
    RANK_OK(hp_barrier(group));
    RANK_CHECK(hpi_coll_seq(group) == N_BACK_TO_BACK + 1);
    RANK_OK(hp_symm_free(memory));
}

/* ---- disagreement ---- */

typedef hp_status wrong_call(hp_group *group, bool is_odd_one, float *in, float *out);

static hp_status wrong_count(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_reduce(group, in, out, is_odd_one ? 12 : 10, HP_FP32, HP_SUM);
}
static hp_status wrong_small_count(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_gather(group, in, out, is_odd_one ? 1 : 2, HP_FP32);
}
static hp_status wrong_zero(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_reduce(group, in, out, is_odd_one ? 0 : 10, HP_FP32, HP_SUM);
}
static hp_status wrong_dtype(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_reduce_scatter(group, in, out, 10, is_odd_one ? HP_BF16 : HP_FP32, HP_SUM);
}
static hp_status wrong_op(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_reduce(group, in, out, 10, HP_FP32, is_odd_one ? HP_MAX : HP_SUM);
}
static hp_status wrong_root(hp_group *group, bool is_odd_one, float *in, float *out) {
    (void)out;
    return hp_broadcast(group, in, 10, HP_FP32, is_odd_one ? 1 : 0);
}
static hp_status wrong_order(hp_group *group, bool is_odd_one, float *in, float *out) {
    return is_odd_one ? hp_barrier(group) : hp_all_gather(group, in, out, 10, HP_FP32);
}

static const struct {
    wrong_call *call;
    const char *text; /* that the message holds on every rank */
} wrongs[] = {{wrong_count, "the count differs"},     {wrong_small_count, "the count differs"},
              {wrong_zero, "the count differs"},      {wrong_dtype, "the dtype differs"},
              {wrong_op, "the reduction differs"},    {wrong_root, "the root differs"},
              {wrong_order, "the collective differs"}};

static void mismatch_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), odd_one = *(int *)argument;
    float in[64] = {0}, out[64] = {0};
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        hp_group *group = NULL;
        char name[24];
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        RANK_FAILS(wrongs[i].call(group, rank == odd_one, in, out), HP_ERR_MISMATCH);
        RANK_CHECK(strstr(hp_last_error(), wrongs[i].text));
        snprintf(name, sizeof name, "rank %d (world %d)", odd_one, odd_one);
        RANK_CHECK(strstr(hp_last_error(), name));
        snprintf(name, sizeof name, "rank %d (world %d)", rank, rank);
        RANK_CHECK(strstr(hp_last_error(), name));
        /* the group stays failed, with the same record */
        RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
        RANK_CHECK(strstr(hp_last_error(), wrongs[i].text));
        RANK_OK(hp_barrier(hp_world_group(world)));
        hp_group_destroy(group);
    }
}

/* ---- arguments ---- */

static void arguments_body(hp_world *world, void *argument) {
    hp_group *g = hp_world_group(world);
    float a[64] = {0}, b[64] = {0};
    (void)argument;
    RANK_FAILS(hp_all_gather(NULL, a, b, 1, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, NULL, b, 1, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, a, b, 1, (hp_dtype)8), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, a + 1, a, 4, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_reduce_scatter(g, a, a + 1, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, a, a + 1, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, a, b, 4, HP_INT64, HP_AVG), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, a, b, 4, HP_FP32, (hp_reduce)4), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_broadcast(g, a, 4, HP_FP32, hp_group_size(g)), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_broadcast(g, a, 4, HP_FP32, -1), HP_ERR_ARGUMENT);
    /* N13: what does not fit into 2^63 bytes; nothing of it is touched */
    RANK_FAILS(hp_all_reduce(g, a, b, UINT64_C(1) << 61, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, a, b, UINT64_MAX, HP_UINT8), HP_ERR_ARGUMENT);
    /* one thread at a time, and a second one is told so */
    RANK_OK(hpi_group_enter(g, "another thread"));
    RANK_FAILS(hp_barrier(g), HP_ERR_BUSY);
    hpi_group_leave(g);
    /* not one of them has counted */
    RANK_CHECK(hpi_coll_seq(g) == 0);
    RANK_OK(hp_barrier(g));
}

/* N13: bytes past 2^31 and 2^32, by the arithmetic alone. */
static void large_counts_body(hp_world *world, void *argument) {
    static const uint64_t counts[] = {(UINT64_C(1) << 31) - 1, (UINT64_C(1) << 31) + 1,
                                      (UINT64_C(1) << 32) + 1};
    hp_group *g = hp_world_group(world);
    const uint64_t n = (uint64_t)hp_group_size(g);
    unsigned char *low = (unsigned char *)(uintptr_t)4096;
    (void)argument;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        hpi_run run;
        uint64_t begin, end, at = 0;
        hpi_coll c = {.in = low,
                      .out = low,
                      .count = counts[i],
                      .blocks = 1,
                      .dtype = HP_BF16,
                      .out_dtype = HP_BF16};
        RANK_OK(hpi_coll_check(g, HP_ALL_REDUCE, &c, &run));
        RANK_CHECK(run.in_bytes == 2 * counts[i] && run.out_bytes == 2 * counts[i]);
        for (int r = 0; r < run.n; r++, at = end) {
            hpi_slice(&run, counts[i], r, &begin, &end);
            RANK_CHECK(begin == at && (begin % 32 == 0 || begin == counts[i]));
        }
        RANK_CHECK(at == counts[i]);
        c.out = low + (uint64_t)1 * 16 * n * counts[i];
        RANK_OK(hpi_coll_check(g, HP_REDUCE_SCATTER, &c, &run));
        RANK_CHECK(run.in_bytes == 2 * n * counts[i] && run.out_bytes == 2 * counts[i]);
    }
}

/* A rank that dies is named by all the others, and the group stays failed. */
static void death_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    float in[1000] = {0}, out[1000];
    (void)argument;
    RANK_OK(hp_all_reduce(group, in, out, 1000, HP_FP32, HP_SUM));
    if (hp_world_rank(world) == 2)
        ranks_die();
    RANK_FAILS(hp_all_reduce(group, in, out, 1000, HP_FP32, HP_SUM), HP_ERR_PEER);
    RANK_CHECK(strstr(hp_last_error(), "rank 2") && strstr(hp_last_error(), "all_reduce"));
    RANK_FAILS(hp_barrier(group), HP_ERR_PEER);
}

/* The cells are taken by the first collective that stages, once, and go with the group. */
static void cells_body(hp_world *world, void *argument) {
    hp_group *group = NULL;
    hp_symm_stats before, during, later;
    float in[100] = {0}, out[100];
    (void)argument;
    RANK_OK(hp_barrier(hp_world_group(world)));
    RANK_OK(hp_symm_stats_get(world, &before));
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hp_all_reduce(group, in, out, 4, HP_FP32, HP_SUM)); /* in words: no cells */
    RANK_OK(hp_symm_stats_get(world, &during));
    RANK_CHECK(during.allocated_bytes == before.allocated_bytes);
    RANK_OK(hp_all_reduce(group, in, out, 100, HP_FP32, HP_SUM));
    RANK_OK(hp_symm_stats_get(world, &during));
    RANK_CHECK(during.n_allocations == before.n_allocations + 1);
    const uint64_t n_allocs = hpi_alloc_count();
    for (int i = 0; i < 100; i++)
        RANK_OK(hp_all_gather(group, in, out, 20, HP_FP32));
    RANK_OK(hp_barrier(group));
    if (!hpi_world_is_threads(world)) /* the count is the process's */
        RANK_CHECK(hpi_alloc_count() == n_allocs);
    RANK_OK(hp_symm_stats_get(world, &later));
    RANK_CHECK(later.allocated_bytes == during.allocated_bytes);
    hp_group_destroy(group);
    RANK_OK(hp_symm_stats_get(world, &later));
    RANK_CHECK(later.allocated_bytes == before.allocated_bytes);
}

/* ---- two threads, overlapping groups ---- */

typedef struct side {
    hp_group *group;
    float *symmetric;
    hp_status status;
    bool is_wrong;
} side;

enum { N_SIDE = 400, SIDE_COUNT = 700 };

/* Sums over the group, now in symmetric memory, now in ordinary, which is staged. */
static void *side_main(void *argument) {
    side *s = argument;
    float ordinary[SIDE_COUNT];
    float expected = 0;
    for (int i = 0; i < hp_group_size(s->group); i++)
        expected += (float)hp_group_world_rank(s->group, i);
    for (int i = 0; i < N_SIDE && s->status == HP_OK; i++) {
        float *data = i % 2 ? s->symmetric : ordinary;
        for (int k = 0; k < SIDE_COUNT; k++)
            data[k] = (float)hp_group_world_rank(s->group, hp_group_rank(s->group)) + (float)i;
        s->status = hp_all_reduce(s->group, data, data, SIDE_COUNT, HP_FP32, HP_SUM);
        const float want = expected + (float)(i * hp_group_size(s->group));
        s->is_wrong |= s->status == HP_OK && (data[0] != want || data[SIDE_COUNT - 1] != want);
    }
    return NULL;
}

/* Ranks 0 to 3; {0,1,2} and {1,2,3}; the members of both use both at once. */
static void overlapping_body(hp_world *world, void *argument) {
    static const int members[2][3] = {{0, 1, 2}, {1, 2, 3}};
    const int rank = hp_world_rank(world);
    hp_symm memory;
    void *base = NULL;
    side sides[2] = {{0}};
    pthread_t thread;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 2 * SIDE_COUNT * sizeof(float), 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &base));
    for (int i = 0; i < 2; i++) {
        sides[i].symmetric = (float *)base + i * SIDE_COUNT;
        if (rank >= members[i][0] && rank <= members[i][2])
            RANK_OK(hp_group_create(world, members[i], 3, &sides[i].group));
    }
    const bool has_thread = sides[0].group && sides[1].group;
    if (has_thread)
        RANK_CHECK(pthread_create(&thread, NULL, side_main, &sides[1]) == 0);
    side_main(sides[0].group ? &sides[0] : &sides[1]);
    if (has_thread)
        pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(sides[i].status == HP_OK && !sides[i].is_wrong);
        hp_group_destroy(sides[i].group);
    }
    RANK_OK(hp_symm_free(memory));
}

/* ---- as operations ---- */

static hp_op make_op(uint16_t kind, uint32_t seq, hp_ref in, hp_ref out) {
    return (hp_op){.kind = kind,
                   .id = seq,
                   .comm = 1,
                   .seq = seq,
                   .dtype = HP_BF16,
                   .reduce = HP_SUM,
                   .blocks = 1,
                   .reads = {in},
                   .writes = {out}};
}

static void run_op(hpi_bindings *b, const hp_op *op) {
    RANK_OK(hpi_coll_kinds[op->kind].run(b, op));
    RANK_OK(hpi_coll_kinds[op->kind].drain(b, op));
}

/* A gather of bf16, a reduce-scatter of the whole to fp32, an all-reduce of that in place. */
static void kinds_body(hp_world *world, void *argument) {
    enum { COUNT = 40 };
    hp_group *group = hp_world_group(world);
    const int n = hp_group_size(group), rank = hp_group_rank(group);
    const uint64_t part = COUNT * 2, whole = part * (uint64_t)n, sum = COUNT * 4;
    hp_symm memory;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, group, 3 * 4096, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, group, &base));
    unsigned char *buffers[] = {NULL, base, (unsigned char *)base + 4096,
                                (unsigned char *)base + 8192};
    uint64_t bytes[] = {0, part, whole, sum}, comm_base[] = {0, 1};
    void *comms[] = {NULL, group};
    hpi_bindings b = {.buffers = buffers,
                      .buffer_bytes = bytes,
                      .n_buffers = 4,
                      .comms = comms,
                      .comm_base = comm_base,
                      .n_comms = 2};
    for (int k = 0; k < COUNT; k++)
        ((uint16_t *)base)[k] = oracle_to_bf16((float)(rank + k));
    RANK_OK(hp_barrier(group)); /* so the step's base is 1 */

    hp_op op = make_op(HPI_KIND_ALL_GATHER, 0, (hp_ref){1, 0, 0, part}, (hp_ref){2, 0, 0, whole});
    run_op(&b, &op);
    op = make_op(HPI_KIND_REDUCE_SCATTER, 1, (hp_ref){2, 0, 0, whole}, (hp_ref){3, 0, 0, sum});
    run_op(&b, &op);
    op = make_op(HPI_KIND_ALL_REDUCE, 2, (hp_ref){3, 0, 0, sum}, (hp_ref){3, 0, 0, sum});
    op.dtype = HP_FP32;
    op.reduce = HP_AVG;
    run_op(&b, &op);
    for (int k = 0; k < COUNT; k++) { /* every rank held the same gathered values */
        float expected = 0;
        for (int r = 0; r < n; r++)
            expected += (float)(n * (r + k));
        RANK_CHECK(((float *)(void *)buffers[3])[k] == expected / (float)n);
    }

    RANK_FAILS(hpi_coll_kinds[op.kind].run(&b, &op), HP_ERR_STATE); /* its turn is over */
    op.seq = 3;
    op.writes[0].end -= 1;
    RANK_FAILS(hpi_coll_kinds[op.kind].run(&b, &op), HP_ERR_ARGUMENT);
    op.writes[0].end += 4096;
    RANK_FAILS(hpi_coll_kinds[op.kind].run(&b, &op), HP_ERR_ARGUMENT);
    op.comm = 2;
    RANK_FAILS(hpi_coll_kinds[op.kind].run(&b, &op), HP_ERR_ARGUMENT);
    RANK_OK(hp_symm_free(memory));
}

/* ---- the tests ---- */

static void each_size(ranks_body body) {
    for (int n = 1; n <= MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, body, NULL);
}

static void test_everything(void **state) {
    (void)state;
    each_size(everything_body);
}
static void test_blocks(void **state) {
    (void)state;
    each_size(blocks_body);
}
static void test_thresholds(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, thresholds_body, NULL);
    ranks_run(3, RANKS_THREADS, thresholds_body, NULL);
    ranks_run(5, RANKS_THREADS, thresholds_body, NULL);
}
static void test_algorithms_by_name(void **state) {
    (void)state;
    each_size(forced_body);
}
static void test_back_to_back(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, back_to_back_body, NULL);
}
static void test_mismatch(void **state) {
    (void)state;
    for (int odd_one = 0; odd_one < 4; odd_one += 3)
        ranks_run(4, RANKS_THREADS, mismatch_body, &odd_one);
}
static void test_arguments(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, arguments_body, NULL);
    ranks_run(3, RANKS_THREADS, large_counts_body, NULL);
}
static void test_cells(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, cells_body, NULL);
    ranks_run(2, RANKS_PROCESSES, cells_body, NULL);
}
static void test_death(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, death_body, NULL);
}
static void test_overlapping_groups(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, overlapping_body, NULL);
}
static void test_kinds(void **state) {
    (void)state;
    each_size(kinds_body);
}
static void test_processes(void **state) {
    (void)state;
    ranks_run(2, RANKS_PROCESSES, everything_body, NULL);
    ranks_run(5, RANKS_PROCESSES, forced_body, NULL);
    ranks_run(3, RANKS_PROCESSES, back_to_back_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),   cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_thresholds),   cmocka_unit_test(test_algorithms_by_name),
        cmocka_unit_test(test_back_to_back), cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_arguments),    cmocka_unit_test(test_overlapping_groups),
        cmocka_unit_test(test_kinds),        cmocka_unit_test(test_death),
        cmocka_unit_test(test_cells),        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
