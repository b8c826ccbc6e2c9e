/* SPDX-License-Identifier: Apache-2.0
 *
 * virtual/executor.c - HP_EXECUTOR_VIRTUAL: moves nothing and advances a clock.
 *
 * The clock has one rank; every peer is taken to be where it is, so a collective moves as soon as
 * it has begun. The compute stream is the caller: a call returns when the clock has come to where
 * the caller would be, and what other streams do after that moment is still to come.
 */
#include "virtual.h"

#include "../../trace/trace.h"

typedef struct virtual_executor {
    hp_executor executor;
    hpi_ops ops;
    hpi_costs costs;
    hpi_program program; /* of the step */
    hpi_clock clock;
} virtual_executor;

static virtual_executor *self(hp_executor *executor) {
    return (virtual_executor *)executor;
}

/* ---- what the clock tells ---------------------------------------------------------------------
 */

static hp_status on_begin(void *owner, uint32_t rank, const hp_op *op) {
    virtual_executor *x = owner;
    const hp_kind *kind = &x->ops.config.kinds[op->kind];
    (void)rank;
    const hp_status status = kind->run ? kind->run(x->ops.config.context, op) : HP_OK;
    return status < 0 ? hpi_ops_fail(&x->ops, op, status) : HP_OK;
}

static void on_done(void *owner, uint32_t rank, const hp_op *op, uint64_t begin_ns,
                    uint64_t end_ns) {
    virtual_executor *x = owner;
    (void)rank;
    hpi_ops_count(&x->ops, op, begin_ns, end_ns);
    /* no other thread looks at it */
    atomic_store_explicit(&x->ops.is_drained[op->id], true, memory_order_relaxed);
}

static void on_stood_still(void *owner, uint32_t rank, uint32_t id, uint64_t begin_ns,
                           uint64_t end_ns) {
    virtual_executor *x = owner;
    (void)rank;
    hpi_ops_count_still(&x->ops, hpi_span_wait, id, begin_ns, end_ns);
}

/* ---- the calls --------------------------------------------------------------------------------
 */

/* Let time go by until operation `id` is done. */
static hp_status await(virtual_executor *x, uint32_t id) {
    hpi_virtual_rank *rank = &x->clock.ranks[0];
    rank->awaited = id;
    HP_TRY(hpi_clock_wake(&x->clock, 0));
    while (!hpi_clock_is_done(&x->clock, 0, id))
        HP_TRY(hpi_clock_advance(&x->clock)); /* lists are checked: what is awaited can happen */
    rank->awaited = HPI_NO_OP;
    return HP_OK;
}

static hp_status check_costs(const virtual_executor *x, const hp_op *ops, uint64_t n_ops) {
    for (uint64_t i = 0; i < n_ops; i++)
        HP_TRY(hpi_costs_check(&x->costs, &ops[i]));
    return HP_OK;
}

static hp_status submit(hp_executor *executor, const hp_op *ops, uint64_t n_ops) {
    virtual_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    HP_TRY(hpi_ops_check(&x->ops, ops, n_ops));
    HP_TRY(check_costs(x, ops, n_ops));
    HP_TRY(hpi_ops_append(&x->ops, ops, n_ops));
    hpi_program_extend(&x->program, x->ops.ops, x->ops.n_ops, x->ops.config.kinds);
    HP_TRY(hpi_clock_wake(&x->clock, 0));
    const uint32_t last = x->program.last[HP_STREAM_COMPUTE];
    return last == HPI_NO_OP ? HP_OK : await(x, last);
}

static hp_status wait_event(hp_executor *executor, hp_event event) {
    virtual_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    HP_TRY(hpi_ops_check_event(&x->ops, event));
    return event ? await(x, hpi_event_op(event)) : HP_OK;
}

static hp_status drain(hp_executor *executor) {
    virtual_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    x->clock.ranks[0].is_draining = true;
    HP_TRY(hpi_clock_wake(&x->clock, 0));
    while (!hpi_clock_is_through(&x->clock, 0))
        HP_TRY(hpi_clock_advance(&x->clock));
    x->clock.ranks[0].is_draining = false;
    return HP_OK;
}

static hp_status begin_step(hp_executor *executor) {
    virtual_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    if (!hpi_clock_is_through(&x->clock, 0))
        return HPI_FAIL_RANK(HP_ERR_STATE, x->ops.config.rank,
                             "expected every stream to be idle, given operations that are not done "
                             "at %llu ns",
                             (unsigned long long)x->clock.now_ns);
    HP_TRY(hpi_ops_begin_step(&x->ops));
    hpi_program_clear(&x->program);
    x->clock.ranks[0].n_earlier = x->ops.n_earlier;
    hpi_clock_load(&x->clock, 0, &x->program);
    return HP_OK;
}

static uint64_t now_ns(const hp_executor *executor) {
    return ((const virtual_executor *)executor)->clock.now_ns;
}

static void stats(const hp_executor *executor, hp_executor_stats *out_stats) {
    hpi_ops_stats(&((const virtual_executor *)executor)->ops, out_stats);
}

static void release(virtual_executor *x) {
    hpi_clock_destroy(&x->clock);
    hpi_program_destroy(&x->program);
    hpi_costs_destroy(&x->costs);
    hpi_free(x);
}

static void destroy(hp_executor *executor) {
    hpi_ops_destroy(&self(executor)->ops);
    release(self(executor));
}

/* ---- creation ---------------------------------------------------------------------------------
 */

static hp_status make(virtual_executor *x, const hp_executor_config *config) {
    static const hpi_clock_calls on = {on_begin, on_done, on_stood_still};
    HP_TRY(hpi_costs_create(config->costs, config->n_kinds, &x->costs));
    HP_TRY(hpi_program_create(config->max_ops, &x->program));
    x->clock =
        (hpi_clock){.n_ranks = 1, .n_steps = 1, .costs = &x->costs, .calls = &on, .owner = x};
    HP_TRY(hpi_clock_create(&x->clock));
    HP_TRY(hpi_ops_create(config, &x->ops));
    x->program.ops = x->ops.ops;
    x->clock.ranks[0].delay = x->ops.delay;
    hpi_clock_load(&x->clock, 0, &x->program);
    return HP_OK;
}

hp_status hpi_virtual_executor_create(const hp_executor_config *config,
                                      hp_executor **out_executor) {
    static const hpi_executor_calls calls = {submit, wait_event, drain,  begin_step,
                                             now_ns, stats,      destroy};
    virtual_executor *x = hpi_alloc(1, sizeof *x);
    if (!x)
        return HP_ERR_MEMORY;
    x->executor.calls = &calls;
    const hp_status status = make(x, config);
    if (status < 0)
        release(x);
    else
        *out_executor = &x->executor;
    return status;
}
