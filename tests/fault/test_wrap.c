/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wrap.c - counters that start near their end.
 *
 * Values of lines are 64 bits wide and never come to their end in a real job, so the test puts them
 * there: the lines of slots that no group has used yet are set a few posts below 2^64, and the
 * sequence numbers of exchanges a few below 2^32, where something kept in 32 bits would show. All
 * that a group does must go on across both.
 */
#include "coll/inside.h"
#include "support/ranks.h"
#include "world/inside.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { N_RANKS = 3, N_ROUNDS = 40, COUNT = 600, N_SLOTS = 4 };

static void set_lines(hp_world *world, uint64_t value) {
    const hpi_segment *own = &world->segments[hp_world_rank(world)];
    for (uint32_t slot = 1; slot <= N_SLOTS; slot++)
        for (int k = 0; k < HPI_N_LINES; k++)
            atomic_store(&hpi_segment_lines(own, slot)[k].value, value);
    for (uint32_t slot = 1; slot <= N_SLOTS; slot++)
        for (uint64_t k = 0; k < HPI_N_SAID; k++)
            atomic_store(&hpi_segment_ring(own, slot)[k].value, value);
    RANK_OK(hp_barrier(hp_world_group(world)));
}

static void check_round(hp_world *world, hp_group *group, int round) {
    static _Thread_local float in[COUNT], out[COUNT];
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    uint64_t all[N_RANKS], mine = (uint64_t)(100 * round + rank);
    hp_symm memory;
    RANK_OK(hpi_group_exchange(group, "round", &mine, 1, all));
    for (int i = 0; i < n; i++)
        RANK_CHECK(all[i] == (uint64_t)(100 * round + i));
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)(round + rank);
    RANK_OK(hp_all_reduce(group, in, out, COUNT, HP_FP32, HP_SUM)); /* staged: the CHUNK line too */
    for (int i = 0; i < COUNT; i++)
        RANK_CHECK(out[i] == (float)(n * round + n * (n - 1) / 2));
    RANK_OK(hp_all_reduce(group, in, out, 1, HP_FP32, HP_MAX)); /* in the words of a line */
    RANK_CHECK(out[0] == (float)(round + n - 1));
    RANK_OK(hp_barrier(group));
    for (int i = 0; i < COUNT; i += 50) { /* entries, and the CAST line */
        RANK_OK(hp_broadcast(group, out, (uint64_t)i, HP_FP32, round % n));
    }
    if (round % 8 == 0) {
        RANK_OK(hp_symm_alloc(world, group, 256, 0, &memory));
        RANK_OK(hp_symm_free(memory));
    }
    if (rank == 0)
        RANK_OK(hp_send(group, in, COUNT, HP_FP32, 1));
    if (rank == 1)
        RANK_OK(hp_recv(group, out, COUNT, HP_FP32, 0));
    RANK_CHECK(rank != 1 || out[COUNT - 1] == (float)round);
}

static void values_body(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    for (uint64_t before = 1; before < 40; before += 7) {
        set_lines(world, (uint64_t)0 - before);
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        RANK_CHECK(group->slot >= 1 && group->slot <= N_SLOTS);
        RANK_CHECK(group->base == (uint64_t)0 - before);
        for (int round = 0; round < N_ROUNDS; round++)
            check_round(world, group, round);
        RANK_CHECK(atomic_load(&hpi_group_line(group, 0, HPI_LINE_READ)->value) < 4096);
        RANK_OK(hp_barrier(hp_world_group(world)));
        hp_group_destroy(group);
        /* a group after the wrap counts from beyond it */
        RANK_OK(hp_barrier(hp_world_group(world)));
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        RANK_CHECK(group->base < 1 << 20); /* the CAST line counts lines of 64 bytes */
        check_round(world, group, 0);
        RANK_OK(hp_barrier(hp_world_group(world)));
        hp_group_destroy(group);
        RANK_OK(hp_barrier(hp_world_group(world)));
    }
}

static void test_values_wrap(void **state) {
    (void)state;
    ranks_run(N_RANKS, RANKS_THREADS, values_body, NULL);
    ranks_run(N_RANKS, RANKS_PROCESSES, values_body, NULL);
}

/* A failure and a departure said across the wrap. */
static void state_body(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    for (uint64_t before = 1; before <= 2; before++) {
        set_lines(world, (uint64_t)0 - before);
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        if (hp_world_rank(world) == 1) {
            (void)HPI_FAIL(HP_ERR_SYSTEM, "a test");
            hpi_group_fail(group);
        } else {
            RANK_FAILS(hp_barrier(group), HP_ERR_SYSTEM);
        }
        RANK_OK(hp_barrier(hp_world_group(world)));
        hp_group_destroy(group);
        RANK_OK(hp_barrier(hp_world_group(world)));
    }
    set_lines(world, UINT64_MAX);
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (hp_world_rank(world) != 1)
        RANK_FAILS(hp_barrier(group), HP_ERR_PEER);
    hp_group_destroy(group);
    RANK_OK(hp_barrier(hp_world_group(world)));
}

static void test_states_wrap(void **state) {
    (void)state;
    ranks_run(N_RANKS, RANKS_THREADS, state_body, NULL);
}

/* Sequence numbers past 2^32. */
static void sequence_body(hp_world *world, void *argument) {
    hp_group *group;
    const uint64_t first = (UINT64_C(1) << 32) - 20;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    check_round(world, group, 1); /* makes the state and the staging cells */
    RANK_OK(hp_barrier(hp_world_group(world)));
    hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    atomic_store(&s->seq, first);
    s->floor = first;
    s->tick = first;
    group->n_exchanges = first / 2;
    for (int k = 0; k <= HPI_LINE_SETUP; k++)
        hpi_line_post(group, k, first);
    RANK_OK(hp_barrier(hp_world_group(world)));
    for (int round = 2; round < N_ROUNDS; round++)
        check_round(world, group, round);
    RANK_CHECK(atomic_load(&s->seq) > UINT64_C(1) << 32);
    RANK_CHECK(2 * group->n_exchanges > UINT64_C(1) << 32);
    hp_group_destroy(group);
}

static void test_sequences_past_32_bits(void **state) {
    (void)state;
    ranks_run(N_RANKS, RANKS_THREADS, sequence_body, NULL);
    ranks_run(N_RANKS, RANKS_PROCESSES, sequence_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_wrap),
        cmocka_unit_test(test_states_wrap),
        cmocka_unit_test(test_sequences_past_32_bits),
    };
    ranks_set_deadline_ms(30000);
    return cmocka_run_group_tests_name("wrap", tests, NULL, NULL);
}
