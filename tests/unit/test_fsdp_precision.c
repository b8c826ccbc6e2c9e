/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_precision.c - the precision policy, and gradients that are accumulated: single calls.
 *
 * What a policy makes of declared dtypes and first values, what is refused and how. The numbers
 * that come of both are in test_fsdp_bits.c and test_fsdp_accumulate.c.
 */
#include "small_fsdp.h"

/* ---- precision --------------------------------------------------------------------------- */

static void bad_precision(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_unit *unit;
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_fsdp_destroy(fsdp);
    config.param_dtype = HP_INT8;
    FAILS_SAYING(hp_fsdp_create(mesh, &config, &fsdp), HP_ERR_UNSUPPORTED,
                 "param_dtype HP_FP32, HP_BF16, HP_FP16 or HP_OWN_DTYPE, given 6 (int8)");
    config.param_dtype = HP_BF16;
    config.reduce_dtype = 99;
    FAILS_SAYING(hp_fsdp_create(mesh, &config, &fsdp), HP_ERR_ARGUMENT,
                 "reduce_dtype HP_FP32, HP_BF16, HP_FP16 or HP_OWN_DTYPE, given 99 (no dtype)");
    config.reduce_dtype = hp_world_rank(world) == 1 ? HP_FP32 : HP_OWN_DTYPE;
    hp_param p = vector("w", 8);
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_MISMATCH,
                 "reduce_dtype, replicate_wire and caller_writes on ranks 0 and 1");
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* What the policy makes of each declaration, and what commit makes of first values. */
static void precision(hp_world *world, void *argument) {
    (void)argument;
    static const float values[3] = {1.00390625F, -2.0F, 3.0F}; /* the first is no bf16 */
    static const struct {
        hp_dtype declared;
        int is_frozen;
        hp_dtype data, grad, shard;
    } cases[] = {{HP_FP32, 0, HP_BF16, HP_FP32, HP_FP32},
                 {HP_BF16, 0, HP_BF16, HP_FP32, HP_FP32},
                 {HP_FP64, 0, HP_FP64, HP_FP64, HP_FP64},
                 {HP_FP32, 1, HP_BF16, HP_FP32, HP_FP32},
                 {HP_INT8, 1, HP_INT8, HP_INT8, HP_INT8}};
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    hp_mesh *mesh;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_unit *unit;
    hp_shard shard;
    hp_dtype data, grad;
    hp_param params[6];
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_fsdp_destroy(fsdp);
    config.param_dtype = HP_BF16;
    config.reduce_dtype = HP_FP32;
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    for (int j = 0; j < 5; j++) {
        params[j] = vector(names[j], 3);
        params[j].dtype = cases[j].declared;
        params[j].is_frozen = cases[j].is_frozen;
    }
    params[0].data = values;
    params[5] = vector("ignored", 3);
    params[5].is_ignored = 1;
    RANK_OK(hp_unit_create(fsdp, "layer", params, 6, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    for (int j = 0; j < 5; j++) {
        RANK_OK(hp_param_dtypes(unit, j, &data, &grad));
        RANK_OK(hp_param_shard(unit, j, &shard));
        RANK_CHECK(data == cases[j].data && grad == cases[j].grad);
        RANK_CHECK(shard.dtype == cases[j].shard);
    }
    FAILS_SAYING(hp_param_dtypes(unit, 5, &data, &grad), HP_ERR_STATE, "ignored");
    FAILS_SAYING(hp_param_dtypes(unit, 6, &data, &grad), HP_ERR_ARGUMENT, "[0, 6), given 6");
    FAILS_SAYING(hp_param_dtypes(unit, 0, &data, NULL), HP_ERR_ARGUMENT, "dtypes of a");
    RANK_OK(hp_param_shard(unit, 0, &shard)); /* the master keeps what the cast copy loses */
    RANK_CHECK(memcmp(shard.values, values + shard.begin, shard.n_elements * sizeof *values) == 0);
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_OK(hp_forward_begin(unit));
    const uint16_t *full = hp_param_data(unit, 0);
    for (int k = 0; k < 3; k++)
        RANK_CHECK(full[k] == hpi_fp32_to_bf16(values[k]));
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* ---- accumulation ------------------------------------------------------------------------ */

static void run_pass(hp_fsdp *fsdp, hp_unit *unit, hp_pass pass) {
    RANK_OK(hp_fsdp_begin(fsdp, pass));
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_backward_begin(unit));
    RANK_OK(hp_backward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
}

static void gradients_not_reduced(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    hp_optimizer *sgd;
    hp_shard shard;
    double norm;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 8);
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_optimizer_create(fsdp, "sgd", NULL, &sgd));
    FAILS_SAYING(hp_fsdp_begin(fsdp, (hp_pass)4), HP_ERR_ARGUMENT, "HP_DEFER_REPLICATE, given 4");
    run_pass(fsdp, unit, HP_NO_SYNC);
    FAILS_SAYING(hp_clip_grad_norm(fsdp, 1.0, 2.0, &norm), HP_ERR_STATE, "not reduced yet");
    FAILS_SAYING(hp_optimizer_step(sgd, 0.1), HP_ERR_STATE, "not reduced yet");
    RANK_OK(hp_param_shard(unit, 0, &shard));
    RANK_CHECK(shard.grad == NULL);
    run_pass(fsdp, unit, HP_SYNC);
    RANK_OK(hp_clip_grad_norm(fsdp, 1.0, 2.0, &norm));
    RANK_OK(hp_optimizer_step(sgd, 0.1));
    hp_optimizer_destroy(sgd);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* The accumulator is taken before anything has changed, so the call can be made again. */
static void no_memory_for_sums(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp_stats before, after;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 8);
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_stats_get(fsdp, &before));
    RANK_OK(hp_fsdp_begin(fsdp, HP_NO_SYNC));
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
    hpi_alloc_fail_after(1);
    FAILS_SAYING(hp_backward_begin(unit), HP_ERR_MEMORY, "room for 32 bytes");
    hpi_alloc_fail_after(0);
    RANK_OK(hp_backward_begin(unit));
    RANK_OK(hp_backward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    RANK_OK(hp_fsdp_stats_get(fsdp, &after));
    RANK_CHECK(after.grad_bytes == before.grad_bytes + 32);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_bad_precision(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, bad_precision, NULL);
}
static void test_precision(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, precision, NULL);
    ranks_run(2, RANKS_THREADS, precision, NULL);
}
static void test_gradients_not_reduced(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, gradients_not_reduced, NULL);
}
static void test_no_memory_for_sums(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, no_memory_for_sums, NULL);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_precision),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_gradients_not_reduced),
        cmocka_unit_test(test_no_memory_for_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
