/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_bits_full.c - SPEC A9 for the real model, each variant with each: tied and untied,
 * AdamW and SGD, every precision, one pass or two, both engines; 20 steps over four meshes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qwen3_bits.h"

typedef struct precision {
    hp_dtype param, reduce;
} precision;

/* Every bit of `variant` chooses something. */
static bits_job job_of(precision p, unsigned variant) {
    bits_job j = bits_job_init();
    j.n_steps = BITS_MOST_STEPS;
    j.config.options.dtype = p.param;
    j.config.fsdp.param_dtype = (int)p.param;
    j.config.fsdp.reduce_dtype = (int)p.reduce;
    j.config.model.tie_word_embeddings = variant & 1;
    j.config.optimizer = variant & 2 ? "sgd" : "adamw";
    j.config.n_accumulate = variant & 4 ? 2 : 1;
    j.config.matmul = variant & 8 ? "plain" : SMALL_MATMUL;
    return j;
}

static void check_precision(hp_dtype param, hp_dtype reduce) {
    for (unsigned variant = 0; variant < 16; variant++) {
        const bits_job j = bits_check_meshes(job_of((precision){param, reduce}, variant));
        /* The samples differ from step to step; over 20 of them it learns something. */
        assert_true(j.losses[j.n_steps - 1] < j.losses[0]);
    }
}

static void meshes_have_the_same_bits_in_fp32(void **state) {
    (void)state;
    check_precision(HP_FP32, HP_FP32);
}
static void meshes_have_the_same_bits_when_fp32_is_reduced_as_bf16(void **state) {
    (void)state;
    check_precision(HP_FP32, HP_BF16);
}
static void meshes_have_the_same_bits_in_bf16(void **state) {
    (void)state;
    check_precision(HP_BF16, HP_BF16);
}
static void meshes_have_the_same_bits_when_bf16_is_reduced_as_fp32(void **state) {
    (void)state;
    check_precision(HP_BF16, HP_FP32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meshes_have_the_same_bits_in_fp32),
        cmocka_unit_test(meshes_have_the_same_bits_when_fp32_is_reduced_as_bf16),
        cmocka_unit_test(meshes_have_the_same_bits_in_bf16),
        cmocka_unit_test(meshes_have_the_same_bits_when_bf16_is_reduced_as_fp32),
    };
    return cmocka_run_group_tests_name("qwen3_bits_full", tests, NULL, NULL);
}
