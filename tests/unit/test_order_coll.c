/* SPDX-License-Identifier: Apache-2.0
 *
 * test_order_coll.c - a way of the mailbox passes from thread to thread, and a ring from group to
 * group, with all that was done with them.
 *
 * As in test_order_world.c: nothing else orders the two, so that ThreadSanitizer reports a race as
 * soon as the access in question loses its order (tools/weaken.py).
 */
#include "support/ranks.h"
#include <hyperparallel/coll.h>

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

enum { N_MESSAGES = 100 };

/* From either thread of rank 0; one at a time gets in. */
static void *send_some(void *argument) {
    hp_group *group = argument;
    hp_status status = HP_OK;
    for (int32_t i = 1; i <= N_MESSAGES && status == HP_OK; i++)
        while ((status = hp_send(group, &i, 1, HP_INT32, 1)) == HP_ERR_BUSY)
            sched_yield();
    return status == HP_OK ? group : NULL;
}

static void two_senders_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    (void)argument;
    if (hp_world_rank(world) == 0) {
        pthread_t thread;
        void *sent;
        RANK_CHECK(pthread_create(&thread, NULL, send_some, group) == 0);
        RANK_CHECK(send_some(group));
        RANK_CHECK(pthread_join(thread, &sent) == 0 && sent);
    } else {
        int32_t sum = 0;
        for (int i = 0; i < 2 * N_MESSAGES; i++) {
            int32_t one;
            RANK_OK(hp_recv(group, &one, 1, HP_INT32, 0));
            sum += one;
        }
        RANK_CHECK(sum == N_MESSAGES * (N_MESSAGES + 1));
    }
}

static void a_way_has_one_thread_at_a_time(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, two_senders_body, NULL);
}

/* Rank 0 leaves the group with rank 1, which has read its message and says nothing more, and takes
 * the ring for the group with rank 2. That a short message was read is said with later ones, so
 * these are long. */
static void ring_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    atomic_bool *is_taken =
        argument; /* relaxed: it orders nothing, nor does a wait in the library */
    hp_group *group[2] = {NULL, NULL};
    enum { COUNT = 32 * 1024 };
    int32_t values[COUNT] = {0};
    for (int i = 0; i < 2; i++)
        if (rank == 0 || rank == i + 1)
            RANK_OK(hp_group_create(world, (int[]){0, i + 1}, 2, &group[i]));
    for (int i = 0; i < 2; i++)
        if (rank == 0) {
            values[COUNT - 1] = 7 + i;
            RANK_OK(hp_send(group[i], values, COUNT, HP_INT32, 1));
            hpi_sleep_ns(20000000); /* nothing that orders: it has been read by now */
            hp_group_destroy(group[i]);
        } else if (rank == i + 1) {
            RANK_OK(hp_recv(group[i], values, COUNT, HP_INT32, 0));
            RANK_CHECK(values[COUNT - 1] == 7 + i);
        }
    if (rank == 0)
        atomic_store_explicit(is_taken, true, memory_order_relaxed);
    while (!atomic_load_explicit(is_taken, memory_order_relaxed))
        sched_yield();
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (rank > 0)
        hp_group_destroy(group[rank - 1]);
}

static void a_ring_is_given_on_when_it_was_read(void **state) {
    atomic_bool is_taken = false;
    (void)state;
    ranks_run(3, RANKS_THREADS, ring_body, &is_taken);
}

/* What one rank writes before a barrier the other reads behind it, at the line and at the entries.
 */
static void barrier_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    volatile int *written = argument;
    for (int i = 1; i <= 500; i++) {
        if (rank == i % 2)
            *written = i;
        RANK_OK(hp_barrier(hp_world_group(world)));
        RANK_CHECK(*written == i);
        RANK_OK(hp_barrier(hp_world_group(world)));
    }
}

static void a_barrier_is_between_a_write_and_its_reader(void **state) {
    int written = 0;
    (void)state;
    ranks_run(2, RANKS_THREADS, barrier_body, &written);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_way_has_one_thread_at_a_time),
        cmocka_unit_test(a_ring_is_given_on_when_it_was_read),
        cmocka_unit_test(a_barrier_is_between_a_write_and_its_reader),
    };
    return cmocka_run_group_tests_name("order_coll", tests, NULL, NULL);
}
