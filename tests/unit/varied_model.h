/* SPDX-License-Identifier: Apache-2.0
 *
 * varied_model.h - two units with a parameter of every sort, for tests of what works on shards.
 *
 * fp32, fp64 and bf16; sharded along dimension 0 (unevenly), along an inner dimension, replicated,
 * scalar, empty, frozen, ignored and tied. First values and gradients are functions of the
 * element's number, small multiples of powers of two: their mean over equal ranks is exact, so
 * every mesh must give the same bits.
 */
#ifndef VARIED_MODEL_H
#define VARIED_MODEL_H

#include "fsdp/together/between.h"
#include "support/ranks.h"

enum { N_VARIED = 10, VARIED_MOST = 64, VARIED_UNITS = 2, VARIED_FIRST = 6 };

typedef struct varied_row {
    const char *name;
    int n_dims;
    int64_t shape[3];
    hp_dtype dtype;
    int shard_dim, is_frozen, is_ignored, is_tied; /* tied: another name of the row before */
} varied_row;

/* Rows [0, VARIED_FIRST) are unit 0. 12 divides by 1, 2, 3 and 4. */
static const varied_row varied_rows[N_VARIED] = {
    {"a.weight", 2, {10, 3}, HP_FP32, 0, 0, 0, 0},
    {"a.other_name", 2, {10, 3}, HP_FP32, 0, 0, 0, 1},
    {"a.bias", 1, {5}, HP_FP32, HP_REPLICATED, 0, 0, 0},
    {"a.frozen", 2, {4, 2}, HP_BF16, 0, 1, 0, 0},
    {"a.ignored", 1, {3}, HP_FP32, 0, 0, 1, 0},
    {"a.half", 3, {2, 12, 2}, HP_BF16, 1, 0, 0, 0},
    {"b.double", 1, {7}, HP_FP64, 0, 0, 0, 0},
    {"b.empty", 2, {0, 4}, HP_FP32, 0, 0, 0, 0},
    {"b.scalar", 0, {0}, HP_FP32, 0, 0, 0, 0},
    {"b.inner", 2, {4, 12}, HP_FP32, 1, 0, 0, 0},
};

typedef struct varied {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[VARIED_UNITS];
} varied;

/* All values of the model, by row and element of the whole parameter. */
typedef struct varied_values {
    double of[N_VARIED][VARIED_MOST];
} varied_values;

static inline uint64_t varied_count(const varied_row *row) {
    uint64_t n = 1;
    for (int d = 0; d < row->n_dims; d++)
        n *= (uint64_t)row->shape[d];
    return n;
}

static inline bool varied_is_trained(const varied_row *row) {
    return !row->is_frozen && !row->is_ignored && !row->is_tied && varied_count(row);
}

static inline double varied_first_value(int row, uint64_t element) {
    return ((double)(element * 37 % 101) - 50 + row) / 64;
}

static inline double varied_gradient(int row, int step, uint64_t element) {
    return ((double)((element * 29 + (uint64_t)step * 17 + (uint64_t)row * 5) % 61) - 30) / 32;
}

static inline double varied_read(const void *values, hp_dtype dtype, uint64_t i) {
    if (dtype == HP_FP64)
        return ((const double *)values)[i];
    if (dtype == HP_FP32)
        return (double)((const float *)values)[i];
    return (double)hpi_bf16_to_fp32(((const uint16_t *)values)[i]);
}

static inline void varied_write(void *values, hp_dtype dtype, uint64_t i, double value) {
    if (dtype == HP_FP64)
        ((double *)values)[i] = value;
    else if (dtype == HP_FP32)
        ((float *)values)[i] = (float)value;
    else
        ((uint16_t *)values)[i] = hpi_fp32_to_bf16((float)value);
}

static inline void varied_fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const varied_row *row = context;
    for (uint64_t i = begin; i < end; i++)
        varied_write(out_elements, row->dtype, i - begin,
                     varied_first_value((int)(row - varied_rows), i));
}

static inline hp_param varied_param(int row) {
    static const float tied[30] = {0};
    const varied_row *r = &varied_rows[row];
    hp_param p = HP_PARAM_INIT;
    p.name = r->name;
    p.n_dims = r->n_dims;
    for (int d = 0; d < r->n_dims; d++)
        p.shape[d] = r->shape[d];
    p.dtype = r->dtype;
    p.shard_dim = r->shard_dim;
    p.is_frozen = r->is_frozen;
    p.is_ignored = r->is_ignored;
    p.fill = varied_fill;
    p.fill_context = (void *)(uintptr_t)r;
    if (r->is_tied || varied_rows[row + (row + 1 < N_VARIED)].is_tied)
        p.data = tied; /* this pair starts as zeros */
    return p;
}

static inline void varied_create_as(hp_world *world, int n_replicas, hp_mode mode, varied *m) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    const int sizes[] = {n_replicas, hp_world_size(world) / n_replicas};
    hp_param params[N_VARIED];
    for (int i = 0; i < N_VARIED; i++)
        params[i] = varied_param(i);
    config.mode = mode;
    RANK_OK(hp_mesh_create(world, sizes, 2, &m->mesh));
    RANK_OK(hp_fsdp_create(m->mesh, &config, &m->fsdp));
    RANK_OK(hp_unit_create(m->fsdp, "a", params, VARIED_FIRST, NULL, &m->units[0]));
    RANK_OK(hp_unit_create(m->fsdp, "b", params + VARIED_FIRST, N_VARIED - VARIED_FIRST, NULL,
                           &m->units[1]));
    RANK_OK(hp_fsdp_commit(m->fsdp));
}

static inline void varied_create(hp_world *world, int n_replicas, varied *m) {
    varied_create_as(world, n_replicas, HP_PER_PARAM, m);
}

static inline void varied_destroy(varied *m) {
    hp_fsdp_destroy(m->fsdp);
    hp_mesh_destroy(m->mesh);
}

/* Unit and number in the unit of a row. */
static inline hp_unit *varied_unit(const varied *m, int row, int *out_param) {
    const int unit = row >= VARIED_FIRST;
    *out_param = unit ? row - VARIED_FIRST : row;
    return m->units[unit];
}

static inline void varied_backward(const varied *m, int step, double factor) {
    for (int u = VARIED_UNITS; u-- > 0;) {
        RANK_OK(hp_backward_begin(m->units[u]));
        for (int row = 0; row < N_VARIED; row++) {
            int j;
            if (!varied_is_trained(&varied_rows[row]) || varied_unit(m, row, &j) != m->units[u])
                continue;
            void *grad = hp_param_grad(m->units[u], j);
            for (uint64_t i = 0; i < varied_count(&varied_rows[row]); i++)
                varied_write(grad, varied_rows[row].dtype, i,
                             factor * varied_gradient(row, step, i));
        }
        RANK_OK(hp_backward_end(m->units[u]));
    }
}

/* One pass; gradients are factor times varied_gradient, equal on all ranks. */
static inline void varied_pass_as(const varied *m, hp_pass pass, int step, double factor) {
    RANK_OK(hp_fsdp_begin(m->fsdp, pass));
    for (int u = 0; u < VARIED_UNITS; u++) {
        RANK_OK(hp_forward_begin(m->units[u]));
        RANK_OK(hp_forward_end(m->units[u]));
    }
    varied_backward(m, step, factor);
    RANK_OK(hp_fsdp_end(m->fsdp));
}

static inline void varied_pass(const varied *m, int step, double factor) {
    varied_pass_as(m, HP_SYNC, step, factor);
}

/* Where element i of this rank's shard stands in the whole parameter. */
static inline uint64_t varied_place(const hpi_layout *l, uint64_t begin, uint64_t end, uint64_t i) {
    const uint64_t run = (end - begin) * l->inner;
    return i / run * (l->rows * l->inner) + begin * l->inner + i % run;
}

enum { VARIED_WEIGHTS, VARIED_GRADS };

/* This rank's elements into the table that all ranks (threads) share; the ranks write disjoint
 * elements, except for replicated rows, which shard rank 0 of replica 0 writes. */
static inline void varied_collect(const varied *m, int what, varied_values *out) {
    if (m->fsdp->replica_rank != 0)
        return;
    for (int row = 0; row < N_VARIED; row++) {
        const varied_row *r = &varied_rows[row];
        int j;
        const hp_unit *unit = varied_unit(m, row, &j);
        if (r->is_ignored || r->is_tied || (what == VARIED_GRADS && !varied_is_trained(r)) ||
            (r->shard_dim == HP_REPLICATED && m->fsdp->shard_rank != 0))
            continue;
        hp_shard shard;
        RANK_OK(hp_param_shard(unit, j, &shard));
        const void *from = what == VARIED_GRADS ? shard.grad : shard.values;
        for (uint64_t i = 0; i < shard.n_elements; i++)
            out->of[row][varied_place(&unit->params[j].layout, (uint64_t)shard.begin,
                                      (uint64_t)shard.end, i)] = varied_read(from, shard.dtype, i);
    }
}

/* What the next forward reads is the master, rounded to the parameter's own dtype. */
static inline void varied_check_casts(const varied *m) {
    for (hpi_cursor c = {0}; hpi_next_trainable(m->fsdp, &c);)
        for (uint64_t i = 0; c.param->has_cast && i < hpi_param_count(m->fsdp, c.param); i++) {
            const double master =
                varied_read(hpi_param_master(c.unit, c.param), c.param->master, i);
            const double cast = varied_read(hpi_param_cast(c.unit, c.param), c.param->dtype, i);
            RANK_CHECK(cast == (double)hpi_bf16_to_fp32(hpi_fp32_to_bf16((float)master)));
        }
}

#endif
