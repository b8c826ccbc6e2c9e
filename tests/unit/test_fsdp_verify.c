/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_verify.c - hp_fsdp_verify on real ranks: what they are going to do and what they did,
 * also where the loop is not the usual one; what they hold against the bound; poison.
 */
#include "small_fsdp.h"
#include "support/tiny.h"

#include <math.h>

static const hp_mode modes[] = {HP_PER_PARAM, HP_FUSED, HP_FUSED_ZERO_COPY, HP_MAPPED};
enum { N_MODES = sizeof modes / sizeof *modes };

static void check_sound(hp_fsdp *fsdp, hp_verify_what what) {
    hp_verdict verdict;
    RANK_OK(hp_fsdp_verify(fsdp, what, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE && verdict.n_ops > 0 && verdict.n_accesses > 0);
}

/* ---- the usual loop ---------------------------------------------------------------------- */

static void trained_body(hp_world *world, void *argument) {
    tiny_config config = *(const tiny_config *)argument;
    hp_verdict verdict;
    tiny *t = NULL;
    double loss;
    RANK_OK(tiny_create(world, &config, &t));
    hp_fsdp *fsdp = tiny_fsdp(t);
    RANK_OK(hp_fsdp_verify(fsdp, HP_VERIFY_PLAN, &verdict));
    RANK_FAILS(hp_fsdp_verify(fsdp, HP_VERIFY_RECORDED, &verdict), HP_ERR_STATE);
    for (int step = 0; step < config.n_steps; step++) {
        RANK_OK(tiny_step(t, step, &loss));
        check_sound(fsdp, HP_VERIFY_RECORDED);
        RANK_OK(tiny_evaluate(t, step, &loss));
        check_sound(fsdp, HP_VERIFY_RECORDED);
    }
    tiny_destroy(t);
}

static void test_what_was_trained(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++)
        for (int k = 0; k < 4; k++) {
            tiny_config config = TINY_CONFIG_INIT;
            config.fsdp.mode = modes[m];
            config.fsdp.record = 1;
            config.fsdp.executor = k % 2 ? HP_EXECUTOR_INLINE : HP_EXECUTOR_THREAD;
            config.n_replicas = k < 2 ? 1 : 2;
            config.n_shards = 2;
            config.n_steps = 3;
            config.n_passes = 1 + k % 2;
            config.is_tied = k == 1;
            config.is_mixed = k == 2;
            config.max_norm = k == 3 ? 0.5 : 0;
            ranks_run(config.n_replicas * config.n_shards, RANKS_THREADS, trained_body, &config);
        }
}

/* ---- other loops ------------------------------------------------------------------------- */

enum { N_UNITS = 4 };

static hp_fsdp *make_units(hp_world *world, hp_mode mode, hp_mesh **out_mesh,
                           hp_unit *units[N_UNITS]) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_fsdp *fsdp = NULL;
    config.mode = mode;
    config.record = 1;
    config.poison = 1;
    RANK_OK(hp_mesh_create(world, (int[]){2, hp_world_size(world) / 2}, 2, out_mesh));
    RANK_OK(hp_fsdp_create(*out_mesh, &config, &fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        const hp_param param = vector(name, 100 + i);
        RANK_OK(hp_unit_create(fsdp, name, &param, 1, NULL, &units[i]));
    }
    RANK_OK(hp_fsdp_commit(fsdp));
    return fsdp;
}

static void forward(hp_unit *unit) {
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
}

static void backward(hp_unit *unit) {
    RANK_OK(hp_backward_begin(unit));
    RANK_OK(hp_backward_end(unit));
}

static void usual(hp_fsdp *fsdp, hp_unit *const *units, hp_pass pass) {
    RANK_OK(hp_fsdp_begin(fsdp, pass));
    for (int i = 0; i < N_UNITS; i++)
        forward(units[i]);
    for (int i = N_UNITS; i-- > 0 && pass != HP_EVALUATE;)
        backward(units[i]);
    RANK_OK(hp_fsdp_end(fsdp));
}

/* Units out of order, unused, used twice, recomputed, gathered by hand; a backward that is missing.
 */
static void unusual(hp_fsdp *fsdp, hp_unit *const *units, int kind) {
    RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
    if (kind == 0)
        RANK_OK(hp_unit_unshard(units[2], 0));
    forward(units[kind]);
    forward(units[2]);
    forward(units[2]);
    if (kind == 0)
        RANK_OK(hp_unit_reshard(units[2]));
    if (kind == 1) {
        RANK_OK(hp_recompute_begin(units[1]));
        RANK_OK(hp_recompute_end(units[1]));
    }
    backward(units[2]);
    if (kind)
        backward(units[kind]);
    if (kind == 0)
        backward(units[2]);
    RANK_OK(hp_fsdp_end(fsdp));
}

static void loops_body(hp_world *world, void *argument) {
    static const hp_pass passes[] = {
        HP_SYNC,     HP_NO_SYNC, HP_DEFER_REPLICATE, HP_DEFER_REPLICATE,
        HP_EVALUATE, HP_SYNC,    HP_EVALUATE,        HP_SYNC};
    hp_mesh *mesh;
    hp_unit *units[N_UNITS];
    hp_optimizer *optimizer;
    hp_fsdp *fsdp = make_units(world, *(const hp_mode *)argument, &mesh, units);
    RANK_OK(hp_optimizer_create(fsdp, "sgd", NULL, &optimizer));
    for (size_t k = 0; k < sizeof passes / sizeof *passes; k++) {
        usual(fsdp, units, passes[k]);
        check_sound(fsdp, HP_VERIFY_RECORDED);
        if (passes[k] == HP_SYNC)
            RANK_OK(hp_optimizer_step(optimizer, 0.1));
        check_sound(fsdp, HP_VERIFY_RECORDED);
    }
    for (int k = 0; k < 2 * 3; k++) {
        unusual(fsdp, units, k % 3 == 2 ? 3 : k % 3);
        check_sound(fsdp, HP_VERIFY_RECORDED);
        if (k % 2)
            RANK_OK(hp_optimizer_step(optimizer, 0.1));
    }
    usual(fsdp, units, HP_SYNC);
    check_sound(fsdp, HP_VERIFY_RECORDED);
    hp_optimizer_destroy(optimizer);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_other_loops(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++)
        ranks_run(4, RANKS_THREADS, loops_body, (void *)&modes[m]);
}

static void misuse_body(hp_world *world, void *argument) {
    hp_mesh *mesh;
    hp_unit *units[N_UNITS];
    hp_verdict verdict;
    (void)argument;
    hp_fsdp *fsdp = make_units(world, HP_PER_PARAM, &mesh, units);
    RANK_FAILS(hp_fsdp_verify(NULL, HP_VERIFY_PLAN, &verdict), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_fsdp_verify(fsdp, HP_VERIFY_PLAN, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_fsdp_verify(fsdp, (hp_verify_what)7, &verdict), HP_ERR_ARGUMENT);
    FAILS_SAYING(hp_fsdp_verify(fsdp, HP_VERIFY_RECORDED, &verdict), HP_ERR_STATE, "given none");
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_FAILS(hp_fsdp_verify(fsdp, HP_VERIFY_PLAN, &verdict), HP_ERR_STATE);
    forward(units[0]);
    RANK_OK(hp_fsdp_end(fsdp));
    check_sound(fsdp, HP_VERIFY_PLAN);
    const hp_op *ops;
    const hp_kind *kinds;
    uint64_t n;
    uint32_t n_kinds;
    RANK_OK(hp_fsdp_recorded(fsdp, &ops, &n, &kinds, &n_kinds));
    RANK_OK(hp_fsdp_verify(fsdp, HP_VERIFY_RECORDED, &verdict));
    RANK_CHECK(verdict.n_ops == 4 * n); /* of every rank, on every rank */
    hp_job job;
    RANK_FAILS(hp_fsdp_job_create(fsdp, NULL), HP_ERR_ARGUMENT);
    RANK_OK(hp_fsdp_job_create(fsdp, &job));
    RANK_CHECK(job.n_ranks == 4 && job.n_steps == 3);
    hp_fsdp_job_destroy(&job);
    hp_fsdp_job_destroy(NULL);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_misuse(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, misuse_body, NULL);
}

/* ---- memory ------------------------------------------------------------------------------ */

/* What the symmetric allocator counts, and what is counted by hand, stay below the bound; and it is
 * no empty one. */
static void memory_body(hp_world *world, void *argument) {
    tiny_config config = *(const tiny_config *)argument;
    hp_symm_stats symm;
    hp_fsdp_stats t;
    tiny *model = NULL;
    double loss;
    RANK_OK(tiny_create(world, &config, &model));
    for (int step = 0; step < config.n_steps; step++)
        RANK_OK(tiny_step(model, step, &loss));
    RANK_OK(hp_symm_stats_get(world, &symm));
    RANK_OK(hp_fsdp_stats_get(tiny_fsdp(model), &t));
    const uint64_t sum = t.shard_bytes + t.gather_bytes + t.grad_bytes + t.bucket_bytes +
                         t.optimizer_bytes + t.pack_bytes + t.shared_bytes;
    const uint64_t page =
        4096; /* allocations are whole pages; one of the fsdp, one that is shared */
    RANK_CHECK(symm.peak_bytes - symm.message_bytes + t.optimizer_bytes <=
               t.bound_bytes + 2 * page);
    RANK_CHECK(sum <= t.bound_bytes);
    RANK_CHECK(10 * t.bound_bytes <= 11 * sum + 20 * page);
    tiny_destroy(model);
}

static void test_memory_stays_below_the_bound(void **state) {
    static const int meshes[][2] = {{1, 2}, {2, 1}, {2, 2}, {1, 4}};
    (void)state;
    for (int m = 0; m < N_MODES; m++)
        for (int k = 0; k < 8; k++) {
            tiny_config config = TINY_CONFIG_INIT;
            config.fsdp.mode = modes[m];
            config.n_replicas = meshes[k % 4][0];
            config.n_shards = meshes[k % 4][1];
            config.fsdp.prefetch = k % 3;
            config.fsdp.reshard_after_forward = k < 4;
            config.fsdp.param_dtype = k % 2 ? HP_BF16 : HP_OWN_DTYPE;
            config.width = 64;
            config.n_steps = 2;
            ranks_run(config.n_replicas * config.n_shards, RANKS_THREADS, memory_body, &config);
        }
}

/* ---- poison ------------------------------------------------------------------------------ */

static void nan_body(hp_world *world, void *argument) {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
    (void)argument;
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.prefetch = 0;
    config.poison = 1;
    RANK_OK(hp_mesh_create(world, (int[]){hp_world_size(world)}, 1, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    for (int i = 0; i < 2; i++) {
        const hp_param param = vector(i ? "b" : "a", 64);
        RANK_OK(hp_unit_create(fsdp, param.name, &param, 1, NULL, &units[i]));
    }
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_OK(hp_forward_begin(units[0]));
    const float *data = hp_param_data(units[0], 0);
    RANK_CHECK(data[0] == 0 && data[63] == 0);
    RANK_OK(hp_forward_end(units[0]));
    RANK_CHECK(isnan(data[0]) && isnan(data[63])); /* it is only lent, and was given back */
    RANK_OK(hp_fsdp_end(fsdp));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_what_is_released_is_nan(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, nan_body, NULL);
}

static void train_body(hp_world *world, void *argument) {
    struct {
        tiny_config config;
        tiny_result result;
    } *run = argument;
    tiny_result result;
    RANK_OK(tiny_train(world, &run->config, &result));
    if (hp_world_rank(world) == 0)
        run->result = result;
}

/* Nothing reads what was released, whenever anything runs: the bits are those without poison. */
static void test_poison_is_never_read(void **state) {
    (void)state;
    struct {
        tiny_config config;
        tiny_result result;
    } run = {.config = TINY_CONFIG_INIT};
    run.config.n_replicas = run.config.n_shards = 2;
    run.config.n_steps = 6;
    run.config.is_mixed = 1;
    run.config.fsdp.poison = 0;
    ranks_run(4, RANKS_THREADS, train_body, &run);
    const tiny_result plain = run.result;
    run.config.fsdp.poison = 1;
    run.config.fsdp.delay = "kind=*,rank=*,us=300,seed=11";
    for (int m = 0; m < N_MODES; m++) {
        run.config.fsdp.mode = modes[m];
        ranks_run(4, RANKS_THREADS, train_body, &run);
        assert_int_equal(run.result.weights, plain.weights);
        assert_memory_equal(run.result.losses, plain.losses,
                            (size_t)run.config.n_steps * sizeof *plain.losses);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_trained),
        cmocka_unit_test(test_other_loops),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_memory_stays_below_the_bound),
        cmocka_unit_test(test_what_is_released_is_nan),
        cmocka_unit_test(test_poison_is_never_read),
    };
    return cmocka_run_group_tests_name("fsdp_verify", tests, NULL, NULL);
}
