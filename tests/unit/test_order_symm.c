/* SPDX-License-Identifier: Apache-2.0
 *
 * test_order_symm.c - a signal comes with all that was written before it, however it is raised.
 *
 * As in test_order_world.c: ordinary memory, one signal, and nothing else between two ranks, so
 * that ThreadSanitizer reports a race as soon as the signal loses its order (tools/weaken.py).
 */
#include "support/ranks.h"
#include <hyperparallel/symm.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_ROUNDS = 20, SIGNAL_OFFSET = 8192 };

/* Rank 0 writes into rank 1's block and signals; where it is early, rank 1 finds the word there. */
static void signal_body(hp_world *world, void *argument) {
    const hp_signal_op op = *(hp_signal_op *)argument;
    hp_symm memory;
    void *block;
    RANK_OK(hp_symm_alloc(world, NULL, 2 * SIGNAL_OFFSET, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, 1, NULL, &block));
    int *data = block;
    for (int i = 1; i <= N_ROUNDS; i++) {
        if (i % 2 == hp_world_rank(world))
            hpi_sleep_ns(300000);
        if (hp_world_rank(world) == 0) {
            data[i] = i;
            const uint64_t value = op == HP_SIGNAL_SET ? (uint64_t)i : 1;
            RANK_OK(hp_symm_signal(memory, SIGNAL_OFFSET, op, value, 1, NULL));
        } else {
            RANK_OK(hp_symm_wait(memory, SIGNAL_OFFSET, HP_GE, (uint64_t)i, 0));
            RANK_CHECK(data[i] == i);
        }
    }
    RANK_OK(hp_symm_free(memory));
}

static void a_signal_that_sets(void **state) {
    hp_signal_op op = HP_SIGNAL_SET;
    (void)state;
    ranks_run(2, RANKS_THREADS, signal_body, &op);
}
static void a_signal_that_adds(void **state) {
    hp_signal_op op = HP_SIGNAL_ADD;
    (void)state;
    ranks_run(2, RANKS_THREADS, signal_body, &op);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_that_sets),
        cmocka_unit_test(a_signal_that_adds),
    };
    return cmocka_run_group_tests_name("order_symm", tests, NULL, NULL);
}
