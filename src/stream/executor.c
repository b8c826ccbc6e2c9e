/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.c - the public calls of an executor.
 *
 * They check what does not depend on the kind of executor, keep a second thread out, and pass on.
 */
#include "executor.h"

enum { DEFAULT_MAX_OPS = 65536, MOST_MAX_OPS = 1 << 30 }; /* an event is twice an id */

static hp_status check_config(const hp_executor_config *config) {
    if ((unsigned)config->type > HP_EXECUTOR_VIRTUAL)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, config->rank,
                             "expected HP_EXECUTOR_THREAD (0), HP_EXECUTOR_INLINE (1) or "
                             "HP_EXECUTOR_VIRTUAL (2), given %d",
                             (int)config->type);
    if (config->costs && config->type != HP_EXECUTOR_VIRTUAL)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, config->rank,
                             "expected costs for HP_EXECUTOR_VIRTUAL alone, given executor type %d",
                             (int)config->type);
    if (!config->kinds || config->n_kinds == 0 || config->n_kinds > UINT16_MAX + 1)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, config->rank,
                             "expected a table of 1 to 65536 kinds, given %s of %u",
                             config->kinds ? "one" : "NULL", config->n_kinds);
    for (uint32_t i = 0; i < config->n_kinds; i++)
        if (!config->kinds[i].name)
            return HPI_FAIL_RANK(HP_ERR_ARGUMENT, config->rank,
                                 "expected a name for every kind, given none for kind %u", i);
    if (config->max_ops > MOST_MAX_OPS)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, config->rank, "expected max_ops up to %d, given %u",
                             MOST_MAX_OPS, config->max_ops);
    if (config->n_units && !config->units)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, config->rank,
                             "expected the names of %u units, given NULL", config->n_units);
    return HP_OK;
}

/* Take over the fields that the caller's header knew; the others keep their defaults. */
static hp_status read_config(const hp_executor_config *given, hp_executor_config *out_config) {
    const hp_executor_config defaults = HP_EXECUTOR_CONFIG_INIT;
    const size_t least = offsetof(hp_executor_config, thread_start);
    if (given->size < least || given->size > sizeof defaults)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hp_executor_config.size from %zu to %zu, given %zu", least,
                        sizeof defaults, given->size);
    *out_config = defaults;
    memcpy(out_config, given, given->size);
    out_config->size = sizeof defaults;
    if (out_config->max_ops == 0)
        out_config->max_ops = DEFAULT_MAX_OPS;
    return check_config(out_config);
}

hp_status hp_executor_create(const hp_executor_config *config, hp_executor **out_executor) {
    static hp_status (*const creators[])(const hp_executor_config *, hp_executor **) = {
        [HP_EXECUTOR_THREAD] = hpi_thread_executor_create,
        [HP_EXECUTOR_INLINE] = hpi_inline_executor_create,
        [HP_EXECUTOR_VIRTUAL] = hpi_virtual_executor_create};
    hp_executor_config own;
    if (!config || !out_executor)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a config and a place for the executor, given %s",
                        config ? "no place" : "no config");
    HP_TRY(read_config(config, &own));
    for (unsigned i = 0; own.trace && i < HP_N_STREAMS; i++)
        HP_TRY(hp_trace_name_stream(own.trace, i, hp_stream_id_name(i)));
    return creators[own.type](&own, out_executor);
}

static hp_status enter(hp_executor *executor, const char *call) {
    if (!executor)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s expected an executor, given NULL", call);
    if (atomic_exchange_explicit(&executor->is_busy, true, memory_order_acquire))
        return HPI_FAIL(HP_ERR_BUSY,
                        "%s expected an executor that no thread is inside of; one is, perhaps this "
                        "one, in an operation of the compute stream",
                        call);
    return HP_OK;
}

static hp_status leave(hp_executor *executor, hp_status status) {
    atomic_store_explicit(&executor->is_busy, false, memory_order_release); /* acquired by enter */
    return status;
}

hp_status hp_executor_submit(hp_executor *executor, const hp_op *ops, uint64_t n_ops) {
    HP_TRY(enter(executor, __func__));
    return leave(executor, executor->calls->submit(executor, ops, n_ops));
}

hp_status hp_executor_wait(hp_executor *executor, hp_event event) {
    HP_TRY(enter(executor, __func__));
    return leave(executor, executor->calls->wait(executor, event));
}

hp_status hp_executor_drain(hp_executor *executor) {
    HP_TRY(enter(executor, __func__));
    return leave(executor, executor->calls->drain(executor));
}

hp_status hp_executor_begin_step(hp_executor *executor) {
    HP_TRY(enter(executor, __func__));
    return leave(executor, executor->calls->begin_step(executor));
}

uint64_t hp_executor_now_ns(const hp_executor *executor) {
    return executor ? executor->calls->now_ns(executor) : 0;
}

void hp_executor_stats_get(const hp_executor *executor, hp_executor_stats *out_stats) {
    *out_stats = (hp_executor_stats){0};
    if (executor)
        executor->calls->stats(executor, out_stats);
}

void hp_executor_destroy(hp_executor *executor) {
    if (executor)
        executor->calls->destroy(executor);
}
