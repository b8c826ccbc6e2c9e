/* SPDX-License-Identifier: Apache-2.0
 *
 * events.c - the operations of a step, and everything about them that all executors share.
 *
 * Waits refer to earlier operations only and streams are in order, so a checked list cannot
 * deadlock by itself. `drained` is learnt by asking: whoever needs it calls the kind's drain, two
 * threads at once if need be, and a flag remembers the answer. The first failure is kept; it is
 * written before has_failed is (release) and read after it (acquire), so that readers need no lock.
 */
#include "../trace/trace.h"
#include "executor.h"

static hp_status take_memory(hpi_ops *o, const hp_executor_config *config) {
    o->config = *config;
    o->step = config->first_step;
    o->ops = hpi_alloc(config->max_ops, sizeof *o->ops);
    o->is_drained = o->ops ? hpi_alloc(config->max_ops, sizeof *o->is_drained) : NULL;
    return o->is_drained ? hpi_delay_create(config, &o->delay) : HP_ERR_MEMORY;
}

hp_status hpi_ops_create(const hp_executor_config *config, hpi_ops *o) {
    if (pthread_mutex_init(&o->error_lock, NULL) != 0)
        return HPI_FAIL_RANK(HP_ERR_SYSTEM, config->rank,
                             "expected a mutex, pthread_mutex_init gave none");
    const hp_status status = take_memory(o, config);
    if (status < 0)
        hpi_ops_destroy(o);
    return status;
}

void hpi_ops_destroy(hpi_ops *o) {
    hpi_delay_destroy(o->delay);
    hpi_free(o->is_drained);
    hpi_free(o->ops);
    pthread_mutex_destroy(&o->error_lock);
}

/* ---- failure ------------------------------------------------------------------------------- */

hp_status hpi_ops_failure(const hpi_ops *o) {
    return atomic_load_explicit(&o->has_failed, memory_order_acquire) ? hpi_error_set(&o->error)
                                                                      : HP_OK;
}

/* Keep this thread's record if it is the executor's first failure. */
hp_status hpi_ops_fail(hpi_ops *o, const hp_op *op, hp_status status) {
    hp_error mine;
    hp_last_error_get(&mine);
    if (mine.status != status) {
        (void)HPI_FAIL_RANK(status, o->config.rank,
                            "expected operation %u (%s) to say why it failed, it said nothing",
                            op->id, o->config.kinds[op->kind].name);
        hp_last_error_get(&mine);
    }
    pthread_mutex_lock(&o->error_lock);
    if (!atomic_load_explicit(&o->has_failed, memory_order_relaxed)) {
        o->error = mine;
        atomic_store_explicit(&o->has_failed, true, memory_order_seq_cst);
    }
    pthread_mutex_unlock(&o->error_lock);
    return hpi_ops_failure(o);
}

/* ---- the list ------------------------------------------------------------------------------ */

static hp_status check_op(const hpi_ops *o, const hp_op *op, uint32_t id) {
    const int rank = o->config.rank;
    if (op->id != id)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, rank,
                             "expected ids to continue the step's with %u, given %u", id, op->id);
    if (op->kind >= o->config.n_kinds || op->stream >= HP_N_STREAMS || op->n_waits > HP_OP_WAITS)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, rank,
                             "expected operation %u to have a kind below %u, a stream below %d and "
                             "at most %d waits, given kind %u, stream %u, %u waits",
                             id, o->config.n_kinds, HP_N_STREAMS, HP_OP_WAITS, op->kind, op->stream,
                             op->n_waits);
    for (uint32_t i = 0; i < op->n_waits; i++)
        if (op->waits[i] && (op->waits[i] < hpi_done(0) || hpi_event_op(op->waits[i]) >= id))
            return HPI_FAIL_RANK(HP_ERR_ARGUMENT, rank,
                                 "expected operation %u to wait for earlier ones, given event %u",
                                 id, op->waits[i]);
    return HP_OK;
}

hp_status hpi_ops_check(const hpi_ops *o, const hp_op *ops, uint64_t n_ops) {
    if (!ops && n_ops)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, o->config.rank,
                             "expected %llu operations, given NULL", (unsigned long long)n_ops);
    if (n_ops > o->config.max_ops - o->n_ops)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, o->config.rank,
                             "expected at most %u operations in a step, given %llu after %u",
                             o->config.max_ops, (unsigned long long)n_ops, o->n_ops);
    for (uint32_t i = 0; i < n_ops; i++)
        HP_TRY(check_op(o, &ops[i], o->n_ops + i));
    return HP_OK;
}

hp_status hpi_ops_append(hpi_ops *o, const hp_op *ops, uint64_t n_ops) {
    HP_TRY(hpi_ops_check(o, ops, n_ops));
    for (uint32_t i = 0; i < n_ops; i++) {
        const bool is_drained = !o->config.kinds[ops[i].kind].drain;
        o->ops[o->n_ops + i] = ops[i];
        /* whoever runs the operations learns of them later, by a release of the executor's */
        atomic_store_explicit(&o->is_drained[o->n_ops + i], is_drained, memory_order_relaxed);
    }
    o->n_ops += (uint32_t)n_ops;
    return HP_OK;
}

hp_status hpi_ops_check_event(const hpi_ops *o, hp_event event) {
    if (event && (event < hpi_done(0) || hpi_event_op(event) >= o->n_ops))
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, o->config.rank,
                             "expected an event of the %u operations of this step, given event %u",
                             o->n_ops, event);
    return HP_OK;
}

hp_status hpi_ops_begin_step(hpi_ops *o) {
    for (uint32_t i = 0; i < o->n_ops; i++)
        if (!atomic_load_explicit(&o->is_drained[i], memory_order_acquire))
            return HPI_FAIL_RANK(HP_ERR_STATE, o->config.rank,
                                 "expected a drained executor, operation %u (%s) of %u is not "
                                 "known to be drained",
                                 i, o->config.kinds[o->ops[i].kind].name, o->n_ops);
    o->n_earlier += o->n_ops;
    o->step += o->n_ops != 0;
    o->n_ops = 0;
    return HP_OK;
}

/* ---- running ------------------------------------------------------------------------------- */

static const char *unit_name(const hpi_ops *o, const hp_op *op) {
    return op->unit < o->config.n_units ? o->config.units[op->unit] : NULL;
}

static void add_span(const hpi_ops *o, unsigned stream, const char *name, const hp_op *op,
                     uint64_t begin_ns, uint64_t end_ns, uint64_t bytes) {
    const hp_span span = {.name = name,
                          .detail = unit_name(o, op),
                          .begin_ns = begin_ns,
                          .end_ns = end_ns,
                          .bytes = bytes,
                          .id = op->id,
                          .step = o->step};
    hp_trace_span(o->config.trace, stream, &span);
}

void hpi_ops_count(hpi_ops *o, const hp_op *op, uint64_t begin_ns, uint64_t end_ns) {
    atomic_fetch_add_explicit(&o->n_run, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&o->busy_ns[op->stream], end_ns - begin_ns, memory_order_relaxed);
    add_span(o, op->stream, o->config.kinds[op->kind].name, op, begin_ns, end_ns, op->bytes);
}

void hpi_ops_count_still(hpi_ops *o, const char *name, uint32_t id, uint64_t begin_ns,
                         uint64_t end_ns) {
    const hp_op *op = &o->ops[id];
    atomic_fetch_add_explicit(&o->waited_ns[op->stream], end_ns - begin_ns, memory_order_relaxed);
    add_span(o, HP_STREAM_COMPUTE, name, op, begin_ns, end_ns, 0);
}

hp_status hpi_ops_run(hpi_ops *o, const hp_op *op) {
    const hp_kind *kind = &o->config.kinds[op->kind];
    const uint64_t delay_ns = hpi_delay_ns(o->delay, op, o->n_earlier + op->id);
    const uint64_t begin_ns = hpi_now_ns();
    if (delay_ns)
        hpi_sleep_ns(delay_ns);
    const hp_status status = kind->run ? kind->run(o->config.context, op) : HP_OK;
    hpi_ops_count(o, op, begin_ns, kind->run || delay_ns ? hpi_now_ns() : begin_ns);
    return status < 0 ? hpi_ops_fail(o, op, status) : HP_OK;
}

void hpi_ops_stood_still(hpi_ops *o, const char *name, uint32_t id, uint64_t begin_ns) {
    hpi_ops_count_still(o, name, id, begin_ns, hpi_now_ns());
}

hp_status hpi_ops_drain(hpi_ops *o, uint32_t id, bool is_compute) {
    const hp_op *op = &o->ops[id];
    if (atomic_load_explicit(&o->is_drained[id], memory_order_acquire))
        return HP_OK;
    const uint64_t begin_ns = hpi_now_ns();
    const hp_status status = o->config.kinds[op->kind].drain(o->config.context, op);
    if (is_compute)
        hpi_ops_stood_still(o, hpi_span_drain, id, begin_ns);
    if (status < 0)
        return hpi_ops_fail(o, op, status);
    atomic_store_explicit(&o->is_drained[id], true, memory_order_release);
    return HP_OK;
}

void hpi_ops_stats(const hpi_ops *o, hp_executor_stats *out_stats) {
    out_stats->n_ops = atomic_load_explicit(&o->n_run, memory_order_relaxed);
    for (int i = 0; i < HP_N_STREAMS; i++) {
        out_stats->waited_ns[i] = atomic_load_explicit(&o->waited_ns[i], memory_order_relaxed);
        out_stats->busy_ns[i] = atomic_load_explicit(&o->busy_ns[i], memory_order_relaxed);
    }
}
