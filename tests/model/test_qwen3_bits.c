/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_bits.c - SPEC A9 for the real model: a global batch has the same bits in every mesh.
 *
 * Losses, gradients of every step and final weights of several clipped AdamW steps, in fp32 and in
 * bf16, over meshes, executors and prefetch. Other numbers of ranks add in another order: within
 * 1e-5.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "small_qwen3.h"

#include <math.h>
#include <string.h>

enum { STEPS = 3, MOST_STEPS = 32 };

typedef struct job {
    small_config config;
    double losses[STEPS];        /* of rank 0, as the digests */
    uint64_t gradients, weights; /* digests */
} job;

static job job_init(void) {
    return (job){.config = small_config_init()};
}

static void train_body(hp_world *world, void *argument) {
    job *j = argument, mine = {0};
    small s = small_begin(world, &j->config);
    for (int step = 0; step < STEPS; step++) {
        mine.losses[step] = small_gradients(&s, step);
        mine.gradients = mine.gradients * 31 + small_digest(&s, true);
        double norm;
        RANK_OK(hp_clip_grad_norm(s.fsdp, j->config.max_norm, 2.0, &norm));
        RANK_OK(hp_optimizer_step(s.optimizer, j->config.learning_rate));
    }
    mine.weights = small_digest(&s, false);
    small_end(&s);
    if (hp_world_rank(world) == 0) {
        memcpy(j->losses, mine.losses, sizeof mine.losses);
        j->gradients = mine.gradients;
        j->weights = mine.weights;
    }
}

static void train(job *j) {
    ranks_run(j->config.n_replicas * j->config.n_shards, RANKS_THREADS, train_body, j);
}

static void expect_same_bits(const job *a, const job *b) {
    for (int step = 0; step < STEPS; step++)
        if (a->losses[step] != b->losses[step])
            fail_msg("step %d: loss %.17g of (%d,%d), %.17g of (%d,%d) with prefetch %d", step,
                     a->losses[step], a->config.n_replicas, a->config.n_shards, b->losses[step],
                     b->config.n_replicas, b->config.n_shards, b->config.fsdp.prefetch);
    assert_int_equal(a->gradients, b->gradients);
    assert_int_equal(a->weights, b->weights);
}

/* Returns the first job's losses. */
static job check_meshes(job base) {
    static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
    job first = base;
    for (int m = 0; m < 4; m++) {
        job j = base;
        j.config.n_replicas = meshes[m][0];
        j.config.n_shards = meshes[m][1];
        train(&j);
        if (m == 0)
            first = j;
        expect_same_bits(&first, &j);
    }
    return first;
}

static void meshes_have_the_same_bits(void **state) {
    (void)state;
    job tied = job_init(), untied = job_init(), plain = job_init();
    tied.config.model.tie_word_embeddings = 1;
    plain.config.matmul = "plain";
    tied = check_meshes(tied);
    untied = check_meshes(untied);
    if (strcmp(SMALL_MATMUL, "plain") != 0)
        (void)check_meshes(plain);
    assert_true(tied.losses[0] != untied.losses[0]);
}

static void meshes_have_the_same_bits_in_bf16(void **state) {
    (void)state;
    static const int reduce[] = {HP_BF16, HP_FP32};
    job jobs[2];
    for (int i = 0; i < 2; i++) {
        job j = job_init();
        j.config.model.tie_word_embeddings = 1;
        j.config.options.dtype = HP_BF16;
        j.config.fsdp.param_dtype = HP_BF16;
        j.config.fsdp.reduce_dtype = reduce[i];
        jobs[i] = check_meshes(j);
    }
    /* The first forward is one and the same; the gradients are rounded in one of them. */
    assert_true(jobs[0].losses[0] == jobs[1].losses[0]);
    assert_true(jobs[0].gradients != jobs[1].gradients);
}

static void meshes_have_the_same_bits_when_fp32_is_reduced_as_bf16(void **state) {
    (void)state;
    job j = job_init();
    j.config.fsdp.reduce_dtype = HP_BF16;
    (void)check_meshes(j);
}

static void meshes_have_the_same_bits_when_accumulating(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        job j = job_init();
        j.config.model.tie_word_embeddings = tied;
        j.config.n_accumulate = 2;
        (void)check_meshes(j);
    }
}

static void executors_and_prefetch_change_no_bit(void **state) {
    (void)state;
    job first = job_init();
    first.config.model.tie_word_embeddings = 1;
    first.config.n_replicas = first.config.n_shards = 2;
    first.config.n_accumulate = 2;
    train(&first);
    for (int executor = 0; executor < 2; executor++)
        for (int prefetch = 0; prefetch < 3; prefetch++)
            for (int recompute = 0; recompute < 2; recompute++) {
                job j = first;
                j.config.fsdp.executor = (hp_executor_type)executor;
                j.config.fsdp.prefetch = prefetch;
                j.config.options.recompute = recompute;
                train(&j);
                expect_same_bits(&first, &j);
            }
    job serial = first;
    serial.config.fsdp.schedule = HP_SERIAL;
    train(&serial);
    expect_same_bits(&first, &serial);
}

static void expect_close(const job *a, const job *b) {
    for (int step = 0; step < STEPS; step++)
        if (!(fabs(a->losses[step] / b->losses[step] - 1) < 1e-5))
            fail_msg("step %d: loss %.9g of %d ranks, %.9g of %d", step, a->losses[step],
                     a->config.n_replicas * a->config.n_shards, b->losses[step],
                     b->config.n_replicas * b->config.n_shards);
}

/* One global batch of 8, by ranks or by accumulation. */
static void other_rank_counts_agree(void **state) {
    (void)state;
    static const int ways[][4] = {/* replicas, shards, passes, batch */
                                  {1, 1, 1, 8}, {1, 2, 1, 4}, {2, 2, 1, 2},
                                  {2, 4, 1, 1}, {1, 2, 4, 1}, {2, 1, 2, 2}};
    job first = job_init();
    for (int i = 0; i < 6; i++) {
        job j = job_init();
        j.config.n_replicas = ways[i][0];
        j.config.n_shards = ways[i][1];
        j.config.n_accumulate = ways[i][2];
        j.config.options.batch = ways[i][3];
        train(&j);
        if (i == 0)
            first = j;
        expect_close(&first, &j);
    }
}

static void learn_body(hp_world *world, void *argument) {
    const small_config *config = argument;
    small s = small_begin(world, config);
    const double before = small_step(&s, 0);
    double after = before;
    for (int step = 1; step < MOST_STEPS; step++)
        after = small_step(&s, step % 4);
    RANK_CHECK(after < before / 2);
    small_end(&s);
}

static void the_model_learns(void **state) {
    (void)state;
    small_config c = small_config_init();
    c.n_shards = 2;
    c.options.batch = 4;
    c.model.tie_word_embeddings = 1;
    ranks_run(2, RANKS_THREADS, learn_body, &c);
    c.options.dtype = HP_BF16;
    c.fsdp.param_dtype = HP_BF16;
    ranks_run(2, RANKS_THREADS, learn_body, &c);
}

static void processes_have_the_bits_of_threads_body(hp_world *world, void *argument) {
    const job *expected = argument;
    job mine = *expected;
    train_body(world, &mine);
    if (hp_world_rank(world) == 0)
        RANK_CHECK(mine.weights == expected->weights && mine.gradients == expected->gradients);
}

static void processes_have_the_bits_of_threads(void **state) {
    (void)state;
    job j = job_init();
    j.config.n_replicas = j.config.n_shards = 2;
    train(&j);
    ranks_run(4, RANKS_PROCESSES, processes_have_the_bits_of_threads_body, &j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meshes_have_the_same_bits),
        cmocka_unit_test(meshes_have_the_same_bits_in_bf16),
        cmocka_unit_test(meshes_have_the_same_bits_when_fp32_is_reduced_as_bf16),
        cmocka_unit_test(meshes_have_the_same_bits_when_accumulating),
        cmocka_unit_test(executors_and_prefetch_change_no_bit),
        cmocka_unit_test(other_rank_counts_agree),
        cmocka_unit_test(the_model_learns),
        cmocka_unit_test(processes_have_the_bits_of_threads),
    };
    return cmocka_run_group_tests_name("qwen3_bits", tests, NULL, NULL);
}
