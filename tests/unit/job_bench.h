/* SPDX-License-Identifier: Apache-2.0
 *
 * job_bench.h - a job for hp_verify, an operation a line.
 *
 * A few kinds stand for all: "share" is a collective, "hold" and "let go" a begin and its end. Two
 * communicators join all ranks. Included by the tests that use it.
 */
#ifndef TESTS_JOB_BENCH_H
#define TESTS_JOB_BENCH_H

#include "base/base.h"
#include "stream/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { K_WORK, K_SHARE, K_ALLOCATE, K_RELEASE, K_HOLD, K_LET_GO, N_KINDS };
enum { MAX_RANKS = 4, MAX_STEPS = 3, MAX_OPS = 64, N_BUFFERS = 6, N_COMMS = 3, BYTES = 4096 };
enum { COMPUTE = HP_STREAM_COMPUTE, UNSHARD = HP_STREAM_UNSHARD, REDUCE = HP_STREAM_REDUCE };

static const hp_kind kinds[N_KINDS] = {
    [K_WORK] = {"work", NULL, NULL, HP_ROLE_PLAIN},
    [K_SHARE] = {"share", NULL, NULL, HP_ROLE_PLAIN},
    [K_ALLOCATE] = {"allocate", NULL, NULL, HP_ROLE_ALLOCATE},
    [K_RELEASE] = {"release", NULL, NULL, HP_ROLE_RELEASE},
    [K_HOLD] = {"hold", NULL, NULL, HP_ROLE_BEGIN},
    [K_LET_GO] = {"let_go", NULL, NULL, HP_ROLE_END},
};

struct bench {
    hp_op ops[MAX_STEPS][MAX_RANKS][MAX_OPS];
    hp_list lists[MAX_STEPS * MAX_RANKS];
    hp_buffer buffers[N_BUFFERS];
    int colors[N_COMMS * MAX_RANKS];
    uint32_t n_seqs[MAX_STEPS][MAX_RANKS][N_COMMS];
    hp_job job;
    hp_verdict verdict;
};

static inline void start(struct bench *b, uint32_t n_ranks, uint32_t n_steps) {
    static const char *const units[] = {"block 0", "block 1"};
    memset(b, 0, sizeof *b);
    b->job = (hp_job)HP_JOB_INIT;
    b->job.n_ranks = n_ranks;
    b->job.n_steps = n_steps;
    b->job.lists = b->lists;
    b->job.kinds = kinds;
    b->job.n_kinds = N_KINDS;
    b->job.buffers = b->buffers;
    b->job.n_buffers = N_BUFFERS;
    b->job.colors = b->colors;
    b->job.n_comms = N_COMMS;
    b->job.units = units;
    b->job.n_units = 2;
    for (int i = 1; i < N_BUFFERS; i++)
        b->buffers[i].bytes = BYTES;
    for (uint32_t s = 0; s < n_steps; s++)
        for (uint32_t r = 0; r < n_ranks; r++)
            b->lists[s * n_ranks + r].ops = b->ops[s][r];
}

/* Append to a list. */
static inline hp_op *add(struct bench *b, uint32_t step, uint32_t rank, uint16_t kind,
                         uint16_t stream) {
    hp_list *list = &b->lists[step * b->job.n_ranks + rank];
    assert_true(list->n < MAX_OPS);
    hp_op *op = &b->ops[step][rank][list->n];
    *op = (hp_op){.kind = kind,
                  .stream = stream,
                  .id = (uint32_t)list->n++,
                  .unit = UINT32_MAX,
                  .param = UINT32_MAX,
                  .blocks = 1};
    return op;
}

static inline hp_op *share(struct bench *b, uint32_t step, uint32_t rank, uint16_t stream,
                           uint32_t comm) {
    hp_op *op = add(b, step, rank, K_SHARE, stream);
    op->comm = comm;
    op->seq = b->n_seqs[step][rank][comm]++;
    op->peers_read = 1;
    return op;
}

static inline hp_ref piece(uint32_t buffer, uint32_t life, uint64_t begin, uint64_t end) {
    return (hp_ref){buffer, life, begin, end};
}
static inline hp_ref whole(uint32_t buffer, uint32_t life) {
    return piece(buffer, life, 0, BYTES);
}
static inline hp_op *reads(hp_op *op, hp_ref ref) {
    op->reads[op->reads[0].buffer != 0] = ref;
    return op;
}
static inline hp_op *writes(hp_op *op, hp_ref ref) {
    op->writes[op->writes[0].buffer != 0] = ref;
    return op;
}
static inline hp_op *after(hp_op *op, hp_event event) {
    op->waits[op->n_waits++] = event;
    return op;
}

static inline void expect_sound(struct bench *b) {
    const hp_status status = hp_verify(&b->job, &b->verdict);
    if (status)
        fail_msg("%s", hp_last_error());
    assert_int_equal(b->verdict.rule, HP_RULE_NONE);
}

/* Rejected for this rule, naming these two operations of step 0; the sentence holds `text`. */
static inline void expect(struct bench *b, hp_rule rule, const hp_op *first, const hp_op *second,
                          const char *text) {
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_UNSOUND);
    if (!strstr(hp_last_error(), text))
        fail_msg("expected \"%s\" in: %s", text, hp_last_error());
    assert_string_equal(hp_rule_name(b->verdict.rule), hp_rule_name(rule));
    const hp_op *const named[] = {first, second};
    for (int k = 0; k < 2; k++) {
        const hp_op *at =
            &b->ops[b->verdict.at[k].step][b->verdict.at[k].rank][b->verdict.at[k].op.id];
        if (at != named[k])
            fail_msg("expected another operation as number %d: %s", k, hp_last_error());
        assert_memory_equal(at, &b->verdict.at[k].op, sizeof *at);
    }
}

static inline int make_bench(void **state) {
    *state = malloc(sizeof(struct bench));
    return *state ? 0 : -1;
}
static inline int drop_bench(void **state) {
    free(*state);
    return 0;
}

#endif
