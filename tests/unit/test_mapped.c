/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mapped.c - mode mapped: the bits of per-param, one copy of the model, and who may touch it.
 *
 * The first half trains the tiny model in both modes with thread ranks, where races would show under
 * ThreadSanitizer, and compares losses, gradients and weights bit for bit. The second half uses
 * processes: what /proc says about memory, and what a write through hp_param_data does.
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
        tiny_config c = make_variant(6 * v);
        c.max_norm = 0.05;
        c.n_steps = 8;
        c.fsdp.record = 1;
        c.fsdp.replay_after = 3;
        expect_same_bits(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bits_of_per_param),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_random_delays),
        cmocka_unit_test(test_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
