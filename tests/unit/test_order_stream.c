/* SPDX-License-Identifier: Apache-2.0
 *
 * test_order_stream.c - what another stream has drained is seen whole; threads that take turns with
 * an executor see each other's calls.
 *
 * As in test_order_world.c: ordinary memory, and nothing but the access in question between two
 * threads, so that ThreadSanitizer reports a race as soon as it loses its order (tools/weaken.py).
 */
#include "base/base.h"
#include "stream/stream.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

enum { K_SEND, K_HOLD, N_KINDS, N_ROUNDS = 10, N_TURNS = 200 };

typedef struct seen {
    int drained;                       /* ordinary memory, written by a drain */
    atomic_bool is_held, is_let_go_on; /* relaxed: they order nothing */
} seen;

static hp_status run_nothing(void *context, const hp_op *op) {
    (void)context;
    (void)op;
    return HP_OK;
}

static hp_status drain_send(void *context, const hp_op *op) {
    (void)op;
    ((seen *)context)->drained = 5;
    return HP_OK;
}

/* Its stream has drained what it waited for, and has said nothing since. */
static hp_status run_hold(void *context, const hp_op *op) {
    seen *s = context;
    (void)op;
    atomic_store_explicit(&s->is_held, true, memory_order_relaxed);
    while (!atomic_load_explicit(&s->is_let_go_on, memory_order_relaxed))
        sched_yield();
    return HP_OK;
}

static const hp_kind kinds[N_KINDS] = {[K_SEND] = {"send", run_nothing, drain_send, HP_ROLE_PLAIN},
                                       [K_HOLD] = {"hold", run_hold, NULL, HP_ROLE_PLAIN}};

static hp_executor *create(seen *s) {
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    hp_executor *executor = NULL;
    config.type = HP_EXECUTOR_THREAD;
    config.kinds = kinds;
    config.n_kinds = N_KINDS;
    config.max_ops = 16;
    config.context = s;
    assert_int_equal(hp_executor_create(&config, &executor), HP_OK);
    return executor;
}

static void what_a_stream_has_drained(void **state) {
    (void)state;
    for (int i = 0; i < N_ROUNDS; i++) {
        seen s = {0};
        hp_executor *executor = create(&s);
        const hp_op ops[] = {
            {.kind = K_SEND, .stream = HP_STREAM_UNSHARD, .id = 0},
            {.kind = K_HOLD,
             .stream = HP_STREAM_REDUCE,
             .id = 1,
             .n_waits = 1,
             .waits = {hpi_drained(0)}},
        };
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        assert_int_equal(hp_executor_submit(executor, ops, 2), HP_OK);
        while (!atomic_load_explicit(&s.is_held, memory_order_relaxed))
            sched_yield();
        assert_int_equal(hp_executor_wait(executor, hpi_drained(0)), HP_OK);
        assert_int_equal(s.drained, 5);
        atomic_store_explicit(&s.is_let_go_on, true, memory_order_relaxed);
        hp_executor_destroy(executor);
    }
}

static void *take_turns(void *argument) {
    hp_executor *executor = argument;
    hp_status status = HP_OK;
    for (int i = 0; i < N_TURNS && status == HP_OK; i++)
        while ((status = hp_executor_begin_step(executor)) == HP_ERR_BUSY)
            sched_yield();
    return status == HP_OK ? executor : NULL;
}

static void threads_that_take_turns(void **state) {
    seen s = {0};
    pthread_t thread;
    void *other;
    (void)state;
    hp_executor *executor = create(&s);
    assert_int_equal(pthread_create(&thread, NULL, take_turns, executor), 0);
    assert_non_null(take_turns(executor));
    assert_int_equal(pthread_join(thread, &other), 0);
    assert_non_null(other);
    hp_executor_destroy(executor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_stream_has_drained),
        cmocka_unit_test(threads_that_take_turns),
    };
    return cmocka_run_group_tests_name("order_stream", tests, NULL, NULL);
}
