/* SPDX-License-Identifier: Apache-2.0
 *
 * thread.c - the executor with a thread per stream; the compute stream is the caller.
 *
 * Streams are in order, so one counter per stream says which of its operations are done, and one
 * more how many were queued; both only rise. A thread that needs a counter to reach a value writes
 * down that wish, looks again, and sleeps on a word of its own. Whoever raises a counter looks at
 * the wishes and wakes only a thread whose wish has come true. Store then look, on both sides and
 * sequentially consistent: one of the two sees the other. Nobody spins, because threads outnumber
 * cores. In steady state there is no allocation and no system call but futex and yield.
 */
#include "../trace/trace.h"
#include "executor.h"

#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* counters[QUEUED + s] operations were given to stream s, counters[DONE + s] of them are done. */
enum { QUEUED = 0, DONE = HP_N_STREAMS, N_COUNTERS = 2 * HP_N_STREAMS };

/* Before it sleeps a thread lets others run this often: with a free core and with none, handing an
 * operation over took half the time of sleeping at once or less. */
enum { N_YIELDS = 4 };

/* The thread of one stream (the caller for compute). On its own cache lines. */
typedef struct stream_thread {
    _Alignas(128) _Atomic uint64_t wish; /* value * N_COUNTERS + counter; 0: none */
    _Atomic uint32_t bump;               /* slept on; rises at each wake */
    struct thread_executor *executor;
    unsigned stream;
    uint32_t *queue; /* [max_ops], ids of this step */
    uint64_t first;  /* operations of earlier steps: written when the thread has done them all */
    pthread_t thread;
    bool has_thread;
} stream_thread;

typedef struct thread_executor {
    hp_executor executor;
    hpi_ops ops;
    uint64_t *turn; /* [max_ops]: an operation is done when its stream's DONE has reached this */
    uint64_t n_submitted[HP_N_STREAMS];
    uint32_t n_drained; /* the first so many operations of the step are known to be drained */
    atomic_bool is_stopping;
    _Alignas(128) _Atomic uint64_t counters[N_COUNTERS];
    stream_thread threads[HP_N_STREAMS];
} thread_executor;

static thread_executor *self(hp_executor *executor) {
    return (thread_executor *)executor;
}

/* ---- waiting and waking -------------------------------------------------------------------- */

static void wake(stream_thread *t) {
    atomic_fetch_add_explicit(&t->bump, 1, memory_order_seq_cst);
    syscall(SYS_futex, &t->bump, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void wake_all(thread_executor *x) {
    for (int i = 0; i < HP_N_STREAMS; i++)
        wake(&x->threads[i]);
}

static uint64_t count(const thread_executor *x, unsigned counter) {
    return atomic_load_explicit(&x->counters[counter], memory_order_seq_cst);
}

static void raise_counter(thread_executor *x, unsigned counter, uint64_t value) {
    atomic_store_explicit(&x->counters[counter], value, memory_order_seq_cst);
    for (int i = 0; i < HP_N_STREAMS; i++) {
        stream_thread *t = &x->threads[i];
        uint64_t wish = atomic_load_explicit(&t->wish, memory_order_seq_cst);
        const bool is_mine = wish && wish % N_COUNTERS == counter && wish / N_COUNTERS <= value;
        /* taken back here, so that the next raise before it wakes is no second system call */
        if (is_mine && atomic_compare_exchange_strong_explicit(
                           &t->wish, &wish, 0, memory_order_seq_cst, memory_order_seq_cst))
            wake(t);
    }
}

static bool is_over(const thread_executor *x) {
    return atomic_load_explicit(&x->ops.has_failed, memory_order_seq_cst) ||
           atomic_load_explicit(&x->is_stopping, memory_order_seq_cst);
}

/* Wait, as the thread of `stream`, until the counter has reached the value; false: it is over. */
static bool await(thread_executor *x, unsigned stream, unsigned counter, uint64_t value) {
    stream_thread *t = &x->threads[stream];
    for (int i = 0; i < N_YIELDS && count(x, counter) < value && !is_over(x) && hpi_yield(); i++) {
    }
    while (count(x, counter) < value && !is_over(x)) {
        const uint32_t seen = atomic_load_explicit(&t->bump, memory_order_seq_cst);
        atomic_store_explicit(&t->wish, value * N_COUNTERS + counter, memory_order_seq_cst);
        if (count(x, counter) < value && !is_over(x))
            syscall(SYS_futex, &t->bump, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_store_explicit(&t->wish, 0, memory_order_relaxed);
    }
    return !is_over(x);
}

/* ---- events and operations ----------------------------------------------------------------- */

static hp_status await_done(thread_executor *x, unsigned stream, uint32_t id) {
    const unsigned counter = DONE + x->ops.ops[id].stream;
    if (count(x, counter) >= x->turn[id])
        return HP_OK;
    const uint64_t begin_ns = hpi_now_ns();
    const bool is_done = await(x, stream, counter, x->turn[id]);
    if (stream == HP_STREAM_COMPUTE)
        hpi_ops_stood_still(&x->ops, hpi_span_wait, id, begin_ns);
    return is_done ? HP_OK : hpi_ops_failure(&x->ops);
}

static hp_status await_event(thread_executor *x, unsigned stream, hp_event event) {
    if (event == 0)
        return HP_OK;
    HP_TRY(await_done(x, stream, hpi_event_op(event)));
    return hpi_event_is_drained(event)
               ? hpi_ops_drain(&x->ops, hpi_event_op(event), stream == HP_STREAM_COMPUTE)
               : HP_OK;
}

static hp_status run_in_turn(thread_executor *x, const hp_op *op) {
    for (uint32_t i = 0; i < op->n_waits; i++)
        HP_TRY(await_event(x, op->stream, op->waits[i]));
    HP_TRY(hpi_ops_run(&x->ops, op));
    raise_counter(x, DONE + op->stream, x->turn[op->id]);
    return HP_OK;
}

static void *stream_main(void *argument) {
    stream_thread *t = argument;
    thread_executor *x = t->executor;
    const hp_executor_config *config = &x->ops.config;
    hpi_slices_short();
    if (config->thread_start)
        config->thread_start(config->context);
    for (uint64_t n = 0; await(x, t->stream, QUEUED + t->stream, n + 1); n++)
        if (run_in_turn(x, &x->ops.ops[t->queue[n - t->first]]) < 0) {
            wake_all(x); /* nothing will rise any more */
            break;
        }
    return NULL;
}

/* ---- the calls ----------------------------------------------------------------------------- */

/* Give the operations from `first` on to their streams, with one wake per stream at most. */
static void publish(thread_executor *x, uint32_t first) {
    for (uint32_t id = first; id < x->ops.n_ops; id++) {
        const unsigned s = x->ops.ops[id].stream;
        stream_thread *t = &x->threads[s];
        if (s != HP_STREAM_COMPUTE)
            t->queue[x->n_submitted[s] - t->first] = id;
        x->turn[id] = ++x->n_submitted[s];
    }
    for (unsigned s = 0; s < HP_N_STREAMS; s++)
        if (count(x, QUEUED + s) < x->n_submitted[s])
            raise_counter(x, QUEUED + s, x->n_submitted[s]);
}

static hp_status run_compute(thread_executor *x, uint32_t first) {
    for (uint32_t id = first; id < x->ops.n_ops; id++)
        if (x->ops.ops[id].stream == HP_STREAM_COMPUTE)
            HP_TRY(run_in_turn(x, &x->ops.ops[id]));
    return HP_OK;
}

/* What every call of the compute stream ends with: after a failure nobody waits any more. */
static hp_status settle(thread_executor *x, hp_status status) {
    if (status < 0 && is_over(x))
        wake_all(x);
    return status;
}

static hp_status submit(hp_executor *executor, const hp_op *ops, uint64_t n_ops) {
    thread_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    const uint32_t first = x->ops.n_ops;
    HP_TRY(hpi_ops_append(&x->ops, ops, n_ops));
    publish(x, first);
    return settle(x, run_compute(x, first));
}

static hp_status wait_event(hp_executor *executor, hp_event event) {
    thread_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    HP_TRY(hpi_ops_check_event(&x->ops, event));
    return settle(x, await_event(x, HP_STREAM_COMPUTE, event));
}

static hp_status drain(hp_executor *executor) {
    thread_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    for (; x->n_drained < x->ops.n_ops; x->n_drained++)
        HP_TRY(settle(x, await_event(x, HP_STREAM_COMPUTE, hpi_drained(x->n_drained))));
    return HP_OK;
}

static hp_status begin_step(hp_executor *executor) {
    thread_executor *x = self(executor);
    HP_TRY(hpi_ops_failure(&x->ops));
    for (unsigned s = 0; s < HP_N_STREAMS; s++)
        if (count(x, DONE + s) < x->n_submitted[s])
            return HPI_FAIL_RANK(HP_ERR_STATE, x->ops.config.rank,
                                 "expected every stream to be idle, %llu operations of stream %s "
                                 "are not done",
                                 (unsigned long long)(x->n_submitted[s] - count(x, DONE + s)),
                                 hp_stream_id_name(s));
    HP_TRY(hpi_ops_begin_step(&x->ops));
    for (unsigned s = 0; s < HP_N_STREAMS; s++)
        x->threads[s].first = x->n_submitted[s];
    x->n_drained = 0;
    return HP_OK;
}

static uint64_t now_ns(const hp_executor *executor) {
    (void)executor;
    return hpi_now_ns();
}

static void stats(const hp_executor *executor, hp_executor_stats *out_stats) {
    hpi_ops_stats(&((const thread_executor *)executor)->ops, out_stats);
}

/* ---- creation ------------------------------------------------------------------------------ */

static void stop_threads(thread_executor *x) {
    atomic_store_explicit(&x->is_stopping, true, memory_order_seq_cst);
    wake_all(x);
    for (int i = 0; i < HP_N_STREAMS; i++)
        if (x->threads[i].has_thread)
            pthread_join(x->threads[i].thread, NULL);
}

static void release(thread_executor *x) {
    for (int i = 0; i < HP_N_STREAMS; i++)
        hpi_free(x->threads[i].queue);
    hpi_free(x->turn);
    hpi_free(x);
}

static void destroy(hp_executor *executor) {
    thread_executor *x = self(executor);
    (void)drain(executor); /* nobody is left to tell */
    stop_threads(x);
    hpi_ops_destroy(&x->ops);
    release(x);
}

static hp_status start_thread(thread_executor *x, stream_thread *t) {
    const int error = pthread_create(&t->thread, NULL, stream_main, t);
    if (error)
        return HPI_FAIL_RANK(HP_ERR_SYSTEM, x->ops.config.rank,
                             "expected a thread for stream %s, pthread_create gave: %s",
                             hp_stream_id_name(t->stream), strerror(error));
    t->has_thread = true;
    char name[16]; /* what the kernel keeps */
    snprintf(name, sizeof name, "hp-%s", hp_stream_id_name(t->stream));
    pthread_setname_np(t->thread, name);
    return HP_OK;
}

static hp_status start_threads(thread_executor *x) {
    sigset_t before;
    hpi_signals_block(&before);
    hp_status status = HP_OK;
    for (unsigned i = HP_STREAM_COMPUTE + 1; i < HP_N_STREAMS && status == HP_OK; i++)
        status = start_thread(x, &x->threads[i]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static hp_status take_memory(thread_executor *x, const hp_executor_config *config) {
    x->turn = hpi_alloc(config->max_ops, sizeof *x->turn);
    if (!x->turn)
        return HP_ERR_MEMORY;
    for (unsigned i = 0; i < HP_N_STREAMS; i++) {
        stream_thread *t = &x->threads[i];
        t->executor = x;
        t->stream = i;
        if (i != HP_STREAM_COMPUTE && !(t->queue = hpi_alloc(config->max_ops, sizeof *t->queue)))
            return HP_ERR_MEMORY;
    }
    return HP_OK;
}

hp_status hpi_thread_executor_create(const hp_executor_config *config, hp_executor **out_executor) {
    static const hpi_executor_calls calls = {submit, wait_event, drain,  begin_step,
                                             now_ns, stats,      destroy};
    thread_executor *x = hpi_alloc_aligned(_Alignof(thread_executor), sizeof *x);
    if (!x)
        return HP_ERR_MEMORY;
    x->executor.calls = &calls;
    hp_status status = take_memory(x, config);
    if (status == HP_OK)
        status = hpi_ops_create(config, &x->ops);
    if (status < 0) {
        release(x);
        return status;
    }
    status = start_threads(x);
    if (status < 0)
        destroy(&x->executor);
    else
        *out_executor = &x->executor;
    return status;
}
