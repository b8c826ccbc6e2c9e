/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_bits.c - SPEC A9 for the real model: a global batch has the same bits in every mesh.
 *
 * Losses, gradients of every step and final weights of 20 clipped steps of AdamW and of SGD, in
 * fp32 and in bf16, over meshes, and of a few steps over executors and prefetch. Other numbers of
 * ranks add in another order: within 1e-5. test_qwen3_bits_full.c takes each with each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qwen3_bits.h"

#include <math.h>
#include <string.h>

enum { MOST_STEPS = 32 };

static void meshes_have_the_same_bits(void **state) {
    (void)state;
    bits_job tied = bits_job_init(), untied = bits_job_init(), plain = bits_job_init();
    tied.config.model.tie_word_embeddings = 1;
    tied.n_steps = untied.n_steps = BITS_MOST_STEPS;
    untied.config.optimizer = "sgd";
    plain.config.matmul = "plain";
    tied = bits_check_meshes(tied);
    untied = bits_check_meshes(untied);
    if (strcmp(SMALL_MATMUL, "plain") != 0)
        (void)bits_check_meshes(plain);
    assert_true(tied.losses[0] != untied.losses[0]);
}

static void meshes_have_the_same_bits_in_bf16(void **state) {
    (void)state;
    static const int reduce[] = {HP_BF16, HP_FP32, HP_BF16};
    bits_job jobs[3];
    for (int i = 0; i < 3; i++) {
        bits_job j = bits_job_init();
        j.config.model.tie_word_embeddings = 1;
        j.config.options.dtype = HP_BF16;
        j.config.fsdp.param_dtype = HP_BF16;
        j.config.fsdp.reduce_dtype = reduce[i];
        j.n_steps = i == 1 ? 3 : BITS_MOST_STEPS;
        j.config.optimizer = i == 2 ? "sgd" : "adamw";
        jobs[i] = bits_check_meshes(j);
    }
    /* The first forward is one and the same; the gradients are rounded in one of them. */
    assert_true(jobs[0].losses[0] == jobs[1].losses[0]);
    assert_true(jobs[0].losses[1] != jobs[1].losses[1]);
    assert_true(jobs[0].losses[1] != jobs[2].losses[1]);
}

static void meshes_have_the_same_bits_when_fp32_is_reduced_as_bf16(void **state) {
    (void)state;
    bits_job j = bits_job_init();
    j.config.fsdp.reduce_dtype = HP_BF16;
    (void)bits_check_meshes(j);
}

static void meshes_have_the_same_bits_when_accumulating(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        bits_job j = bits_job_init();
        j.config.model.tie_word_embeddings = tied;
        j.config.n_accumulate = 2;
        (void)bits_check_meshes(j);
    }
}

static void executors_and_prefetch_change_no_bit(void **state) {
    (void)state;
    bits_job first = bits_job_init();
    first.config.model.tie_word_embeddings = 1;
    first.config.n_replicas = first.config.n_shards = 2;
    first.config.n_accumulate = 2;
    bits_train(&first);
    for (int executor = 0; executor < 2; executor++)
        for (int prefetch = 0; prefetch < 3; prefetch++)
            for (int recompute = 0; recompute < 2; recompute++) {
                bits_job j = first;
                j.config.fsdp.executor = (hp_executor_type)executor;
                j.config.fsdp.prefetch = prefetch;
                j.config.options.recompute = recompute;
                bits_train(&j);
                bits_expect_same(&first, &j);
            }
    bits_job serial = first;
    serial.config.fsdp.schedule = HP_SERIAL;
    bits_train(&serial);
    bits_expect_same(&first, &serial);
}

static void expect_close(const bits_job *a, const bits_job *b) {
    for (int step = 0; step < a->n_steps; step++)
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
    bits_job first = bits_job_init();
    for (int i = 0; i < 6; i++) {
        bits_job j = bits_job_init();
        j.config.n_replicas = ways[i][0];
        j.config.n_shards = ways[i][1];
        j.config.n_accumulate = ways[i][2];
        j.config.options.batch = ways[i][3];
        bits_train(&j);
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
    const bits_job *expected = argument;
    bits_job mine = *expected;
    bits_train_body(world, &mine);
    if (hp_world_rank(world) == 0)
        RANK_CHECK(mine.weights == expected->weights && mine.gradients == expected->gradients);
}

static void processes_have_the_bits_of_threads(void **state) {
    (void)state;
    bits_job j = bits_job_init();
    j.config.n_replicas = j.config.n_shards = 2;
    bits_train(&j);
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
