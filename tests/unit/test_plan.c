/* SPDX-License-Identifier: Apache-2.0
 *
 * test_plan.c - the plan alone: the exact order of SPEC A2 and A3, for 4 units.
 *
 * The bench writes every burst as text. Units used twice and passes without reduction are in
 * test_plan_uses.c.
 */
#include "plan_bench.h"

static void test_order_of_hsdp(void **state) {
    struct bench *b = *state;
    set_up(b, 2, 1, HP_OVERLAP);
    for (int step = 0; step < 3; step++) {
        begin(b, HP_SYNC);
        check_forward(b);
        FORWARD_END(b, 3, "forwarded 3\n"); /* stays: backward begins with it */
        BACKWARD_BEGIN(b, 3, "allocate 2\ngather 2 <-allocate 2\nallocate 3 grad\nbackward 3\n");
        BACKWARD_END(b, 3, "backwarded 3\nrelease 3\nscatter 3 <-backwarded 3\n");
        BACKWARD_BEGIN(
            b, 2,
            "wait 2 <-gather 2\nallocate 1\ngather 1 <-allocate 1\nallocate 2 grad\nbackward 2\n");
        BACKWARD_END(b, 2,
                     "backwarded 2\nrelease 2\n"
                     "wait 3 <-scatter 3\n"
                     "scatter 2 <-backwarded 2\n"
                     "replicate 3 <-scatter 3\n");
        BACKWARD_BEGIN(b, 1,
                       "wait 1 <-gather 1\nallocate 0\ngather 0 <-allocate 0\n"
                       "release 3 grad <-scatter 3*\nallocate 1 grad\nbackward 1\n");
        BACKWARD_END(b, 1,
                     "backwarded 1\nrelease 1\n"
                     "wait 2 <-scatter 2\n"
                     "scatter 1 <-backwarded 1\n"
                     "replicate 2 <-scatter 2\n");
        BACKWARD_BEGIN(
            b, 0, "wait 0 <-gather 0\nrelease 2 grad <-scatter 2*\nallocate 0 grad\nbackward 0\n");
        BACKWARD_END(b, 0,
                     "backwarded 0\nrelease 0\n"
                     "wait 1 <-scatter 1\n"
                     "scatter 0 <-backwarded 0\n"
                     "replicate 1 <-scatter 1\n");
        END(b, "wait 0 <-scatter 0\n"
               "replicate 0 <-scatter 0\n"
               "wait 3 <-replicate 3 <-replicate 3*\ndivide 3\n"
               "wait 2 <-replicate 2 <-replicate 2*\ndivide 2\n"
               "wait 1 <-replicate 1 <-replicate 1*\ndivide 1\n"
               "wait 0 <-replicate 0 <-replicate 0*\ndivide 0\n"
               "release 1 grad <-scatter 1*\n"
               "release 0 grad <-scatter 0*\n"
               "wait <-gather 0* <-scatter 0* <-replicate 0*\n");
        assert_true(hpi_plan_is_idle(b->plan));
    }
    hpi_plan_destroy(b->plan);
}

/* One dimension: the reduce-scatter is the last collective, finished (divided) one unit later. */
static void test_order_of_fsdp(void **state) {
    struct bench *b = *state;
    set_up(b, 1, 1, HP_OVERLAP);
    begin(b, HP_SYNC);
    check_forward(b);
    FORWARD_END(b, 3, "forwarded 3\n");
    BACKWARD_BEGIN(b, 3, "allocate 2\ngather 2 <-allocate 2\nallocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3, "backwarded 3\nrelease 3\nscatter 3 <-backwarded 3\n");
    BACKWARD_BEGIN(
        b, 2,
        "wait 2 <-gather 2\nallocate 1\ngather 1 <-allocate 1\nallocate 2 grad\nbackward 2\n");
    BACKWARD_END(
        b, 2, "backwarded 2\nrelease 2\nwait 3 <-scatter 3\ndivide 3\nscatter 2 <-backwarded 2\n");
    /* units 1 and 0 never see a backward: zeros are reduced for them, unit 1 first; the gather of
     * unit 1 that nobody used is cancelled */
    END(b, "release 1 <-gather 1\n"
           "release 3 grad <-scatter 3*\nallocate 1 grad\nbackward 1\nbackwarded 1\n"
           "wait 2 <-scatter 2\ndivide 2\nscatter 1 <-backwarded 1\n"
           "release 2 grad <-scatter 2*\nallocate 0 grad\nbackward 0\nbackwarded 0\n"
           "wait 1 <-scatter 1\ndivide 1\nscatter 0 <-backwarded 0\n"
           "wait 0 <-scatter 0\ndivide 0\n"
           "release 1 grad <-scatter 1*\nrelease 0 grad <-scatter 0*\n"
           "wait <-gather 1* <-scatter 0*\n");
    assert_true(hpi_plan_is_idle(b->plan));
    hpi_plan_destroy(b->plan);
}

static void test_serial_waits_at_once(void **state) {
    struct bench *b = *state;
    set_up(b, 2, 0, HP_SERIAL);
    begin(b, HP_SYNC);
    for (uint32_t i = 0; i < N_UNITS; i++) {
        hpi_burst burst;
        assert_int_equal(hpi_plan_forward_begin(b->plan, i, &burst), HP_OK);
        assert_int_equal(burst.n, 4); /* allocate, gather, wait, forward */
        (void)describe(b, burst);
        assert_int_equal(hpi_plan_forward_end(b->plan, i, &burst), HP_OK);
        (void)describe(b, burst);
    }
    BACKWARD_BEGIN(b, 3, "allocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3,
                 "backwarded 3\nrelease 3\nscatter 3 <-backwarded 3\nwait 3 <-scatter 3\n"
                 "replicate 3 <-scatter 3\nwait 3 <-replicate 3 <-replicate 3*\n");
    BACKWARD_BEGIN(
        b, 2,
        "allocate 2\ngather 2 <-allocate 2\nwait 2 <-gather 2\nallocate 2 grad\nbackward 2\n");
    hpi_plan_destroy(b->plan);
}

static void test_evaluation_keeps_nothing(void **state) {
    struct bench *b = *state;
    set_up(b, 2, 1, HP_OVERLAP);
    begin(b, HP_EVALUATE);
    check_forward(b);
    FORWARD_END(b, 3, "forwarded 3\nrelease 3\n");
    END(b, "wait <-gather 3*\n");
    assert_true(hpi_plan_is_idle(b->plan));
    hpi_plan_destroy(b->plan);
}

/* The order of the forward is learnt in the first step, also when it is not that of creation. */
static void test_learns_the_order(void **state) {
    struct bench *b = *state;
    const uint32_t order[] = {2, 0, 3, 1};
    set_up(b, 1, 1, HP_OVERLAP);
    for (int step = 0; step < 2; step++) {
        hpi_burst burst;
        begin(b, HP_SYNC);
        for (int i = 0; i < N_UNITS; i++) {
            assert_int_equal(hpi_plan_forward_begin(b->plan, order[i], &burst), HP_OK);
            (void)describe(b, burst);
            if (step == 1 && i > 0 &&
                i + 1 < N_UNITS) { /* waits for its own, gathers the next in order */
                assert_int_equal(burst.ops[0].kind, HPI_OP_WAIT);
                assert_int_equal(burst.ops[2].unit, order[i + 1]);
            }
            assert_int_equal(hpi_plan_forward_end(b->plan, order[i], &burst), HP_OK);
            (void)describe(b, burst);
        }
        for (int i = N_UNITS; i-- > 0;) {
            assert_int_equal(hpi_plan_backward_begin(b->plan, order[i], &burst), HP_OK);
            (void)describe(b, burst);
            assert_int_equal(hpi_plan_backward_end(b->plan, order[i], &burst), HP_OK);
            (void)describe(b, burst);
        }
        assert_int_equal(hpi_plan_end(b->plan, &burst), HP_OK);
        assert_true(hpi_plan_is_idle(b->plan));
    }
    hpi_plan_destroy(b->plan);
}

/* More units in use at once than there is storage for: an error, and nothing is lost. */
static void test_too_many_at_once(void **state) {
    struct bench *b = *state;
    hpi_burst burst;
    set_up(b, 1, 0, HP_OVERLAP);
    begin(b, HP_SYNC);
    assert_int_equal(hpi_plan_forward_begin(b->plan, 0, &burst), HP_OK);
    assert_int_equal(hpi_plan_forward_begin(b->plan, 1, &burst), HP_ERR_STATE);
    assert_int_equal(hpi_plan_forward_end(b->plan, 0, &burst), HP_OK);
    assert_int_equal(hpi_plan_forward_begin(b->plan, 1, &burst), HP_OK);
    hpi_plan_destroy(b->plan);
}

/* The same for gradients: three units in backward at once, with two slots. */
static void test_too_many_backwards_at_once(void **state) {
    struct bench *b = *state;
    hpi_burst burst;
    set_up(b, 1, 3, HP_OVERLAP);
    begin(b, HP_SYNC);
    for (uint32_t i = 0; i < N_UNITS; i++) {
        assert_int_equal(hpi_plan_forward_begin(b->plan, i, &burst), HP_OK);
        (void)describe(b, burst);
        assert_int_equal(hpi_plan_forward_end(b->plan, i, &burst), HP_OK);
        (void)describe(b, burst);
    }
    for (uint32_t i = 3; i > 1; i--) {
        assert_int_equal(hpi_plan_backward_begin(b->plan, i, &burst), HP_OK);
        (void)describe(b, burst);
    }
    assert_int_equal(hpi_plan_backward_begin(b->plan, 1, &burst), HP_ERR_STATE);
    assert_int_equal(hpi_plan_backward_end(b->plan, 3, &burst), HP_OK);
    (void)describe(b, burst); /* ids go on where they were: the refused call took none */
    assert_int_equal(hpi_plan_backward_begin(b->plan, 1, &burst), HP_OK);
    (void)describe(b, burst);
    hpi_plan_destroy(b->plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_hsdp),
        cmocka_unit_test(test_order_of_fsdp),
        cmocka_unit_test(test_serial_waits_at_once),
        cmocka_unit_test(test_evaluation_keeps_nothing),
        cmocka_unit_test(test_learns_the_order),
        cmocka_unit_test(test_too_many_at_once),
        cmocka_unit_test(test_too_many_backwards_at_once),
    };
    return cmocka_run_group_tests(tests, make_bench, drop_bench);
}
