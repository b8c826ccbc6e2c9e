/* SPDX-License-Identifier: Apache-2.0
 *
 * test_across.c - groups that span nodes: every collective has the bits of one node.
 *
 * Ranks are threads on a hub that is split into nodes. Layouts are nodes of equal and of different
 * sizes, members in the order of their nodes and not, members that are a node each; the engine of
 * support/coll_bench.c holds every call against the oracle, which knows of no nodes. Then networks
 * that deliver in another order, several groups at once, messages, and ranks that disagree.
 */
#include "coll/across/across.h"
#include "support/coll_bench.h"
#include "support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- layouts ---- */

typedef struct layout_of_nodes {
    int n, per_node; /* the job's */
    int n_members;   /* 0: all ranks, in order */
    int members[8];
    bool is_carried; /* each member is a node */
} nodes_layout;

static const nodes_layout layouts[] = {
    {.n = 4, .per_node = 2},
    {.n = 2, .per_node = 1},
    {.n = 8, .per_node = 4},
    {.n = 6, .per_node = 2},
    {.n = 4, .per_node = 1},
    {.n = 3, .per_node = 1},
    {.n = 6, .per_node = 4},                                             /* both fold */
    {.n = 6, .per_node = 3, .n_members = 4, .members = {2, 3, 4, 5}},    /* 1 + 3: one does not */
    {.n = 6, .per_node = 3, .n_members = 4, .members = {0, 1, 2, 3}},    /* 3 + 1 */
    {.n = 4, .per_node = 2, .n_members = 4, .members = {0, 2, 1, 3}},    /* interleaved */
    {.n = 8, .per_node = 4, .n_members = 5, .members = {6, 1, 0, 5, 2}}, /* in any order */
    {.n = 8, .per_node = 3},                                             /* 3 + 3 + 2 */
    {.n = 4, .per_node = 4, .is_carried = true},                         /* inside a node, too */
    {.n = 4, .per_node = 2, .is_carried = true},
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

typedef void group_body(hp_world *world, hp_group *group);
typedef struct layout_run {
    const nodes_layout *layout;
    group_body *body;
    uint64_t seed; /* of a network that delivers in another order; 0: in order */
} layout_run;

static bool is_member(const nodes_layout *l, int rank) {
    for (int i = 0; i < l->n_members; i++)
        if (l->members[i] == rank)
            return true;
    return l->n_members == 0;
}

static void on_layout(hp_world *world, void *argument) {
    const layout_run *r = argument;
    const nodes_layout *l = r->layout;
    hp_group *group = hp_world_group(world), *made = NULL;
    if (r->seed)
        hpi_threads_disorder(world->transport, r->seed + (uint64_t)hp_world_rank(world));
    if (!is_member(l, hp_world_rank(world)))
        return;
    if (l->n_members)
        RANK_OK(hp_group_create(world, l->members, l->n_members, &made));
    if (l->is_carried)
        RANK_OK(hp_group_duplicate_over(group, HP_CARRIER_TRANSPORT, &made));
    group = made ? made : group;
    RANK_CHECK(hpi_group_nodes(group));
    r->body(world, group);
    RANK_OK(hp_barrier(group));
    hp_group_destroy(made);
}

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { LAYOUT_STEP = 3 }; /* ranks of other places do the same */
#else
enum { LAYOUT_STEP = 1 };
#endif

static void each_layout(group_body *body, uint64_t seed) {
    for (int i = 0; i < N_LAYOUTS; i += LAYOUT_STEP) {
        layout_run r = {&layouts[i], body, seed};
        ranks_run_nodes(layouts[i].n, layouts[i].per_node, on_layout, &r);
    }
}

static void on_one(int i, group_body *body, uint64_t seed) {
    layout_run r = {&layouts[i], body, seed};
    ranks_run_nodes(layouts[i].n, layouts[i].per_node, on_layout, &r);
}

/* ---- every kind of call ---- */

static void run_some(bench *b, coll_case c) {
    static const uint64_t counts[] = {1, 3, 17, 64, 127, 300};
    const bool can_be_in_place = bench_can_be_in_place(&c);
    for (int k = 0; k < (b->n <= 4 ? 2 : 1); k++) {
        const uint64_t turn = b->n_cases;
        c.where = (whereabouts)(turn * 5 % N_MEMORIES);
        c.in_place = can_be_in_place && turn / 2 % 2;
        c.root = (int)(turn % (uint64_t)b->n);
        c.skew = (skew)(turn % 3);
        c.layout = (layout)(turn / 3 % 3);
        c.count = turn % 16 ? counts[turn * 7 % (sizeof counts / sizeof *counts)] : 0;
        bench_run(b, &c);
        RANK_CHECK(c.count == 0 || strcmp(hpi_coll_last(b->group), "across") == 0);
    }
}

static void kinds(hp_world *world, hp_group *group) {
    bench b;
    bench_open(&b, world, group, BENCH_MAX_RANKS * 2 * 300 * 8);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run_some);
    bench_close(&b);
}

/* Pieces and scratch so small that each call has many. */
static void cut_finely(hp_group *group) {
    RANK_OK(hp_barrier(group));
    hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    s->across->piece_bytes = 4096;
    s->across->scratch_bytes = 200000;
}

static void run_long(bench *b, coll_case c) {
    static const uint64_t counts[] = {2000, 10000, 20001, 15000};
    const bool is_whole = c.what == HP_ALL_REDUCE || c.what == HP_BROADCAST;
    if ((c.dtype != HP_BF16 && c.dtype != HP_FP32) ||
        c.op != (c.out_dtype == c.dtype ? HP_SUM : HP_AVG))
        return;
    const uint64_t turn = b->n_cases;
    c.where = (whereabouts)(turn * 5 % N_MEMORIES);
    c.in_place = bench_can_be_in_place(&c) && turn % 2;
    c.root = (int)(turn % (uint64_t)b->n);
    c.count = counts[turn % 4] / (is_whole ? 1 : (uint64_t)b->n);
    bench_run(b, &c);
}

static void long_ones(hp_world *world, hp_group *group) {
    bench b;
    bench_open(&b, world, group, BENCH_MAX_RANKS * 100000);
    bench_run(&b, &(coll_case){HP_ALL_GATHER, HP_FP32, HP_FP32, .count = 25000, .blocks = 1});
    bench_run(&b, &(coll_case){HP_ALL_REDUCE, HP_FP32, HP_FP32, .count = 70000, .blocks = 1});
    cut_finely(group);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run_long);
    bench_close(&b);
}

/* Inner dimensions: [blocks][n][count], gather and scatter only. */
static void run_blocks(bench *b, coll_case c) {
    if (c.what != HP_ALL_GATHER && c.what != HP_REDUCE_SCATTER)
        return;
    c.where = (whereabouts)(b->n_cases % N_MEMORIES);
    c.blocks = 1 + b->n_cases % 5;
    c.count = 1 + b->n_cases * 5 % 23;
    bench_run(b, &c);
}

static void blocks(hp_world *world, hp_group *group) {
    bench b;
    cut_finely(group);
    bench_open(&b, world, group, BENCH_MAX_RANKS * 5 * 23 * 8);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run_blocks);
    bench_close(&b);
}

/* N5: composed of an inner and an inter-node path or flat, the result is the oracle's. */
static void N5_every_kind_over_nodes(void **state) {
    (void)state;
    each_layout(kinds, 0);
}

static void N5_several_pieces(void **state) {
    (void)state;
    each_layout(long_ones, 0);
}

static void test_blocks(void **state) {
    (void)state;
    on_one(0, blocks, 0);
    on_one(9, blocks, 0);
    on_one(11, blocks, 0);
}

/* ---- a network that delivers in another order ---- */

static void S20_messages_in_another_order(void **state) {
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i += 4)
        on_one(i, kinds, 1 + (uint64_t)i);
    on_one(0, long_ones, 2);
    on_one(9, long_ones, 3);
}

/* ---- several groups at once ---- */

enum { N_GROUPS = 3, N_ROUNDS = 40 };

typedef struct worker {
    hp_group *group;
    int number;
    pthread_t thread;
    hp_error error;
} worker;

static hp_status work(const worker *w) {
    const int n = hp_group_size(w->group);
    float data[2000], all[8];
    for (int round = 0; round < N_ROUNDS; round++) {
        const float mine = (float)(w->number + round + hp_group_rank(w->group));
        for (int k = 0; k < 2000; k++)
            data[k] = mine;
        HP_TRY(hp_all_reduce(w->group, data, data, round % 2 ? 2000 : 3, HP_FP32, HP_SUM));
        HP_TRY(hp_all_gather(w->group, &mine, all, 1, HP_FP32));
        const float sum = (float)(n * (w->number + round) + n * (n - 1) / 2);
        for (int i = 0; i < n; i++)
            if (all[i] != (float)(w->number + round + i) || data[round % 2 ? 1999 : 2] != sum)
                return HPI_FAIL(HP_ERR_STATE, "group %d, round %d: wrong", w->number, round);
    }
    return HP_OK;
}

static void *worker_main(void *argument) {
    worker *w = argument;
    if (work(w) < 0)
        hp_last_error_get(&w->error);
    return NULL;
}

static void many_groups(hp_world *world, hp_group *group) {
    worker workers[N_GROUPS] = {{.number = 0}};
    (void)world;
    for (int i = 0; i < N_GROUPS; i++) {
        workers[i].number = 100 * i;
        RANK_OK(hp_group_duplicate(group, &workers[i].group));
    }
    for (int i = 0; i < N_GROUPS; i++)
        RANK_CHECK(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) == 0);
    for (int i = 0; i < N_GROUPS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < N_GROUPS; i++) {
        if (workers[i].error.status)
            RANK_OK(hpi_error_set(&workers[i].error));
        hp_group_destroy(workers[i].group);
    }
}

static void test_several_groups_at_once(void **state) {
    (void)state;
    on_one(0, many_groups, 0);
    on_one(0, many_groups, 7);
    on_one(4, many_groups, 8);
}

/* ---- messages ---- */

/* Each pair in turn, short and long, in order. */
static void letters(hp_world *world, hp_group *group) {
    enum { MOST = 200000 };
    static const uint64_t counts[] = {0, 1, 500, 1024, 1025, MOST};
    const int n = hp_group_size(group), rank = hp_group_rank(group);
    unsigned char *data = malloc(MOST);
    (void)world;
    RANK_CHECK(data);
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++)
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
                const int value = from * 16 + to + (int)k;
                memset(data, rank == from ? value : 0, counts[k]);
                if (from != to && rank == from)
                    RANK_OK(hp_send(group, data, counts[k], HP_UINT8, to));
                if (from == to || rank != to)
                    continue;
                RANK_OK(hp_recv(group, data, counts[k], HP_UINT8, from));
                for (uint64_t i = 0; i < counts[k]; i++)
                    RANK_CHECK(data[i] == value);
            }
    free(data);
}

static void test_messages(void **state) {
    (void)state;
    on_one(0, letters, 0);
    on_one(8, letters, 5);
    on_one(12, letters, 0);
}

static void wrong_letter(hp_world *world, hp_group *group) {
    float data[4] = {0};
    (void)world;
    if (hp_group_rank(group) == 0) {
        const hp_status status = hp_send(group, data, 4, HP_FP32, 1); /* may be buffered */
        RANK_CHECK(status == HP_OK || status == HP_ERR_MISMATCH);
    } else {
        RANK_FAILS(hp_recv(group, data, 4, HP_INT32, 0), HP_ERR_MISMATCH);
        RANK_CHECK(strstr(hp_last_error(), "from rank 0 (world 0) to rank 1 (world 1): sent are 4 "
                                           "fp32, to be received are 4 int32"));
    }
}

static void wrong_letter_body(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    wrong_letter(world, group);
    RANK_OK(hp_barrier(hp_world_group(world)));
    hp_group_destroy(group);
}

static void test_message_that_differs(void **state) {
    (void)state;
    ranks_run_nodes(2, 1, wrong_letter_body, NULL);
}

/* ---- a rank that dies ---- */

/* The others are in the middle of a long call. */
static void death_body(hp_world *world, void *argument) {
    enum { COUNT = 1 << 20 };
    hp_group *group = hp_world_group(world);
    float *data = calloc(COUNT, sizeof *data);
    RANK_CHECK(data);
    RANK_OK(hp_all_reduce(group, data, data, COUNT, HP_FP32, HP_SUM));
    if (hp_world_rank(world) == *(int *)argument) {
        free(data);
        ranks_die();
    }
    RANK_FAILS(hp_all_reduce(group, data, data, COUNT, HP_FP32, HP_SUM), HP_ERR_PEER);
    char name[16];
    snprintf(name, sizeof name, "rank %d", *(int *)argument);
    RANK_CHECK(strstr(hp_last_error(), name));
    RANK_FAILS(hp_barrier(group), HP_ERR_PEER);
    free(data);
}

static void test_death(void **state) {
    (void)state;
    for (int dead = 0; dead < 4; dead += 3)
        ranks_run_nodes(4, 2, death_body, &dead);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N5_every_kind_over_nodes),
        cmocka_unit_test(N5_several_pieces),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(S20_messages_in_another_order),
        cmocka_unit_test(test_several_groups_at_once),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_message_that_differs),
        cmocka_unit_test(test_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
