/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_bits.c - SPEC A9: one global batch, the same bits in every mesh, executor and prefetch.
 *
 * Every case trains the tiny model with thread ranks and compares losses, gradients of every step
 * and final weights with those of the first case, bit for bit. Other numbers of ranks, whose trees
 * differ, are compared within 1e-5 at every step.
 */
#include "base/base.h"
#include "unit/tiny_job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void expect_same_bits(const struct job *a, const struct job *b) {
    for (int step = 0; step < a->config.n_steps; step++)
        if (memcmp(&a->result.losses[step], &b->result.losses[step], sizeof(double)) != 0)
            fail_msg("step %d: loss %.17g of (%d,%d), %.17g of (%d,%d), prefetch %d", step,
                     a->result.losses[step], a->config.n_replicas, a->config.n_shards,
                     b->result.losses[step], b->config.n_replicas, b->config.n_shards,
                     b->config.fsdp.prefetch);
    assert_int_equal(a->result.gradients, b->result.gradients);
    assert_int_equal(a->result.weights, b->result.weights);
}

static void check_meshes(const tiny_config *base) {
    static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
    struct job first = {0};
    for (int m = 0; m < 4; m++) {
        struct job job = {.config = *base};
        job.config.n_replicas = meshes[m][0];
        job.config.n_shards = meshes[m][1];
        train(&job);
        assert_true(job.result.losses[job.config.n_steps - 1] < job.result.losses[0]);
        if (m == 0)
            first = job;
        expect_same_bits(&first, &job);
    }
}

static void test_meshes_adamw(void **state) {
    (void)state;
    const tiny_config config = TINY_CONFIG_INIT;
    check_meshes(&config);
}

static void test_meshes_sgd_clipped(void **state) {
    (void)state;
    tiny_config config = TINY_CONFIG_INIT;
    config.optimizer = "sgd";
    config.learning_rate = 0.1;
    config.max_norm = 0.05;
    check_meshes(&config);
}

/* bf16, frozen, replicated, fp64 scalar and inner-dimension parameters in the units. */
static void test_meshes_mixed(void **state) {
    (void)state;
    tiny_config config = TINY_CONFIG_INIT;
    config.is_mixed = 1;
    config.width = 16;
    config.n_units = 5;
    check_meshes(&config);
}

static void test_executors_and_prefetch(void **state) {
    (void)state;
    struct job first = {0};
    bool is_first = true;
    for (int executor = 0; executor < 2; executor++)
        for (int prefetch = 0; prefetch < 3; prefetch++)
            for (int reshard = 0; reshard < 2; reshard++) {
                struct job job = {.config = TINY_CONFIG_INIT};
                job.config.n_replicas = job.config.n_shards = 2;
                job.config.is_mixed = 1;
                job.config.fsdp.executor = (hp_executor_type)executor;
                job.config.fsdp.prefetch = prefetch;
                job.config.fsdp.reshard_after_forward = reshard;
                train(&job);
                if (is_first)
                    first = job;
                is_first = false;
                expect_same_bits(&first, &job);
            }
    struct job serial = first;
    serial.config.fsdp.schedule = HP_SERIAL;
    train(&serial);
    expect_same_bits(&first, &serial);
}

/* ---- precision, accumulation, a unit used twice ---------------------------------------------- */

struct setting {
    int param_dtype, reduce_dtype;
    int is_mixed, is_tied, n_passes;
};

/* Variant v of setting number i: all meshes and depths of prefetch, both executors, resharding or
 * not, in pairs that differ from setting to setting. */
static struct job make_variant(const struct setting *s, int i, int v) {
    static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
    const int mesh = v % 4;
    struct job job = {.config = TINY_CONFIG_INIT};
    tiny_config *c = &job.config;
    c->n_replicas = meshes[mesh][0];
    c->n_shards = meshes[mesh][1];
    c->n_steps = 6;
    c->global_batch = 48;
    c->width = s->is_mixed ? 16 : 10;
    c->is_mixed = s->is_mixed;
    c->is_tied = s->is_tied;
    c->n_passes = s->n_passes;
    c->fsdp.param_dtype = s->param_dtype;
    c->fsdp.reduce_dtype = s->reduce_dtype;
    c->fsdp.prefetch = (v + i) % 3;
    c->fsdp.executor = (hp_executor_type)((v + i / 3) % 2);
    c->fsdp.reshard_after_forward = (v / 2 + i) % 2;
    return job;
}

static void check_setting(const struct setting *s, int i, struct job *out_first) {
    for (int v = 0; v < 6; v++) {
        struct job job = make_variant(s, i, v);
        train(&job);
        assert_true(job.result.losses[job.config.n_steps - 1] < job.result.losses[0]);
        if (v == 0)
            *out_first = job;
        expect_same_bits(out_first, &job);
    }
}

static void test_precision_and_passes(void **state) {
    (void)state;
    enum { OWN = HP_OWN_DTYPE, N = 10 };
    static const struct setting settings[N] = {
        {HP_BF16, HP_FP32, 0, 0, 1}, {HP_BF16, HP_FP32, 1, 1, 2}, {HP_FP32, HP_BF16, 1, 0, 1},
        {HP_FP32, HP_BF16, 0, 1, 3}, {HP_BF16, HP_BF16, 1, 0, 3}, {HP_BF16, OWN, 0, 1, 1},
        {OWN, OWN, 1, 0, 2},         {OWN, OWN, 0, 1, 3},         {OWN, HP_FP32, 1, 1, 1},
        {HP_FP32, OWN, 1, 1, 2},
    };
    struct job jobs[N];
    for (int i = 0; i < N; i++) {
        check_setting(&settings[i], i, &jobs[i]);
        for (int k = 0; k < i; k++) /* and each setting is another computation */
            assert_int_not_equal(jobs[i].result.gradients, jobs[k].result.gradients);
    }
}

/* Delays before any operation of any rank change nothing. */
static void test_random_delays(void **state) {
    (void)state;
    struct job calm = {.config = TINY_CONFIG_INIT};
    calm.config.n_replicas = calm.config.n_shards = calm.config.n_passes = 2;
    calm.config.is_tied = 1;
    train(&calm);
    for (int seed = 1; seed <= 3; seed++) {
        char rule[64];
        struct job job = calm;
        snprintf(rule, sizeof rule, "kind=*,rank=*,us=300,seed=%d", seed);
        job.config.fsdp.delay = rule;
        train(&job);
        expect_same_bits(&calm, &job);
    }
}

/* The wire of the environment is for reductions that a program calls itself. */
static void test_no_wire_from_the_environment(void **state) {
    struct job full = {.config = TINY_CONFIG_INIT}, low;
    (void)state;
    full.config.n_replicas = full.config.n_shards = 2;
    full.config.n_steps = 4;
    full.config.max_norm = 0.05;
    low = full;
    train(&full);
    setenv("SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE", "fp8_e5m2", 1);
    train(&low);
    unsetenv("SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE");
    expect_same_bits(&full, &low);
    assert_memory_equal(full.result.norms, low.result.norms, 4 * sizeof(double));
}

static void test_other_rank_counts_agree(void **state) {
    (void)state;
    static const int meshes[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 4}, {2, 4}, {1, 3}, {3, 2}};
    struct job first = {0};
    for (int m = 0; m < 8; m++) {
        struct job job = {.config = TINY_CONFIG_INIT};
        job.config.global_batch = 24;
        job.config.n_replicas = meshes[m][0];
        job.config.n_shards = meshes[m][1];
        train(&job);
        if (m == 0)
            first = job;
        for (int step = 0; step < job.config.n_steps; step++)
            assert_true(fabs(job.result.losses[step] / first.result.losses[step] - 1) < 1e-5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes_adamw),
        cmocka_unit_test(test_meshes_sgd_clipped),
        cmocka_unit_test(test_meshes_mixed),
        cmocka_unit_test(test_executors_and_prefetch),
        cmocka_unit_test(test_random_delays),
        cmocka_unit_test(test_other_rank_counts_agree),
        cmocka_unit_test(test_precision_and_passes),
        cmocka_unit_test(test_no_wire_from_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
