/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_bench.h - a plan over 4 units, and its bursts as text.
 *
 * The plan is pure, so no rank is needed. A burst is written as one line of text per operation;
 * the expected text stands beside the call that must bring it. "gather 2" is the gather of unit 2,
 * "<-allocate 2" what it waits for; a wait on a drained event ends in "*"; "accumulate 2 +" adds to
 * what is there already. Included by the tests that use it.
 */
#ifndef TESTS_PLAN_BENCH_H
#define TESTS_PLAN_BENCH_H

#include "base/base.h"
#include "fsdp/plan/plan.h"

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
        u->accumulator = (hp_ref){id++, 0, 0, 128};
        b->params[i] = (hpi_plan_param){.dtype = HP_FP32,
                                        .grad_dtype = HP_FP32,
                                        .is_gathered = true,
                                        .route = HPI_ROUTE_REDUCE_SCATTER,
                                        .blocks = 1,
                                        .source = u->shard,
                                        .storage_end = 128,
                                        .grad_end = 128,
                                        .bucket_end = 64,
                                        .accumulator_end = 128};
        u->params = &b->params[i];
        u->n_params = 1;
        u->storage_bytes = u->grad_bytes = 128;
        u->is_resharded = u->is_trainable = u->is_divided = true;
    }
    b->config = (hpi_plan_config){.units = b->units,
                                  .n_units = N_UNITS,
                                  .prefetch = prefetch,
                                  .schedule = schedule,
                                  .replicate_wire = HP_FP32,
                                  .n_replicas = n_replicas};
    b->config.n_storage_slots = 1 + prefetch;
    for (uint32_t s = 0; s < b->config.n_storage_slots; s++)
        b->config.storage_slots[s] = id++;
    b->config.n_grad_slots = 2;
    b->config.grad_slots[0] = id++;
    b->config.grad_slots[1] = id++;
    b->config.gather_buffer = id++; /* of fused modes */
    b->config.pack_buffer = id++;
    b->config.n_buffers = id;
    assert_int_equal(hpi_plan_create(&b->config, &b->plan), HP_OK);
}

static void begin(struct bench *b, hp_pass pass) {
    hpi_plan_begin(b->plan, pass);
    b->n_ops = 0;
}

static void name_op(const hp_op *op, char *out, size_t size) {
    static const char *const kinds[] = {[0] = "gather",
                                        [1] = "scatter",
                                        [2] = "replicate",
                                        [HPI_OP_BARRIER] = "barrier",
                                        [HPI_OP_ALLOCATE] = "allocate",
                                        [HPI_OP_RELEASE] = "release",
                                        [HPI_OP_WAIT] = "wait",
                                        [HPI_OP_FORWARD_BEGIN] = "forward",
                                        [HPI_OP_FORWARD_END] = "forwarded",
                                        [HPI_OP_BACKWARD_BEGIN] = "backward",
                                        [HPI_OP_BACKWARD_END] = "backwarded",
                                        [HPI_OP_CONVERT] = "convert",
                                        [HPI_OP_ACCUMULATE] = "accumulate",
                                        [HPI_OP_FOLD] = "fold",
                                        [HPI_OP_DIVIDE] = "divide",
                                        [HPI_OP_UPDATE] = "update",
                                        [HPI_OP_SCALE] = "scale",
                                        [HPI_OP_PACK] = "pack",
                                        [HPI_OP_COPY] = "copy",
                                        [HPI_OP_COPY_OUT] = "copy_out",
                                        [HPI_OP_PACK_GRADS] = "pack_grads"};
    char of_unit[16] = "";
    if (op->unit != UINT32_MAX)
        snprintf(of_unit, sizeof of_unit, " %u", op->unit);
    const bool adds = op->kind == HPI_OP_ACCUMULATE && op->reads[1].buffer;
    snprintf(out, size, "%s%s%s", kinds[op->kind], of_unit, adds ? " +" : "");
}

/* What an allocate or release is about, if not the storage of a unit. */
static const char *name_memory(const struct bench *b, const hp_op *op) {
    const bool is_release = op->kind == HPI_OP_RELEASE;
    const uint32_t buffer = is_release ? op->reads[0].buffer : op->writes[0].buffer;
    if (!is_release && op->kind != HPI_OP_ALLOCATE)
        return "";
    if (buffer == b->config.grad_slots[0] || buffer == b->config.grad_slots[1])
        return " grad";
    if (buffer == b->config.gather_buffer)
        return " output";
    return buffer == b->config.pack_buffer ? " packed" : "";
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
        at += (size_t)snprintf(b->text + at, sizeof b->text - at, "%s%s", name, name_memory(b, op));
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

/* Units 0 to 3 in order, prefetch 1, up to the compute of the last one. */
static inline void check_forward(struct bench *b) {
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

static int make_bench(void **state) {
    *state = malloc(sizeof(struct bench));
    return *state ? 0 : -1;
}

static int drop_bench(void **state) {
    free(*state);
    return 0;
}

#endif
