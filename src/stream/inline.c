/* SPDX-License-Identifier: Apache-2.0
 *
 * inline.c - the executor that runs everything at once, in list order, in the calling thread.
 *
 * Waits for `done` have always happened, since they refer to earlier operations. The compute stream
 * stands still while an operation of another stream runs, and the statistics say so: nothing is
 * hidden here.
 */
#include "../trace/trace.h"
#include "executor.h"

typedef struct inline_executor {
    hp_executor executor;
    hpi_ops ops;
    uint32_t n_drained; /* the first so many operations of the step are known to be drained */
} inline_executor;

static inline_executor *self(hp_executor *executor) {
    return (inline_executor *)executor;
}

static hp_status await(inline_executor *x, hp_event event) {
    return event && hpi_event_is_drained(event) ? hpi_ops_drain(&x->ops, hpi_event_op(event), true)
                                                : HP_OK;
}

static hp_status run(inline_executor *x, const hp_op *op) {
    for (uint32_t i = 0; i < op->n_waits; i++)
        HP_TRY(await(x, op->waits[i]));
    const uint64_t begin_ns = hpi_now_ns();
    const hp_status status = hpi_ops_run(&x->ops, op);
    if (op->stream != HP_STREAM_COMPUTE)
        hpi_ops_stood_still(&x->ops, hpi_span_wait, op->id, begin_ns);
    return status;
}

static hp_status submit(hp_executor *executor, const hp_op *ops, uint64_t n_ops) {
    inline_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    const uint32_t first = x->ops.n_ops;
    HP_TRY(hpi_ops_append(&x->ops, ops, n_ops));
    for (uint32_t id = first; id < x->ops.n_ops; id++)
        HP_TRY(run(x, &x->ops.ops[id]));
    return HP_OK;
}

static hp_status wait_event(hp_executor *executor, hp_event event) {
    inline_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    HP_TRY(hpi_ops_check_event(&x->ops, event));
    return await(x, event);
}

static hp_status drain(hp_executor *executor) {
    inline_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    for (; x->n_drained < x->ops.n_ops; x->n_drained++)
        HP_TRY(hpi_ops_drain(&x->ops, x->n_drained, true));
    return HP_OK;
}

static hp_status begin_step(hp_executor *executor) {
    inline_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    HP_TRY(hpi_ops_begin_step(&x->ops));
    x->n_drained = 0;
    return HP_OK;
}

static uint64_t now_ns(const hp_executor *executor) {
    (void)executor;
    return hpi_now_ns();
}

static void stats(const hp_executor *executor, hp_executor_stats *out_stats) {
    hpi_ops_stats(&((const inline_executor *)executor)->ops, out_stats);
}

static void destroy(hp_executor *executor) {
    (void)drain(executor); /* nobody is left to tell */
    hpi_ops_destroy(&self(executor)->ops);
    hpi_free(executor);
}

hp_status hpi_inline_executor_create(const hp_executor_config *config, hp_executor **out_executor) {
    static const hpi_executor_calls calls = {submit, wait_event, drain,  begin_step,
                                             now_ns, stats,      destroy};
    inline_executor *x = hpi_alloc(1, sizeof *x);
    if (!x)
        return HP_ERR_MEMORY;
    x->executor.calls = &calls;
    const hp_status status = hpi_ops_create(config, &x->ops);
    if (status < 0) {
        hpi_free(x);
        return status;
    }
    *out_executor = &x->executor;
    return HP_OK;
}
