/* SPDX-License-Identifier: Apache-2.0
 *
 * test_plan_uses.c - the plan alone: a unit used twice in a pass, and passes without reduction.
 *
 * Unit 0 is an embedding and its tied head: forward 0 1 2 3 0, backward 0 3 2 1 0. Its first
 * backward is accumulated, its second takes that in and is reduced. In a pass without reduction
 * every backward is accumulated (SPEC A8, A12).
 */
#include "plan_bench.h"

enum { N_USES = 5 };
static const uint32_t uses[N_USES] = {0, 1, 2, 3, 0};

/* A whole pass over uses[0, n), without looking at it. */
static void run_pass(struct bench *b, hp_pass pass, int n) {
    hpi_burst burst;
    begin(b, pass);
    for (int i = 0; i < n; i++) {
        assert_int_equal(hpi_plan_forward_begin(b->plan, uses[i], &burst), HP_OK);
        (void)describe(b, burst);
        assert_int_equal(hpi_plan_forward_end(b->plan, uses[i], &burst), HP_OK);
        (void)describe(b, burst);
    }
    for (int i = pass == HP_EVALUATE ? 0 : n; i-- > 0;) {
        assert_int_equal(hpi_plan_backward_begin(b->plan, uses[i], &burst), HP_OK);
        (void)describe(b, burst);
        assert_int_equal(hpi_plan_backward_end(b->plan, uses[i], &burst), HP_OK);
        (void)describe(b, burst);
    }
    assert_int_equal(hpi_plan_end(b->plan, &burst), HP_OK);
    (void)describe(b, burst);
    assert_true(hpi_plan_is_idle(b->plan));
}

/* ---- twice in a pass --------------------------------------------------------------------- */

static void check_middle_of_forward(struct bench *b) {
    FORWARD_BEGIN(b, 1, "wait 1 <-gather 1\nallocate 2\ngather 2 <-allocate 2\nforward 1\n");
    FORWARD_END(b, 1, "forwarded 1\nrelease 1\n");
    FORWARD_BEGIN(b, 2, "wait 2 <-gather 2\nallocate 3\ngather 3 <-allocate 3\nforward 2\n");
    FORWARD_END(b, 2, "forwarded 2\nrelease 2\n");
}

static void check_middle_of_backward(struct bench *b) {
    BACKWARD_BEGIN(
        b, 3,
        "wait 3 <-gather 3\nallocate 2\ngather 2 <-allocate 2\nallocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3, "backwarded 3\nrelease 3\nscatter 3 <-backwarded 3\n");
    BACKWARD_BEGIN(
        b, 2,
        "wait 2 <-gather 2\nallocate 1\ngather 1 <-allocate 1\nallocate 2 grad\nbackward 2\n");
    BACKWARD_END(
        b, 2, "backwarded 2\nrelease 2\nwait 3 <-scatter 3\ndivide 3\nscatter 2 <-backwarded 2\n");
}

/* Gathered for each use, the second time ahead too; accumulated, then folded and reduced. */
static void test_twice(void **state) {
    struct bench *b = *state;
    set_up(b, 1, 1, HP_OVERLAP);
    run_pass(b, HP_SYNC, N_USES); /* learns the order */
    for (int step = 1; step < 3; step++) {
        begin(b, HP_SYNC);
        FORWARD_BEGIN(b, 0,
                      "allocate 0\ngather 0 <-allocate 0\nwait 0 <-gather 0\n"
                      "allocate 1\ngather 1 <-allocate 1\nforward 0\n");
        FORWARD_END(b, 0, "forwarded 0\nrelease 0\n");
        check_middle_of_forward(b);
        FORWARD_BEGIN(b, 3, "wait 3 <-gather 3\nallocate 0\ngather 0 <-allocate 0\nforward 3\n");
        FORWARD_END(b, 3, "forwarded 3\nrelease 3\n");
        FORWARD_BEGIN(b, 0, "wait 0 <-gather 0\nforward 0\n");
        FORWARD_END(b, 0, "forwarded 0\n"); /* stays: backward begins with it */
        BACKWARD_BEGIN(b, 0, "allocate 3\ngather 3 <-allocate 3\nallocate 0 grad\nbackward 0\n");
        BACKWARD_END(b, 0, "backwarded 0\nrelease 0\naccumulate 0\nrelease 0 grad\n");
        check_middle_of_backward(b);
        BACKWARD_BEGIN(b, 1,
                       "wait 1 <-gather 1\nallocate 0\ngather 0 <-allocate 0\n"
                       "release 3 grad <-scatter 3*\nallocate 1 grad\nbackward 1\n");
        BACKWARD_END(b, 1,
                     "backwarded 1\nrelease 1\nwait 2 <-scatter 2\ndivide 2\n"
                     "scatter 1 <-backwarded 1\n");
        BACKWARD_BEGIN(
            b, 0, "wait 0 <-gather 0\nrelease 2 grad <-scatter 2*\nallocate 0 grad\nbackward 0\n");
        BACKWARD_END(b, 0,
                     "backwarded 0\nrelease 0\nfold 0\nwait 1 <-scatter 1\ndivide 1\n"
                     "scatter 0 <-fold 0\n");
        END(b, "wait 0 <-scatter 0\ndivide 0\n"
               "release 1 grad <-scatter 1*\nrelease 0 grad <-scatter 0*\n"
               "wait <-gather 0* <-scatter 0*\n");
        assert_true(hpi_plan_is_idle(b->plan));
    }
    hpi_plan_destroy(b->plan);
}

/* A unit that keeps its parameters is gathered once, and released after its last backward. */
static void test_twice_and_kept(void **state) {
    struct bench *b = *state;
    set_up(b, 1, 1, HP_OVERLAP);
    b->units[0].is_resharded = false;
    b->units[0].own_storage = b->config.storage_slots[1];
    b->config.n_storage_slots = 1;
    run_pass(b, HP_SYNC, N_USES);
    begin(b, HP_SYNC);
    FORWARD_BEGIN(b, 0,
                  "allocate 0\ngather 0 <-allocate 0\nwait 0 <-gather 0\n"
                  "allocate 1\ngather 1 <-allocate 1\nforward 0\n");
    FORWARD_END(b, 0, "forwarded 0\n");
    hpi_burst burst;
    for (uint32_t i = 1; i < N_UNITS; i++) {
        assert_int_equal(hpi_plan_forward_begin(b->plan, i, &burst), HP_OK);
        (void)describe(b, burst);
        assert_int_equal(hpi_plan_forward_end(b->plan, i, &burst), HP_OK);
        (void)describe(b, burst);
    }
    FORWARD_BEGIN(b, 0, "forward 0\n");
    FORWARD_END(b, 0, "forwarded 0\n");
    BACKWARD_BEGIN(b, 0, "allocate 3\ngather 3 <-allocate 3\nallocate 0 grad\nbackward 0\n");
    BACKWARD_END(b, 0, "backwarded 0\naccumulate 0\nrelease 0 grad\n");
    BACKWARD_BEGIN(b, 3, "wait 3 <-gather 3\nallocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3, "backwarded 3\nrelease 3\nscatter 3 <-backwarded 3\n");
    BACKWARD_BEGIN(b, 0, "allocate 0 grad\nbackward 0\n");
    BACKWARD_END(b, 0,
                 "backwarded 0\nrelease 0\nfold 0\nwait 3 <-scatter 3\ndivide 3\n"
                 "scatter 0 <-fold 0\n");
    hpi_plan_destroy(b->plan);
}

/* Fewer backwards than forwards: the end of the pass reduces what there is, with zeros. */
static void test_a_backward_is_missing(void **state) {
    struct bench *b = *state;
    hpi_burst burst;
    set_up(b, 1, 0, HP_OVERLAP);
    b->config.n_units = 1;
    begin(b, HP_SYNC);
    for (int use = 0; use < 2; use++) {
        assert_int_equal(hpi_plan_forward_begin(b->plan, 0, &burst), HP_OK);
        (void)describe(b, burst);
        assert_int_equal(hpi_plan_forward_end(b->plan, 0, &burst), HP_OK);
        (void)describe(b, burst);
    }
    BACKWARD_BEGIN(
        b, 0,
        "allocate 0\ngather 0 <-allocate 0\nwait 0 <-gather 0\nallocate 0 grad\nbackward 0\n");
    BACKWARD_END(b, 0, "backwarded 0\nrelease 0\naccumulate 0\nrelease 0 grad\n");
    END(b, "allocate 0 grad\nbackward 0\nbackwarded 0\nfold 0\nscatter 0 <-fold 0\n"
           "wait 0 <-scatter 0\ndivide 0\nrelease 0 grad <-scatter 0*\n"
           "wait <-gather 0* <-scatter 0*\n");
    assert_true(hpi_plan_is_idle(b->plan));
    hpi_plan_destroy(b->plan);
}

/* ---- passes without reduction ------------------------------------------------------------ */

static void check_accumulating(struct bench *b, const char *more) {
    char text[256];
    begin(b, HP_NO_SYNC);
    check_forward(b);
    FORWARD_END(b, 3, "forwarded 3\n");
    BACKWARD_BEGIN(b, 3, "allocate 2\ngather 2 <-allocate 2\nallocate 3 grad\nbackward 3\n");
    snprintf(text, sizeof text, "backwarded 3\nrelease 3\naccumulate 3%s\nrelease 3 grad\n", more);
    BACKWARD_END(b, 3, text);
    BACKWARD_BEGIN(
        b, 2,
        "wait 2 <-gather 2\nallocate 1\ngather 1 <-allocate 1\nallocate 2 grad\nbackward 2\n");
    snprintf(text, sizeof text, "backwarded 2\nrelease 2\naccumulate 2%s\nrelease 2 grad\n", more);
    BACKWARD_END(b, 2, text);
    END(b, "release 1 <-gather 1\nwait <-gather 1*\n"); /* units 1 and 0: nothing to keep */
    assert_true(hpi_plan_is_idle(b->plan));
}

/* Two passes without reduction, then one in which unit 2 has no backward. */
static void test_accumulated_over_passes(void **state) {
    struct bench *b = *state;
    set_up(b, 2, 1, HP_OVERLAP);
    for (int step = 0; step < 2; step++) {
        check_accumulating(b, "");
        run_pass(b, HP_EVALUATE, N_UNITS);
        check_accumulating(b, " +");
        begin(b, HP_SYNC);
        check_forward(b);
        FORWARD_END(b, 3, "forwarded 3\n");
        BACKWARD_BEGIN(b, 3, "allocate 2\ngather 2 <-allocate 2\nallocate 3 grad\nbackward 3\n");
        BACKWARD_END(b, 3, "backwarded 3\nrelease 3\nfold 3\nscatter 3 <-fold 3\n");
        END(b, "release 2 <-gather 2\nallocate 2 grad\nbackward 2\nbackwarded 2\nfold 2\n"
               "wait 3 <-scatter 3\nscatter 2 <-fold 2\nreplicate 3 <-scatter 3\n"
               "release 3 grad <-scatter 3*\nallocate 1 grad\nbackward 1\nbackwarded 1\n"
               "wait 2 <-scatter 2\nscatter 1 <-backwarded 1\nreplicate 2 <-scatter 2\n"
               "release 2 grad <-scatter 2*\nallocate 0 grad\nbackward 0\nbackwarded 0\n"
               "wait 1 <-scatter 1\nscatter 0 <-backwarded 0\nreplicate 1 <-scatter 1\n"
               "wait 0 <-scatter 0\nreplicate 0 <-scatter 0\n"
               "wait 3 <-replicate 3 <-replicate 3*\ndivide 3\n"
               "wait 2 <-replicate 2 <-replicate 2*\ndivide 2\n"
               "wait 1 <-replicate 1 <-replicate 1*\ndivide 1\n"
               "wait 0 <-replicate 0 <-replicate 0*\ndivide 0\n"
               "release 1 grad <-scatter 1*\nrelease 0 grad <-scatter 0*\n"
               "wait <-gather 2* <-scatter 0* <-replicate 0*\n");
        assert_int_equal(hpi_plan_carried(b->plan), 0);
    }
    hpi_plan_destroy(b->plan);
}

/* One shard: backward writes into the bucket, and it is the bucket that is accumulated. */
static void test_accumulated_from_the_bucket(void **state) {
    struct bench *b = *state;
    hpi_burst burst;
    set_up(b, 2, 0, HP_OVERLAP);
    b->params[0].is_gathered = false;
    b->params[0].route = HPI_ROUTE_DIRECT;
    b->units[0].storage_bytes = b->units[0].grad_bytes = 0;
    b->config.n_units = 1;
    for (int pass = 0; pass < 2; pass++) {
        begin(b, pass ? HP_SYNC : HP_NO_SYNC);
        FORWARD_BEGIN(b, 0, "forward 0\n");
        FORWARD_END(b, 0, "forwarded 0\n");
        BACKWARD_BEGIN(b, 0, "backward 0\n");
        BACKWARD_END(b, 0,
                     pass ? "backwarded 0\nfold 0\nwait 0 <-fold 0\nreplicate 0 <-fold 0\n"
                          : "backwarded 0\naccumulate 0\n");
        const hp_op *op = &b->ops[b->n_ops - (pass ? 3 : 1)];
        const hp_ref bucket = b->units[0].bucket[0];
        const hp_ref *grad = &op->reads[0], *written = &op->writes[0];
        assert_true(grad->buffer == bucket.buffer && grad->end == b->params[0].bucket_end);
        assert_true(written->buffer == (pass ? bucket.buffer : b->units[0].accumulator.buffer));
        assert_int_equal(hpi_plan_end(b->plan, &burst), HP_OK);
    }
    hpi_plan_destroy(b->plan);
}

/* New weights: what was accumulated for the old ones is dropped. */
static void test_update_drops_what_was_accumulated(void **state) {
    struct bench *b = *state;
    hpi_burst burst;
    set_up(b, 1, 1, HP_OVERLAP);
    run_pass(b, HP_NO_SYNC, N_UNITS);
    assert_int_not_equal(hpi_plan_carried(b->plan), 0);
    assert_int_equal(hpi_plan_apply(b->plan, HPI_OP_UPDATE, &burst), HP_OK);
    assert_int_equal(hpi_plan_carried(b->plan), 0);
    run_pass(b, HP_SYNC, N_UNITS);
    for (uint64_t i = 0; i < b->n_ops; i++)
        assert_int_not_equal(b->ops[i].kind, HPI_OP_FOLD);
    hpi_plan_destroy(b->plan);
}

/* From the third step on each pass is the bytes of the same pass one step before. */
static void test_passes_repeat_byte_for_byte(void **state) {
    struct bench *b = *state;
    static const hp_pass passes[] = {HP_NO_SYNC, HP_NO_SYNC, HP_SYNC};
    hp_op *kept[3] = {NULL, NULL, NULL};
    uint64_t n_kept[3] = {0, 0, 0};
    set_up(b, 2, 2, HP_OVERLAP);
    for (int step = 0; step < 4; step++)
        for (int p = 0; p < 3; p++) {
            run_pass(b, passes[p], N_USES);
            if (step >= 2) {
                assert_int_equal(b->n_ops, n_kept[p]);
                assert_memory_equal(b->ops, kept[p], b->n_ops * sizeof *b->ops);
            }
            free(kept[p]);
            kept[p] = malloc(b->n_ops * sizeof *b->ops);
            assert_non_null(kept[p]);
            memcpy(kept[p], b->ops, b->n_ops * sizeof *b->ops);
            n_kept[p] = b->n_ops;
        }
    for (int p = 0; p < 3; p++)
        free(kept[p]);
    hpi_plan_destroy(b->plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_twice_and_kept),
        cmocka_unit_test(test_a_backward_is_missing),
        cmocka_unit_test(test_accumulated_over_passes),
        cmocka_unit_test(test_accumulated_from_the_bucket),
        cmocka_unit_test(test_update_drops_what_was_accumulated),
        cmocka_unit_test(test_passes_repeat_byte_for_byte),
    };
    return cmocka_run_group_tests(tests, make_bench, drop_bench);
}
