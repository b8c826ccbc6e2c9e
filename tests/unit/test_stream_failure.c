/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stream_failure.c - when an operation fails: who learns of it, and what is not run any more.
 *
 * The first failure is kept with its record; every later call returns it, whoever waits is woken at
 * once, and destroy works whatever happened.
 */
#include "synthetic_kinds.h"

#include <stdlib.h>

static const hp_executor_type types[] = {HP_EXECUTOR_THREAD, HP_EXECUTOR_INLINE};
enum { N_TYPES = 2 };

static struct notes *make_notes(void) {
    struct notes *notes = calloc(1, sizeof *notes);
    assert_non_null(notes);
    return notes;
}

static void forget_the_record(void) {
    (void)HPI_FAIL(HP_ERR_BUSY, "expected to be overwritten");
}

/* Every call returns the first failure, with its record. */
static void assert_failed(hp_executor *executor, hp_status status, int rank, const char *part) {
    const hp_op op = make_op(0, K_NOTE, HP_STREAM_COMPUTE, 0);
    forget_the_record();
    assert_int_equal(hp_executor_wait(executor, hpi_done(0)), status);
    assert_record(status, rank, part);
    forget_the_record();
    assert_int_equal(hp_executor_submit(executor, &op, 1), status);
    assert_record(status, rank, part);
    forget_the_record();
    assert_int_equal(hp_executor_drain(executor), status);
    assert_record(status, rank, part);
    forget_the_record();
    assert_int_equal(hp_executor_begin_step(executor), status);
    assert_record(status, rank, part);
}

static void a_stream_s_failure_reaches_compute(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    submit(executor, make_op(0, K_GATE, HP_STREAM_UNSHARD, 0));
    submit(executor, make_op(1, K_FAIL, HP_STREAM_UNSHARD, 0));
    submit(executor, make_op(2, K_NOTE, HP_STREAM_UNSHARD, 0));
    submit(executor, make_op(3, K_NOTE, HP_STREAM_REDUCE, hpi_done(1)));
    open_gate(notes, 0);
    assert_int_equal(hp_executor_wait(executor, hpi_done(2)), HP_ERR_PEER);
    assert_record(HP_ERR_PEER, 3, "operation 1 saw it die");
    assert_failed(executor, HP_ERR_PEER, 3, "operation 1 saw it die");
    hp_executor_destroy(executor);
    assert_true(atomic_load(&notes->end[0]) > 0);
    assert_int_equal(atomic_load(&notes->begin[2]), 0);
    assert_int_equal(atomic_load(&notes->begin[3]), 0);
    free(notes);
}

static void compute_s_own_failure(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, types[t]);
        const hp_op ops[] = {make_op(0, K_NOTE, HP_STREAM_COMPUTE, 0),
                             make_op(1, K_FAIL, HP_STREAM_COMPUTE, 0),
                             make_op(2, K_NOTE, HP_STREAM_COMPUTE, 0),
                             make_op(3, K_NOTE, HP_STREAM_REDUCE, hpi_done(2))};
        assert_int_equal(hp_executor_submit(executor, ops, 4), HP_ERR_PEER);
        assert_failed(executor, HP_ERR_PEER, 3, "operation 1 saw it die");
        hp_executor_destroy(executor);
        assert_int_equal(atomic_load(&notes->begin[2]), 0);
        assert_int_equal(atomic_load(&notes->begin[3]), 0);
        free(notes);
    }
}

/* Compute waits for an operation that cannot end while another stream fails: it must be woken. */
static void nobody_waits_for_what_still_runs(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    submit(executor, make_op(0, K_GATE, HP_STREAM_UNSHARD, 0));
    await_at_gate(notes, 1);
    const hp_op ops[] = {make_op(1, K_SLEEP, HP_STREAM_REDUCE, 0),
                         make_op(2, K_FAIL, HP_STREAM_REDUCE, 0),
                         make_op(3, K_NOTE, HP_STREAM_REPLICATE, hpi_done(0))};
    assert_int_equal(hp_executor_submit(executor, ops, 3), HP_OK); /* one call: none comes late */
    assert_int_equal(hp_executor_wait(executor, hpi_done(0)), HP_ERR_PEER);
    assert_int_equal(hp_executor_drain(executor), HP_ERR_PEER);
    assert_int_equal(atomic_load(&notes->end[0]), 0); /* it runs to this moment */
    open_gate(notes, 0);
    hp_executor_destroy(executor);
    assert_true(atomic_load(&notes->end[0]) > 0);
    assert_int_equal(atomic_load(&notes->begin[3]), 0);
    free(notes);
}

static void a_drain_that_fails(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++)
        for (int way = 0; way < 3; way++) {
            struct notes *notes = make_notes();
            hp_executor *executor = create(notes, types[t]);
            submit(executor, make_op(0, K_BAD_DRAIN, HP_STREAM_REDUCE, 0));
            assert_int_equal(hp_executor_wait(executor, hpi_done(0)), HP_OK);
            const hp_op op = make_op(1, K_NOTE, HP_STREAM_COMPUTE, hpi_drained(0));
            const hp_status status = way == 0   ? hp_executor_wait(executor, hpi_drained(0))
                                     : way == 1 ? hp_executor_drain(executor)
                                                : hp_executor_submit(executor, &op, 1);
            assert_int_equal(status, HP_ERR_TIMEOUT);
            assert_failed(executor, HP_ERR_TIMEOUT, 2, "rank 2 to read operation 0");
            hp_executor_destroy(executor);
            assert_int_equal(atomic_load(&notes->begin[1]), 0);
            free(notes);
        }
}

static void a_drain_that_fails_in_a_stream(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    submit(executor, make_op(0, K_BAD_DRAIN, HP_STREAM_REDUCE, 0));
    submit(executor, make_op(1, K_NOTE, HP_STREAM_UNSHARD, hpi_drained(0)));
    assert_int_equal(hp_executor_wait(executor, hpi_done(1)), HP_ERR_TIMEOUT);
    assert_failed(executor, HP_ERR_TIMEOUT, 2, "rank 2 to read operation 0");
    hp_executor_destroy(executor);
    free(notes);
}

static void a_failure_without_a_record_gets_one(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
        config.rank = 5;
        hp_executor *executor = create_with(notes, config, types[t]);
        const hp_op op = make_op(0, K_MUTE, HP_STREAM_COMPUTE, 0);
        forget_the_record();
        assert_int_equal(hp_executor_submit(executor, &op, 1), HP_ERR_LIMIT);
        assert_failed(executor, HP_ERR_LIMIT, 5, "operation 0 (mute)");
        hp_executor_destroy(executor);
        free(notes);
    }
}

static void the_first_of_many_failures_stays(void **state) {
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
        const hp_op ops[] = {make_op(0, K_FAIL, HP_STREAM_UNSHARD, 0),
                             make_op(1, K_FAIL, HP_STREAM_REDUCE, 0),
                             make_op(2, K_FAIL, HP_STREAM_REPLICATE, 0)};
        assert_int_equal(hp_executor_submit(executor, ops, 3), HP_OK);
        assert_int_equal(hp_executor_wait(executor, hpi_done(round % 3)), HP_ERR_PEER);
        hp_error first;
        hp_last_error_get(&first);
        assert_failed(executor, HP_ERR_PEER, 3, first.message);
        hp_executor_destroy(executor);
        free(notes);
    }
}

static void destroy_right_after_a_failure(void **state) {
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
        hp_op ops[40];
        for (uint32_t id = 0; id < 40; id++)
            ops[id] = make_op(id, id == (uint32_t)round % 40 ? K_FAIL : K_NOTE, 1 + id % 3,
                              id ? hpi_done(id - 1) : 0);
        assert_int_equal(hp_executor_submit(executor, ops, 40), HP_OK);
        hp_executor_destroy(executor);
        free(notes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_s_failure_reaches_compute),
        cmocka_unit_test(compute_s_own_failure),
        cmocka_unit_test(nobody_waits_for_what_still_runs),
        cmocka_unit_test(a_drain_that_fails),
        cmocka_unit_test(a_drain_that_fails_in_a_stream),
        cmocka_unit_test(a_failure_without_a_record_gets_one),
        cmocka_unit_test(the_first_of_many_failures_stays),
        cmocka_unit_test(destroy_right_after_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
