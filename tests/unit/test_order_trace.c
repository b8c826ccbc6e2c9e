/* SPDX-License-Identifier: Apache-2.0
 *
 * test_order_trace.c - a span that is counted is whole, for whoever reads beside its writer.
 *
 * As in test_order_world.c: nothing else orders the two threads, so that ThreadSanitizer reports a
 * race as soon as the count loses its order (tools/weaken.py).
 */
#include <hyperparallel/trace.h>

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N_SPANS = 1000 };

static void *read_spans(void *argument) {
    const hp_trace *trace = argument;
    uint64_t n_right = 0;
    for (uint64_t i = 0; i < N_SPANS; i++) {
        while (hp_trace_count(trace, 0) <= i)
            sched_yield();
        n_right += hp_trace_at(trace, 0, i)->bytes == 7 * i;
    }
    return n_right == N_SPANS ? argument : NULL;
}

static void a_span_that_is_counted(void **state) {
    hp_trace *trace;
    pthread_t thread;
    void *right;
    (void)state;
    assert_int_equal(hp_trace_create(0, N_SPANS, &trace), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_spans, trace), 0);
    for (uint64_t i = 0; i < N_SPANS; i++)
        hp_trace_span(trace, 0, &(hp_span){.name = "span", .bytes = 7 * i});
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_non_null(right);
    hp_trace_destroy(trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_span_that_is_counted)};
    return cmocka_run_group_tests_name("order_trace", tests, NULL, NULL);
}
