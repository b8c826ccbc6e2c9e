/* SPDX-License-Identifier: Apache-2.0
 *
 * test_virtual.c - virtual time: timelines that were computed by hand, and what the executor and
 * the simulation of all ranks say of the same lists.
 *
 * Kinds are WORK (local), GATHER and SUM (collectives), BEGIN and END. Costs: a byte takes 1 ns, a
 * GATHER 10 ns before that. Communicators 1 and 2 share a link where a test says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"
#include "stream/stream.h"
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORK, GATHER, SUM, BEGIN, END, N_KINDS, N_COMMS = 4, MAX_OPS = 64, N_RANKS = 2 };

static const hp_kind kinds[N_KINDS] = {{"work", NULL, NULL, HP_ROLE_PLAIN},
                                       {"gather", NULL, NULL, HP_ROLE_PLAIN},
                                       {"sum", NULL, NULL, HP_ROLE_PLAIN},
                                       {"begin", NULL, NULL, HP_ROLE_BEGIN},
                                       {"end", NULL, NULL, HP_ROLE_END}};

/* ---- the bench --------------------------------------------------------------------------------
 */

struct bench {
    hp_cost costs[N_KINDS][N_COMMS];
    hp_cost_model model;
    hp_op ops[N_RANKS][MAX_OPS];
    uint32_t n[N_RANKS], n_seq[N_RANKS][N_COMMS];
    hp_moment moments[N_RANKS][MAX_OPS];
    hp_executor_stats stats[N_RANKS];
    uint64_t end_ns;
};

static void set_up(struct bench *b, uint32_t link) {
    const hp_cost_model model = HP_COST_MODEL_INIT;
    memset(b, 0, sizeof *b);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int comm = 0; comm < N_COMMS; comm++)
            b->costs[kind][comm] = (hp_cost){kind == GATHER ? 10 : 0, 1.0, comm ? link : 0};
    b->model = model;
    b->model.costs = &b->costs[0][0];
    b->model.n_kinds = N_KINDS;
    b->model.n_comms = N_COMMS;
}

/* Append an operation of `bytes` to a rank's list; returns its done event. */
static hp_event add(struct bench *b, int rank, uint16_t kind, uint16_t stream, uint32_t comm,
                    uint64_t bytes, hp_event wait) {
    hp_op *op = &b->ops[rank][b->n[rank]];
    *op = (hp_op){.kind = kind,
                  .stream = stream,
                  .id = b->n[rank]++,
                  .unit = 0,
                  .comm = comm,
                  .seq = comm ? b->n_seq[rank][comm]++ : 0,
                  .n_waits = wait != 0,
                  .waits = {wait},
                  .bytes = bytes,
                  .blocks = 1};
    return hpi_done(op->id);
}

static hp_status simulate(struct bench *b, uint32_t n_ranks, uint32_t n_steps, const char *delay) {
    static const int colors[N_COMMS][N_RANKS] = {{0, 0}, {0, 0}, {0, 0}, {0, 1}};
    int few[N_COMMS][1] = {{0}, {0}, {0}, {0}};
    hp_list lists[4 * N_RANKS];
    hp_moment *moments[4 * N_RANKS];
    for (uint32_t i = 0; i < n_steps * n_ranks; i++) {
        lists[i] = (hp_list){b->ops[i % n_ranks], b->n[i % n_ranks]};
        moments[i] = b->moments[i % n_ranks];
    }
    hp_job job = HP_JOB_INIT;
    job.n_ranks = n_ranks;
    job.n_steps = n_steps;
    job.lists = lists;
    job.kinds = kinds;
    job.n_kinds = N_KINDS;
    job.colors = n_ranks == N_RANKS ? &colors[0][0] : &few[0][0];
    job.n_comms = N_COMMS;
    return hp_simulate(&job, &b->model, delay, moments, b->stats, &b->end_ns);
}

static void check(const struct bench *b, int rank, uint32_t id, uint64_t begin, uint64_t done) {
    const hp_moment *m = &b->moments[rank][id];
    if (m->begin_ns != begin || m->done_ns != done || m->drained_ns != done)
        fail_msg("rank %d, operation %u: %llu to %llu, expected %llu to %llu", rank, id,
                 (unsigned long long)m->begin_ns, (unsigned long long)m->done_ns,
                 (unsigned long long)begin, (unsigned long long)done);
}

/* ---- one rank ---------------------------------------------------------------------------------
 */

/*  compute  |work 100|    wait 20     |work 50|
 *  unshard  |gather 10 + 110         |              */
static void two_streams_and_a_wait(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    const hp_event gathered = add(b, 0, GATHER, HP_STREAM_UNSHARD, 1, 110, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 100, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 50, gathered);
    assert_int_equal(simulate(b, 1, 1, NULL), HP_OK);
    check(b, 0, 0, 0, 120);
    check(b, 0, 1, 0, 100);
    check(b, 0, 2, 120, 170);
    assert_int_equal(b->end_ns, 170);
    assert_int_equal(b->stats[0].n_ops, 3);
    assert_int_equal(b->stats[0].busy_ns[HP_STREAM_COMPUTE], 150);
    assert_int_equal(b->stats[0].busy_ns[HP_STREAM_UNSHARD], 120);
    assert_int_equal(b->stats[0].waited_ns[HP_STREAM_UNSHARD], 20);
    assert_int_equal(b->stats[0].waited_ns[HP_STREAM_REDUCE], 0);
}

/* An operation of another stream is not there before its rank has come to it: the list says so by
 * the begins and ends of compute. */
static void nobody_submits_from_inside_a_unit(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    add(b, 0, BEGIN, HP_STREAM_COMPUTE, 0, 0, 0);
    add(b, 0, END, HP_STREAM_COMPUTE, 0, 70, 0);
    add(b, 0, SUM, HP_STREAM_REDUCE, 2, 30, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 5, 0);
    assert_int_equal(simulate(b, 1, 1, NULL), HP_OK);
    check(b, 0, 2, 70, 100);
    check(b, 0, 3, 70, 75);
    assert_int_equal(b->stats[0].waited_ns[HP_STREAM_REDUCE], 25); /* the end of the step */
}

/* Steps follow each other; nothing of the next begins before the last is drained. */
static void steps_follow_each_other(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 10, 0);
    add(b, 0, SUM, HP_STREAM_REPLICATE, 3, 25, 0);
    assert_int_equal(simulate(b, 1, 3, NULL), HP_OK);
    check(b, 0, 0, 50, 60); /* of the third */
    check(b, 0, 1, 50, 75);
    assert_int_equal(b->end_ns, 75);
    assert_int_equal(b->stats[0].n_ops, 6);
}

/* ---- links ------------------------------------------------------------------------------------
 */

/*  unshard  |gather 10, alone to 60 (50 bytes), shared to 160 (50)      |
 *  reduce                    |sum from 60: shared to 160 (50), alone to 210 (50)| */
static void two_on_one_link_get_half_each(void **state) {
    struct bench *b = *state;
    set_up(b, 7);
    const hp_event worked = add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 60, 0);
    add(b, 0, GATHER, HP_STREAM_UNSHARD, 1, 100, 0);
    add(b, 0, SUM, HP_STREAM_REDUCE, 2, 100, worked);
    assert_int_equal(simulate(b, 1, 1, NULL), HP_OK);
    check(b, 0, 1, 0, 160);
    check(b, 0, 2, 60, 210);
}

/* 100, 40 and 10 bytes at once: a third each until the small one is through at 30, half each until
 * the next is at 90, then alone. The latency of a gather is not shared. */
static void three_on_one_link(void **state) {
    struct bench *b = *state;
    set_up(b, 7);
    add(b, 0, SUM, HP_STREAM_UNSHARD, 1, 100, 0);
    add(b, 0, SUM, HP_STREAM_REDUCE, 2, 40, 0);
    add(b, 0, SUM, HP_STREAM_REPLICATE, 3, 10, 0);
    assert_int_equal(simulate(b, 1, 1, NULL), HP_OK);
    check(b, 0, 2, 0, 30);
    check(b, 0, 1, 0, 90);
    check(b, 0, 0, 0, 150);
}

/* Ends that are no whole number of ns are rounded up, and what shares with them loses nothing. */
static void ends_are_rounded_up(void **state) {
    struct bench *b = *state;
    set_up(b, 7);
    b->costs[SUM][1].ns_per_byte = 0.5; /* 1 byte: rounded to 1 ns */
    add(b, 0, SUM, HP_STREAM_UNSHARD, 1, 1, 0);
    add(b, 0, SUM, HP_STREAM_REDUCE, 2, 2, 0);
    add(b, 0, SUM, HP_STREAM_REPLICATE, 3, 3, 0);
    assert_int_equal(simulate(b, 1, 1, NULL), HP_OK);
    check(b, 0, 0, 0, 3);
    check(b, 0, 1, 0, 5);
    check(b, 0, 2, 0, 6);
}

/* Rank 1's link is busy with a collective of its own (communicator 3), so the one that both are in
 * moves at half the rate on both. */
static void a_busy_member_slows_all(void **state) {
    struct bench *b = *state;
    set_up(b, 7);
    for (int rank = 0; rank < N_RANKS; rank++)
        add(b, rank, SUM, HP_STREAM_UNSHARD, 1, 100, 0);
    add(b, 1, SUM, HP_STREAM_REPLICATE, 3, 30, 0);
    assert_int_equal(simulate(b, N_RANKS, 1, NULL), HP_OK);
    check(b, 1, 1, 0, 60);
    check(b, 0, 0, 0, 130);
    check(b, 1, 0, 0, 130);
}

/* ---- joins ------------------------------------------------------------------------------------
 */

static void a_late_rank_holds_up_the_others(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    const uint64_t work[N_RANKS] = {30, 80};
    for (int rank = 0; rank < N_RANKS; rank++) {
        const hp_event worked = add(b, rank, WORK, HP_STREAM_COMPUTE, 0, work[rank], 0);
        const hp_event gathered = add(b, rank, GATHER, HP_STREAM_UNSHARD, 1, 40, worked);
        add(b, rank, WORK, HP_STREAM_COMPUTE, 0, 5, gathered);
    }
    assert_int_equal(simulate(b, N_RANKS, 1, NULL), HP_OK);
    check(b, 0, 1, 30, 130);
    check(b, 1, 1, 80, 130);
    check(b, 0, 2, 130, 135);
    assert_int_equal(b->stats[0].waited_ns[HP_STREAM_UNSHARD], 100);
    assert_int_equal(b->stats[1].waited_ns[HP_STREAM_UNSHARD], 50);
}

static void a_delayed_rank_too(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    for (int rank = 0; rank < N_RANKS; rank++)
        add(b, rank, GATHER, HP_STREAM_UNSHARD, 1, 40, 0);
    assert_int_equal(simulate(b, N_RANKS, 1, "kind=gather,rank=1,us=2"), HP_OK);
    check(b, 0, 0, 0, 2050);
    check(b, 1, 0, 0, 2050);
    assert_int_equal(simulate(b, N_RANKS, 1, "kind=gather,rank=1,us=2;kind=*,us=1"), HP_OK);
    check(b, 0, 0, 0, 3050);
    assert_int_equal(simulate(b, N_RANKS, 1, "kind=sum,us=2"), HP_OK);
    check(b, 0, 0, 0, 50);
    assert_int_equal(simulate(b, N_RANKS, 1, "kind=some,us=2"), HP_ERR_ARGUMENT);
}

/* ---- what cannot be run -----------------------------------------------------------------------
 */

static void check_says(hp_status status, hp_status expected, const char *text) {
    hp_error error;
    hp_last_error_get(&error);
    if (status != expected || !strstr(error.message, text))
        fail_msg("expected %s and \"%s\", given %s and \"%s\"", hp_status_name(expected), text,
                 hp_status_name(status), error.message);
}

static void what_never_moves_is_unsound(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    add(b, 0, GATHER, HP_STREAM_UNSHARD, 1, 40, 0);
    add(b, 1, WORK, HP_STREAM_COMPUTE, 0, 40, 0);
    check_says(simulate(b, N_RANKS, 1, NULL), HP_ERR_UNSOUND,
               "rank 0, step 0: operation 0 (gather, communicator 1, position 0) waits for rank 1");
    set_up(b, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 1, hpi_done(1));
    add(b, 0, WORK, HP_STREAM_REDUCE, 0, 1, hpi_done(0));
    check_says(simulate(b, 1, 1, NULL), HP_ERR_UNSOUND, "waits in a circle");
    set_up(b, 0); /* two communicators, taken in opposite orders */
    for (int rank = 0; rank < N_RANKS; rank++)
        for (uint32_t k = 0; k < 2; k++)
            add(b, rank, SUM, HP_STREAM_COMPUTE, 1 + ((uint32_t)rank + k) % 2, 8, 0);
    check_says(simulate(b, N_RANKS, 1, NULL), HP_ERR_UNSOUND, "waits for rank 1");
}

static void broken_arguments_are_refused(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 1, 0);
    b->costs[WORK][0].ns_per_byte = -1;
    check_says(simulate(b, 1, 1, NULL), HP_ERR_ARGUMENT, "kind 0 on communicator 0");
    b->costs[WORK][0].ns_per_byte = 1e9;
    b->ops[0][0].bytes = UINT64_MAX;
    check_says(simulate(b, 1, 1, NULL), HP_ERR_ARGUMENT, "expected operation 0 to take up to");
    b->ops[0][0].bytes = 1;
    b->ops[0][0].waits[b->ops[0][0].n_waits++] = hpi_done(1);
    check_says(simulate(b, 1, 1, NULL), HP_ERR_ARGUMENT, "to wait for events of its step");
    b->ops[0][0].n_waits = 0;
    b->ops[0][0].comm = N_COMMS;
    check_says(simulate(b, 1, 1, NULL), HP_ERR_ARGUMENT, "communicator 4");
    b->ops[0][0].comm = 0;
    b->model.n_kinds = N_KINDS - 1;
    check_says(simulate(b, 1, 1, NULL), HP_ERR_ARGUMENT, "expected costs of 5 kinds");
    b->model.n_kinds = N_KINDS;
    b->model.size--;
    check_says(simulate(b, 1, 1, NULL), HP_ERR_VERSION, "hp_cost_model.size");
    assert_int_equal(hp_simulate(NULL, NULL, NULL, NULL, NULL, &b->end_ns), HP_ERR_ARGUMENT);
}

static void memory_that_is_not_there_is_told(void **state) {
    struct bench *b = *state;
    set_up(b, 7);
    for (int rank = 0; rank < N_RANKS; rank++)
        add(b, rank, GATHER, HP_STREAM_UNSHARD, 1, 40, 0);
    hp_status status = HP_ERR_MEMORY;
    uint64_t n = 0;
    while (status == HP_ERR_MEMORY && n < 1000) {
        hpi_alloc_fail_after(++n);
        status = simulate(b, N_RANKS, 1, "kind=*,us=1");
        hpi_alloc_fail_after(0);
    }
    assert_int_equal(status, HP_OK);
    assert_true(n > 10);
}

/* ---- the executor -----------------------------------------------------------------------------
 */

static hp_executor *create(const struct bench *b, hp_trace *trace, const char *delay) {
    hp_executor *executor = NULL;
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.type = HP_EXECUTOR_VIRTUAL;
    config.kinds = kinds;
    config.n_kinds = N_KINDS;
    config.max_ops = MAX_OPS;
    config.costs = &b->model;
    config.trace = trace;
    config.delay = delay;
    assert_int_equal(hp_executor_create(&config, &executor), HP_OK);
    return executor;
}

/* The caller is the compute stream: a call returns at the moment at which its operations are done,
 * and what others do is behind it or still to come. */
static void the_caller_is_the_compute_stream(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    hp_executor *executor = create(b, NULL, NULL);
    const hp_event gathered = add(b, 0, GATHER, HP_STREAM_UNSHARD, 1, 110, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 100, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 50, gathered);
    add(b, 0, SUM, HP_STREAM_REDUCE, 2, 500, 0);
    assert_int_equal(hp_executor_submit(executor, b->ops[0], 1), HP_OK);
    assert_int_equal(hp_executor_now_ns(executor), 0);
    assert_int_equal(hp_executor_submit(executor, b->ops[0] + 1, 1), HP_OK);
    assert_int_equal(hp_executor_now_ns(executor), 100);
    assert_int_equal(hp_executor_wait(executor, gathered), HP_OK);
    assert_int_equal(hp_executor_now_ns(executor), 120);
    assert_int_equal(hp_executor_submit(executor, b->ops[0] + 2, 2), HP_OK);
    assert_int_equal(hp_executor_now_ns(executor), 170);
    assert_int_equal(hp_executor_begin_step(executor), HP_ERR_STATE);
    assert_int_equal(hp_executor_drain(executor), HP_OK);
    assert_int_equal(hp_executor_now_ns(executor), 620); /* submitted at 120 */
    hp_executor_stats stats;
    hp_executor_stats_get(executor, &stats);
    assert_int_equal(stats.n_ops, 4);
    assert_int_equal(stats.waited_ns[HP_STREAM_UNSHARD], 20);
    assert_int_equal(stats.waited_ns[HP_STREAM_REDUCE], 450);
    assert_int_equal(stats.busy_ns[HP_STREAM_REDUCE], 500);
    assert_int_equal(hp_executor_begin_step(executor), HP_OK);
    assert_int_equal(hp_executor_now_ns(executor), 620);
    assert_int_equal(hp_executor_wait(executor, hpi_done(0)), HP_ERR_ARGUMENT);
    hp_executor_destroy(executor);
}

/* A list of what a training does: gathers ahead, sums behind, begins and ends of compute. */
static void make_training(struct bench *b, int rank) {
    hp_event gathered = add(b, rank, GATHER, HP_STREAM_UNSHARD, 1, 90, 0), summed = 0;
    for (int i = 0; i < 8; i++) {
        const hp_event ready = gathered;
        if (i < 7)
            gathered = add(b, rank, GATHER, HP_STREAM_UNSHARD, 1, 60 + 9 * (uint64_t)i, 0);
        add(b, rank, BEGIN, HP_STREAM_COMPUTE, 0, 0, ready);
        const hp_event ended = add(b, rank, END, HP_STREAM_COMPUTE, 0, 75, 0);
        if (summed)
            add(b, rank, WORK, HP_STREAM_COMPUTE, 0, 3, summed);
        summed = add(b, rank, SUM, HP_STREAM_REDUCE, 2, 40 + 7 * (uint64_t)i, ended);
        if (i % 2)
            add(b, rank, SUM, HP_STREAM_REPLICATE, 3, 55, summed);
    }
}

/* Ranks that do the same see what one of them sees alone: moments, stats and end are equal, with
 * links that are shared and with delays, over three steps; and twice the same. */
static void executor_and_simulation_agree(void **state) {
    struct bench *b = *state;
    const char *const delays[] = {NULL, "kind=gather,us=1", "kind=*,us=1,stream=reduce"};
    for (uint32_t k = 0; k < 6; k++) {
        set_up(b, k % 2 ? 7 : 0);
        for (int rank = 0; rank < N_RANKS; rank++)
            make_training(b, rank);
        assert_int_equal(simulate(b, N_RANKS, 3, delays[k / 2]), HP_OK);
        hp_trace *trace = NULL;
        assert_int_equal(hp_trace_create(0, 1024, &trace), HP_OK);
        hp_executor *executor = create(b, trace, delays[k / 2]);
        for (int step = 0; step < 3; step++) {
            assert_int_equal(hp_executor_begin_step(executor), HP_OK);
            for (uint32_t at = 0; at < b->n[0];) { /* as the calls of a user's loop bring them */
                uint32_t n = 1;
                while (at + n < b->n[0] && b->ops[0][at + n - 1].kind != BEGIN)
                    n++;
                assert_int_equal(hp_executor_submit(executor, b->ops[0] + at, n), HP_OK);
                at += n;
            }
            assert_int_equal(hp_executor_drain(executor), HP_OK);
        }
        hp_executor_stats stats;
        hp_executor_stats_get(executor, &stats);
        assert_int_equal(hp_executor_now_ns(executor), b->end_ns);
        assert_memory_equal(&stats, &b->stats[0], sizeof stats);
        assert_memory_equal(&stats, &b->stats[1], sizeof stats);
        for (unsigned s = 0; s < HP_N_STREAMS; s++) {
            uint64_t n = 0; /* the spans are the moments of the third step */
            for (uint64_t i = 0; i < hp_trace_count(trace, s); i++) {
                const hp_span *span = hp_trace_at(trace, s, i);
                if (span->step == 2 && span->name != hpi_span_wait) {
                    check(b, 0, span->id, span->begin_ns, span->end_ns);
                    n++;
                }
            }
            assert_true(n > 3);
        }
        hp_executor_destroy(executor);
        hp_trace_destroy(trace);
    }
}

static hp_status run_and_fail(void *context, const hp_op *op) {
    uint32_t *n_run = context;
    ++*n_run;
    return op->bytes == 13 ? HPI_FAIL_RANK(HP_ERR_PEER, 3, "unlucky") : HP_OK;
}

static hp_status never(void *context, const hp_op *op) {
    (void)context;
    (void)op;
    return HPI_FAIL(HP_ERR_FAILED, "nothing is drained in virtual time");
}

static void what_runs_is_called_and_may_fail(void **state) {
    struct bench *b = *state;
    set_up(b, 0);
    const hp_kind one[] = {{"work", run_and_fail, never, HP_ROLE_PLAIN}};
    uint32_t n_run = 0;
    hp_executor *executor = NULL;
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.type = HP_EXECUTOR_VIRTUAL;
    config.kinds = one;
    config.n_kinds = 1;
    config.context = &n_run;
    assert_int_equal(hp_executor_create(&config, &executor), HP_OK);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 1, 0);
    add(b, 0, WORK, HP_STREAM_REDUCE, 0, 1, 0);
    add(b, 0, WORK, HP_STREAM_COMPUTE, 0, 13, 0);
    assert_int_equal(hp_executor_submit(executor, b->ops[0], 2), HP_OK);
    assert_int_equal(hp_executor_drain(executor), HP_OK);
    assert_int_equal(n_run, 2);
    assert_int_equal(hp_executor_submit(executor, b->ops[0] + 2, 1), HP_ERR_PEER);
    check_says(hp_executor_drain(executor), HP_ERR_PEER, "unlucky");
    hp_executor_destroy(executor);
    config.type = HP_EXECUTOR_INLINE;
    config.costs = &b->model;
    assert_int_equal(hp_executor_create(&config, &executor), HP_ERR_ARGUMENT);
}

/* ---- many -------------------------------------------------------------------------------------
 */

/* 1,024 ranks, groups of 8 and groups of 128, one list for all: what a plan of a large run is. */
static void a_thousand_ranks(void **state) {
    struct bench *b = *state;
    enum { MANY = 1024, SHARDS = 8 };
    set_up(b, 7);
    make_training(b, 0);
    hp_list *lists = calloc(MANY, sizeof *lists);
    int *colors = calloc((size_t)N_COMMS * MANY, sizeof *colors);
    hp_executor_stats *stats = calloc(MANY, sizeof *stats);
    assert_true(lists && colors && stats);
    for (int rank = 0; rank < MANY; rank++) {
        lists[rank] = (hp_list){b->ops[0], b->n[0]};
        for (int comm = 1; comm < N_COMMS; comm++)
            colors[comm * MANY + rank] = comm == 3 ? rank % SHARDS : rank / SHARDS;
    }
    hp_job job = HP_JOB_INIT;
    job.n_ranks = MANY;
    job.n_steps = 1;
    job.lists = lists;
    job.kinds = kinds;
    job.n_kinds = N_KINDS;
    job.colors = colors;
    job.n_comms = N_COMMS;
    uint64_t end_ns = 0;
    assert_int_equal(simulate(b, 1, 1, NULL), HP_OK);
    assert_int_equal(hp_simulate(&job, &b->model, NULL, NULL, stats, &end_ns), HP_OK);
    assert_int_equal(end_ns, b->end_ns);
    for (int rank = 0; rank < MANY; rank++)
        assert_memory_equal(&stats[rank], &b->stats[0], sizeof *stats);
    /* one late rank: everybody is late at last, its shard group and then the replicas */
    assert_int_equal(
        hp_simulate(&job, &b->model, "kind=gather,rank=77,us=1000", NULL, stats, &end_ns), HP_OK);
    assert_true(end_ns > UINT64_C(8000000));
    free(lists);
    free(colors);
    free(stats);
}

int main(void) {
    struct bench *b = calloc(1, sizeof *b);
    void *state = b;
    if (!b)
        return 1;
#define TEST(function) cmocka_unit_test_prestate(function, state)
    const struct CMUnitTest tests[] = {
        TEST(two_streams_and_a_wait),
        TEST(nobody_submits_from_inside_a_unit),
        TEST(steps_follow_each_other),
        TEST(two_on_one_link_get_half_each),
        TEST(three_on_one_link),
        TEST(ends_are_rounded_up),
        TEST(a_busy_member_slows_all),
        TEST(a_late_rank_holds_up_the_others),
        TEST(a_delayed_rank_too),
        TEST(what_never_moves_is_unsound),
        TEST(broken_arguments_are_refused),
        TEST(memory_that_is_not_there_is_told),
        TEST(the_caller_is_the_compute_stream),
        TEST(executor_and_simulation_agree),
        TEST(what_runs_is_called_and_may_fail),
        TEST(a_thousand_ranks),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(b);
    return failed;
}
