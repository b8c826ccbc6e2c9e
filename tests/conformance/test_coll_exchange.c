/* SPDX-License-Identifier: Apache-2.0
 *
 * test_coll_exchange.c - all-to-all, and the forms whose parts differ in length.
 *
 * Every memory, shape of parts and layout in groups of 1 to 9; parts around what a cell holds of
 * each; random matrices of counts; and ranks that disagree about them, who all get one text.
 */
#include "support/coll_bench.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const hp_collective kinds[] = {HP_ALL_TO_ALL, HP_ALL_TO_ALL_V, HP_ALL_GATHER_V,
                                      HP_REDUCE_SCATTER_V};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* ---- every memory, shape and layout ---- */

/* Half of the memories for each shape, the others for the next. */
static void run_memories(bench *b, coll_case c, int shape) {
    for (int where = shape % 2; where < N_MEMORIES; where += 2)
        for (int in_place = 0; in_place < (bench_can_be_in_place(&c) ? 2 : 1); in_place++) {
            c.where = (whereabouts)where;
            c.in_place = in_place;
            bench_run(b, &c);
        }
}

static void shapes_body(hp_world *world, void *argument) {
    static const uint64_t counts[] = {1, 5, 40, 200};
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), BENCH_MAX_RANKS * 2 * 200 * 4);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int shape = 0; shape < 9; shape++) {
            const hp_dtype dtype = shape % 2 ? HP_FP32 : HP_BF16;
            coll_case c = {.what = kinds[kind],
                           .dtype = dtype,
                           .out_dtype = dtype,
                           .op = HP_AVG,
                           .count = counts[(kind + shape) % 4],
                           .blocks = 1,
                           .skew = (skew)(shape % 3),
                           .layout = (layout)(shape / 3)};
            if (c.what != HP_ALL_TO_ALL || shape < 4)
                run_memories(&b, c, kind + shape);
        }
    bench_close(&b);
}

/* ---- around what a cell holds of each part ---- */

static void cells_body(hp_world *world, void *argument) {
    const uint64_t n = (uint64_t)hp_world_size(world), cell = 128 * 1024;
    const uint64_t room = cell / n / 64 * 64, most = 10 * room;
    const uint64_t counts[] = {room - 1, room, room + 1, 3 * room + 5, most};
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), 2 * most * n);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            coll_case c = {.what = kinds[kind],
                           .dtype = HP_UINT8,
                           .out_dtype = HP_UINT8,
                           .op = HP_MAX,
                           .count = counts[k],
                           .blocks = 1,
                           .where = ORDINARY,
                           .skew = (skew)(k % 3)};
            c.in_place = k % 2 && bench_can_be_in_place(&c);
            bench_run(&b, &c);
        }
    bench_close(&b);
}

/* ---- any matrix of counts ---- */

enum { MATRICES = 300, MOST = 50 };

/* How much rank `from` sends to rank `to` in round k. */
static uint64_t drawn(int k, int from, int to) {
    uint64_t state = (uint64_t)k * 10007 + (uint64_t)from * 101 + (uint64_t)to;
    const uint64_t r = hpi_random_next(&state);
    return r % 3 == 0 ? 0 : r / 3 % MOST;
}

static int32_t drawn_value(int k, int from, int to, uint64_t at) {
    return (int32_t)(((k * 16 + from) * 16 + to) * 64) + (int32_t)at;
}

static void matrix_round(hp_group *group, int k, int32_t *in, int32_t *out) {
    const int n = hp_group_size(group), rank = hp_group_rank(group);
    uint64_t in_counts[BENCH_MAX_RANKS], out_counts[BENCH_MAX_RANKS], at = 0;
    for (int i = 0; i < n; i++) {
        in_counts[i] = drawn(k, rank, i);
        out_counts[i] = drawn(k, i, rank);
        for (uint64_t e = 0; e < in_counts[i]; e++)
            in[at++] = drawn_value(k, rank, i, e);
    }
    RANK_OK(hp_all_to_all_v(group, in, in_counts, out, out_counts, HP_INT32));
    at = 0;
    for (int i = 0; i < n; i++)
        for (uint64_t e = 0; e < out_counts[i]; e++)
            RANK_CHECK(out[at++] == drawn_value(k, i, rank, e));
}

static void matrices_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const uint64_t bytes = BENCH_MAX_RANKS * MOST * sizeof(int32_t);
    hp_symm memory;
    void *base = NULL;
    (void)argument;
    int32_t *ordinary = malloc(bytes);
    RANK_CHECK(ordinary);
    RANK_OK(hp_symm_alloc(world, group, bytes, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, hp_group_rank(group), group, &base));
    for (int k = 0; k < MATRICES; k++) /* an input that peers can read, every other time */
        matrix_round(group, k, k % 2 ? base : ordinary, k % 2 ? ordinary : base);
    RANK_OK(hp_symm_free(memory));
    free(ordinary);
}

/* Nobody has anything for anybody, nor memory for it. */
static void nothing_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const uint64_t zeros[BENCH_MAX_RANKS] = {0};
    (void)argument;
    RANK_OK(hp_all_to_all_v(group, NULL, zeros, NULL, zeros, HP_FP32));
    RANK_OK(hp_all_gather_v(group, NULL, NULL, zeros, HP_FP32));
    RANK_OK(hp_reduce_scatter_v(group, NULL, NULL, zeros, HP_FP32, HP_SUM));
    RANK_OK(hp_all_to_all(group, NULL, NULL, 0, HP_FP32));
    RANK_OK(hp_barrier(group));
}

/* ---- in place on some ranks alone ---- */

static void some_in_place_body(hp_world *world, void *argument) {
    enum { COUNT = 3000 };
    hp_group *group = hp_world_group(world);
    const int n = hp_group_size(group), rank = hp_group_rank(group);
    hp_symm memory;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, group, 2 * COUNT * 8 * (uint64_t)n, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, group, &base));
    uint64_t *in = base, *out = rank % 2 ? in : in + COUNT * n;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < COUNT; k++)
            in[i * COUNT + k] = (uint64_t)((rank * 16 + i) * COUNT + k);
    RANK_OK(hp_all_to_all(group, in, out, COUNT, HP_INT64));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < COUNT; k++)
            RANK_CHECK(out[i * COUNT + k] == (uint64_t)((i * 16 + rank) * COUNT + k));
    RANK_OK(hp_symm_free(memory));
}

/* ---- disagreement ---- */

/* Rank 1 sends 7 elements to rank 2, which expects 6: every rank is told so. */
static void wrong_pair_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    uint64_t in_counts[BENCH_MAX_RANKS], out_counts[BENCH_MAX_RANKS];
    float in[128] = {0}, out[128];
    hp_group *group = NULL;
    (void)argument;
    for (int i = 0; i < n; i++)
        in_counts[i] = out_counts[i] = 5;
    in_counts[2] = rank == 1 ? 7 : 5;
    out_counts[1] = rank == 2 ? 6 : 5;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    memset(out, 0x11, sizeof out);
    RANK_FAILS(hp_all_to_all_v(group, in, in_counts, out, out_counts, HP_FP32), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "rank 1 (world 1) sends 7 elements to rank 2 (world 2), "
                                       "which expects 6"));
    for (size_t i = 0; i < sizeof out; i++)
        RANK_CHECK(((unsigned char *)out)[i] == 0x11);
    RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
    hp_group_destroy(group);
}

/* What a rank sends to itself counts too, in a group of one as well. */
static void wrong_own_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    uint64_t in_counts[BENCH_MAX_RANKS], out_counts[BENCH_MAX_RANKS];
    float in[128] = {0}, out[128];
    hp_group *group = NULL;
    (void)argument;
    for (int i = 0; i < n; i++)
        in_counts[i] = out_counts[i] = 5;
    out_counts[0] = rank == 0 ? 4 : 5;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_FAILS(hp_all_to_all_v(group, in, in_counts, out, out_counts, HP_FP32), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "sends") && strstr(hp_last_error(), "expects 4"));
    hp_group_destroy(group);
}

/* Rank 2 gives rank 1 another count than the others; zero is a count like any. */
static void wrong_counts_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    uint64_t counts[BENCH_MAX_RANKS];
    float in[128] = {0}, out[128];
    (void)argument;
    for (int is_scatter = 0; is_scatter < 2; is_scatter++)
        for (uint64_t wrong = 0; wrong < 8; wrong += 7) {
            hp_group *group = NULL;
            for (int i = 0; i < n; i++)
                counts[i] = 5;
            counts[1] = rank == 2 ? wrong : 5;
            RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
            RANK_FAILS(is_scatter ? hp_reduce_scatter_v(group, in, out, counts, HP_FP32, HP_SUM)
                                  : hp_all_gather_v(group, in, out, counts, HP_FP32),
                       HP_ERR_MISMATCH);
            RANK_CHECK(strstr(hp_last_error(), "the count differs"));
            hp_group_destroy(group);
        }
}

/* ---- the tests ---- */

static void each_size(ranks_body body) {
    for (int n = 1; n <= BENCH_MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, body, NULL);
}

static void N4_every_shape_of_parts(void **state) {
    (void)state;
    each_size(shapes_body);
}
static void N10_parts_around_a_cell(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, cells_body, NULL);
    ranks_run(5, RANKS_THREADS, cells_body, NULL);
}
static void test_any_matrix(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, matrices_body, NULL);
    ranks_run(4, RANKS_THREADS, matrices_body, NULL);
    ranks_run(9, RANKS_THREADS, matrices_body, NULL);
}
static void test_nothing_to_move(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, nothing_body, NULL);
    ranks_run(3, RANKS_THREADS, nothing_body, NULL);
}
static void test_in_place_on_some_ranks(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, some_in_place_body, NULL);
}
static void test_as_processes(void **state) {
    (void)state;
    ranks_run(3, RANKS_PROCESSES, shapes_body, NULL);
    ranks_run(4, RANKS_PROCESSES, matrices_body, NULL);
}
static void test_disagreement(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, wrong_pair_body, NULL);
    ranks_run(1, RANKS_THREADS, wrong_own_body, NULL);
    ranks_run(3, RANKS_THREADS, wrong_own_body, NULL);
    ranks_run(4, RANKS_THREADS, wrong_counts_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N4_every_shape_of_parts),
        cmocka_unit_test(N10_parts_around_a_cell),
        cmocka_unit_test(test_any_matrix),
        cmocka_unit_test(test_nothing_to_move),
        cmocka_unit_test(test_in_place_on_some_ranks),
        cmocka_unit_test(test_as_processes),
        cmocka_unit_test(test_disagreement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
