/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_units.c - SPEC A1, A2, A6, A7 and A12, what else is promised of a unit: padding, what
 * needs no collective, what is ignored, options of a unit's own, gathers that nobody used, offload.
 *
 * Each test is one sentence of the specification.
 */
#include "field/exact_training.h"
#include "fsdp/plan/plan.h"
#include "fsdp/together/between.h"
#include "scratch.h"

#include <dirent.h>

/* ---- padding stays zero ------------------------------------------------------------------- */

static const exact_param uneven[] = {{"ten", 10, 3, HP_FP32, 0, 0},
                                     {"two", 2, 1, HP_FP32, 0, 0},
                                     {"half", 7, 5, HP_BF16, 0, 0},
                                     {"inner", 3, 8, HP_FP32, 1, 0},
                                     {"frozen", 5, 1, HP_FP32, 0, 1}};

enum { MOST_BYTES = 1 << 14 };

typedef struct region {
    const unsigned char *begin;
    uint64_t n;
    bool is_used[MOST_BYTES];
} region;

static void use(region *r, const void *begin, uint64_t n) {
    const unsigned char *at = begin;
    for (uint64_t i = 0; at && i < n; i++)
        if (at + i >= r->begin && at + i < r->begin + r->n)
            r->is_used[at + i - r->begin] = true;
}

/* Every byte of this piece that is no element of this rank's is zero; returns how many are. */
static uint64_t check_region(const exact_training *t, const hp_unit *unit, hp_ref ref) {
    region r = {.begin = (unsigned char *)t->fsdp->bindings.buffers[ref.buffer] + ref.begin,
                .n = ref.end - ref.begin};
    uint64_t n_zero = 0;
    RANK_CHECK(r.n <= MOST_BYTES);
    for (int j = 0; j < unit->n_params; j++) {
        const hpi_param *p = &unit->params[j];
        hp_shard shard;
        RANK_OK(hp_param_shard(unit, j, &shard));
        use(&r, shard.values, shard.n_elements * hp_dtype_size(shard.dtype));
        use(&r, shard.grad, shard.n_elements * hp_dtype_size(shard.dtype));
        if (p->has_cast)
            use(&r, hpi_param_cast(unit, p), shard.n_elements * hp_dtype_size(p->data_dtype));
    }
    for (uint64_t i = 0; i < r.n; i++)
        if (!r.is_used[i]) {
            RANK_CHECK(r.begin[i] == 0);
            n_zero++;
        }
    return n_zero;
}

static uint64_t check_padding(const exact_training *t) {
    uint64_t n_zero = 0;
    for (int u = 0; u < t->job->n_units; u++) {
        const hpi_plan_unit *plan = &t->fsdp->plan_units[u];
        for (uint32_t j = 0; j < plan->n_params; j++)
            n_zero += check_region(t, t->units[u], plan->params[j].source);
        if (plan->bucket[0].buffer)
            n_zero += check_region(t, t->units[u], plan->bucket[0]);
    }
    return n_zero;
}

/* Weight decay and momentum would make something of anything but zero. */
static void padding_body(hp_world *world, void *argument) {
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    exact_training t;
    double norm;
    uint64_t mine, all;
    exact_make(&t, world, argument);
    hp_optimizer_destroy(t.sgd);
    RANK_OK(hp_optimizer_create(t.fsdp, "adamw", &config, &t.sgd));
    for (int step = 0; step < 5; step++) {
        RANK_OK(hp_fsdp_begin(t.fsdp, HP_SYNC));
        for (int u = 0; u < t.job->n_units; u++) {
            RANK_OK(hp_forward_begin(t.units[u]));
            RANK_OK(hp_forward_end(t.units[u]));
        }
        for (int u = t.job->n_units; u-- > 0;) {
            RANK_OK(hp_backward_begin(t.units[u]));
            exact_write(&t, u, step);
            RANK_OK(hp_backward_end(t.units[u]));
        }
        RANK_OK(hp_fsdp_end(t.fsdp));
        RANK_OK(hp_clip_grad_norm(t.fsdp, 1.0, 2.0, &norm));
        RANK_OK(hp_optimizer_step(t.sgd, 0.1));
        mine = check_padding(&t);
    }
    RANK_OK(hp_all_reduce(hp_world_group(world), &mine, &all, 1, HP_INT64, HP_SUM));
    RANK_CHECK(all > 0); /* there is some */
    exact_drop(&t);
}

static void padding_stays_zero(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.params = uneven;
    job.n_params = 5;
    job.fsdp.poison = 1;
    exact_run_all(&job, meshes_of_4, N_MESHES_OF_4, padding_body, &job);
    job.fsdp.param_dtype = HP_BF16;
    exact_run_all(&job, meshes_of_4, N_MESHES_OF_4, padding_body, &job);
}

/* ---- one shard, one replica ---------------------------------------------------------------- */

static uint64_t count_kind(const exact_training *t, int kind) {
    uint64_t n, n_found = 0;
    const hp_op *ops = exact_recorded(t, &n);
    for (uint64_t i = 0; i < n; i++)
        n_found += ops[i].kind == kind;
    return n_found;
}

static void look_at_collectives(const exact_training *t, int step) {
    static const int of_shards[] = {HPI_OP_ALL_GATHER, HPI_OP_REDUCE_SCATTER, HPI_OP_BARRIER,
                                    HPI_OP_PACK,       HPI_OP_COPY,           HPI_OP_COPY_OUT,
                                    HPI_OP_PACK_GRADS};
    (void)step;
    for (int k = 0; t->job->n_shards == 1 && k < 7; k++)
        RANK_CHECK(count_kind(t, of_shards[k]) == 0);
    RANK_CHECK(count_kind(t, HPI_OP_CONVERT) == 0 || t->job->n_shards > 1);
    RANK_CHECK((count_kind(t, HPI_OP_ALL_REDUCE) == 0) == (t->job->n_replicas == 1));
}

/* Parameters are read, and gradients written, where the shards lie. */
static void in_place_body(hp_world *world, void *argument) {
    exact_training t;
    hp_shard shard;
    const void *data, *grad;
    exact_make(&t, world, argument);
    RANK_OK(hp_fsdp_begin(t.fsdp, HP_SYNC));
    RANK_OK(hp_forward_begin(t.units[0]));
    data = hp_param_data(t.units[0], 0);
    RANK_OK(hp_forward_end(t.units[0]));
    RANK_OK(hp_backward_begin(t.units[0]));
    RANK_CHECK(hp_param_data(t.units[0], 0) == data);
    grad = hp_param_grad(t.units[0], 0);
    exact_write(&t, 0, 0);
    RANK_OK(hp_backward_end(t.units[0]));
    RANK_OK(hp_fsdp_end(t.fsdp));
    RANK_OK(hp_param_shard(t.units[0], 0, &shard));
    RANK_CHECK(shard.grad == grad);
    RANK_CHECK(shard.values == data);
    exact_drop(&t);
}

static void one_shard_and_one_replica_need_no_collective(void **state) {
    static const int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}};
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.fsdp.record = 1;
    job.look = look_at_collectives;
    exact_train_all(job, meshes, 4);
    exact_run_all(&job, meshes, 3, in_place_body, &job);
}

/* ---- ignored ------------------------------------------------------------------------------- */

static void ignored_body(hp_world *world, void *argument) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_param params[] = {vector("kept", 8), vector("ignored", 1000)};
    hp_fsdp_stats stats;
    hp_shard shard;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit;
    config.mode = *(const hp_mode *)argument;
    params[1].is_ignored = 1;
    RANK_OK(hp_mesh_create(world, (int[]){hp_world_size(world)}, 1, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "unit", params, 2, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_stats_get(fsdp, &stats));
    RANK_CHECK(stats.shard_bytes + stats.shared_bytes + stats.gather_bytes < 1000 * 4 / 2);
    RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
    RANK_OK(hp_forward_begin(unit));
    RANK_CHECK(hp_param_data(unit, 0) && !hp_param_data(unit, 1));
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_backward_begin(unit));
    RANK_CHECK(hp_param_grad(unit, 0) && !hp_param_grad(unit, 1));
    memset(hp_param_grad(unit, 0), 0, 8 * sizeof(float));
    RANK_OK(hp_backward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    RANK_FAILS(hp_param_shard(unit, 1, &shard), HP_ERR_STATE);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void what_is_ignored_is_left_to_the_caller(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        ranks_run(2, RANKS_THREADS, ignored_body, &mode);
}

/* ---- options of a unit --------------------------------------------------------------------- */

enum { N_UNITS = 4, N_ELEMENTS = 8 };

typedef struct bench {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
} bench;

static void set_up(bench *b, hp_world *world, const hp_fsdp_config *config,
                   const hp_unit_config *of_units) {
    static const char *const names[N_UNITS] = {"root", "first", "second", "last"};
    RANK_OK(hp_mesh_create(world, (int[]){1, hp_world_size(world)}, 2, &b->mesh));
    RANK_OK(hp_fsdp_create(b->mesh, config, &b->fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        const hp_param param = vector(names[i], N_ELEMENTS);
        RANK_OK(hp_unit_create(b->fsdp, names[i], &param, 1, of_units ? &of_units[i] : NULL,
                               &b->units[i]));
    }
    RANK_OK(hp_fsdp_commit(b->fsdp));
}

static void tear_down(bench *b) {
    hp_fsdp_destroy(b->fsdp);
    hp_mesh_destroy(b->mesh);
}

static void forward(hp_unit *unit) {
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
}

static void backward(hp_unit *unit, float value) {
    RANK_OK(hp_backward_begin(unit));
    float *grad = hp_param_grad(unit, 0);
    for (int k = 0; k < N_ELEMENTS; k++)
        grad[k] = value;
    RANK_OK(hp_backward_end(unit));
}

static void whole_pass(bench *b, float value) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_SYNC));
    for (int i = 0; i < N_UNITS; i++)
        forward(b->units[i]);
    for (int i = N_UNITS; i-- > 0;)
        backward(b->units[i], value);
    RANK_OK(hp_fsdp_end(b->fsdp));
}

/* The units that the last pass gathered, a digit each. */
static void list_gathers(const bench *b, char *out) {
    const hp_op *ops;
    const hp_kind *kinds;
    uint64_t n;
    uint32_t n_kinds;
    RANK_OK(hp_fsdp_recorded(b->fsdp, &ops, &n, &kinds, &n_kinds));
    for (uint64_t i = 0; i < n; i++)
        if (ops[i].kind == HPI_OP_ALL_GATHER)
            *out++ = (char)('0' + ops[i].unit);
    *out = 0;
}

static void expect_gathers(bench *b, const char *expected) {
    char given[64];
    whole_pass(b, 1.0F);
    whole_pass(b, 1.0F);
    list_gathers(b, given);
    if (strcmp(given, expected) != 0)
        fprintf(stderr, "expected gathers %s, given %s\n", expected, given);
    RANK_CHECK(strcmp(given, expected) == 0);
}

static void gathers_body(hp_world *world, void *argument) {
    const hp_unit_config plain = HP_UNIT_CONFIG_INIT;
    hp_unit_config of_units[N_UNITS] = {plain, plain, plain, plain};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    bench b;
    config.mode = *(const hp_mode *)argument;
    config.record = 1;
    set_up(&b, world, &config, NULL); /* in order, then back from the last, which stays */
    expect_gathers(&b, "0123210");
    tear_down(&b);
    of_units[0].reshard_after_forward = 0; /* a root: gathered once */
    set_up(&b, world, &config, of_units);
    expect_gathers(&b, "012321");
    tear_down(&b);
    of_units[0] = plain;
    config.reshard_after_forward = 0;
    of_units[2].reshard_after_forward = 1; /* the other way round */
    set_up(&b, world, &config, of_units);
    expect_gathers(&b, "01232");
    tear_down(&b);
}

/* Known only when it exists, a list names units that were created before. */
static void list_body(hp_world *world, void *argument) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_unit_config with_list = HP_UNIT_CONFIG_INIT;
    hp_unit *list[1];
    char given[64];
    bench b;
    config.mode = *(const hp_mode *)argument;
    config.record = 1;
    RANK_OK(hp_mesh_create(world, (int[]){1, hp_world_size(world)}, 2, &b.mesh));
    RANK_OK(hp_fsdp_create(b.mesh, &config, &b.fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        static const char *const names[N_UNITS] = {"a", "b", "c", "d"};
        const hp_param param = vector(names[i], N_ELEMENTS);
        with_list.prefetch = i == 3 ? list : NULL;
        with_list.n_prefetch = i == 3;
        RANK_OK(hp_unit_create(b.fsdp, names[i], &param, 1, &with_list, &b.units[i]));
        list[0] = b.units[i == 0 ? 0 : 1];
    }
    RANK_OK(hp_fsdp_commit(b.fsdp));
    for (int step = 0; step < 2; step++) { /* 3 first: its list brings 1, the order would bring 0 */
        static const int order[N_UNITS] = {3, 0, 1, 2};
        RANK_OK(hp_fsdp_begin(b.fsdp, HP_SYNC));
        for (int k = 0; k < N_UNITS; k++)
            forward(b.units[order[k]]);
        for (int k = N_UNITS; k-- > 0;)
            backward(b.units[order[k]], 1.0F);
        RANK_OK(hp_fsdp_end(b.fsdp));
    }
    list_gathers(&b, given);
    RANK_CHECK(given[0] == '3' && given[1] == '1');
    tear_down(&b);
}

static void a_unit_is_kept_or_not_and_has_its_own_list(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_FUSED_ZERO_COPY; mode++) {
        ranks_run(2, RANKS_THREADS, gathers_body, &mode);
        ranks_run(2, RANKS_THREADS, list_body, &mode);
    }
}

static void defaults_are_those_of_the_specification(void **state) {
    const hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    const hp_unit_config unit = HP_UNIT_CONFIG_INIT;
    (void)state;
    assert_true(config.prefetch == 1 && config.reshard_after_forward == 1);
    assert_true(config.mode == HP_PER_PARAM && config.schedule == HP_OVERLAP);
    assert_true(unit.reduce == HP_AVG && unit.factor == 1.0 && unit.reshard_after_forward == -1);
}

/* Mean, sum and factors side by side, in one reduction after the other. */
static void reductions_body(hp_world *world, void *argument) {
    const hp_unit_config plain = HP_UNIT_CONFIG_INIT;
    hp_unit_config of_units[N_UNITS] = {plain, plain, plain, plain};
    static const float expected[N_UNITS] = {2.5F, 10.0F, 5.0F, 40.0F}; /* ranks give 1 to 4 */
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    bench b;
    config.mode = *(const hp_mode *)argument;
    of_units[1].reduce = HP_SUM;
    of_units[2].factor = 2.0;
    of_units[3].reduce = HP_SUM;
    of_units[3].factor = 4.0;
    set_up(&b, world, &config, of_units);
    for (int step = 0; step < 2; step++) {
        whole_pass(&b, (float)(hp_world_rank(world) + 1));
        for (int i = 0; i < N_UNITS; i++) {
            hp_shard shard;
            RANK_OK(hp_param_shard(b.units[i], 0, &shard));
            for (uint64_t k = 0; k < shard.n_elements; k++)
                RANK_CHECK(((const float *)shard.grad)[k] == expected[i]);
        }
    }
    tear_down(&b);
}

static void each_unit_has_its_own_reduction(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        ranks_run(4, RANKS_THREADS, reductions_body, &mode);
}

/* ---- a gather that nobody used ------------------------------------------------------------- */

static void expect_weight(const hp_unit *unit, float expected) {
    const float *w = hp_param_data(unit, 0);
    RANK_CHECK(w != NULL);
    for (int k = 0; k < N_ELEMENTS; k++)
        RANK_CHECK(w[k] == expected);
}

/* Nor on its way. */
static void expect_nothing_gathered(const hp_fsdp *fsdp) {
    hp_fsdp_stats stats;
    RANK_OK(hp_fsdp_stats_get(fsdp, &stats));
    RANK_CHECK(stats.gathered_units == 0);
}

/* "first" is gathered ahead in every pass and used in every second step; its weight changes in
 * each, by its gradient or by decay alone: w -= g + w / 2. */
static void unused_body(hp_world *world, void *argument) {
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    hp_fsdp_config fsdp_config = HP_FSDP_CONFIG_INIT;
    hp_optimizer *sgd;
    float weight = 0;
    bench b;
    fsdp_config.mode = *(const hp_mode *)argument;
    fsdp_config.prefetch = 2;
    config.weight_decay = 0.5;
    set_up(&b, world, &fsdp_config, NULL);
    RANK_OK(hp_optimizer_create(b.fsdp, "sgd", &config, &sgd));
    for (int step = 0; step < 8; step++) {
        const bool is_used = step % 2 == 0;
        RANK_OK(hp_fsdp_begin(b.fsdp, HP_SYNC));
        forward(b.units[0]);
        if (is_used) {
            RANK_OK(hp_forward_begin(b.units[1]));
            expect_weight(b.units[1], weight);
            RANK_OK(hp_forward_end(b.units[1]));
            backward(b.units[1], 64.0F);
        }
        backward(b.units[0], 1.0F);
        RANK_OK(hp_fsdp_end(b.fsdp));
        expect_nothing_gathered(b.fsdp);
        RANK_OK(hp_optimizer_step(sgd, 1.0));
        weight -= (is_used ? 64.0F : 0.0F) + weight / 2;
        RANK_OK(hp_fsdp_begin(b.fsdp, HP_EVALUATE));
        forward(b.units[0]);
        RANK_OK(hp_fsdp_end(b.fsdp));
        expect_nothing_gathered(b.fsdp);
    }
    hp_optimizer_destroy(sgd);
    tear_down(&b);
}

static void what_was_gathered_and_not_used_is_not_stale(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        ranks_run(2, RANKS_THREADS, unused_body, &mode);
}

/* ---- a unit that some do not use ----------------------------------------------------------- */

struct unused {
    hp_mode mode;
    int unit, odd_rank; /* -1: nobody uses it */
};

static hp_status pass_without(bench *b, int left_out) {
    hp_status status = hp_fsdp_begin(b->fsdp, HP_SYNC);
    for (int i = 0; i < N_UNITS && status >= 0; i++) {
        if (i == left_out)
            continue;
        status = hp_forward_begin(b->units[i]);
        status = status < 0 ? status : hp_forward_end(b->units[i]);
    }
    for (int i = N_UNITS; i-- > 0 && status >= 0;) {
        if (i == left_out)
            continue;
        status = hp_backward_begin(b->units[i]);
        for (int k = 0; k < N_ELEMENTS && status >= 0; k++)
            ((float *)hp_param_grad(b->units[i], 0))[k] = 4.0F;
        status = status < 0 ? status : hp_backward_end(b->units[i]);
    }
    return status < 0 ? status : hp_fsdp_end(b->fsdp);
}

static void expect_gradient(const hp_unit *unit, float expected) {
    hp_shard shard;
    RANK_OK(hp_param_shard(unit, 0, &shard));
    for (uint64_t k = 0; k < shard.n_elements; k++)
        RANK_CHECK(((const float *)shard.grad)[k] == expected);
}

/* All count as zero; or ranks that gather and reduce in another order are told so at once, each of
 * them, and go on after a reset. */
static void unused_by_some_body(hp_world *world, void *argument) {
    const struct unused *u = argument;
    const bool is_mine = u->odd_rank < 0 || u->odd_rank == hp_world_rank(world);
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    bench b;
    config.mode = u->mode;
    set_up(&b, world, &config, NULL);
    RANK_OK(pass_without(&b, -1));
    const hp_status status = pass_without(&b, is_mine ? u->unit : -1);
    if (status >= 0) {
        const int n = hp_world_size(world);
        expect_gradient(b.units[u->unit], u->odd_rank < 0 ? 0 : 4.0F * (float)(n - 1) / (float)n);
    } else {
        RANK_CHECK(u->odd_rank >= 0 && (status == HP_ERR_MISMATCH || status == HP_ERR_FAILED));
        RANK_CHECK(strstr(hp_last_error(), "to make the same call") ||
                   strstr(hp_last_error(), "has reset it")); /* who comes to it later */
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    RANK_OK(pass_without(&b, -1));
    for (int i = 0; i < N_UNITS; i++)
        expect_gradient(b.units[i], 4.0F);
    tear_down(&b);
}

static void a_unit_may_be_unused_by_some_or_all(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        for (int unit = 0; unit < N_UNITS; unit++)
            for (int odd_rank = -1; odd_rank < 2; odd_rank += 2) {
                struct unused u = {(hp_mode)mode, unit, odd_rank};
                ranks_run(4, RANKS_THREADS, unused_by_some_body, &u);
            }
}

/* ---- offload ------------------------------------------------------------------------------- */

static void offload_body(hp_world *world, void *argument) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    bench b;
    config.offload = *(const int *)argument;
    set_up(&b, world, &config, NULL);
    whole_pass(&b, 1.0F);
    tear_down(&b);
}

static bool is_said(const char *text) {
    char line[512];
    bool is_found = false;
    DIR *folder = opendir(scratch);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        FILE *file = e->d_name[0] == '.' ? NULL : fopen(scratch_path(e->d_name), "r");
        while (file && fgets(line, sizeof line, file))
            is_found |= strstr(line, text) != NULL;
        if (file)
            fclose(file);
    }
    closedir(folder);
    return is_found;
}

static void offload_is_accepted_and_says_so(void **state) {
    (void)state;
    assert_int_equal(setenv("HYPER_PARALLEL_LOG_DIR", scratch, 1), 0);
    assert_int_equal(setenv("HYPER_PARALLEL_SHMEM_LOG_LEVEL", "INFO", 1), 0);
    for (int offload = 0; offload < 2; offload++) {
        ranks_run(2, RANKS_THREADS, offload_body, &offload);
        assert_true(is_said("offload: shards and optimizer state are in host memory already") ==
                    (offload != 0));
    }
    unsetenv("HYPER_PARALLEL_SHMEM_LOG_LEVEL");
    unsetenv("HYPER_PARALLEL_LOG_DIR");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(one_shard_and_one_replica_need_no_collective),
        cmocka_unit_test(what_is_ignored_is_left_to_the_caller),
        cmocka_unit_test(a_unit_is_kept_or_not_and_has_its_own_list),
        cmocka_unit_test(defaults_are_those_of_the_specification),
        cmocka_unit_test(each_unit_has_its_own_reduction),
        cmocka_unit_test(what_was_gathered_and_not_used_is_not_stale),
        cmocka_unit_test(a_unit_may_be_unused_by_some_or_all),
        cmocka_unit_test_setup_teardown(offload_is_accepted_and_says_so, scratch_make,
                                        scratch_remove),
    };
    return cmocka_run_group_tests_name("fsdp_units", tests, NULL, NULL);
}
