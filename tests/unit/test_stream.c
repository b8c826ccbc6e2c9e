/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stream.c - executors: order, waits, done and drained, statistics, spans, many operations.
 *
 * What must hold for every executor is checked for both. Order is read off a clock that counts
 * (synthetic_kinds.h), never off the time.
 */
#include "synthetic_kinds.h"

#include "trace/trace.h"
#include <stdio.h>
#include <stdlib.h>

static const hp_executor_type types[] = {HP_EXECUTOR_THREAD, HP_EXECUTOR_INLINE};
enum { N_TYPES = 2 };

static struct notes *make_notes(void) {
    struct notes *notes = calloc(1, sizeof *notes);
    assert_non_null(notes);
    return notes;
}

/* ---- order ----------------------------------------------------------------------------------- */

static void check_order(const struct notes *notes, const hp_op *ops, uint32_t n) {
    uint32_t last_end[HP_N_STREAMS] = {0};
    for (uint32_t id = 0; id < n; id++) {
        const uint32_t begin = atomic_load(&notes->begin[id]);
        assert_true(begin > last_end[ops[id].stream]);
        last_end[ops[id].stream] = atomic_load(&notes->end[id]);
        for (uint32_t i = 0; i < ops[id].n_waits; i++)
            assert_true(begin > atomic_load(&notes->end[hpi_event_op(ops[id].waits[i])]));
    }
}

static void streams_are_in_order_and_waits_are_kept(void **state) {
    (void)state;
    enum { N = 400 };
    hp_op ops[N];
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, types[t]);
        uint64_t seed = 11;
        for (int step = 0; step < 10; step++) {
            assert_int_equal(hp_executor_begin_step(executor), HP_OK);
            make_random_ops(ops, N, K_NOTE, &seed);
            submit_in_bursts(executor, ops, N, &seed);
            check_order(notes, ops, N);
        }
        hp_executor_stats stats;
        hp_executor_stats_get(executor, &stats);
        assert_int_equal(stats.n_ops, 10 * N);
        hp_executor_destroy(executor);
        free(notes);
    }
}

static void compute_is_the_caller_and_streams_have_threads(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    for (uint32_t id = 0; id < 8; id++)
        submit(executor, make_op(id, K_NOTE, id % HP_N_STREAMS, 0));
    assert_true(atomic_load(&notes->end[4]) > 0); /* compute: before submit returned */
    assert_int_equal(hp_executor_drain(executor), HP_OK);
    assert_true(pthread_equal(notes->thread[0], pthread_self()));
    assert_false(notes->blocks_signals[0]);
    for (uint32_t a = 0; a < 4; a++) {
        assert_true(pthread_equal(notes->thread[a], notes->thread[a + 4]));
        for (uint32_t b = 0; b < a; b++)
            assert_false(pthread_equal(notes->thread[a], notes->thread[b]));
        assert_true(a == 0 || notes->blocks_signals[a]);
    }
    hp_executor_destroy(executor);
    assert_int_equal(atomic_load(&notes->n_thread_starts), HP_N_STREAMS - 1);
    free(notes);
}

static void inline_runs_in_the_caller_in_list_order(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_INLINE);
    for (uint32_t id = 0; id < 8; id++)
        submit(executor, make_op(id, K_NOTE, 3 - id % HP_N_STREAMS, 0));
    for (uint32_t id = 0; id < 8; id++) {
        assert_true(pthread_equal(notes->thread[id], pthread_self()));
        assert_int_equal(atomic_load(&notes->begin[id]), 2 * id + 1);
    }
    assert_int_equal(atomic_load(&notes->n_thread_starts), 0);
    hp_executor_destroy(executor);
    free(notes);
}

/* A stream waits for an operation of compute that comes in a later submit's burst before it. */
static void streams_wait_for_compute(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    const hp_op ops[] = {make_op(0, K_SLEEP, HP_STREAM_COMPUTE, 0),
                         make_op(1, K_NOTE, HP_STREAM_REDUCE, hpi_done(0)),
                         make_op(2, K_NOTE, HP_STREAM_REPLICATE, hpi_done(1)),
                         make_op(3, K_NOTHING, HP_STREAM_COMPUTE, hpi_done(2)),
                         make_op(4, K_NOTE, HP_STREAM_COMPUTE, 0)};
    assert_int_equal(hp_executor_submit(executor, ops, 5), HP_OK);
    assert_true(atomic_load(&notes->end[0]) < atomic_load(&notes->begin[1]));
    assert_true(atomic_load(&notes->end[1]) < atomic_load(&notes->begin[2]));
    assert_true(atomic_load(&notes->end[2]) < atomic_load(&notes->begin[4]));
    hp_executor_destroy(executor);
    free(notes);
}

/* ---- done and drained ------------------------------------------------------------------------ */

static void done_comes_before_drained(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    submit(executor, make_op(0, K_SEND, HP_STREAM_UNSHARD, 0));
    assert_int_equal(hp_executor_wait(executor, hpi_done(0)), HP_OK);
    assert_int_equal(atomic_load(&notes->n_drains[0]), 0);
    /* the reduce stream asks for drained and stands at the gate; others go on */
    submit(executor, make_op(1, K_NOTE, HP_STREAM_REDUCE, hpi_drained(0)));
    await_at_gate(notes, 1);
    submit(executor, make_op(2, K_NOTE, HP_STREAM_UNSHARD, hpi_done(0)));
    assert_int_equal(hp_executor_wait(executor, hpi_done(2)), HP_OK);
    assert_int_equal(atomic_load(&notes->begin[1]), 0);
    open_gate(notes, 0);
    assert_int_equal(hp_executor_wait(executor, hpi_done(1)), HP_OK);
    assert_true(atomic_load(&notes->drained[0]) < atomic_load(&notes->begin[1]));
    /* known from now on */
    assert_int_equal(hp_executor_wait(executor, hpi_drained(0)), HP_OK);
    assert_int_equal(hp_executor_drain(executor), HP_OK);
    assert_int_equal(atomic_load(&notes->n_drains[0]), 1);
    hp_executor_destroy(executor);
    free(notes);
}

static void drain_drains_whatever_is_left(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, types[t]);
        open_gate(notes, 0);
        for (uint32_t id = 0; id < 6; id++)
            submit(executor, make_op(id, K_SEND, 1 + id % 3, id == 3 ? hpi_drained(1) : 0));
        assert_int_equal(hp_executor_wait(executor, hpi_drained(2)), HP_OK);
        assert_int_equal(hp_executor_drain(executor), HP_OK);
        assert_int_equal(hp_executor_drain(executor), HP_OK);
        for (uint32_t id = 0; id < 6; id++) /* a stream may ask for 1 while the caller does */
            assert_in_range(atomic_load(&notes->n_drains[id]), 1, id == 1 ? 2 : 1);
        hp_executor_destroy(executor);
        free(notes);
    }
}

static void destroy_runs_and_drains_what_was_submitted(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, types[t]);
        open_gate(notes, 0);
        for (uint32_t id = 0; id < 20; id++)
            submit(executor, make_op(id, K_SEND, HP_STREAM_REDUCE, 0));
        hp_executor_destroy(executor);
        for (uint32_t id = 0; id < 20; id++)
            assert_int_equal(atomic_load(&notes->n_drains[id]), 1);
        free(notes);
    }
    hp_executor_destroy(NULL);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void a_step_begins_when_the_last_is_drained(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, types[t]);
        open_gate(notes, 0);
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        submit(executor, make_op(0, K_SEND, HP_STREAM_REDUCE, 0));
        submit(executor, make_op(1, K_SEND, HP_STREAM_REDUCE, 0));
        assert_int_equal(hp_executor_wait(executor, hpi_done(1)), HP_OK);
        assert_int_equal(hp_executor_begin_step(executor), HP_ERR_STATE);
        assert_int_equal(hp_executor_wait(executor, hpi_drained(0)), HP_OK);
        assert_int_equal(hp_executor_begin_step(executor), HP_ERR_STATE);
        assert_record(HP_ERR_STATE, 0, "operation 1 (send)");
        assert_int_equal(hp_executor_wait(executor, hpi_drained(1)), HP_OK);
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        submit(executor, make_op(0, K_NOTE, HP_STREAM_REDUCE, 0));
        hp_executor_destroy(executor);
        free(notes);
    }
}

static void a_running_operation_holds_the_step(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    submit(executor, make_op(0, K_GATE, HP_STREAM_REPLICATE, 0));
    assert_int_equal(hp_executor_begin_step(executor), HP_ERR_STATE);
    assert_record(HP_ERR_STATE, 0, "1 operations of stream replicate");
    open_gate(notes, 0);
    assert_int_equal(hp_executor_drain(executor), HP_OK);
    assert_int_equal(hp_executor_begin_step(executor), HP_OK);
    hp_executor_destroy(executor);
    free(notes);
}

/* Longer than the table in all, never in one step: rings must come round. */
static void steps_reuse_the_table(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
        config.max_ops = 7;
        hp_executor *executor = create_with(notes, config, types[t]);
        for (uint32_t step = 0; step < 20; step++) {
            assert_int_equal(hp_executor_begin_step(executor), HP_OK);
            for (uint32_t id = 0; id < 5 + step % 3; id++)
                submit(executor, make_op(id, K_NOTE, (id + step) % 4, id ? hpi_done(id - 1) : 0));
            assert_int_equal(hp_executor_drain(executor), HP_OK);
        }
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        hp_op ops[8];
        for (uint32_t id = 0; id < 8; id++)
            ops[id] = make_op(id, K_NOTE, HP_STREAM_UNSHARD, 0);
        assert_int_equal(hp_executor_submit(executor, ops, 8), HP_ERR_ARGUMENT);
        assert_record(HP_ERR_ARGUMENT, 0, "at most 7");
        assert_int_equal(hp_executor_submit(executor, ops, UINT64_MAX), HP_ERR_ARGUMENT);
        assert_int_equal(hp_executor_submit(executor, ops, 7), HP_OK);
        hp_executor_destroy(executor);
        free(notes);
    }
}

/* ---- broken lists and wrong calls ------------------------------------------------------------ */

static void broken_lists_change_nothing(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct notes *notes = make_notes();
        hp_executor *executor = create(notes, types[t]);
        submit(executor, make_op(0, K_NOTE, HP_STREAM_UNSHARD, 0));
        const hp_op good = make_op(1, K_NOTE, HP_STREAM_UNSHARD, hpi_done(0));
        hp_op bad[7];
        for (int i = 0; i < 7; i++)
            bad[i] = make_op(2, K_NOTE, HP_STREAM_UNSHARD, hpi_done(0));
        bad[0].id = 3;
        bad[1].kind = N_KINDS;
        bad[2].stream = HP_N_STREAMS;
        bad[3].n_waits = HP_OP_WAITS + 1;
        bad[4].waits[0] = hpi_done(2); /* itself */
        bad[5].waits[0] = 1;           /* no event */
        bad[6].waits[0] = UINT32_MAX;
        for (int i = 0; i < 7; i++) {
            const hp_op list[] = {good, bad[i]};
            assert_int_equal(hp_executor_submit(executor, list, 2), HP_ERR_ARGUMENT);
        }
        assert_int_equal(hp_executor_submit(executor, NULL, 1), HP_ERR_ARGUMENT);
        assert_int_equal(hp_executor_submit(executor, NULL, 0), HP_OK);
        submit(executor, good);
        assert_int_equal(hp_executor_wait(executor, 0), HP_OK);
        assert_int_equal(hp_executor_wait(executor, 1), HP_ERR_ARGUMENT);
        assert_int_equal(hp_executor_wait(executor, hpi_done(2)), HP_ERR_ARGUMENT);
        assert_int_equal(hp_executor_drain(executor), HP_OK);
        hp_executor_destroy(executor);
        free(notes);
    }
}

static void assert_create(const hp_executor_config *config, hp_status status, const char *part) {
    hp_executor *executor = NULL;
    assert_int_equal(hp_executor_create(config, &executor), status);
    assert_null(executor);
    hp_error error;
    hp_last_error_get(&error);
    assert_non_null(strstr(error.message, part));
}

static void wrong_configs_are_refused(void **state) {
    (void)state;
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    assert_create(&config, HP_ERR_ARGUMENT, "table of 1 to 65536 kinds");
    config.kinds = synthetic_kinds;
    config.n_kinds = N_KINDS;
    config.type = (hp_executor_type)3;
    assert_create(&config, HP_ERR_ARGUMENT, "given 3");
    config.type = HP_EXECUTOR_INLINE;
    config.size = 8;
    assert_create(&config, HP_ERR_VERSION, "given 8");
    config.size = sizeof config + 8;
    assert_create(&config, HP_ERR_VERSION, "hp_executor_config.size");
    config.size = sizeof config;
    config.max_ops = UINT32_MAX;
    assert_create(&config, HP_ERR_ARGUMENT, "max_ops");
    config.max_ops = 1;
    config.n_units = 2;
    assert_create(&config, HP_ERR_ARGUMENT, "2 units");
    config.n_units = 0;
    config.delay = "us=x";
    assert_create(&config, HP_ERR_ARGUMENT, "us=");
    const hp_kind nameless = {NULL, run_note, NULL, HP_ROLE_PLAIN};
    config.delay = NULL;
    config.kinds = &nameless;
    config.n_kinds = 1;
    assert_create(&config, HP_ERR_ARGUMENT, "a name for every kind");
    assert_int_equal(hp_executor_create(NULL, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_executor_create(&config, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_executor_submit(NULL, NULL, 0), HP_ERR_ARGUMENT);
    assert_int_equal(hp_executor_now_ns(NULL), 0);
}

/* A program built against the first header, whose config ended before thread_start. */
static void an_older_config_is_taken(void **state) {
    (void)state;
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    hp_executor *executor = NULL;
    config.size = offsetof(hp_executor_config, thread_start);
    config.kinds = synthetic_kinds;
    config.n_kinds = N_KINDS;
    config.thread_start = (void (*)(void *))(uintptr_t)1; /* must not be looked at */
    assert_int_equal(hp_executor_create(&config, &executor), HP_OK);
    hp_executor_destroy(executor);
}

static void creation_without_memory(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.kinds = synthetic_kinds;
    config.n_kinds = N_KINDS;
    config.max_ops = 8;
    config.delay = "us=0";
    for (int t = 0; t < N_TYPES; t++) {
        config.type = types[t];
        hp_executor *executor = NULL;
        uint64_t n = 1;
        for (hp_status status = HP_ERR_MEMORY; status != HP_OK; n++) {
            hpi_alloc_fail_after(n);
            status = hp_executor_create(&config, &executor);
            assert_true(status == HP_OK ? executor != NULL
                                        : status == HP_ERR_MEMORY && executor == NULL);
        }
        assert_in_range(n, 5, 20);
        hpi_alloc_fail_after(0);
        hp_executor_destroy(executor);
    }
    free(notes);
}

struct waiting {
    hp_executor *executor;
    hp_status status;
};

static void *wait_in_a_thread(void *argument) {
    struct waiting *w = argument;
    do /* the other thread looks in now and then */
        w->status = hp_executor_wait(w->executor, hpi_done(0));
    while (w->status == HP_ERR_BUSY);
    return NULL;
}

static void a_second_thread_is_told(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    struct waiting first = {executor, HP_ERR_FAILED};
    pthread_t thread;
    submit(executor, make_op(0, K_GATE, HP_STREAM_UNSHARD, 0));
    assert_int_equal(pthread_create(&thread, NULL, wait_in_a_thread, &first), 0);
    while (hp_executor_wait(executor, 0) != HP_ERR_BUSY)
        sched_yield();
    assert_int_equal(hp_executor_drain(executor), HP_ERR_BUSY);
    assert_int_equal(hp_executor_begin_step(executor), HP_ERR_BUSY);
    assert_int_equal(hp_executor_submit(executor, NULL, 0), HP_ERR_BUSY);
    open_gate(notes, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(first.status, HP_OK);
    hp_executor_destroy(executor);
    free(notes);
}

/* ---- both executors, many operations --------------------------------------------------------- */

static void executors_agree(void **state) {
    (void)state;
    enum { N = 2000 };
    static hp_op ops[N];
    struct notes *notes[N_TYPES];
    for (int t = 0; t < N_TYPES; t++) {
        uint64_t seed = 5;
        notes[t] = make_notes();
        hp_executor *executor = create(notes[t], types[t]);
        for (int step = 0; step < 3; step++) {
            assert_int_equal(hp_executor_begin_step(executor), HP_OK);
            make_random_ops(ops, N, K_MIX, &seed);
            submit_in_bursts(executor, ops, N, &seed);
        }
        hp_executor_destroy(executor);
    }
    assert_memory_equal(notes[0]->values, notes[1]->values, sizeof notes[0]->values);
    for (int t = 0; t < N_TYPES; t++)
        free(notes[t]);
}

/* 100,000 operations, a quarter of the waits for `drained`; nothing is allocated on the way. */
static void a_hundred_thousand_operations(void **state) {
    (void)state;
    enum { N = 4000, N_STEPS = 25 };
    static hp_op ops[N];
    struct notes *notes = make_notes();
    hp_trace *trace = NULL;
    assert_int_equal(hp_trace_create(0, 1000, &trace), HP_OK);
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.trace = trace;
    config.delay = "kind=nothing,us=1,seed=3";
    hp_executor *executor = create_with(notes, config, HP_EXECUTOR_THREAD);
    open_gate(notes, 0);
    const uint64_t n_allocations = hpi_alloc_count();
    uint64_t seed = 1;
    for (int step = 0; step < N_STEPS; step++) {
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        make_random_ops(ops, N, K_SEND, &seed);
        for (uint32_t id = 0; id < N; id++)
            if (ops[id].n_waits && hpi_random_next(&seed) % 4 == 0)
                ops[id].waits[0] |= 1;
        submit_in_bursts(executor, ops, N, &seed);
        check_order(notes, ops, N);
    }
    assert_int_equal(hpi_alloc_count(), n_allocations);
    hp_executor_stats stats;
    hp_executor_stats_get(executor, &stats);
    assert_int_equal(stats.n_ops, N * N_STEPS);
    hp_executor_destroy(executor);
    hp_trace_destroy(trace);
    free(notes);
}

/* ---- statistics and spans -------------------------------------------------------------------- */

/* Steps of one operation each until the compute stream stood still for it: a busy machine may keep
 * the caller away until the operation is over. Returns how many it took. */
static uint32_t stand_still(hp_executor *executor, hp_op op) {
    hp_executor_stats stats;
    for (uint32_t n = 1; n <= 1000; n++) {
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        submit(executor, op);
        assert_int_equal(hp_executor_drain(executor), HP_OK);
        hp_executor_stats_get(executor, &stats);
        if (stats.waited_ns[op.stream])
            return n;
    }
    fail_msg("expected the compute stream to stand still once in 1000 steps");
    return 0;
}

static hp_op make_sleep(unsigned stream) {
    hp_op op = make_op(0, K_SLEEP, stream, 0);
    op.unit = 0;
    op.bytes = 2000000;
    return op;
}

static void statistics_tell_who_was_waited_for(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_THREAD);
    hp_executor_stats stats, later;
    const uint32_t n = stand_still(executor, make_sleep(HP_STREAM_REDUCE));
    hp_executor_stats_get(executor, &stats);
    assert_true(stats.busy_ns[HP_STREAM_REDUCE] >= n * UINT64_C(2000000));
    assert_int_equal(stats.waited_ns[HP_STREAM_UNSHARD], 0);
    assert_int_equal(stats.waited_ns[HP_STREAM_COMPUTE], 0);
    /* a stream that waits is not the compute stream, and what was there already is not waited for
     */
    submit(executor, make_op(1, K_GATE, HP_STREAM_UNSHARD, 0));
    submit(executor, make_op(2, K_NOTE, HP_STREAM_REPLICATE, hpi_done(1)));
    open_gate(notes, 0);
    while (!atomic_load(&notes->end[2]))
        sched_yield();
    assert_int_equal(hp_executor_wait(executor, hpi_done(0)), HP_OK);
    assert_int_equal(hp_executor_wait(executor, hpi_done(1)), HP_OK);
    hp_executor_stats_get(executor, &later);
    assert_int_equal(later.waited_ns[HP_STREAM_REDUCE], stats.waited_ns[HP_STREAM_REDUCE]);
    assert_int_equal(later.waited_ns[HP_STREAM_UNSHARD], 0);
    assert_true(hp_executor_now_ns(executor) > 0);
    hp_executor_destroy(executor);
    free(notes);
}

static void inline_hides_nothing(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_INLINE);
    hp_executor_stats stats;
    submit(executor, make_sleep(HP_STREAM_REDUCE));
    hp_executor_stats_get(executor, &stats);
    assert_true(stats.waited_ns[HP_STREAM_REDUCE] >= stats.busy_ns[HP_STREAM_REDUCE]);
    assert_true(stats.busy_ns[HP_STREAM_REDUCE] >= 2000000);
    hp_executor_destroy(executor);
    free(notes);
}

static const hp_span *find_span(const hp_trace *trace, unsigned stream, const char *name,
                                uint32_t id, uint32_t step) {
    for (uint64_t i = 0; i < hp_trace_count(trace, stream); i++) {
        const hp_span *span = hp_trace_at(trace, stream, i);
        if (strcmp(span->name, name) == 0 && span->id == id && span->step == step)
            return span;
    }
    return NULL;
}

static void spans_show_every_operation(void **state) {
    (void)state;
    static const char *const units[] = {"embed", "head"};
    struct notes *notes = make_notes();
    hp_trace *trace = NULL;
    assert_int_equal(hp_trace_create(0, 100, &trace), HP_OK);
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.trace = trace;
    config.units = units;
    config.n_units = 2;
    hp_executor *executor = create_with(notes, config, HP_EXECUTOR_THREAD);
    hp_op send = make_op(0, K_SEND, HP_STREAM_UNSHARD, 0);
    hp_op wait = make_op(1, K_NOTHING, HP_STREAM_COMPUTE, hpi_drained(0));
    send.unit = 1;
    send.bytes = 77;
    open_gate(notes, 0);
    for (uint32_t step = 0; step < 2; step++) {
        assert_int_equal(hp_executor_begin_step(executor), HP_OK);
        submit(executor, send);
        submit(executor, wait);
        assert_int_equal(hp_executor_drain(executor), HP_OK);
        const hp_span *sent = find_span(trace, HP_STREAM_UNSHARD, "send", 0, step);
        const hp_span *waited = find_span(trace, HP_STREAM_COMPUTE, "nothing", 1, step);
        const hp_span *drained = find_span(trace, HP_STREAM_COMPUTE, "drain", 0, step);
        assert_non_null(sent);
        assert_non_null(waited);
        assert_non_null(drained);
        assert_string_equal(sent->detail, "head");
        assert_int_equal(sent->bytes, 77);
        assert_true(sent->begin_ns <= sent->end_ns);
        assert_null(waited->detail);
        assert_int_equal(waited->begin_ns, waited->end_ns);
        assert_string_equal(drained->detail, "head");
        assert_true(sent->end_ns <= drained->begin_ns && drained->end_ns <= waited->begin_ns);
    }
    hp_executor_destroy(executor);
    hp_trace_destroy(trace);
    free(notes);
}

static void standing_still_is_a_span(void **state) {
    (void)state;
    static const char *const units[] = {"embed"};
    struct notes *notes = make_notes();
    hp_trace *trace = NULL;
    assert_int_equal(hp_trace_create(0, 1000, &trace), HP_OK);
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.trace = trace;
    config.units = units;
    config.n_units = 1;
    hp_executor *executor = create_with(notes, config, HP_EXECUTOR_THREAD);
    const uint32_t n = stand_still(executor, make_sleep(HP_STREAM_REDUCE));
    const hp_span *wait = find_span(trace, HP_STREAM_COMPUTE, "wait", 0, n - 1);
    assert_non_null(wait);
    assert_string_equal(wait->detail, "embed");
    hp_executor_stats stats;
    hp_executor_stats_get(executor, &stats);
    assert_int_equal(wait->end_ns - wait->begin_ns, stats.waited_ns[HP_STREAM_REDUCE]);
    hp_executor_destroy(executor);
    hp_trace_destroy(trace);
    free(notes);
}

static void stream_names(void **state) {
    (void)state;
    assert_string_equal(hp_stream_id_name(HP_STREAM_COMPUTE), "compute");
    assert_string_equal(hp_stream_id_name(HP_STREAM_REPLICATE), "replicate");
    assert_string_equal(hp_stream_id_name(HP_N_STREAMS), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_in_order_and_waits_are_kept),
        cmocka_unit_test(compute_is_the_caller_and_streams_have_threads),
        cmocka_unit_test(inline_runs_in_the_caller_in_list_order),
        cmocka_unit_test(streams_wait_for_compute),
        cmocka_unit_test(done_comes_before_drained),
        cmocka_unit_test(drain_drains_whatever_is_left),
        cmocka_unit_test(destroy_runs_and_drains_what_was_submitted),
        cmocka_unit_test(a_step_begins_when_the_last_is_drained),
        cmocka_unit_test(a_running_operation_holds_the_step),
        cmocka_unit_test(steps_reuse_the_table),
        cmocka_unit_test(broken_lists_change_nothing),
        cmocka_unit_test(wrong_configs_are_refused),
        cmocka_unit_test(an_older_config_is_taken),
        cmocka_unit_test(creation_without_memory),
        cmocka_unit_test(a_second_thread_is_told),
        cmocka_unit_test(executors_agree),
        cmocka_unit_test(a_hundred_thousand_operations),
        cmocka_unit_test(statistics_tell_who_was_waited_for),
        cmocka_unit_test(inline_hides_nothing),
        cmocka_unit_test(spans_show_every_operation),
        cmocka_unit_test(standing_still_is_a_span),
        cmocka_unit_test(stream_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
