/* SPDX-License-Identifier: Apache-2.0
 *
 * test_coll.c - every collective against the serial oracle, bit for bit.
 *
 * Groups of 1 to 9 over every kind of call, counts around every threshold, each algorithm by name;
 * then what collectives share: cells, one call after another, calls as operations of an executor.
 * The engine is support/coll_bench.c. Here a few memories and counts stand for all of each kind;
 * test_coll_full.c runs the whole product.
 */
#include "support/coll_bench.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- every kind of call ---- */

/* Two memories and counts of the lists for each kind, others the next time; now and then none. */
static void run_some(bench *b, coll_case c) {
    static const uint64_t counts[] = {1, 3, 4, 5, 8, 9, 16, 17, 31, 64, 65, 67, 255, 300};
    const bool can_be_in_place = bench_can_be_in_place(&c);
    for (int k = 0; k < 2; k++) {
        const uint64_t turn = b->n_cases;
        c.where = (whereabouts)(turn * 5 % N_MEMORIES);
        c.in_place = can_be_in_place && turn / 2 % 2;
        c.root = (int)(turn % (uint64_t)b->n);
        c.skew = (skew)(turn % 3);
        c.layout = (layout)(turn / 3 % 3);
        c.count = turn % 16 ? counts[turn * 7 % (sizeof counts / sizeof *counts)] : 0;
        bench_run(b, &c);
    }
}

static void kinds_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), BENCH_MAX_RANKS * 2 * 300 * 8);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run_some);
    bench_close(&b);
}

/* Inner dimensions: [blocks][n][count], gather and scatter only. */
static void run_blocks(bench *b, coll_case c) {
    if (c.what != HP_ALL_GATHER && c.what != HP_REDUCE_SCATTER)
        return;
    for (int k = 0; k < 2; k++) {
        c.where = (whereabouts)(b->n_cases % N_MEMORIES);
        c.blocks = 1 + b->n_cases % 5;
        c.count = 1 + b->n_cases * 5 % 23;
        bench_run(b, &c);
    }
}

static void blocks_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), BENCH_MAX_RANKS * 5 * 23 * 8);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run_blocks);
    bench_close(&b);
}

/* ---- thresholds ---- */

/* The kernels' chunk, the cells of the staging area, and ten times that. */
enum { CHUNK_FP32 = HPI_CHUNK_BYTES / 4, CELL_FP32 = 128 * 1024 / 4 };

/* Gather and scatter stage a part of a cell per rank. */
static bool is_in_parts(hp_collective what) {
    return what != HP_ALL_REDUCE && what != HP_BROADCAST;
}

static void thresholds_body(hp_world *world, void *argument) {
    static const uint64_t counts[] = {CHUNK_FP32 - 1, CHUNK_FP32,    CHUNK_FP32 + 1,
                                      CELL_FP32 - 1,  CELL_FP32,     CELL_FP32 + 1,
                                      2 * CELL_FP32,  10 * CELL_FP32};
    const bool with_largest = hp_world_size(world) == 2;
    const size_t n_counts = sizeof counts / sizeof *counts - (with_largest ? 0 : 2);
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world),
               counts[n_counts - 1] * 4 * (uint64_t)hp_world_size(world));
    for (size_t k = 0; k < n_counts; k++)
        for (int what = HP_ALL_GATHER; what <= HP_BROADCAST; what++) {
            coll_case c = {.what = (hp_collective)what,
                           .dtype = k % 3 == 2 ? HP_BF16 : HP_FP32,
                           .count = counts[k],
                           .blocks = 1,
                           .where = (k + (size_t)what / 2) % 2 ? ORDINARY : SYMMETRIC};
            c.out_dtype = c.dtype;
            c.in_place = k % 2 == 0 && bench_can_be_in_place(&c);
            if (is_in_parts(c.what) && k < 6)
                c.count /= (uint64_t)b.n;
            bench_run(&b, &c);
            c.where = c.where == ORDINARY ? SYMMETRIC : ORDINARY;
            if (k != 7)
                bench_run(&b, &c);
        }
    bench_close(&b);
}

/* ---- algorithms by name ---- */

/* What makes an algorithm's needs true: what is read across processes may be anything. */
static whereabouts memory_for(const hpi_algorithm *a, size_t turn) {
    if (a->needs == HPI_NEEDS_READABLE)
        return turn == 4 ? MIXED : ORDINARY;
    return a->needs == HPI_NEEDS_WORDS ? ORDINARY : SYMMETRIC;
}

static coll_case case_for(const bench *b, const hpi_algorithm *a, size_t turn) {
    static const uint64_t counts[] = {1, 2, 7, 100, 2500};
    return (coll_case){.what = a->what,
                       .dtype = HP_FP32,
                       .out_dtype = HP_FP32,
                       .op = (hp_reduce)(turn % 4),
                       .count = counts[turn],
                       .blocks = 1,
                       .where = memory_for(a, turn),
                       .root = b->n - 1,
                       .skew = (skew)(turn % 3)};
}

static bool takes(const bench *b, const hpi_algorithm *a, const coll_case *c) {
    const bool has_whole_input = a->what == HP_REDUCE_SCATTER || a->what == HP_ALL_TO_ALL;
    if (c->in_place && !bench_can_be_in_place(c))
        return false;
    if (c->in_place && a->needs == HPI_NEEDS_APART)
        return false;
    const uint64_t in_bytes = c->count * 4 * (has_whole_input ? (uint64_t)b->n : 1);
    if (a->needs == HPI_NEEDS_WORDS)
        return in_bytes <= HPI_SMALL_BYTES;
    if (a->needs == HPI_NEEDS_CARRIED) {
        hpi_coll_state least = {0};
        hpi_ring_size(&least, b->n, false);
        return in_bytes <= hpi_ring_most(&least);
    }
    return !(c->in_place && a->what == HP_ALL_TO_ALL && a->needs != HPI_NEEDS_NOTHING);
}

static void run_forced(bench *b, const hpi_algorithm *a) {
    for (size_t turn = 0; turn < 5; turn++)
        for (int in_place = 0; in_place < 2; in_place++) {
            coll_case c = case_for(b, a, turn);
            c.in_place = in_place;
            if (!takes(b, a, &c))
                continue;
            bench_run(b, &c);
            const bool is_empty = c.what != HP_ALL_TO_ALL_V && c.skew == ZEROS && b->n == 1;
            if (b->n > 1 && !is_empty && strcmp(hpi_coll_last(b->group), a->name) != 0) {
                print_error("%s ran, not %s\n", hpi_coll_last(b->group), a->name);
                ranks_fail(__FILE__, __LINE__, "the algorithm that was asked for", 0);
            }
        }
}

/* Those over a wire have their own tests. */
static void forced_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), BENCH_MAX_RANKS * 5000 * 4);
    for (int i = 0; i < hpi_n_algorithms; i++) {
        if (hpi_needs_wire(hpi_algorithms[i].needs))
            continue;
        RANK_OK(hpi_coll_only(b.group, hpi_algorithms[i].name));
        run_forced(&b, &hpi_algorithms[i]);
    }
    bench_close(&b);
}

/* ---- remainders ---- */

/* The documented split of a total that n does not divide: the first ranks get one more. An
 * all-reduce cuts at cache lines inside, where nobody sees it: every total is right there too. */
static void remainder_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const uint64_t n = (uint64_t)hp_group_size(group), rank = (uint64_t)hp_group_rank(group);
    float in[64], out[64], all[64];
    (void)argument;
    for (uint64_t total = 1; total < 40; total += 1 + total / 4) {
        uint64_t counts[BENCH_MAX_RANKS], begin = 0;
        for (uint64_t i = 0; i < n; i++)
            counts[i] = total / n + (i < total % n);
        for (uint64_t i = 0; i < rank; i++)
            begin += counts[i];
        for (uint64_t k = 0; k < total; k++)
            in[k] = (float)((rank + 1) * (k + 1));
        RANK_OK(hp_reduce_scatter_v(group, in, out, counts, HP_FP32, HP_SUM));
        RANK_OK(hp_all_reduce(group, in, all, total, HP_FP32, HP_SUM));
        for (uint64_t k = 0; k < counts[rank]; k++)
            RANK_CHECK(out[k] == (float)(n * (n + 1) / 2 * (begin + k + 1)));
        for (uint64_t k = 0; k < total; k++)
            RANK_CHECK(all[k] == (float)(n * (n + 1) / 2 * (k + 1)));
    }
}

/* ---- one call after another ---- */

enum { N_BACK_TO_BACK = 10000, FEW = 48 };

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

/* In pockets, carried and through cells, one behind the other, while each rank now and then comes
 * late: what a rank reads must not be what a peer fills for the next call. */
static void mixed_body(hp_world *world, void *argument) {
    enum { N_CALLS = 400, MOST = 12 * 1024 };
    static const uint64_t counts[] = {40, 700, 5000, MOST};
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    float *in = hpi_alloc(MOST * (size_t)n, sizeof *in);
    float *out = hpi_alloc(MOST * (size_t)n, sizeof *out);
    uint64_t seed = 7, late = (uint64_t)rank;
    (void)argument;
    for (int i = 0; i < N_CALLS; i++) {
        const uint64_t count = counts[hpi_random_next(&seed) % 4], kind = hpi_random_next(&seed);
        RANK_OK(hpi_coll_only(group, kind % 2 ? "staged" : NULL));
        for (uint64_t k = 0; k < count * (uint64_t)n; k++)
            in[k] = (float)(i * 10 + rank + (int)(k % 7));
        if (hpi_random_next(&late) % 8 == 0)
            hpi_sleep_ns(100000);
        if (kind / 2 % 3 == 0)
            RANK_OK(hp_all_gather(group, in, out, count, HP_FP32));
        else if (kind / 2 % 3 == 1)
            RANK_OK(hp_all_reduce(group, in, out, count, HP_FP32, HP_SUM));
        else
            RANK_OK(hp_reduce_scatter(group, in, out, count, HP_FP32, HP_SUM));
        for (uint64_t k = 0; k < count; k++) {
            const uint64_t at = kind / 2 % 3 == 2 ? (uint64_t)rank * count + k : k;
            const int one = i * 10 + (int)(at % 7), sum = n * one + n * (n - 1) / 2;
            RANK_CHECK(out[k] == (float)(kind / 2 % 3 == 0 ? one : sum));
            if (kind / 2 % 3 == 0)
                RANK_CHECK(out[(uint64_t)(n - 1) * count + k] == (float)(one + n - 1));
        }
    }
    RANK_OK(hpi_coll_only(group, NULL));
    hpi_free(out);
    hpi_free(in);
}

/* ---- carried or in place ---- */

/* An all-reduce of 16 KiB is carried, but in place in symmetric memory it does not: one
 * rank after the other differs from the rest, with broadcasts that meet nobody between. */
static void places_differ_body(hp_world *world, void *argument) {
    enum { COUNT = 4096 };
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    static const char *const expected[] = {"one_shot", "staged", "push"};
    float *ordinary = hpi_alloc(COUNT, sizeof *ordinary);
    hp_symm memory;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, group, COUNT * sizeof *ordinary, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, group, &base));
    for (int i = 0; i < 12; i++) {
        const int n_placed = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 + i / 3 % (n - 1) : n;
        float *data = (rank + i) % n < n_placed ? base : ordinary, told = (float)i;
        for (int k = 0; k < COUNT; k++)
            data[k] = (float)(i * 100 + rank + k % 7);
        RANK_OK(hp_all_reduce(group, data, data, COUNT, HP_FP32, HP_SUM));
        RANK_CHECK(!strcmp(hpi_coll_last(group), expected[i % 3]));
        for (int k = 0; k < COUNT; k++)
            RANK_CHECK(data[k] == (float)(n * (i * 100 + k % 7) + n * (n - 1) / 2));
        RANK_OK(hp_broadcast(group, &told, 1, HP_FP32, i % n));
        RANK_CHECK(told == (float)i);
    }
    RANK_OK(hp_symm_free(memory));
    hpi_free(ordinary);
}

/* One rank after the other is in place while the rest is not, and last nobody is. */
static void copies_differ_body(hp_world *world, void *argument) {
    enum { COUNT = 32 * 1024 };
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    hp_symm memory;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, group, 2 * COUNT * sizeof(float), 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, group, &base));
    float *out = base, *in = out + COUNT;
    for (int i = 0; i <= n; i++) {
        float *from = rank == i ? out : in;
        for (int k = 0; k < COUNT; k++) {
            out[k] = -1;
            from[k] = (float)(i * 100 + rank + k % 7);
        }
        RANK_OK(hp_all_reduce(group, from, out, COUNT, HP_FP32, HP_SUM));
        RANK_CHECK(!strcmp(hpi_coll_last(group), "copied"));
        for (int k = 0; k < COUNT; k++) {
            RANK_CHECK(out[k] == (float)(n * (i * 100 + k % 7) + n * (n - 1) / 2));
            RANK_CHECK(rank == i || from[k] == (float)(i * 100 + rank + k % 7));
        }
    }
    RANK_OK(hp_symm_free(memory));
}

/* ---- without room for a ring ---- */

enum { HEAP_BYTES = 3 << 20, GATHERED = 100 * 1024, LEFT_BYTES = 256 << 10 };

/* What goes through cells for its speed alone goes without, where some ranks, or all, have no room
 * for them. */
static void no_room_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world), *alone = NULL;
    const int rank = hp_group_rank(group), n = hp_group_size(group), n_full = *(int *)argument;
    hp_symm memory, rest;
    void *base = NULL;
    RANK_OK(hp_symm_alloc(world, group, (uint64_t)(n + 1) * GATHERED * sizeof(int), 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, group, &base));
    RANK_OK(hp_group_create(world, &rank, 1, &alone));
    if (rank < n_full)
        RANK_OK(hp_symm_alloc(world, alone,
                              HEAP_BYTES - LEFT_BYTES - (uint64_t)(n + 1) * GATHERED * sizeof(int),
                              0, &rest));
    RANK_OK(hp_barrier(group));
    hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    s->distance.n_slow = HPI_SLOW_FOR_SURE;
    int *in = base, *out = in + GATHERED;
    for (int k = 0; k < GATHERED; k++)
        in[k] = rank * 7 + k;
    RANK_OK(hp_all_gather(group, in, out, GATHERED, HP_INT32));
    RANK_CHECK(!strcmp(hpi_coll_last(group), n_full ? "pull" : "cells"));
    for (int k = 0; k < n * GATHERED; k++)
        RANK_CHECK(out[k] == k / GATHERED * 7 + k % GATHERED);
    if (rank < n_full)
        RANK_OK(hp_symm_free(rest));
    hp_group_destroy(alone);
    RANK_OK(hp_symm_free(memory));
}

/* ---- life and death ---- */

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

/* The ring is taken by the first collective that needs it, once, and goes with the group. */
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
    RANK_OK(hp_all_reduce(group, in, out, 100, HP_FP32, HP_SUM)); /* in pockets: none either */
    RANK_OK(hp_symm_stats_get(world, &during));
    RANK_CHECK(during.allocated_bytes == before.allocated_bytes);
    RANK_OK(hpi_coll_only(group, "staged"));
    RANK_OK(hp_all_reduce(group, in, out, 100, HP_FP32, HP_SUM));
    RANK_OK(hp_symm_stats_get(world, &during));
    RANK_CHECK(during.allocated_bytes > before.allocated_bytes);
    RANK_CHECK(during.allocated_bytes - before.allocated_bytes ==
               during.message_bytes - before.message_bytes);
    const uint64_t n_allocs = hpi_alloc_count();
    for (int i = 0; i < 100; i++)
        RANK_OK(hp_all_gather(group, in, out, 20, HP_FP32));
    RANK_OK(hpi_coll_only(group, NULL));
    RANK_OK(hp_barrier(group));
    if (!hpi_world_is_threads(world)) /* the count is the process's */
        RANK_CHECK(hpi_alloc_count() == n_allocs);
    RANK_OK(hp_symm_stats_get(world, &later));
    RANK_CHECK(later.allocated_bytes == during.allocated_bytes);
    for (int i = 0; i < 3; i++) { /* when all have left, the next one takes what was left behind */
        hp_group_destroy(group);
        RANK_OK(hp_barrier(hp_world_group(world)));
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        RANK_OK(hpi_coll_only(group, "staged"));
        RANK_OK(hp_all_reduce(group, in, out, 100, HP_FP32, HP_SUM));
        RANK_OK(hp_symm_stats_get(world, &later));
        RANK_CHECK(later.allocated_bytes == during.allocated_bytes);
    }
    hp_group_destroy(group);
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
static void operations_body(hp_world *world, void *argument) {
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
    for (int n = 1; n <= BENCH_MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, body, NULL);
}

static void N4_every_kind_in_groups_of_1_to_9(void **state) {
    (void)state;
    each_size(kinds_body);
}
static void N4_every_algorithm_by_name(void **state) {
    (void)state;
    each_size(forced_body);
}
static void N4_as_processes(void **state) {
    (void)state;
    for (int n = 1; n <= BENCH_MAX_RANKS; n++)
        ranks_run(n, RANKS_PROCESSES, kinds_body, NULL);
    for (int n = 1; n <= BENCH_MAX_RANKS; n += 4)
        ranks_run(n, RANKS_PROCESSES, forced_body, NULL);
}
static void N7_different_data_every_time(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, back_to_back_body, NULL);
    ranks_run(3, RANKS_PROCESSES, back_to_back_body, NULL);
}
static void N9_remainder_of_a_reduce_scatter(void **state) {
    (void)state;
    each_size(remainder_body);
}
static void N10_around_chunk_and_cell(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, thresholds_body, NULL);
    ranks_run(3, RANKS_THREADS, thresholds_body, NULL);
}
static void test_mixed(void **state) {
    (void)state;
    for (int n = 2; n <= 3; n++)
        ranks_run(n, RANKS_THREADS, mixed_body, NULL);
}

static void test_blocks(void **state) {
    (void)state;
    each_size(blocks_body);
}
static void test_operations(void **state) {
    (void)state;
    each_size(operations_body);
}
static void test_cells(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, cells_body, NULL);
    ranks_run(2, RANKS_PROCESSES, cells_body, NULL);
}
static void test_places_differ(void **state) {
    (void)state;
    for (int n = 2; n <= 4; n++)
        ranks_run(n, RANKS_THREADS, places_differ_body, NULL);
    ranks_run(3, RANKS_PROCESSES, places_differ_body, NULL);
}
static void test_copies_differ(void **state) {
    (void)state;
    for (int n = 2; n <= 5; n++)
        ranks_run(n, RANKS_THREADS, copies_differ_body, NULL);
}

static void test_no_room(void **state) {
    (void)state;
    assert_int_equal(setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "3M", 1), 0);
    for (int n_full = 0; n_full < 3; n_full++)
        ranks_run(2, RANKS_THREADS, no_room_body, &n_full);
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
}
static void test_death(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, death_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N4_every_kind_in_groups_of_1_to_9),
        cmocka_unit_test(N4_every_algorithm_by_name),
        cmocka_unit_test(N4_as_processes),
        cmocka_unit_test(N7_different_data_every_time),
        cmocka_unit_test(N9_remainder_of_a_reduce_scatter),
        cmocka_unit_test(N10_around_chunk_and_cell),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_places_differ),
        cmocka_unit_test(test_copies_differ),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
