/* SPDX-License-Identifier: Apache-2.0
 *
 * synthetic_kinds.h - kinds of operations that note what happened to them, for tests of executors.
 *
 * Every run and drain takes numbers from one clock that only rises, so that "a was over before b
 * began" can be read off without any time. A gate is closed until a test opens it: an operation
 * that waits at one is "still running" for exactly as long as the test wants.
 */
#ifndef SYNTHETIC_KINDS_H
#define SYNTHETIC_KINDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"
#include "stream/stream.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { MAX_OPS = 4096, N_GATES = 4 };

enum {
    K_NOTE,      /* runs at once */
    K_NOTHING,   /* has no run */
    K_SLEEP,     /* runs for op.bytes ns */
    K_GATE,      /* runs until gate op.param is open */
    K_FAIL,      /* fails, and says that rank 3 is to blame */
    K_MUTE,      /* fails and says nothing */
    K_SEND,      /* runs at once, is drained when gate op.param is open */
    K_BAD_DRAIN, /* runs at once, its drain fails */
    K_MIX,       /* values[id] = hash of what it waits for and of the one before on its stream */
    N_KINDS
};

struct notes {
    _Atomic uint32_t clock;
    _Atomic uint32_t begin[MAX_OPS], end[MAX_OPS], drained[MAX_OPS], n_drains[MAX_OPS];
    pthread_t thread[MAX_OPS];
    bool blocks_signals[MAX_OPS];
    atomic_bool is_open[N_GATES];
    _Atomic uint32_t n_at_gate; /* operations that stand, or stood, at a gate */
    _Atomic uint32_t n_thread_starts;
    uint64_t values[MAX_OPS], last_value[HP_N_STREAMS];
};

static inline uint32_t tick(struct notes *n) {
    return atomic_fetch_add(&n->clock, 1) + 1;
}

static inline hp_status note(struct notes *n, const hp_op *op) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    n->blocks_signals[op->id] = sigismember(&blocked, SIGUSR1) && sigismember(&blocked, SIGINT);
    n->thread[op->id] = pthread_self();
    return HP_OK;
}

static inline hp_status run_note(void *context, const hp_op *op) {
    struct notes *n = context;
    atomic_store(&n->begin[op->id], tick(n));
    (void)note(n, op);
    atomic_store(&n->end[op->id], tick(n));
    return HP_OK;
}

static inline hp_status run_sleep(void *context, const hp_op *op) {
    struct notes *n = context;
    atomic_store(&n->begin[op->id], tick(n));
    hpi_sleep_ns(op->bytes);
    atomic_store(&n->end[op->id], tick(n));
    return HP_OK;
}

/* A gate that nobody opens is an error after a while, not a hang. */
static inline hp_status pass_gate(struct notes *n, uint32_t gate) {
    atomic_fetch_add(&n->n_at_gate, 1);
    for (int i = 0; i < 100000; i++) {
        if (atomic_load(&n->is_open[gate]))
            return HP_OK;
        hpi_sleep_ns(200000);
    }
    return HPI_FAIL(HP_ERR_TIMEOUT, "expected gate %u to open", gate);
}

static inline hp_status run_gate(void *context, const hp_op *op) {
    struct notes *n = context;
    atomic_store(&n->begin[op->id], tick(n));
    HP_TRY(pass_gate(n, op->param));
    atomic_store(&n->end[op->id], tick(n));
    return HP_OK;
}

static inline hp_status run_fail(void *context, const hp_op *op) {
    atomic_store(&((struct notes *)context)->begin[op->id], tick(context));
    return HPI_FAIL_RANK(HP_ERR_PEER, 3, "expected rank 3 to live, operation %u saw it die",
                         op->id);
}

static inline hp_status run_mute(void *context, const hp_op *op) {
    (void)context;
    (void)op;
    return HP_ERR_LIMIT;
}

static inline hp_status drain_send(void *context, const hp_op *op) {
    struct notes *n = context;
    atomic_fetch_add(&n->n_drains[op->id], 1);
    HP_TRY(pass_gate(n, op->param));
    atomic_store(&n->drained[op->id], tick(n));
    return HP_OK;
}

static inline hp_status drain_bad(void *context, const hp_op *op) {
    (void)context;
    return HPI_FAIL_RANK(HP_ERR_TIMEOUT, 2, "expected rank 2 to read operation %u", op->id);
}

/* Reads what a race would leave unwritten, in plain memory, where ThreadSanitizer looks. */
static inline hp_status run_mix(void *context, const hp_op *op) {
    struct notes *n = context;
    uint64_t state = n->last_value[op->stream] ^ op->id;
    for (uint32_t i = 0; i < op->n_waits; i++)
        state = hpi_random_next(&state) ^ n->values[hpi_event_op(op->waits[i])];
    n->last_value[op->stream] = n->values[op->id] = hpi_random_next(&state);
    return HP_OK;
}

static inline void count_thread_start(void *context) {
    atomic_fetch_add(&((struct notes *)context)->n_thread_starts, 1);
}

static const hp_kind synthetic_kinds[N_KINDS] = {
    [K_NOTE] = {"note", run_note, NULL, HP_ROLE_PLAIN},
    [K_NOTHING] = {"nothing", NULL, NULL, HP_ROLE_PLAIN},
    [K_SLEEP] = {"sleep", run_sleep, NULL, HP_ROLE_PLAIN},
    [K_GATE] = {"gate", run_gate, NULL, HP_ROLE_PLAIN},
    [K_FAIL] = {"fail", run_fail, NULL, HP_ROLE_PLAIN},
    [K_MUTE] = {"mute", run_mute, NULL, HP_ROLE_PLAIN},
    [K_SEND] = {"send", run_note, drain_send, HP_ROLE_PLAIN},
    [K_BAD_DRAIN] = {"bad_drain", run_note, drain_bad, HP_ROLE_PLAIN},
    [K_MIX] = {"mix", run_mix, NULL, HP_ROLE_PLAIN},
};

static inline hp_executor *create_with(struct notes *notes, hp_executor_config config,
                                       hp_executor_type type) {
    hp_executor *executor = NULL;
    config.type = type;
    config.kinds = synthetic_kinds;
    config.n_kinds = N_KINDS;
    config.context = notes;
    config.thread_start = count_thread_start;
    if (config.max_ops == 0)
        config.max_ops = MAX_OPS;
    assert_int_equal(hp_executor_create(&config, &executor), HP_OK);
    return executor;
}

static inline hp_executor *create(struct notes *notes, hp_executor_type type) {
    const hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    return create_with(notes, config, type);
}

/* An operation that waits for one event (0: none). */
static inline hp_op make_op(uint32_t id, unsigned kind, unsigned stream, hp_event event) {
    return (hp_op){.kind = (uint16_t)kind,
                   .stream = (uint16_t)stream,
                   .id = id,
                   .unit = UINT32_MAX,
                   .param = 0,
                   .n_waits = event != 0,
                   .waits = {event}};
}

static inline void submit(hp_executor *executor, hp_op op) {
    assert_int_equal(hp_executor_submit(executor, &op, 1), HP_OK);
}

static inline void open_gate(struct notes *notes, unsigned gate) {
    atomic_store(&notes->is_open[gate], true);
}

static inline void await_at_gate(struct notes *notes, uint32_t n) {
    while (atomic_load(&notes->n_at_gate) < n)
        sched_yield();
}

/* A random list: any stream, up to four waits for any earlier operation. */
static inline void make_random_ops(hp_op *ops, uint32_t n, unsigned kind, uint64_t *seed) {
    for (uint32_t id = 0; id < n; id++) {
        ops[id] = make_op(id, kind, (unsigned)(hpi_random_next(seed) % HP_N_STREAMS), 0);
        ops[id].n_waits = id ? (uint32_t)(hpi_random_next(seed) % (HP_OP_WAITS + 1)) : 0;
        for (uint32_t i = 0; i < ops[id].n_waits; i++)
            ops[id].waits[i] = hpi_done((uint32_t)(hpi_random_next(seed) % id));
    }
}

/* Submit a list in bursts of random lengths, then drain. */
static inline void submit_in_bursts(hp_executor *executor, const hp_op *ops, uint32_t n,
                                    uint64_t *seed) {
    for (uint32_t at = 0; at < n;) {
        const uint32_t burst = (uint32_t)hpi_min(hpi_random_next(seed) % 20, n - at);
        assert_int_equal(hp_executor_submit(executor, ops + at, burst), HP_OK);
        at += burst;
    }
    assert_int_equal(hp_executor_drain(executor), HP_OK);
}

static inline void assert_record(hp_status status, int world_rank, const char *part) {
    hp_error error;
    hp_last_error_get(&error);
    assert_int_equal(error.status, status);
    assert_int_equal(error.world_rank, world_rank);
    if (!strstr(error.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, error.message);
}

#endif
