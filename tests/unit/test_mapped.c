/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mapped.c - mode mapped: the bits of per-param, and what it waits for.
 *
 * The tiny model is trained in both modes with thread ranks, where races would show under
 * ThreadSanitizer, and losses, gradients and weights are compared bit for bit. Then what a step
 * waits for, counted in its operations; and what the peers of a rank that has died are told.
 */
#include "base/base.h"
#include "support/ranks.h"
#include "support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- bits ------------------------------------------------------------------------------------ */

struct job {
    tiny_config config;
    tiny_result result; /* of rank 0 */
};

static void train_body(hp_world *world, void *argument) {
    struct job *job = argument;
    tiny_result result;
    RANK_OK(tiny_train(world, &job->config, &result));
    if (hp_world_rank(world) == 0)
        job->result = result;
}

static struct job train(const tiny_config *config, hp_mode mode) {
    struct job job = {.config = *config};
    job.config.fsdp.mode = mode;
    ranks_run(config->n_replicas * config->n_shards, RANKS_THREADS, train_body, &job);
    return job;
}

static void expect_same_bits(const tiny_config *config) {
    const struct job a = train(config, HP_PER_PARAM), b = train(config, HP_MAPPED);
    assert_true(a.result.losses[config->n_steps - 1] < a.result.losses[0]);
    assert_memory_equal(a.result.losses, b.result.losses, sizeof a.result.losses);
    assert_memory_equal(a.result.norms, b.result.norms, sizeof a.result.norms);
    assert_int_equal(a.result.gradients, b.result.gradients);
    assert_int_equal(a.result.weights, b.result.weights);
}

static const int meshes[][2] = {{1, 4}, {2, 2}, {1, 3}, {4, 1}, {2, 4}, {1, 8}};
enum { N_MESHES = sizeof meshes / sizeof *meshes };

/* Variant v: what differs from one to the next is chosen so that every pair of choices meets. */
static tiny_config make_variant(int v) {
    tiny_config c = TINY_CONFIG_INIT;
    c.n_replicas = meshes[v % N_MESHES][0];
    c.n_shards = meshes[v % N_MESHES][1];
    c.global_batch = 48;
    c.n_steps = 6;
    c.is_mixed = v % 2;
    c.width = c.is_mixed ? 24 : 10; /* an inner dimension divides evenly in the other mode */
    c.is_tied = v / 2 % 2;
    c.n_passes = 1 + v % 3;
    c.optimizer = v / 3 % 2 ? "sgd" : "adamw";
    c.learning_rate = v / 3 % 2 ? 0.1 : 1e-2;
    c.max_norm = v / 4 % 2 ? 0.05 : 0;
    c.fsdp.prefetch = v / 2 % 3;
    c.fsdp.executor = (hp_executor_type)(v / 5 % 2);
    c.fsdp.reshard_after_forward = v / 3 % 2;
    c.fsdp.schedule = v % 5 == 4 ? HP_SERIAL : HP_OVERLAP;
    return c;
}

static void test_the_bits_of_per_param(void **state) {
    (void)state;
    for (int v = 0; v < 24; v++) {
        const tiny_config c = make_variant(v);
        expect_same_bits(&c);
    }
}

static void test_precision(void **state) {
    static const int dtypes[][2] = {{HP_BF16, HP_FP32},
                                    {HP_BF16, HP_BF16},
                                    {HP_FP32, HP_BF16},
                                    {HP_OWN_DTYPE, HP_FP32},
                                    {HP_FP32, HP_OWN_DTYPE}};
    (void)state;
    for (int i = 0; i < 10; i++) {
        tiny_config c = make_variant(i);
        c.fsdp.param_dtype = dtypes[i % 5][0];
        c.fsdp.reduce_dtype = dtypes[i % 5][1];
        expect_same_bits(&c);
    }
}

static void test_random_delays(void **state) {
    (void)state;
    for (int seed = 1; seed <= 3; seed++) {
        char rule[64];
        tiny_config c = make_variant(seed);
        snprintf(rule, sizeof rule, "kind=*,rank=*,us=300,seed=%d", seed);
        c.fsdp.delay = rule;
        expect_same_bits(&c);
    }
}

static void test_replay(void **state) {
    (void)state;
    for (int v = 0; v < 3; v++) {
        tiny_config c = make_variant(7 * v);
        c.max_norm = 0.05;
        c.n_steps = 8;
        c.fsdp.record = 1;
        c.fsdp.replay_after = 3;
        expect_same_bits(&c);
    }
}

/* The levels of ZeRO: replicas alone, shards that are kept, shards that are not. */
static void test_meshes(void **state) {
    static const int all[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
    (void)state;
    struct job first = {0};
    for (int v = 0; v < 8; v++) {
        tiny_config c = make_variant(7);
        c.n_replicas = all[v % 4][0];
        c.n_shards = all[v % 4][1];
        c.max_norm = 0.05;
        c.fsdp.reshard_after_forward = v / 4;
        const struct job job = train(&c, HP_MAPPED);
        if (v == 0)
            first = job;
        assert_memory_equal(&first.result.losses, &job.result.losses, sizeof job.result.losses);
        assert_int_equal(first.result.gradients, job.result.gradients);
        assert_int_equal(first.result.weights, job.result.weights);
    }
}

/* ---- what it waits for ----------------------------------------------------------------------- */

static uint64_t count_kind(hp_fsdp *fsdp, const char *name) {
    const hp_op *ops;
    const hp_kind *kinds;
    uint64_t n, n_found = 0;
    uint32_t n_kinds;
    RANK_OK(hp_fsdp_recorded(fsdp, &ops, &n, &kinds, &n_kinds));
    for (uint64_t i = 0; i < n; i++)
        n_found += strcmp(kinds[ops[i].kind].name, name) == 0;
    return n_found;
}

static tiny_config recorded_config(void) {
    tiny_config c = TINY_CONFIG_INIT;
    c.n_shards = 4;
    c.fsdp.mode = HP_MAPPED;
    c.fsdp.record = 1;
    return c;
}

/* After a HP_SYNC pass nobody reads, so the update waits for nobody; before weights that evaluation
 * may still read are written, it does. */
static void waits_body(hp_world *world, void *argument) {
    const tiny_config c = recorded_config();
    tiny *t;
    double loss, again;
    (void)argument;
    RANK_OK(tiny_create(world, &c, &t));
    hp_fsdp *fsdp = tiny_fsdp(t);
    for (int step = 0; step < 3; step++) {
        RANK_OK(tiny_step(t, step, &loss));
        RANK_CHECK(count_kind(fsdp, "all_gather") == 0);
        RANK_CHECK(count_kind(fsdp, "reduce_scatter") == (uint64_t)c.n_units);
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), 0.01));
        RANK_CHECK(count_kind(fsdp, "barrier") == 1);
        RANK_CHECK(count_kind(fsdp, "allocate") == (uint64_t)c.n_units); /* gradients */
    }
    for (int k = 0; k < 3; k++) {
        RANK_OK(tiny_evaluate(t, 3, k ? &again : &loss));
        RANK_CHECK(count_kind(fsdp, "barrier") == (k ? 0 : 1));
        RANK_CHECK(!k || again == loss);
    }
    tiny_destroy(t);
}

static void test_one_barrier_in_a_step_none_in_evaluation(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, waits_body, NULL);
}

static void steady_body(hp_world *world, void *argument) {
    enum { MOST = 512 };
    tiny_config c = recorded_config();
    tiny *t;
    double loss;
    hp_op *kept = calloc(MOST, sizeof *kept);
    uint64_t n, n_kept = 0;
    (void)argument;
    c.is_mixed = 1;
    c.width = 16;
    RANK_CHECK(kept != NULL);
    RANK_OK(tiny_create(world, &c, &t));
    for (int step = 0; step < 6; step++) {
        const hp_op *ops;
        const hp_kind *kinds;
        uint32_t n_kinds;
        RANK_OK(tiny_step(t, step, &loss));
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), 0.01));
        RANK_OK(hp_fsdp_recorded(tiny_fsdp(t), &ops, &n, &kinds, &n_kinds));
        RANK_CHECK(n <= MOST && (step < 3 || n == n_kept));
        RANK_CHECK(step < 3 || memcmp(kept, ops, n * sizeof *ops) == 0);
        memcpy(kept, ops, n * sizeof *ops);
        n_kept = n;
    }
    free(kept);
    tiny_destroy(t);
}

static void test_steps_are_alike(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, steady_body, NULL);
}

/* ---- a pass that is left --------------------------------------------------------------------- */

/* Where the new weights have been seen by some alone, or by nobody. A peer may have left already.
 */
static void leave_a_pass(hp_fsdp *fsdp, bool reads) {
    hp_status status = hp_fsdp_begin(fsdp, HP_SYNC);
    if (status == HP_OK && reads)
        status = hp_forward_begin(hp_fsdp_unit(fsdp, 0));
    RANK_CHECK(status == HP_OK || status == HP_ERR_FAILED);
    RANK_OK(hp_fsdp_reset(fsdp));
}

static void reset_body(hp_world *world, void *argument) {
    struct job *job = argument;
    tiny *t;
    uint64_t digest;
    RANK_OK(tiny_create(world, &job->config, &t));
    for (int step = 0; step < job->config.n_steps; step++) {
        double loss;
        if (step % 2)
            leave_a_pass(tiny_fsdp(t), step % 4 == 1);
        RANK_OK(tiny_step(t, step, &loss));
        RANK_OK(hp_optimizer_step(tiny_optimizer(t), job->config.learning_rate));
        if (hp_world_rank(world) == 0)
            job->result.losses[step] = loss;
    }
    RANK_OK(tiny_digest(t, 0, &digest));
    if (hp_world_rank(world) == 0)
        job->result.weights = digest;
    tiny_destroy(t);
}

static void test_resets(void **state) {
    (void)state;
    tiny_config c = make_variant(4);
    c.n_shards = 4;
    c.n_replicas = 1;
    c.max_norm = 0; /* reset_body does not clip */
    const struct job calm = train(&c, HP_MAPPED);
    struct job job = {.config = calm.config};
    ranks_run(c.n_replicas * c.n_shards, RANKS_THREADS, reset_body, &job);
    assert_memory_equal(calm.result.losses, job.result.losses, sizeof job.result.losses);
    assert_int_equal(calm.result.weights, job.result.weights);
}

/* ---- a rank that dies ------------------------------------------------------------------------ */

static void dying_body(hp_world *world, void *argument) {
    tiny_config c = TINY_CONFIG_INIT;
    tiny *t;
    double loss;
    (void)argument;
    c.n_shards = 3;
    c.fsdp.mode = HP_MAPPED;
    RANK_OK(tiny_create(world, &c, &t));
    RANK_OK(tiny_step(t, 0, &loss));
    RANK_OK(hp_optimizer_step(tiny_optimizer(t), 0.01));
    if (hp_world_rank(world) == 1)
        ranks_die();
    const uint64_t began_ns = hpi_now_ns();
    RANK_FAILS(tiny_step(t, 1, &loss), HP_ERR_PEER); /* its part of the weights may be half new */
    hp_error error;
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 1 && strstr(error.message, "barrier"));
    RANK_CHECK(hpi_now_ns() - began_ns < UINT64_C(1000000000));
    tiny_destroy(t);
}

static void test_who_dies_before_its_weights_are_seen_is_named(void **state) {
    (void)state;
    assert_int_equal(ranks_try(3, RANKS_THREADS, dying_body, NULL, NULL, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bits_of_per_param),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_random_delays),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_one_barrier_in_a_step_none_in_evaluation),
        cmocka_unit_test(test_steps_are_alike),
        cmocka_unit_test(test_resets),
        cmocka_unit_test(test_who_dies_before_its_weights_are_seen_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
