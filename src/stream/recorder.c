/* SPDX-License-Identifier: Apache-2.0
 *
 * recorder.c - the executor that keeps the list of a step and runs it through another one.
 *
 * It also keeps how many operations each submit brought, so that a step can be submitted again just
 * as it was, and the list of the step before, since what is safe in one step may not be so behind
 * another. Its memory grows when a step is longer than any before it, and at no other time.
 */
#include "executor.h"

typedef struct recorder {
    hp_executor executor;
    hp_executor *inner;
    hp_op *ops;
    uint64_t *counts; /* operations of each submit */
    uint64_t n_ops, ops_capacity;
    hp_op *before; /* of the step before */
    uint64_t n_before, before_capacity;
    uint64_t n_counts, counts_capacity;
} recorder;

enum { FIRST_CAPACITY = 256 };

static recorder *self(hp_executor *executor) {
    return (recorder *)executor;
}

/* Make room for `n` elements of `size` bytes in *memory, which holds `n_used`. */
static hp_status grow(void **memory, uint64_t *capacity, uint64_t n_used, uint64_t n, size_t size) {
    if (n <= *capacity)
        return HP_OK;
    const uint64_t larger = hpi_max(n, hpi_max(2 * *capacity, FIRST_CAPACITY));
    void *next = hpi_alloc(larger, size);
    if (!next)
        return HP_ERR_MEMORY;
    if (n_used)
        memcpy(next, *memory, n_used * size);
    hpi_free(*memory);
    *memory = next;
    *capacity = larger;
    return HP_OK;
}

static hp_status reserve(recorder *r, uint64_t n_ops) {
    void *ops = r->ops, *counts = r->counts;
    hp_status status = grow(&ops, &r->ops_capacity, r->n_ops, r->n_ops + n_ops, sizeof *r->ops);
    if (status == HP_OK)
        status =
            grow(&counts, &r->counts_capacity, r->n_counts, r->n_counts + 1, sizeof *r->counts);
    r->ops = ops;
    r->counts = counts;
    return status;
}

static hp_status submit(hp_executor *executor, const hp_op *ops, uint64_t n_ops) {
    recorder *r = self(executor);
    HP_TRY(reserve(r, ops ? n_ops : 0));
    HP_TRY(hp_executor_submit(r->inner, ops, n_ops));
    if (n_ops)
        memcpy(r->ops + r->n_ops, ops, n_ops * sizeof *ops);
    r->n_ops += n_ops;
    r->counts[r->n_counts++] = n_ops;
    return HP_OK;
}

static hp_status wait_event(hp_executor *executor, hp_event event) {
    return hp_executor_wait(self(executor)->inner, event);
}

static hp_status drain(hp_executor *executor) {
    return hp_executor_drain(self(executor)->inner);
}

/* The two lists change places, both long enough for the longer step. */
static hp_status begin_step(hp_executor *executor) {
    recorder *r = self(executor);
    void *next = r->before;
    const hp_status status =
        grow(&next, &r->before_capacity, 0, r->ops_capacity, sizeof *r->before);
    r->before = next;
    HP_TRY(status);
    HP_TRY(hp_executor_begin_step(r->inner));
    const recorder last = *r;
    r->before = last.ops;
    r->n_before = last.n_ops;
    r->before_capacity = last.ops_capacity;
    r->ops = last.before;
    r->ops_capacity = last.before_capacity;
    r->n_ops = r->n_counts = 0;
    return HP_OK;
}

static uint64_t now_ns(const hp_executor *executor) {
    return hp_executor_now_ns(((const recorder *)executor)->inner);
}

static void stats(const hp_executor *executor, hp_executor_stats *out_stats) {
    hp_executor_stats_get(((const recorder *)executor)->inner, out_stats);
}

static void destroy(hp_executor *executor) {
    recorder *r = self(executor);
    hp_executor_destroy(r->inner);
    hpi_free(r->ops);
    hpi_free(r->before);
    hpi_free(r->counts);
    hpi_free(r);
}

static const hpi_executor_calls recorder_calls = {submit, wait_event, drain,  begin_step,
                                                  now_ns, stats,      destroy};

hp_status hp_recorder_create(hp_executor *inner, hp_executor **out_executor) {
    if (!inner || !out_executor)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected an executor and a place for its recorder, given %s",
                        inner ? "no place" : "no executor");
    recorder *r = hpi_alloc(1, sizeof *r);
    if (!r)
        return HP_ERR_MEMORY;
    r->executor.calls = &recorder_calls;
    r->inner = inner;
    *out_executor = &r->executor;
    return HP_OK;
}

static hp_status check_recorder(const hp_executor *executor, bool has_outputs, const char *call) {
    const bool is_recorder = executor && executor->calls == &recorder_calls;
    if (!is_recorder || !has_outputs)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s expected a recorder and places for its outputs, given %s", call,
                        is_recorder ? "no place" : "something else");
    return HP_OK;
}

hp_status hp_recorder_ops(const hp_executor *executor, const hp_op **out_ops, uint64_t *out_n) {
    HP_TRY(check_recorder(executor, out_ops && out_n, __func__));
    *out_ops = ((const recorder *)executor)->ops;
    *out_n = ((const recorder *)executor)->n_ops;
    return HP_OK;
}

void hpi_recorder_before(const hp_executor *executor, const hp_op **out_ops, uint64_t *out_n) {
    const recorder *r = (const recorder *)executor;
    *out_ops = r->before;
    *out_n = r->n_before;
}

hp_status hp_recorder_bursts(const hp_executor *executor, const uint64_t **out_counts,
                             uint64_t *out_n) {
    HP_TRY(check_recorder(executor, out_counts && out_n, __func__));
    *out_counts = ((const recorder *)executor)->counts;
    *out_n = ((const recorder *)executor)->n_counts;
    return HP_OK;
}
