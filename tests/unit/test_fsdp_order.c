/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_order.c - the schedule as it really ran: recorded, traced, repeated, replayed.
 *
 * The order itself is spelled out in test_plan.c; here real ranks must submit exactly that list,
 * the thread executor's trace must show it stream by stream, from the third step on the list must
 * be the same bytes, and a step run from the recorded bytes must give the same weights.
 */
#include "base/base.h"
#include "fsdp/plan/plan.h"
#include "scratch.h"
#include "support/ranks.h"
#include "support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_STEPS = 6 };

/* ---- recorded lists ---------------------------------------------------------------------- */

/* The list of a pass, in the step before. */
struct kept {
    hp_op *ops;
    uint64_t n;
};

static void compare_and_keep(tiny *t, struct kept *kept, bool is_settled) {
    const hp_op *ops;
    const hp_kind *kinds;
    uint64_t n;
    uint32_t n_kinds;
    RANK_OK(hp_fsdp_recorded(tiny_fsdp(t), &ops, &n, &kinds, &n_kinds));
    RANK_CHECK(n > 30);
    if (is_settled)
        RANK_CHECK(n == kept->n && memcmp(kept->ops, ops, n * sizeof *ops) == 0);
    free(kept->ops);
    kept->ops = malloc(n * sizeof *ops);
    RANK_CHECK(kept->ops != NULL);
    memcpy(kept->ops, ops, n * sizeof *ops);
    kept->n = n;
}

static void same_from_step_three(hp_world *world, void *argument) {
    tiny *t = NULL;
    tiny_config config = *(const tiny_config *)argument;
    struct kept kept[3] = {{NULL, 0}};
    RANK_CHECK(config.n_passes <= 3);
    RANK_OK(tiny_create(world, &config, &t));
    for (int step = 0; step < N_STEPS; step++)
        for (int pass = 0; pass < config.n_passes; pass++) {
            double loss;
            RANK_OK(tiny_pass(t, step, pass, &loss));
            if (pass + 1 == config.n_passes)
                RANK_OK(hp_optimizer_step(tiny_optimizer(t), 1e-2));
            compare_and_keep(t, &kept[pass], step >= 2);
        }
    for (int pass = 0; pass < config.n_passes; pass++)
        free(kept[pass].ops);
    tiny_destroy(t);
}

static void test_same_bytes_from_step_three(void **state) {
    (void)state;
    tiny_config config = TINY_CONFIG_INIT;
    config.n_replicas = config.n_shards = 2;
    config.global_batch = 24;
    config.fsdp.record = 1;
    for (hp_mode mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++) {
        config.fsdp.mode = mode;
        config.n_passes = 1;
        config.is_tied = 0;
        ranks_run(4, RANKS_THREADS, same_from_step_three, &config);
        config.n_passes = 3;
        config.is_tied = 1;
        ranks_run(4, RANKS_THREADS, same_from_step_three, &config);
    }
}

/* ---- the trace shows the list ------------------------------------------------------------ */

/* Spans that are operations, in the order of recording, against the operations of that stream. */
static void compare_stream(const hp_trace *trace, unsigned stream, const hp_op *ops, uint64_t n,
                           const hp_kind *kinds) {
    uint64_t at = 0, end_of_last = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (ops[i].stream != stream)
            continue;
        const hp_span *span;
        do {
            RANK_CHECK(at < hp_trace_count(trace, stream));
            span = hp_trace_at(trace, stream, at++);
        } while (span->id != ops[i].id || strcmp(span->name, kinds[ops[i].kind].name) != 0);
        RANK_CHECK(span->begin_ns >= end_of_last);
        end_of_last = span->end_ns;
    }
}

static const hp_span *span_of(const hp_trace *trace, const hp_op *op, const hp_kind *kinds) {
    for (uint64_t i = 0; i < hp_trace_count(trace, op->stream); i++) {
        const hp_span *span = hp_trace_at(trace, op->stream, i);
        if (span->id == op->id && strcmp(span->name, kinds[op->kind].name) == 0)
            return span;
    }
    return NULL;
}

/* No operation begins before everything it waits for has ended. */
static void check_waits(const hp_trace *trace, const hp_op *ops, uint64_t n, const hp_kind *kinds) {
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t w = 0; w < ops[i].n_waits; w++) {
            const hp_op *awaited = &ops[ops[i].waits[w] / 2 - 1];
            const hp_span *mine = span_of(trace, &ops[i], kinds);
            const hp_span *theirs = span_of(trace, awaited, kinds);
            RANK_CHECK(mine && theirs);
            RANK_CHECK(mine->begin_ns >= theirs->end_ns);
        }
}

static void trace_body(hp_world *world, void *argument) {
    tiny *t = NULL;
    hp_trace *trace = NULL;
    double loss;
    const hp_op *ops;
    const hp_kind *kinds;
    uint64_t n;
    uint32_t n_kinds;
    RANK_OK(hp_trace_create(hp_world_rank(world), 4096, &trace));
    tiny_config config = TINY_CONFIG_INIT;
    config.n_replicas = config.n_shards = 2;
    config.fsdp.record = 1;
    config.fsdp.trace = trace;
    config.fsdp.mode = *(hp_mode *)argument;
    RANK_OK(tiny_create(world, &config, &t));
    RANK_OK(tiny_step(t, 0, &loss));
    RANK_OK(hp_fsdp_recorded(tiny_fsdp(t), &ops, &n, &kinds, &n_kinds));
    for (unsigned stream = 0; stream < HP_N_STREAMS; stream++)
        compare_stream(trace, stream, ops, n, kinds);
    check_waits(trace, ops, n, kinds);
    tiny_destroy(t);
    hp_trace_destroy(trace);
}

static void test_trace_shows_the_list(void **state) {
    (void)state;
    for (hp_mode mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        ranks_run(4, RANKS_THREADS, trace_body, &mode);
}

/* ---- replay ------------------------------------------------------------------------------ */

struct replay_job {
    tiny_config config;
    tiny_result result;
};

static void train_body(hp_world *world, void *argument) {
    struct replay_job *job = argument;
    tiny_result result;
    RANK_OK(tiny_train(world, &job->config, &result));
    if (hp_world_rank(world) == 0)
        job->result = result;
}

static void check_replay(int is_tied, int n_passes) {
    struct replay_job planned = {.config = TINY_CONFIG_INIT};
    planned.config.n_replicas = planned.config.n_shards = 2;
    planned.config.is_mixed = 1;
    planned.config.is_tied = is_tied;
    planned.config.n_passes = n_passes;
    planned.config.fsdp.record = 1;
    struct replay_job replayed = planned;
    replayed.config.fsdp.replay_after = 3;
    ranks_run(4, RANKS_THREADS, train_body, &planned);
    ranks_run(4, RANKS_THREADS, train_body, &replayed);
    assert_memory_equal(planned.result.losses, replayed.result.losses,
                        sizeof planned.result.losses);
    assert_int_equal(planned.result.gradients, replayed.result.gradients);
    assert_int_equal(planned.result.weights, replayed.result.weights);
}

static void test_replay_gives_the_same_bits(void **state) {
    (void)state;
    check_replay(0, 1);
    check_replay(1, 1);
    check_replay(1, 2);
}

/* A step to which other passes have left their gradients is not the one that was recorded. */
static void other_passes(hp_world *world, void *argument) {
    (void)argument;
    tiny *t = NULL;
    double loss;
    tiny_config config = TINY_CONFIG_INIT;
    config.n_shards = config.n_passes = 2;
    config.fsdp.record = 1;
    config.fsdp.replay_after = 2;
    RANK_OK(tiny_create(world, &config, &t));
    for (int step = 0; step < 4; step++) {
        RANK_OK(tiny_step(t, step, &loss));
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), 1e-2));
    }
    RANK_FAILS(tiny_pass(t, 4, 1, &loss), HP_ERR_STATE); /* without the pass before it */
    RANK_CHECK(strstr(hp_last_error(), "accumulated gradients of the recorded step") != NULL);
    RANK_OK(tiny_step(t, 4, &loss));
    tiny_destroy(t);
}

static void test_replay_refuses_other_passes(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, other_passes, NULL);
}

/* What happens between two passes is no part of what is replayed: clipping acts in some steps only,
 * new weights come in between. */
struct between_job {
    int replay_after;
    uint64_t weights;
    char directory[128];
};

static void between_body(hp_world *world, void *argument) {
    struct between_job *job = argument;
    tiny *t = NULL;
    double loss, norm;
    uint64_t weights;
    tiny_config config = TINY_CONFIG_INIT;
    config.n_shards = 2;
    config.fsdp.record = 1;
    config.fsdp.replay_after = job->replay_after;
    RANK_OK(tiny_create(world, &config, &t));
    for (int step = 0; step < N_STEPS; step++) {
        RANK_OK(tiny_step(t, step, &loss));
        RANK_OK(hp_clip_grad_norm(tiny_fsdp(t), step % 2 ? 1e-3 : 1e6, 2.0, &norm));
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), 1e-2));
        if (step == 3)
            RANK_OK(hp_weights_save(tiny_fsdp(t), job->directory, NULL));
        if (step == 4)
            RANK_OK(hp_weights_load(tiny_fsdp(t), job->directory));
    }
    RANK_OK(tiny_digest(t, 0, &weights));
    if (hp_world_rank(world) == 0)
        job->weights = weights;
    tiny_destroy(t);
}

static void test_replay_leaves_what_is_between(void **state) {
    (void)state;
    struct between_job planned = {.replay_after = 0}, replayed = {.replay_after = 2};
    snprintf(planned.directory, sizeof planned.directory, "%s", scratch_path("weights"));
    snprintf(replayed.directory, sizeof replayed.directory, "%s", scratch_path("weights"));
    ranks_run(2, RANKS_THREADS, between_body, &planned);
    ranks_run(2, RANKS_THREADS, between_body, &replayed);
    assert_int_equal(planned.weights, replayed.weights);
}

/* ---- evaluation, and steady state -------------------------------------------------------- */

static void evaluation_body(hp_world *world, void *argument) {
    (void)argument;
    tiny *t = NULL;
    double trained, before, after;
    uint64_t weights[2];
    tiny_config config = TINY_CONFIG_INIT;
    config.n_shards = 4;
    RANK_OK(tiny_create(world, &config, &t));
    for (int step = 0; step < 3; step++) {
        RANK_OK(tiny_digest(t, 0, &weights[0]));
        RANK_OK(tiny_evaluate(t, step, &before));
        RANK_OK(tiny_evaluate(t, step, &after));
        RANK_OK(tiny_digest(t, 0, &weights[1]));
        RANK_CHECK(before == after && weights[0] == weights[1]);
        RANK_OK(tiny_step(t, step, &trained));
        RANK_CHECK(trained == before);
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), 1e-2));
    }
    tiny_destroy(t);
}

static void test_evaluation(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, evaluation_body, NULL);
}

static void steady_body(hp_world *world, void *argument) {
    tiny *t = NULL;
    double loss;
    uint64_t before = 0;
    tiny_config config = TINY_CONFIG_INIT;
    config.n_replicas = config.n_shards = config.n_passes = 2;
    config.is_tied = 1;
    config.fsdp.param_dtype = HP_BF16;
    config.fsdp.reduce_dtype = HP_FP32;
    config.fsdp.replicate_wire = HP_BF16;
    config.fsdp.mode = *(hp_mode *)argument;
    RANK_OK(tiny_create(world, &config, &t));
    for (int step = 0; step < 12; step++) {
        RANK_OK(tiny_step(t, step, &loss));
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), 1e-2));
        RANK_OK(hp_barrier(hp_world_group(world)));
        if (step == 4)
            before = hpi_alloc_count();
    }
    RANK_CHECK(hpi_alloc_count() == before);
    RANK_OK(hp_barrier(hp_world_group(world))); /* nobody tears down while another still counts */
    tiny_destroy(t);
}

static void test_no_allocation_after_warm_up(void **state) {
    (void)state;
    for (hp_mode mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        ranks_run(4, RANKS_THREADS, steady_body, &mode);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes_from_step_three),
        cmocka_unit_test(test_trace_shows_the_list),
        cmocka_unit_test(test_replay_gives_the_same_bits),
        cmocka_unit_test(test_replay_refuses_other_passes),
        cmocka_unit_test_setup_teardown(test_replay_leaves_what_is_between, scratch_make,
                                        scratch_remove),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_no_allocation_after_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
