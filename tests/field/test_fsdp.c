/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp.c - what went wrong in sharded training elsewhere, and must hold here: rows F of the
 * field's reports that are about values, each in every mode in which it has a meaning.
 *
 * Most of them are a training in which every value is known (exact_training.h). Rows about buffers
 * are in test_fsdp_buffers.c, about the user's loop in test_fsdp_loop.c; plans with such faults
 * planted, which the verifier rejects, are in test_schedule.c.
 */
#include "exact_training.h"
#include "fsdp/plan/plan.h"
#include "support/tiny.h"

#include <math.h>

/* ---- F1: a mean that is a sum ------------------------------------------------------------- */

static void F1_gradient_is_the_mean(void **state) {
    static const int meshes[][2] = {{1, 2}, {1, 3}, {1, 4}, {2, 1}, {3, 1}};
    const exact_job job = EXACT_JOB_INIT;
    (void)state;
    exact_train_all(job, meshes, 5);
}

/* ---- F2, F3: factors and divisions on meshes of one and two dimensions -------------------- */

enum { RANDOM_MOST = 32, RANDOM_ALL = 3 * 2 * RANDOM_MOST };

struct random_job {
    exact_job job;
    float seen[RANDOM_ALL]; /* what one replica's gradient shards hold, [unit][param][element] */
};

/* Any fp32, so that another order of additions, or a division more, shows in the bits. */
static float random_gradient(int rank, int unit, int param, uint64_t i) {
    uint64_t seed = (uint64_t)(rank * 131 + unit * 17 + param) * 1000 + i;
    return (float)hpi_random_unit(&seed) * 2.0F - 1.0F;
}

static uint64_t random_place(int unit, int param, uint64_t i) {
    return (uint64_t)(unit * 2 + param) * RANDOM_MOST + i;
}

static void write_random(const exact_training *t, int unit) {
    for (int j = 0; j < t->job->n_params; j++) {
        float *grad = hp_param_grad(t->units[unit], j);
        for (uint64_t i = 0; i < exact_count(&t->job->params[j]); i++)
            grad[i] = random_gradient(t->rank, unit, j, i);
    }
}

static void collect_random(const exact_training *t, float *seen) {
    for (int u = 0; u < t->job->n_units; u++)
        for (int j = 0; j < t->job->n_params; j++) {
            hp_shard shard;
            RANK_OK(hp_param_shard(t->units[u], j, &shard));
            for (uint64_t i = 0; i < shard.n_elements; i++)
                seen[random_place(u, j, exact_place(t, &t->job->params[j], &shard, i))] =
                    ((const float *)shard.grad)[i];
        }
}

static void random_body(hp_world *world, void *argument) {
    struct random_job *r = argument;
    exact_training t;
    exact_make(&t, world, &r->job);
    RANK_OK(hp_fsdp_begin(t.fsdp, HP_SYNC));
    exact_forward(&t, 0);
    for (int u = r->job.n_units; u-- > 0;) {
        RANK_OK(hp_backward_begin(t.units[u]));
        write_random(&t, u);
        RANK_OK(hp_backward_end(t.units[u]));
    }
    RANK_OK(hp_fsdp_end(t.fsdp));
    if (hp_mesh_coordinate(t.mesh, 0) == 0)
        collect_random(&t, r->seen);
    exact_drop(&t);
}

/* The balanced tree over four ranks. */
static float random_sum(int unit, int param, uint64_t i) {
    return (random_gradient(0, unit, param, i) + random_gradient(1, unit, param, i)) +
           (random_gradient(2, unit, param, i) + random_gradient(3, unit, param, i));
}

/* Run in every mode and mesh of four ranks; all must have these bits. */
static void expect_random(struct random_job *r, const float *expected) {
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        for (int m = 0; m < N_MESHES_OF_4; m++) {
            memset(r->seen, 0, sizeof r->seen);
            r->job.fsdp.mode = (hp_mode)mode;
            r->job.n_replicas = meshes_of_4[m][0];
            r->job.n_shards = meshes_of_4[m][1];
            ranks_run(4, RANKS_THREADS, random_body, r);
            if (memcmp(r->seen, expected, sizeof r->seen) != 0)
                fail_msg("%s on (%d,%d): other bits than expected", hp_mode_name((hp_mode)mode),
                         r->job.n_replicas, r->job.n_shards);
        }
}

static void fill_expected(const exact_job *job, float scale, float *out) {
    memset(out, 0, RANDOM_ALL * sizeof *out);
    for (int u = 0; u < job->n_units; u++)
        for (int j = 0; j < job->n_params; j++)
            for (uint64_t i = 0; i < exact_count(&job->params[j]); i++)
                out[random_place(u, j, i)] = random_sum(u, j, i) * scale;
}

/* A factor that is no power of two, with either reduction: rounded once. */
static void F2_factor_is_the_same_on_every_mesh(void **state) {
    (void)state;
    for (int is_sum = 0; is_sum < 2; is_sum++) {
        struct random_job r = {.job = EXACT_JOB_INIT};
        float expected[RANDOM_ALL];
        r.job.unit.factor = 0.3;
        r.job.unit.reduce = is_sum ? HP_SUM : HP_AVG;
        fill_expected(&r.job, (float)(is_sum ? 0.3 : 0.3 / 4), expected);
        expect_random(&r, expected);
    }
}

static void F3_replicas_divide_too(void **state) {
    struct random_job r = {.job = EXACT_JOB_INIT};
    float expected[RANDOM_ALL];
    (void)state;
    fill_expected(&r.job, 0.25F, expected);
    expect_random(&r, expected);
}

/* ---- F5: an update that is too small ------------------------------------------------------ */

enum { F5_STEPS = 4 };

struct update {
    exact_job job;
    const char *optimizer;
    hp_optimizer_config config;
};

/* One element as torch.optim's documentation has it, in double. */
static double updated(const struct update *u, double w, const double *gradients, int n) {
    const hp_optimizer_config *c = &u->config;
    const bool is_adamw = strcmp(u->optimizer, "adamw") == 0;
    double m = 0, v = 0;
    for (int s = 0; s < n; s++) {
        const double g = gradients[s] + (is_adamw ? 0 : c->weight_decay * w);
        if (!is_adamw) {
            m = s ? c->momentum * m + g : g;
            w -= 0.01 * m;
            continue;
        }
        w *= 1 - 0.01 * c->weight_decay;
        m = c->beta1 * m + (1 - c->beta1) * g;
        v = c->beta2 * v + (1 - c->beta2) * g * g;
        w -= 0.01 * (m / (1 - pow(c->beta1, s + 1))) /
             (sqrt(v / (1 - pow(c->beta2, s + 1))) + c->eps);
    }
    return w;
}

/* The weight's change, not only the gradient. */
static void check_update(const exact_training *t, const struct update *u, int n_steps) {
    for (int unit = 0; unit < t->job->n_units; unit++)
        for (int j = 0; j < t->job->n_params; j++) {
            hp_shard shard;
            RANK_OK(hp_param_shard(t->units[unit], j, &shard));
            for (uint64_t k = 0; k < shard.n_elements; k++) {
                const uint64_t i = exact_place(t, &t->job->params[j], &shard, k);
                const double first = (double)exact_weight(t->job, unit, j, i, 0);
                double gradients[F5_STEPS];
                for (int s = 0; s < n_steps; s++)
                    gradients[s] = t->n_ranks * exact_base(unit, j, i, s);
                const double expected = updated(u, first, gradients, n_steps) - first;
                const double given = (double)((const float *)shard.values)[k] - first;
                RANK_CHECK(fabs(given - expected) <= 1e-4 * fabs(expected) + 4e-6);
            }
        }
}

static void update_body(hp_world *world, void *argument) {
    const struct update *u = argument;
    exact_training t;
    exact_make(&t, world, &u->job);
    hp_optimizer_destroy(t.sgd);
    RANK_OK(hp_optimizer_create(t.fsdp, u->optimizer, &u->config, &t.sgd));
    for (int step = 0; step < F5_STEPS; step++) {
        RANK_OK(hp_fsdp_begin(t.fsdp, HP_SYNC));
        for (int k = 0; k < u->job.n_units; k++) {
            RANK_OK(hp_forward_begin(t.units[k]));
            RANK_OK(hp_forward_end(t.units[k]));
        }
        for (int k = u->job.n_units; k-- > 0;) {
            RANK_OK(hp_backward_begin(t.units[k]));
            exact_write(&t, k, step);
            RANK_OK(hp_backward_end(t.units[k]));
        }
        RANK_OK(hp_fsdp_end(t.fsdp));
        RANK_OK(hp_optimizer_step(t.sgd, 0.01));
        check_update(&t, u, step + 1);
    }
    exact_drop(&t);
}

static void F5_weights_change_by_the_reference(void **state) {
    struct update updates[] = {{EXACT_JOB_INIT, "sgd", HP_OPTIMIZER_CONFIG_INIT},
                               {EXACT_JOB_INIT, "adamw", HP_OPTIMIZER_CONFIG_INIT}};
    (void)state;
    updates[0].config.momentum = 0.9;
    updates[0].config.weight_decay = 0.1;
    updates[1].config.weight_decay = 0.1;
    for (int k = 0; k < 2; k++)
        exact_run_all(&updates[k].job, meshes_of_4, N_MESHES_OF_4, update_body, &updates[k]);
}

/* ---- F6: a norm that counts replicas ------------------------------------------------------ */

static const exact_param with_frozen[] = {{"weight", 10, 3, HP_FP32, 0, 0},
                                          {"frozen", 6, 2, HP_FP32, 0, 1},
                                          {"everywhere", 5, 1, HP_FP32, HP_REPLICATED, 0}};

static double norm_of(const exact_job *job, double p) {
    const int n_ranks = job->n_replicas * job->n_shards;
    int64_t most = 0, sum = 0, squares = 0;
    for (int u = 0; u < job->n_units; u++)
        for (int j = 0; j < job->n_params; j++)
            for (uint64_t i = 0; !job->params[j].is_frozen && i < exact_count(&job->params[j]);
                 i++) {
                const int64_t g = llabs((long long)n_ranks * exact_base(u, j, i, 0));
                most = g > most ? g : most;
                sum += g;
                squares += g * g;
            }
    return p == 1 ? (double)sum : p == 2 ? sqrt((double)squares) : (double)most;
}

/* Larger than the norm: told, and nothing scaled. Then half of it. */
static void clip(const exact_training *t) {
    static const double ps[] = {1, 2, INFINITY};
    double norm;
    for (int k = 0; k < 3; k++) {
        RANK_OK(hp_clip_grad_norm(t->fsdp, 1e9, ps[k], &norm));
        RANK_CHECK(norm == norm_of(t->job, ps[k]));
    }
    exact_check(t, 0);
    RANK_OK(hp_clip_grad_norm(t->fsdp, norm / 2, INFINITY, &norm));
    RANK_OK(hp_clip_grad_norm(t->fsdp, 1e9, INFINITY, &norm));
    RANK_CHECK(fabs(norm - norm_of(t->job, INFINITY) / 2) <= 1e-5 * norm);
}

static void clip_body(hp_world *world, void *argument) {
    exact_training t;
    exact_make(&t, world, argument);
    exact_pass(&t, 0);
    clip(&t);
    exact_drop(&t);
}

static void F6_norm_counts_no_replicas(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.params = with_frozen;
    job.n_params = 3;
    exact_run_all(&job, meshes_of_4, N_MESHES_OF_4, clip_body, &job);
}

/* ---- F12: one parameter in two units ------------------------------------------------------ */

static void tie_body(hp_world *world, void *argument) {
    static const float table[24] = {0};
    const hp_mode mode = *(const hp_mode *)argument;
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_param embedding = vector("embedding", 24), head = vector("head", 24);
    hp_mesh *mesh;
    hp_unit *unit;
    config.mode = mode;
    embedding.data = head.data = table;
    RANK_OK(hp_mesh_create(world, (int[]){hp_world_size(world)}, 1, &mesh));
    for (int is_inside = 0; is_inside < 2; is_inside++) {
        const hp_param both[] = {embedding, head};
        hp_fsdp *fsdp;
        RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
        RANK_OK(hp_unit_create(fsdp, "first", both, 1 + is_inside, NULL, &unit));
        if (is_inside) {
            RANK_OK(hp_fsdp_commit(fsdp));
        } else {
            RANK_OK(hp_unit_create(fsdp, "last", &head, 1, NULL, &unit));
            FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_ARGUMENT, "embedding");
            RANK_CHECK(strstr(hp_last_error(), "head") != NULL);
        }
        hp_fsdp_destroy(fsdp);
    }
    hp_mesh_destroy(mesh);
}

static void F12_tie_across_units_names_both(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_AUTO; mode++)
        ranks_run(2, RANKS_THREADS, tie_body, &mode);
}

/* ---- F13: rows that do not divide --------------------------------------------------------- */

static void F13_any_rows_over_any_ranks(void **state) {
    static const exact_param params[] = {
        {"one", 1, 3, HP_FP32, 0, 0},      {"two", 2, 1, HP_FP32, 0, 0},
        {"three", 3, 2, HP_FP32, 0, 0},    {"five", 5, 3, HP_FP32, 0, 0},
        {"seven", 7, 1, HP_FP32, 0, 0},    {"thirty-one", 31, 2, HP_FP32, 0, 0},
        {"many", 32001, 1, HP_FP32, 0, 0}, {"none", 0, 4, HP_FP32, 0, 0}};
    static const int meshes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 6}, {1, 7}, {1, 8}};
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.params = params;
    job.n_params = 8;
    job.n_units = 1;
    job.n_steps = 2;
    exact_train_all(job, meshes, 8);
}

/* ---- F18, F19: adapters ------------------------------------------------------------------- */

static const exact_param adapters[] = {
    {"base", 64, 32, HP_BF16, 0, 1}, {"a", 8, 32, HP_FP32, 0, 0}, {"b", 8, 32, HP_FP32, 0, 0}};
enum { ADAPTER_BYTES = 2 * 8 * 32 * 4 };

/* Nothing but the adapters is reduced: all of them over two shards, half over two replicas. */
static void count_reduced(const exact_training *t, int step) {
    uint64_t n, scattered = 0, summed = 0;
    const hp_op *ops = exact_recorded(t, &n);
    (void)step;
    for (uint64_t i = 0; i < n; i++) {
        scattered += ops[i].kind == HPI_OP_REDUCE_SCATTER ? ops[i].bytes : 0;
        summed += ops[i].kind == HPI_OP_ALL_REDUCE ? ops[i].bytes : 0;
    }
    RANK_CHECK(scattered == (uint64_t)t->job->n_units * ADAPTER_BYTES);
    RANK_CHECK(summed == (uint64_t)t->job->n_units * ADAPTER_BYTES / 2);
}

static void F18_only_what_trains_is_reduced(void **state) {
    static const int mesh[][2] = {{2, 2}};
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.params = adapters;
    job.n_params = 3;
    job.fsdp.record = 1;
    job.look = count_reduced;
    exact_train_all(job, mesh, 1);
}

static void look_for_gradients(const exact_training *t, int step) {
    int64_t mine[EXACT_MOST_UNITS] = {0}, all[EXACT_MOST_UNITS];
    (void)step;
    for (int u = 0; u < t->job->n_units; u++)
        for (int j = 1; j < 3; j++) {
            hp_shard shard;
            RANK_OK(hp_param_shard(t->units[u], j, &shard));
            for (uint64_t i = 0; i < shard.n_elements; i++)
                mine[u] += ((const float *)shard.grad)[i] != 0;
        }
    RANK_OK(hp_all_reduce(hp_world_group(t->world), mine, all, EXACT_MOST_UNITS, HP_INT64, HP_SUM));
    for (int u = 0; u < t->job->n_units; u++)
        RANK_CHECK(all[u] > 0);
}

static void F19_every_adapter_has_a_gradient(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.params = adapters;
    job.n_params = 3;
    job.n_units = EXACT_MOST_UNITS;
    job.n_steps = 3;
    job.look = look_for_gradients;
    exact_train_all(job, meshes_of_4, 2);
}

/* ---- F23: levels of sharding -------------------------------------------------------------- */

struct level {
    tiny_config config;
    tiny_result result; /* of rank 0 */
};

static void level_body(hp_world *world, void *argument) {
    struct level *level = argument;
    tiny_result result;
    RANK_OK(tiny_train(world, &level->config, &result));
    if (hp_world_rank(world) == 0)
        level->result = result;
}

/* Freed after forward, kept for backward, and not sharded at all. */
static void F23_levels_have_the_same_bits(void **state) {
    static const struct {
        int n_replicas, is_resharded;
    } levels[] = {{1, 1}, {1, 0}, {4, 1}, {2, 1}, {2, 0}};
    tiny_result first = {0};
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        for (int k = 0; k < 5; k++) {
            struct level level = {.config = TINY_CONFIG_INIT};
            level.config.n_steps = 6;
            level.config.fsdp.mode = (hp_mode)mode;
            level.config.n_replicas = levels[k].n_replicas;
            level.config.n_shards = 4 / levels[k].n_replicas;
            level.config.fsdp.reshard_after_forward = levels[k].is_resharded;
            ranks_run(4, RANKS_THREADS, level_body, &level);
            if (mode == HP_PER_PARAM && k == 0)
                first = level.result;
            assert_memory_equal(level.result.losses, first.losses, sizeof first.losses);
            assert_true(level.result.gradients == first.gradients);
            assert_true(level.result.weights == first.weights);
        }
    assert_true(first.losses[5] != first.losses[0]);
}

/* ---- F24: the second step is not the first ------------------------------------------------ */

static void look_at_owners(const exact_training *t, int step) {
    (void)step;
    exact_check_owners(t);
}

static void F24_every_step_is_compared(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.n_steps = 6;
    job.look = look_at_owners;
    exact_train_all(job, meshes_of_4, N_MESHES_OF_4);
    job.fsdp.record = 1;
    job.fsdp.replay_after = 3;
    exact_train_all(job, meshes_of_4, N_MESHES_OF_4);
}

/* ---- F29: input that is strided or misaligned --------------------------------------------- */

/* A collective takes any address; what is strided is a sharded inner dimension, which is handled.
 */
static void misaligned_body(hp_world *world, void *argument) {
    enum { COUNT = 5 };
    unsigned char in[8 * COUNT * 4 + 8], out[COUNT * 4 + 8];
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    (void)argument;
    for (size_t shift = 0; shift < 8; shift++) {
        for (int k = 0; k < n * COUNT; k++) {
            const float value = (float)((rank + 1) * (k + 1));
            memcpy(in + shift + 4 * k, &value, 4);
        }
        RANK_OK(hp_reduce_scatter(hp_world_group(world), in + shift, out + 7 - shift, COUNT,
                                  HP_FP32, HP_SUM));
        for (int k = 0; k < COUNT; k++) {
            float value;
            memcpy(&value, out + 7 - shift + 4 * k, 4);
            RANK_CHECK(value == (float)(n * (n + 1) / 2 * (rank * COUNT + k + 1)));
        }
    }
}

static void F29_strided_and_misaligned(void **state) {
    static const exact_param params[] = {{"odd", 3, 1, HP_FP32, 0, 0},
                                         {"inner", 6, 8, HP_FP32, 1, 0},
                                         {"prime", 13, 7, HP_FP32, 0, 0},
                                         {"half", 5, 12, HP_BF16, 1, 0}};
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    for (int n = 2; n <= 4; n++)
        ranks_run(n, RANKS_THREADS, misaligned_body, NULL);
    job.params = params;
    job.n_params = 4;
    exact_train_all(job, meshes_of_4, N_MESHES_OF_4);
}

/* ---- F30: a mean that the transport must know --------------------------------------------- */

/* A unit is divided once, and by us: by our kernels, which add up its shards, or by an operation on
 * the sums. Which of them, all of its reductions agree with. */
static void look_at_reductions(const exact_training *t, int step) {
    uint64_t n;
    int n_reductions = 0, n_divisions = 0;
    const hp_op *ops = exact_recorded(t, &n);
    uint8_t asked[64] = {0}; /* by unit */
    (void)step;
    RANK_CHECK(t->job->n_units <= 64);
    for (uint64_t i = 0; i < n; i++) {
        if (ops[i].kind == HPI_OP_REDUCE_SCATTER || ops[i].kind == HPI_OP_ALL_REDUCE) {
            RANK_CHECK(ops[i].reduce == HP_SUM || ops[i].reduce == HP_AVG);
            asked[ops[i].unit] = ops[i].reduce;
            n_reductions++;
        }
        if (ops[i].kind == HPI_OP_DIVIDE) {
            RANK_CHECK(ops[i].reduce == asked[ops[i].unit]);
            n_divisions++;
        }
    }
    RANK_CHECK(n_reductions >= t->job->n_units && n_divisions == t->job->n_units);
}

static void F30_division_is_ours(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.fsdp.record = 1;
    job.look = look_at_reductions;
    exact_train_all(job, meshes_of_4, N_MESHES_OF_4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F1_gradient_is_the_mean),
        cmocka_unit_test(F2_factor_is_the_same_on_every_mesh),
        cmocka_unit_test(F3_replicas_divide_too),
        cmocka_unit_test(F5_weights_change_by_the_reference),
        cmocka_unit_test(F6_norm_counts_no_replicas),
        cmocka_unit_test(F12_tie_across_units_names_both),
        cmocka_unit_test(F13_any_rows_over_any_ranks),
        cmocka_unit_test(F18_only_what_trains_is_reduced),
        cmocka_unit_test(F19_every_adapter_has_a_gradient),
        cmocka_unit_test(F23_levels_have_the_same_bits),
        cmocka_unit_test(F24_every_step_is_compared),
        cmocka_unit_test(F29_strided_and_misaligned),
        cmocka_unit_test(F30_division_is_ours),
    };
    return cmocka_run_group_tests_name("fsdp", tests, NULL, NULL);
}
