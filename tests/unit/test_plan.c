/* SPDX-License-Identifier: Apache-2.0
 *
 * test_plan.c - the plan alone: the exact order of SPEC A2 and A3, for 4 units.
 *
 * The plan is pure, so no rank is needed. A burst is written as one line of text per operation;
 * the expected text stands beside the call that must bring it. "gather 2" is the gather of unit 2,
 * "<-allocate 2" what it waits for; a wait on a drained event ends in "*".
 */
#include "base/base.h"
#include "fsdp/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_UNITS = 4, MAX_OPS = 400 };

struct bench {
    hpi_plan_param params[N_UNITS];
    hpi_plan_unit units[N_UNITS];
    hpi_plan_config config;
    hpi_plan *plan;
    hp_op ops[MAX_OPS]; /* of the step so far */
    uint64_t n_ops;
    char text[16384];
};

/* Units of one 64-byte shard; 2 shards, n_replicas replicas. */
static void set_up(struct bench *b, int n_replicas, uint32_t prefetch, hp_schedule schedule) {
    memset(b, 0, sizeof *b);
    uint32_t id = 1;
    for (uint32_t i = 0; i < N_UNITS; i++) {
        hpi_plan_unit *u = &b->units[i];
        u->shard = (hp_ref){id++, 0, 0, 64};
        u->bucket[0] = (hp_ref){id++, 0, 0, 512};
        b->params[i] = (hpi_plan_param){.dtype = HP_FP32,
                                        .is_gathered = true,
                                        .route = HPI_ROUTE_REDUCE_SCATTER,
                                        .blocks = 1,
                                        .source = u->shard,
                                        .storage_end = 128,
                                        .grad_end = 128,
                                        .bucket_end = 64};
        u->params = &b->params[i];
        u->n_params = 1;
        u->storage_bytes = u->grad_bytes = 128;
        u->is_resharded = u->is_trainable = u->is_divided = true;
    }
    b->config = (hpi_plan_config){.units = b->units,
                                  .n_units = N_UNITS,
                                  .prefetch = prefetch,
                                  .schedule = schedule,
                                  .n_replicas = n_replicas};
    b->config.n_storage_slots = 1 + prefetch;
    for (uint32_t s = 0; s < b->config.n_storage_slots; s++)
        b->config.storage_slots[s] = id++;
    b->config.n_grad_slots = 2;
    b->config.grad_slots[0] = id++;
    b->config.grad_slots[1] = id++;
    b->config.n_buffers = id;
    assert_int_equal(hpi_plan_create(&b->config, &b->plan), HP_OK);
}

static void begin(struct bench *b, hp_pass pass) {
    hpi_plan_begin(b->plan, pass);
    b->n_ops = 0;
}

static void name_op(const hp_op *op, char *out, size_t size) {
    static const char *const kinds[] = {"gather",   "scatter",    "replicate", "allocate",
                                        "release",  "wait",       "forward",   "forwarded",
                                        "backward", "backwarded", "convert",   "accumulate",
                                        "fold",     "divide",     "update",    "scale"};
    char of_unit[16] = "";
    if (op->unit != UINT32_MAX)
        snprintf(of_unit, sizeof of_unit, " %u", op->unit);
    snprintf(out, size, "%s%s", kinds[op->kind], of_unit);
}

/* Is it an allocate or release of a slot for gradients? */
static bool is_grad_memory(const struct bench *b, const hp_op *op) {
    const bool is_release = op->kind == HPI_OP_RELEASE;
    const uint32_t buffer = is_release ? op->reads[0].buffer : op->writes[0].buffer;
    return (is_release || op->kind == HPI_OP_ALLOCATE) &&
           (buffer == b->config.grad_slots[0] || buffer == b->config.grad_slots[1]);
}

/* The burst as text, a line per operation. */
static const char *describe(struct bench *b, hpi_burst burst) {
    size_t at = 0;
    b->text[0] = 0;
    for (uint64_t i = 0; i < burst.n; i++) {
        char name[64];
        const hp_op *op = &burst.ops[i];
        assert_true(b->n_ops < MAX_OPS);
        assert_int_equal(op->id, b->n_ops);
        b->ops[b->n_ops++] = *op;
        name_op(op, name, sizeof name);
        const bool grad = is_grad_memory(b, op);
        at +=
            (size_t)snprintf(b->text + at, sizeof b->text - at, "%s%s", name, grad ? " grad" : "");
        for (uint32_t w = 0; w < op->n_waits; w++) {
            name_op(&b->ops[hpi_event_op(op->waits[w])], name, sizeof name);
            at += (size_t)snprintf(b->text + at, sizeof b->text - at, " <-%s%s", name,
                                   hpi_event_is_drained(op->waits[w]) ? "*" : "");
        }
        at += (size_t)snprintf(b->text + at, sizeof b->text - at, "\n");
    }
    return b->text;
}

#define EXPECT(b, call, lines)                                                                     \
    do {                                                                                           \
        hpi_burst burst_;                                                                          \
        assert_int_equal(call, HP_OK);                                                             \
        assert_string_equal(describe(b, burst_), lines);                                           \
    } while (0)
#define FORWARD_BEGIN(b, u, lines) EXPECT(b, hpi_plan_forward_begin((b)->plan, u, &burst_), lines)
#define FORWARD_END(b, u, lines) EXPECT(b, hpi_plan_forward_end((b)->plan, u, &burst_), lines)
#define BACKWARD_BEGIN(b, u, lines) EXPECT(b, hpi_plan_backward_begin((b)->plan, u, &burst_), lines)
#define BACKWARD_END(b, u, lines) EXPECT(b, hpi_plan_backward_end((b)->plan, u, &burst_), lines)
#define END(b, lines) EXPECT(b, hpi_plan_end((b)->plan, &burst_), lines)

static void check_forward(struct bench *b) {
    FORWARD_BEGIN(b, 0,
                  "allocate 0\n"
                  "gather 0 <-allocate 0\n"
                  "wait 0 <-gather 0\n"
                  "allocate 1\n"
                  "gather 1 <-allocate 1\n"
                  "forward 0\n");
    FORWARD_END(b, 0, "forwarded 0\nrelease 0\n");
    FORWARD_BEGIN(b, 1, "wait 1 <-gather 1\nallocate 2\ngather 2 <-allocate 2\nforward 1\n");
    FORWARD_END(b, 1, "forwarded 1\nrelease 1\n");
    FORWARD_BEGIN(b, 2, "wait 2 <-gather 2\nallocate 3\ngather 3 <-allocate 3\nforward 2\n");
    FORWARD_END(b, 2, "forwarded 2\nrelease 2\n");
    FORWARD_BEGIN(b, 3, "wait 3 <-gather 3\nforward 3\n");
}

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

static int make_bench(void **state) {
    *state = malloc(sizeof(struct bench));
    return *state ? 0 : -1;
}

static int drop_bench(void **state) {
    free(*state);
    return 0;
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
