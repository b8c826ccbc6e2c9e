/* SPDX-License-Identifier: Apache-2.0
 *
 * exact_training.h - a training in which every value is known beforehand.
 *
 * First values and gradients are small integers, functions of unit, parameter, element and step;
 * rank r gives (2r + 1) times the gradient, so that n ranks give n^2 times it together and n times
 * it in the mean. SGD with rate 1 adds integers, which no order of additions rounds. Each rank
 * compares every parameter that it reads and every element of its shards, in every step: a stale, a
 * foreign, a doubled and a missing value all show.
 */
#ifndef EXACT_TRAINING_H
#define EXACT_TRAINING_H

#include "../unit/small_fsdp.h"

enum { EXACT_MOST_UNITS = 32, EXACT_MOST_PARAMS = 8 };

typedef struct exact_param {
    const char *name; /* behind the unit's */
    int64_t rows, columns;
    hp_dtype dtype;
    int shard_dim, is_frozen;
} exact_param;

typedef struct exact_job exact_job;

typedef struct exact_training {
    const exact_job *job;
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_optimizer *sgd;
    hp_unit *units[EXACT_MOST_UNITS];
    int n_ranks, rank;
} exact_training;

struct exact_job {
    int n_replicas, n_shards, n_units, n_steps;
    const exact_param *params; /* of every unit */
    int n_params;
    hp_fsdp_config fsdp;
    hp_unit_config unit; /* of every unit */
    /* On every rank, after a step's gradients were compared and before the update; NULL: nothing.
     */
    void (*look)(const exact_training *t, int step);
};
#define EXACT_JOB_INIT                                                                             \
    { 2, 2, 3, 4, exact_plain, 2, HP_FSDP_CONFIG_INIT, HP_UNIT_CONFIG_INIT, NULL }

static const exact_param exact_plain[] = {{"weight", 10, 3, HP_FP32, 0, 0},
                                          {"bias", 5, 1, HP_FP32, 0, 0}};

static const int meshes_of_4[][2] = {{1, 4}, {2, 2}, {4, 1}};
enum { N_MESHES_OF_4 = sizeof meshes_of_4 / sizeof *meshes_of_4 };

/* ---- values ------------------------------------------------------------------------------- */

static inline uint64_t exact_count(const exact_param *p) {
    return (uint64_t)(p->rows * p->columns);
}

static inline int exact_base(int unit, int param, uint64_t i, int step) {
    return (int)(((uint64_t)(unit * 7 + param * 3 + step * 5) + i) % 11) - 5;
}

/* `step` updates after the first value; eleven steps in a row add up to nothing. */
static inline float exact_weight(const exact_job *job, int unit, int param, uint64_t i, int step) {
    int value = (int)(((uint64_t)(unit * 5 + param * 3) + i) % 17) - 8;
    for (int s = job->params[param].is_frozen ? step : step - step % 11; s < step; s++)
        value -= job->n_replicas * job->n_shards * exact_base(unit, param, i, s);
    return (float)value;
}

static inline void exact_store(void *values, hp_dtype dtype, uint64_t i, float value) {
    if (dtype == HP_BF16)
        ((uint16_t *)values)[i] = hpi_fp32_to_bf16(value);
    else
        ((float *)values)[i] = value;
}

static inline float exact_load(const void *values, hp_dtype dtype, uint64_t i) {
    return dtype == HP_BF16 ? hpi_bf16_to_fp32(((const uint16_t *)values)[i])
                            : ((const float *)values)[i];
}

static inline float exact_rounded(hp_dtype dtype, float value) {
    return dtype == HP_BF16 ? hpi_bf16_to_fp32(hpi_fp32_to_bf16(value)) : value;
}

/* ---- making ------------------------------------------------------------------------------- */

typedef struct exact_source {
    const exact_job *job;
    int unit, param;
} exact_source;

static inline void exact_fill(void *context, uint64_t begin, uint64_t end, void *out) {
    const exact_source *s = context;
    for (uint64_t i = begin; i < end; i++)
        exact_store(out, s->job->params[s->param].dtype, i - begin,
                    exact_weight(s->job, s->unit, s->param, i, 0));
}

static inline void exact_make_unit(exact_training *t, int unit, exact_source *sources) {
    hp_param params[EXACT_MOST_PARAMS];
    char names[EXACT_MOST_PARAMS][32], name[16];
    for (int j = 0; j < t->job->n_params; j++) {
        const exact_param *p = &t->job->params[j];
        snprintf(names[j], sizeof names[j], "u%d.%s", unit, p->name);
        sources[j] = (exact_source){t->job, unit, j};
        params[j] = (hp_param)HP_PARAM_INIT;
        params[j].name = names[j];
        params[j].n_dims = 2;
        params[j].shape[0] = p->rows;
        params[j].shape[1] = p->columns;
        params[j].dtype = p->dtype;
        params[j].shard_dim = p->shard_dim;
        params[j].is_frozen = p->is_frozen;
        params[j].fill = exact_fill;
        params[j].fill_context = &sources[j];
    }
    snprintf(name, sizeof name, "u%d", unit);
    RANK_OK(
        hp_unit_create(t->fsdp, name, params, t->job->n_params, &t->job->unit, &t->units[unit]));
}

static inline void exact_make(exact_training *t, hp_world *world, const exact_job *job) {
    static _Thread_local exact_source sources[EXACT_MOST_UNITS][EXACT_MOST_PARAMS];
    const int sizes[] = {job->n_replicas, job->n_shards};
    *t = (exact_training){
        .job = job, .world = world, .n_ranks = hp_world_size(world), .rank = hp_world_rank(world)};
    RANK_OK(hp_mesh_create(world, sizes, 2, &t->mesh));
    RANK_OK(hp_fsdp_create(t->mesh, &job->fsdp, &t->fsdp));
    for (int u = 0; u < job->n_units; u++)
        exact_make_unit(t, u, sources[u]);
    RANK_OK(hp_fsdp_commit(t->fsdp));
    RANK_OK(hp_optimizer_create(t->fsdp, "sgd", NULL, &t->sgd));
}

static inline void exact_drop(exact_training *t) {
    hp_optimizer_destroy(t->sgd);
    hp_fsdp_destroy(t->fsdp);
    hp_mesh_destroy(t->mesh);
}

/* ---- a step ------------------------------------------------------------------------------- */

static inline void exact_read(const exact_training *t, int unit, int step) {
    for (int j = 0; j < t->job->n_params; j++) {
        hp_dtype dtype, grad_dtype;
        const void *data = hp_param_data(t->units[unit], j);
        RANK_OK(hp_param_dtypes(t->units[unit], j, &dtype, &grad_dtype));
        RANK_CHECK(data != NULL && (uintptr_t)data % 64 == 0);
        for (uint64_t i = 0; i < exact_count(&t->job->params[j]); i++)
            RANK_CHECK(exact_load(data, dtype, i) ==
                       exact_rounded(dtype, exact_weight(t->job, unit, j, i, step)));
    }
}

static inline void exact_write(const exact_training *t, int unit, int step) {
    for (int j = 0; j < t->job->n_params; j++) {
        hp_dtype data_dtype, dtype;
        if (t->job->params[j].is_frozen)
            continue;
        void *grad = hp_param_grad(t->units[unit], j);
        RANK_OK(hp_param_dtypes(t->units[unit], j, &data_dtype, &dtype));
        RANK_CHECK(grad != NULL && (uintptr_t)grad % 64 == 0);
        for (uint64_t i = 0; i < exact_count(&t->job->params[j]); i++)
            exact_store(grad, dtype, i, (float)((2 * t->rank + 1) * exact_base(unit, j, i, step)));
    }
}

static inline void exact_forward(const exact_training *t, int step) {
    for (int u = 0; u < t->job->n_units; u++) {
        RANK_OK(hp_forward_begin(t->units[u]));
        exact_read(t, u, step);
        RANK_OK(hp_forward_end(t->units[u]));
    }
}

static inline void exact_pass(const exact_training *t, int step) {
    RANK_OK(hp_fsdp_begin(t->fsdp, HP_SYNC));
    exact_forward(t, step);
    for (int u = t->job->n_units; u-- > 0;) {
        RANK_OK(hp_backward_begin(t->units[u]));
        exact_read(t, u, step);
        exact_write(t, u, step);
        RANK_OK(hp_backward_end(t->units[u]));
    }
    RANK_OK(hp_fsdp_end(t->fsdp));
}

/* Where element i of a shard stands in the whole parameter. */
static inline uint64_t exact_place(const exact_training *t, const exact_param *p,
                                   const hp_shard *shard, uint64_t i) {
    const uint64_t begin = (uint64_t)shard->begin, columns = (uint64_t)p->columns;
    if (hp_fsdp_mode(t->fsdp) == HP_MAPPED)
        return begin + i;
    if (p->shard_dim != 1)
        return begin * columns + i;
    const uint64_t run = (uint64_t)shard->end - begin;
    return i / run * columns + begin + i % run;
}

/* Every gradient is the mean of the ranks', and every element has one owner in its shard group. */
static inline void exact_check(const exact_training *t, int step) {
    for (int u = 0; u < t->job->n_units; u++)
        for (int j = 0; j < t->job->n_params; j++) {
            const exact_param *p = &t->job->params[j];
            hp_shard shard;
            RANK_OK(hp_param_shard(t->units[u], j, &shard));
            const float *grad = shard.grad;
            RANK_CHECK(p->is_frozen ? grad == NULL : grad != NULL || shard.n_elements == 0);
            for (uint64_t i = 0; !p->is_frozen && i < shard.n_elements; i++)
                RANK_CHECK(
                    grad[i] ==
                    (float)(t->n_ranks * exact_base(u, j, exact_place(t, p, &shard, i), step)));
        }
}

/* The shards of a parameter, put together, are the parameter. */
static inline void exact_check_owners(const exact_training *t) {
    for (int j = 0; j < t->job->n_params; j++) {
        const exact_param *p = &t->job->params[j];
        hp_shard shard;
        RANK_OK(hp_param_shard(t->units[0], j, &shard));
        int64_t mine = (int64_t)shard.n_elements, all;
        RANK_OK(hp_all_reduce(hp_world_group(t->world), &mine, &all, 1, HP_INT64, HP_SUM));
        const int n_copies = p->shard_dim == HP_REPLICATED && t->job->fsdp.mode != HP_MAPPED
                                 ? t->n_ranks
                                 : t->job->n_replicas;
        RANK_CHECK(all == n_copies * (int64_t)exact_count(p));
    }
}

/* The operations of the pass that has ended (config.record). */
static inline const hp_op *exact_recorded(const exact_training *t, uint64_t *out_n) {
    const hp_op *ops;
    const hp_kind *kinds;
    uint32_t n_kinds;
    RANK_OK(hp_fsdp_recorded(t->fsdp, &ops, out_n, &kinds, &n_kinds));
    return ops;
}

static inline void exact_body(hp_world *world, void *argument) {
    exact_training t;
    exact_make(&t, world, argument);
    exact_check_owners(&t);
    for (int step = 0; step < t.job->n_steps; step++) {
        exact_pass(&t, step);
        exact_check(&t, step);
        if (t.job->look)
            t.job->look(&t, step);
        RANK_OK(hp_optimizer_step(t.sgd, 1.0));
    }
    RANK_OK(hp_fsdp_begin(t.fsdp, HP_EVALUATE)); /* the last update is seen too */
    exact_forward(&t, t.job->n_steps);
    RANK_OK(hp_fsdp_end(t.fsdp));
    exact_drop(&t);
}

static inline void exact_train(exact_job *job) {
    ranks_run(job->n_replicas * job->n_shards, RANKS_THREADS, exact_body, job);
}

/* A body whose argument holds `job`, in every mode, on each of these meshes. */
static inline void exact_run_all(exact_job *job, const int meshes[][2], int n_meshes,
                                 ranks_body body, void *argument) {
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        for (int m = 0; m < n_meshes; m++) {
            job->fsdp.mode = (hp_mode)mode;
            job->n_replicas = meshes[m][0];
            job->n_shards = meshes[m][1];
            ranks_run(meshes[m][0] * meshes[m][1], RANKS_THREADS, body, argument);
        }
}

static inline void exact_train_all(exact_job job, const int meshes[][2], int n_meshes) {
    exact_run_all(&job, meshes, n_meshes, exact_body, &job);
}

#endif
