/* SPDX-License-Identifier: Apache-2.0
 *
 * test_checkpoint.c - what is saved comes back bit for bit on any mesh; what does not fit is
 * refused.
 *
 * The model has a parameter of every sort (varied_model.h). A run that was saved, loaded elsewhere
 * and continued must equal the run that never stopped, weights and (by their effect) optimizer
 * state. After every refusal all weights are what they were.
 */
#include "unit/scratch.h"
#include "unit/varied_model.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { SAVED_AFTER = 2, N_STEPS = 4 };

static const int meshes[][2] = {{1, 1}, {1, 2}, {3, 1}, {1, 3}, {2, 2}, {1, 4}};
enum { N_MESHES = sizeof meshes / sizeof *meshes };

typedef struct run {
    int n_replicas;
    const char *optimizer;
    hp_optimizer_config config;
    varied_values at_save, at_load, at_end;
    uint64_t step; /* that a load gave */
} run;

static hp_optimizer *make_optimizer(const varied *m, const run *r) {
    hp_optimizer *o;
    RANK_OK(hp_optimizer_create(m->fsdp, r->optimizer, &r->config, &o));
    return o;
}

static void step_to(const varied *m, hp_optimizer *o, int from, int to) {
    for (int t = from; t < to; t++) {
        varied_pass(m, t, 1);
        RANK_OK(hp_optimizer_step(o, 0.1));
    }
}

static void train_and_save(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    varied_create(world, r->n_replicas, &m);
    hp_optimizer *o = make_optimizer(&m, r);
    step_to(&m, o, 0, SAVED_AFTER);
    varied_collect(&m, VARIED_WEIGHTS, &r->at_save);
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 7));
    step_to(&m, o, SAVED_AFTER, N_STEPS);
    varied_collect(&m, VARIED_WEIGHTS, &r->at_end);
    hp_optimizer_destroy(o);
    varied_destroy(&m);
}

static void load_and_train(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    uint64_t step = 0;
    varied_create(world, r->n_replicas, &m);
    hp_optimizer *o = make_optimizer(&m, r);
    varied_pass(&m, 9, 1);
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, &step));
    RANK_CHECK(step == 7);
    varied_collect(&m, VARIED_WEIGHTS, &r->at_load);
    varied_check_casts(&m);
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE); /* gradients of other weights */
    step_to(&m, o, SAVED_AFTER, N_STEPS);
    varied_collect(&m, VARIED_WEIGHTS, &r->at_end);
    hp_optimizer_destroy(o);
    varied_destroy(&m);
}

static void run_on(int mesh, ranks_body body, run *r) {
    r->n_replicas = meshes[mesh][0];
    ranks_run(meshes[mesh][0] * meshes[mesh][1], RANKS_THREADS, body, r);
}

static run *make_run(const char *optimizer) {
    run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->optimizer = optimizer;
    r->config = (hp_optimizer_config)HP_OPTIMIZER_CONFIG_INIT;
    return r;
}

static void save_on(int mesh) {
    run *r = make_run("adamw");
    run_on(mesh, train_and_save, r);
    free(r);
}

static void check_pair(const run *saved, int mesh) {
    run *loaded = make_run(saved->optimizer);
    loaded->config = saved->config;
    run_on(mesh, load_and_train, loaded);
    assert_memory_equal(&loaded->at_load, &saved->at_save, sizeof saved->at_save);
    assert_memory_equal(&loaded->at_end, &saved->at_end, sizeof saved->at_end);
    free(loaded);
}

static void any_mesh_loads_any_other_and_goes_on_bit_for_bit(void **state) {
    (void)state;
    for (int from = 0; from < N_MESHES; from++) {
        run *saved = make_run("adamw");
        run_on(from, train_and_save, saved);
        for (int to = 0; to < N_MESHES; to++)
            check_pair(saved, to);
        free(saved);
    }
}

/* Replica 0 of one shard holds everything, so it can compare by itself. */
static void load_as_process(hp_world *world, void *argument) {
    const run *saved = argument;
    run *loaded = calloc(1, sizeof *loaded);
    RANK_CHECK(loaded != NULL);
    loaded->optimizer = saved->optimizer;
    loaded->config = saved->config;
    loaded->n_replicas = hp_world_size(world);
    load_and_train(world, loaded);
    if (hp_world_rank(world) == 0) {
        RANK_CHECK(memcmp(&loaded->at_load, &saved->at_save, sizeof saved->at_save) == 0);
        RANK_CHECK(memcmp(&loaded->at_end, &saved->at_end, sizeof saved->at_end) == 0);
    }
    free(loaded);
}

static void processes_and_threads_load_from_each_other(void **state) {
    (void)state;
    if (hpi_environment("HP_TEST_THREADS_ONLY")) {
        print_message("needs ranks as processes: HP_TEST_THREADS_ONLY is set\n");
        skip();
    }
    run *saved = make_run("adamw");
    run_on(4, train_and_save, saved);
    ranks_run(2, RANKS_PROCESSES, load_as_process, saved);
    ranks_run(4, RANKS_PROCESSES, train_and_save, saved); /* 2 x 2, step 7 once more */
    check_pair(saved, 3);
    free(saved);
}

static void sgd_with_and_without_momentum(void **state) {
    (void)state;
    for (int has_momentum = 0; has_momentum < 2; has_momentum++) {
        run *saved = make_run("sgd");
        saved->config.momentum = has_momentum ? 0.9 : 0;
        run_on(4, train_and_save, saved);
        check_pair(saved, 3);
        assert_int_equal(scratch_has("step-00000007/optimizer-00000-of-00002.safetensors"),
                         has_momentum);
        free(saved);
    }
}

/* ---- with and without state ------------------------------------------------------------------ */

static void weights_alone(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    uint64_t step = 0;
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    hp_optimizer *adamw, *sgd;
    varied_create(world, 1, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "adamw", NULL, &adamw));
    config.momentum = 0.5;
    RANK_OK(hp_optimizer_create(m.fsdp, "sgd", &config, &sgd));
    step_to(&m, adamw, 0, 1);
    RANK_OK(hp_checkpoint_save(m.fsdp, NULL, scratch, 1));
    varied_collect(&m, VARIED_WEIGHTS, &r->at_save);
    step_to(&m, adamw, 1, 2);
    varied_collect(&m, VARIED_WEIGHTS, &r->at_end);
    RANK_FAILS(hp_checkpoint_load(m.fsdp, adamw, scratch, &step), HP_ERR_FORMAT);
    RANK_CHECK(strstr(hp_last_error(), "weights alone") && step == 0);
    varied_collect(&m, VARIED_WEIGHTS, &r->at_load);
    RANK_CHECK(memcmp(&r->at_load, &r->at_end, sizeof r->at_end) == 0);
    RANK_OK(hp_checkpoint_load(m.fsdp, NULL, scratch, NULL));
    varied_collect(&m, VARIED_WEIGHTS, &r->at_load);
    RANK_CHECK(memcmp(&r->at_load, &r->at_save, sizeof r->at_save) == 0);

    RANK_OK(hp_checkpoint_save(m.fsdp, adamw, scratch, 2));
    RANK_FAILS(hp_checkpoint_load(m.fsdp, sgd, scratch, &step), HP_ERR_FORMAT);
    RANK_CHECK(strstr(hp_last_error(), "optimizer sgd, found adamw"));
    RANK_OK(hp_checkpoint_load(m.fsdp, NULL, scratch, &step));
    RANK_CHECK(step == 2);
    hp_optimizer_destroy(sgd);
    hp_optimizer_destroy(adamw);
    varied_destroy(&m);
}

static void state_is_asked_for_or_not(void **state) {
    (void)state;
    run *r = make_run("adamw");
    ranks_run(1, RANKS_THREADS, weights_alone, r);
    free(r);
}

/* Gradients of the weights before a load, reduced or accumulated, are not applied to the new ones,
 * whether the optimizer's state was loaded or not. */
static void load_between_passes(hp_world *world, void *argument) {
    varied m;
    hp_optimizer *o;
    hp_shard shard;
    double norm;
    varied_values *grads = argument; /* two */
    varied_create(world, 1, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "adamw", NULL, &o));
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 1));
    for (int with_state = 0; with_state < 2; with_state++) {
        varied_pass(&m, 0, 1);
        RANK_OK(hp_checkpoint_load(m.fsdp, with_state ? o : NULL, scratch, NULL));
        RANK_OK(hp_param_shard(m.units[0], 0, &shard));
        RANK_CHECK(shard.grad == NULL);
        RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, 2, &norm), HP_ERR_STATE);
        RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE);
        varied_pass_as(&m, HP_NO_SYNC, 1, 1);
        RANK_OK(hp_checkpoint_load(m.fsdp, with_state ? o : NULL, scratch, NULL));
        varied_pass(&m, 2, 1);
        varied_collect(&m, VARIED_GRADS, &grads[with_state]);
        RANK_OK(hp_optimizer_step(o, 0.1));
    }
    hp_optimizer_destroy(o);
    varied_destroy(&m);
}

static void gradients_are_no_more_after_a_load(void **state) {
    (void)state;
    varied_values *grads = calloc(2, sizeof *grads);
    assert_non_null(grads);
    ranks_run(3, RANKS_THREADS, load_between_passes, grads);
    for (int with_state = 0; with_state < 2; with_state++)
        for (int row = 0; row < N_VARIED; row++)
            for (uint64_t i = 0; i < varied_count(&varied_rows[row]); i++)
                assert_true(!varied_is_trained(&varied_rows[row]) ||
                            grads[with_state].of[row][i] == varied_gradient(row, 2, i));
    free(grads);
}

/* ---- which checkpoints stay, which is taken -------------------------------------------------- */

static int count_entries(void) {
    int n = 0;
    DIR *directory = opendir(scratch);
    assert_non_null(directory);
    while (readdir(directory))
        n++;
    closedir(directory);
    return n - 2; /* . and .. */
}

static void save_steps(hp_world *world, void *argument) {
    varied m;
    varied_create(world, 1, &m);
    for (const uint64_t *step = argument; *step; step++)
        RANK_OK(hp_checkpoint_save(m.fsdp, NULL, scratch, *step));
    varied_destroy(&m);
}

static void expect_latest(const char *expected) {
    char text[64] = {0};
    FILE *file = fopen(scratch_path("latest"), "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, expected);
}

static void the_last_two_saved_stay(void **state) {
    (void)state;
    mkdir(scratch_path(".step-00000003.tmp-00000000000000aa"), 0700);
    scratch_write(".step-00000003.tmp-00000000000000aa/model", "left by a kill");
    mkdir(scratch_path("step-of-mine"), 0700);
    mkdir(scratch_path("step-5"), 0700); /* not as we write it: not ours */
    uint64_t steps[] = {10, 20, 30, 30, 40, 0};
    ranks_run(2, RANKS_THREADS, save_steps, steps);
    expect_latest("step-00000040\n");
    assert_true(scratch_has("step-00000030") && scratch_has("step-00000040"));
    assert_true(scratch_has("step-of-mine") && scratch_has("step-5"));
    assert_int_equal(count_entries(), 5);
    uint64_t restarted[] = {5, 123456789012, 0}; /* a run that began anew: what it saves counts */
    ranks_run(1, RANKS_THREADS, save_steps, restarted);
    expect_latest("step-123456789012\n");
    assert_true(scratch_has("step-00000005") && scratch_has("step-123456789012"));
    assert_int_equal(count_entries(), 5);
}

static void load_step(hp_world *world, void *argument) {
    varied m;
    uint64_t *step = argument;
    varied_create(world, 1, &m);
    RANK_OK(hp_checkpoint_load(m.fsdp, NULL, scratch, hp_world_rank(world) ? NULL : step));
    varied_destroy(&m);
}

static uint64_t loaded_step(void) {
    uint64_t step = 0;
    ranks_run(2, RANKS_THREADS, load_step, &step);
    return step;
}

static void without_latest_the_newest_whole_one_is_taken(void **state) {
    (void)state;
    uint64_t steps[] = {20, 10, 0};
    ranks_run(1, RANKS_THREADS, save_steps, steps);
    assert_int_equal(loaded_step(), 10);
    scratch_write("latest", "step-00000099\n");
    assert_int_equal(loaded_step(), 20);
    scratch_write("latest", "../step-00000010\n");
    assert_int_equal(loaded_step(), 20);
    unlink(scratch_path("latest"));
    assert_int_equal(loaded_step(), 20);
    unlink(scratch_path("step-00000020/index.json"));
    assert_int_equal(loaded_step(), 10);
    /* Moved aside on a file system that cannot exchange names, and then killed. */
    rename(scratch_path("step-00000010"), scratch_path(".step-00000010.old-00000000000000bb"));
    assert_int_equal(loaded_step(), 10);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void misuse(hp_world *world, void *argument) {
    (void)argument;
    varied m, other;
    hp_optimizer *o;
    uint64_t step = 77;
    varied_create(world, 1, &m);
    varied_create(world, 1, &other);
    RANK_OK(hp_optimizer_create(other.fsdp, "sgd", NULL, &o));
    RANK_FAILS(hp_checkpoint_load(m.fsdp, NULL, scratch, &step), HP_ERR_FILE); /* none there */
    RANK_CHECK(strstr(hp_last_error(), scratch));
    RANK_FAILS(hp_checkpoint_save(NULL, NULL, scratch, 1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_checkpoint_save(m.fsdp, NULL, NULL, 1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_checkpoint_save(m.fsdp, NULL, "", 1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_checkpoint_save(m.fsdp, o, scratch, 1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_checkpoint_load(m.fsdp, o, scratch, &step), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_checkpoint_load(m.fsdp, NULL, "", &step), HP_ERR_ARGUMENT);
    const bool is_odd = hp_world_rank(world) == 1; /* alone with a bad argument */
    RANK_FAILS(hp_checkpoint_save(m.fsdp, is_odd ? o : NULL, scratch, 1), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "rank 1: hp_checkpoint_save: expected an optimizer of"));
    RANK_FAILS(hp_checkpoint_load(m.fsdp, NULL, is_odd ? "" : scratch, &step), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "rank 1: hp_checkpoint_load: expected a directory"));
    RANK_OK(hp_fsdp_begin(m.fsdp, HP_EVALUATE));
    RANK_FAILS(hp_checkpoint_save(m.fsdp, NULL, scratch, 1), HP_ERR_STATE);
    RANK_FAILS(hp_checkpoint_load(m.fsdp, NULL, scratch, &step), HP_ERR_STATE);
    RANK_OK(hp_fsdp_end(m.fsdp));
    const uint64_t mine = 5 + (uint64_t)hp_world_rank(world);
    RANK_FAILS(hp_checkpoint_save(m.fsdp, NULL, scratch, mine), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "rank 1") && strstr(hp_last_error(), "given step 6"));
    RANK_FAILS(hp_checkpoint_save(m.fsdp, NULL, "/proc/none/of/these", 1), HP_ERR_FILE);
    RANK_CHECK(strstr(hp_last_error(), "rank 0") && strstr(hp_last_error(), "/proc/none/of"));
    RANK_CHECK(step == 77);
    hp_optimizer_destroy(o);
    varied_destroy(&other);
    varied_destroy(&m);
}

static void misuse_is_refused(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse, NULL);
    assert_int_equal(count_entries(), 0);
}

/* A rank that cannot write makes all fail alike, with its name and path, and leaves nothing. */
static void one_rank_elsewhere(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_error error;
    const bool is_odd = hp_world_rank(world) == 2;
    varied_create(world, 1, &m);
    RANK_OK(hp_checkpoint_save(m.fsdp, NULL, scratch, 1));
    RANK_FAILS(hp_checkpoint_save(m.fsdp, NULL, is_odd ? "/nowhere" : scratch, 2), HP_ERR_FILE);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 2);
    RANK_CHECK(strstr(error.message, "rank 2") && strstr(error.message, "/nowhere/.step-00000002"));
    RANK_CHECK(strstr(error.message, "model-00002-of-00003.safetensors"));
    RANK_OK(hp_checkpoint_load(m.fsdp, NULL, scratch, NULL));
    varied_destroy(&m);
}

static void one_rank_that_fails_fails_all(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, one_rank_elsewhere, NULL);
    assert_int_equal(count_entries(), 2); /* step 1 and latest */
}

static void starve(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    hp_status status = HP_ERR_MEMORY;
    varied_create(world, 1, &m);
    for (uint64_t n = 1; status < 0; n++) {
        hpi_alloc_fail_after(n);
        status = hp_checkpoint_save(m.fsdp, NULL, scratch, 3);
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(n < 2000);
    }
    varied_collect(&m, VARIED_WEIGHTS, &r->at_save);
    status = HP_ERR_MEMORY;
    for (uint64_t n = 1; status < 0; n++) {
        hpi_alloc_fail_after(n);
        status = hp_checkpoint_load(m.fsdp, NULL, scratch, NULL);
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(n < 2000);
        varied_collect(&m, VARIED_WEIGHTS, &r->at_load);
        RANK_CHECK(memcmp(&r->at_load, &r->at_save, sizeof r->at_save) == 0);
    }
    varied_destroy(&m);
}

static void failed_allocations_are_reported(void **state) {
    (void)state;
    run *r = make_run("adamw");
    ranks_run(1, RANKS_THREADS, starve, r);
    free(r);
    assert_int_equal(count_entries(), 2);
}

/* ---- another model --------------------------------------------------------------------------- */

typedef struct shape_case {
    const char *name;
    int64_t rows;
    hp_dtype dtype;
    int n_params; /* 2 adds a parameter, 0 leaves one out */
    const char *complaint;
} shape_case;

/* A unit like the second one of the model, with one thing changed. */
static void load_into_another(hp_world *world, void *argument) {
    const shape_case *c = argument;
    varied m = {0};
    hp_param params[N_VARIED + 1];
    int n = 0;
    for (int i = 0; i < N_VARIED; i++)
        if (c->n_params || i != N_VARIED - 1)
            params[n++] = varied_param(i);
    hp_param *last = &params[n - 1];
    if (c->n_params) {
        last->name = c->name;
        last->shape[0] = c->rows;
        last->dtype = c->dtype;
    }
    if (c->n_params == 2) {
        params[n] = varied_param(2);
        params[n++].name = "b.more";
    }
    const int sizes[] = {1, hp_world_size(world)};
    RANK_OK(hp_mesh_create(world, sizes, 2, &m.mesh));
    RANK_OK(hp_fsdp_create(m.mesh, NULL, &m.fsdp));
    RANK_OK(hp_unit_create(m.fsdp, "all", params, n, NULL, &m.units[0]));
    RANK_OK(hp_fsdp_commit(m.fsdp));
    if (c->complaint) {
        RANK_FAILS(hp_checkpoint_load(m.fsdp, NULL, scratch, NULL), HP_ERR_FORMAT);
        RANK_CHECK(strstr(hp_last_error(), c->complaint) && strstr(hp_last_error(), "index.json"));
    } else {
        RANK_OK(hp_checkpoint_load(m.fsdp, NULL, scratch, NULL)); /* units may be cut anew */
    }
    varied_destroy(&m);
}

static void a_model_that_does_not_fit_is_told_why(void **state) {
    (void)state;
    static const shape_case cases[] = {
        {"b.inner", 4, HP_FP32, 1, NULL},
        {"b.inner", 4, HP_FP64, 1, "tensor \"b.inner\": expected fp64, found fp32"},
        {"b.inner", 5, HP_FP32, 1, "tensor \"b.inner\": expected the shape"},
        {"b.renamed", 4, HP_FP32, 1, "tensor \"b.renamed\", found none"},
        {"b.inner", 4, HP_FP32, 2, "tensor \"b.more\", found none"},
        {NULL, 0, HP_FP32, 0, "tensor \"b.inner\": expected the model's tensors alone"},
    };
    save_on(3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ranks_run(2, RANKS_THREADS, load_into_another, (void *)(uintptr_t)&cases[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, scratch_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(any_mesh_loads_any_other_and_goes_on_bit_for_bit),
        TEST(processes_and_threads_load_from_each_other),
        TEST(sgd_with_and_without_momentum),
        TEST(state_is_asked_for_or_not),
        TEST(gradients_are_no_more_after_a_load),
        TEST(the_last_two_saved_stay),
        TEST(without_latest_the_newest_whole_one_is_taken),
        TEST(misuse_is_refused),
        TEST(one_rank_that_fails_fails_all),
        TEST(failed_allocations_are_reported),
        TEST(a_model_that_does_not_fit_is_told_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
