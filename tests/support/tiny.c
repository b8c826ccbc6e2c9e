/* SPDX-License-Identifier: Apache-2.0
 *
 * tiny.c - the tiny model of tiny.h: forward, backward, and digests that do not depend on the mesh.
 *
 * A digest adds one hash per element, of (parameter, row-major index, bits of the value), so ranks
 * can each hash their own shard and one integer sum puts them together.
 */
#include "tiny.h"
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

enum { PARAM_W = 0, PARAM_B = 1, PARAM_GAIN = 2, PARAM_MASK = 3, N_PARAMS = 4 };

struct tiny {
    tiny_config c;
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_optimizer *optimizer;
    hp_unit *units[TINY_MAX_UNITS];
    hp_param params[TINY_MAX_UNITS][N_PARAMS];
    char names[TINY_MAX_UNITS][N_PARAMS + 1][24];
    hp_dtype data[TINY_MAX_UNITS][N_PARAMS], grad[TINY_MAX_UNITS][N_PARAMS];
    int n_params, n_layers, batch;
    float h[TINY_MAX_UNITS + 2][TINY_MAX_BATCH][TINY_MAX_WIDTH];
    float z[TINY_MAX_UNITS + 1][TINY_MAX_BATCH][TINY_MAX_WIDTH]; /* before relu */
    float dh[TINY_MAX_BATCH][TINY_MAX_WIDTH];
};

/* ---- parameters -------------------------------------------------------------------------- */

static float value_at(uint64_t seed, uint64_t index, float scale) {
    uint64_t state = seed * UINT64_C(0x2545f4914f6cdd1d) + index;
    return ((float)hpi_random_unit(&state) * 2.0F - 1.0F) * scale;
}

static void store(void *out, hp_dtype dtype, uint64_t k, float value) {
    if (dtype == HP_BF16)
        ((uint16_t *)out)[k] = hpi_fp32_to_bf16(value);
    else if (dtype == HP_FP16)
        ((uint16_t *)out)[k] = hpi_fp32_to_fp16(value);
    else if (dtype == HP_FP64)
        ((double *)out)[k] = value;
    else
        ((float *)out)[k] = value;
}

static void fill(void *context, uint64_t begin, uint64_t end, void *out) {
    const hp_param *p = context;
    const uint64_t seed = p->name[1] ? (uint64_t)(p->name[0] * 131 + p->name[1]) : 7;
    for (uint64_t i = begin; i < end; i++)
        store(out, p->dtype, i - begin, value_at(seed, i, p->n_dims == 2 ? 0.3F : 1.0F));
}

static void describe(tiny *t, int l, int which, const char *letter, int n_dims, hp_dtype dtype) {
    hp_param *p = &t->params[l][which];
    *p = (hp_param)HP_PARAM_INIT;
    snprintf(t->names[l][which], sizeof t->names[l][which], "%c%s", 'a' + l, letter);
    p->name = t->names[l][which];
    p->n_dims = n_dims;
    p->shape[0] = p->shape[1] = t->c.width;
    if (n_dims < 2)
        p->shape[1] = 0;
    if (n_dims < 1)
        p->shape[0] = 0;
    p->dtype = dtype;
    p->fill = fill;
    p->fill_context = p;
}

static void describe_unit(tiny *t, int l) {
    const bool is_mixed = t->c.is_mixed != 0;
    describe(t, l, PARAM_W, "w", 2, is_mixed && l % 2 ? HP_BF16 : t->c.dtype);
    describe(t, l, PARAM_B, "b", 1, HP_FP32);
    describe(t, l, PARAM_GAIN, "gain", 0, HP_FP64);
    describe(t, l, PARAM_MASK, "mask", 1, HP_FP32);
    t->params[l][PARAM_B].shard_dim = is_mixed ? HP_REPLICATED : 0;
    t->params[l][PARAM_MASK].is_frozen = 1;
    if (is_mixed && l % 3 == 2 && t->c.width % t->c.n_shards == 0)
        t->params[l][PARAM_W].shard_dim = 1;
}

/* What the precision policy makes of the declared dtypes. */
static hp_status ask_dtypes(tiny *t, int l) {
    for (int j = 0; j < t->n_params; j++)
        HP_TRY(hp_param_dtypes(t->units[l], j, &t->data[l][j], &t->grad[l][j]));
    return HP_OK;
}

static hp_status make_units(tiny *t) {
    for (int l = 0; l < t->c.n_units; l++) {
        describe_unit(t, l);
        snprintf(t->names[l][N_PARAMS], sizeof t->names[l][N_PARAMS], "unit%d", l);
        HP_TRY(hp_unit_create(t->fsdp, t->names[l][N_PARAMS], t->params[l], t->n_params, NULL,
                              &t->units[l]));
        HP_TRY(ask_dtypes(t, l));
    }
    return hp_fsdp_commit(t->fsdp);
}

static hp_status build(tiny *t) {
    const int sizes[] = {t->c.n_replicas, t->c.n_shards};
    const bool is_flat = t->c.n_replicas == 1;
    HP_TRY(hp_mesh_create(t->world, is_flat ? sizes + 1 : sizes, is_flat ? 1 : 2, &t->mesh));
    HP_TRY(hp_fsdp_create(t->mesh, &t->c.fsdp, &t->fsdp));
    HP_TRY(make_units(t));
    return t->c.optimizer ? hp_optimizer_create(t->fsdp, t->c.optimizer, NULL, &t->optimizer)
                          : HP_OK;
}

hp_status tiny_create(hp_world *world, const tiny_config *config, tiny **out_tiny) {
    tiny *t = calloc(1, sizeof *t);
    if (!t)
        return HPI_FAIL(HP_ERR_MEMORY, "expected room for a tiny model");
    t->c = *config;
    t->world = world;
    t->n_params = config->is_mixed ? N_PARAMS : 2;
    t->n_layers = config->n_units + (config->is_tied != 0);
    t->batch = config->global_batch / (hp_world_size(world) * config->n_passes);
    *out_tiny = t;
    return build(t);
}

void tiny_destroy(tiny *t) {
    if (!t)
        return;
    hp_optimizer_destroy(t->optimizer);
    hp_fsdp_destroy(t->fsdp);
    hp_mesh_destroy(t->mesh);
    free(t);
}

hp_fsdp *tiny_fsdp(tiny *t) {
    return t->fsdp;
}
hp_optimizer *tiny_optimizer(tiny *t) {
    return t->optimizer;
}

/* ---- compute ----------------------------------------------------------------------------- */

static float load(const void *data, hp_dtype dtype, int k) {
    if (dtype == HP_BF16)
        return hpi_bf16_to_fp32(((const uint16_t *)data)[k]);
    if (dtype == HP_FP16)
        return hpi_fp16_to_fp32(((const uint16_t *)data)[k]);
    return ((const float *)data)[k];
}

/* A layer runs through a unit; a tied model's last one through the first again. */
static int unit_of(const tiny *t, int l) {
    return l % t->c.n_units;
}

static float scale_of(const tiny *t, int u, int i) {
    if (t->n_params < N_PARAMS)
        return 0.5F;
    const double *gain = hp_param_data(t->units[u], PARAM_GAIN);
    const void *mask = hp_param_data(t->units[u], PARAM_MASK);
    return (float)*gain * load(mask, t->data[u][PARAM_MASK], i);
}

static void layer_forward(tiny *t, int l) {
    const int n = t->c.width, u = unit_of(t, l);
    const void *w = hp_param_data(t->units[u], PARAM_W);
    const void *b = hp_param_data(t->units[u], PARAM_B);
    for (int s = 0; s < t->batch; s++)
        for (int i = 0; i < n; i++) {
            float z = load(b, t->data[u][PARAM_B], i);
            for (int j = 0; j < n; j++)
                z += load(w, t->data[u][PARAM_W], i * n + j) * t->h[l][s][j];
            t->z[l][s][i] = z;
            t->h[l + 1][s][i] = t->h[l][s][i] + (z > 0 ? z : 0) * scale_of(t, u, i);
        }
    if (t->c.compute_ns)
        hpi_sleep_ns(t->c.compute_ns);
}

/* The gradient of the loss with respect to z, for one element. */
static float dz_of(const tiny *t, int l, int s, int i) {
    return t->z[l][s][i] > 0 ? t->dh[s][i] * scale_of(t, unit_of(t, l), i) : 0;
}

static void weight_gradients(tiny *t, int l) {
    const int n = t->c.width, u = unit_of(t, l);
    void *dw = hp_param_grad(t->units[u], PARAM_W);
    void *db = hp_param_grad(t->units[u], PARAM_B);
    for (int i = 0; i < n; i++) {
        float bias = 0;
        for (int s = 0; s < t->batch; s++)
            bias += dz_of(t, l, s, i);
        store(db, t->grad[u][PARAM_B], (uint64_t)i, bias);
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int s = 0; s < t->batch; s++)
                sum += dz_of(t, l, s, i) * t->h[l][s][j];
            store(dw, t->grad[u][PARAM_W], (uint64_t)(i * n + j), sum);
        }
    }
}

static void gain_gradient(tiny *t, int l) {
    const int u = unit_of(t, l);
    const void *mask = hp_param_data(t->units[u], PARAM_MASK);
    double *dgain = hp_param_grad(t->units[u], PARAM_GAIN);
    *dgain = 0;
    for (int s = 0; s < t->batch; s++)
        for (int i = 0; i < t->c.width; i++)
            *dgain += t->z[l][s][i] > 0 ? (double)t->dh[s][i] *
                                              load(mask, t->data[u][PARAM_MASK], i) * t->z[l][s][i]
                                        : 0;
}

static void layer_backward(tiny *t, int l) {
    const int n = t->c.width, u = unit_of(t, l);
    const void *w = hp_param_data(t->units[u], PARAM_W);
    weight_gradients(t, l);
    if (t->n_params == N_PARAMS)
        gain_gradient(t, l);
    for (int s = 0; s < t->batch; s++) {
        float dx[TINY_MAX_WIDTH];
        for (int j = 0; j < n; j++) {
            dx[j] = t->dh[s][j];
            for (int i = 0; i < n; i++)
                dx[j] += dz_of(t, l, s, i) * load(w, t->data[u][PARAM_W], i * n + j);
        }
        memcpy(t->dh[s], dx, (size_t)n * sizeof *dx);
    }
    if (t->c.compute_ns)
        hpi_sleep_ns(t->c.compute_ns);
}

/* Sample index = step * global batch + (pass * ranks + rank) * batch + s (SPEC A9). */
static void set_input(tiny *t, int step, int pass) {
    const int first = step * t->c.global_batch +
                      (pass * hp_world_size(t->world) + hp_world_rank(t->world)) * t->batch;
    for (int s = 0; s < t->batch; s++)
        for (int i = 0; i < t->c.width; i++)
            t->h[0][s][i] = value_at(11, (uint64_t)((first + s) * TINY_MAX_WIDTH + i), 1.0F);
}

/* Mean over the samples of a pass of the mean of h^2, summed by the tree; its share of the step's
 * gradient. */
static hp_status loss_of(tiny *t, double *out_loss) {
    double local = 0;
    const int n = t->c.width;
    const float *last;
    for (int s = 0; s < t->batch; s++) {
        last = t->h[t->n_layers][s];
        for (int i = 0; i < n; i++) {
            local += (double)last[i] * last[i];
            t->dh[s][i] = 2.0F * last[i] / (float)(n * t->batch * t->c.n_passes);
        }
    }
    HP_TRY(hp_all_reduce(hp_world_group(t->world), &local, out_loss, 1, HP_FP64, HP_SUM));
    *out_loss /= (double)(t->batch * hp_world_size(t->world)) * n;
    return HP_OK;
}

static hp_status forward(tiny *t, int step, int pass) {
    set_input(t, step, pass);
    for (int l = 0; l < t->n_layers; l++) {
        HP_TRY(hp_forward_begin(t->units[unit_of(t, l)]));
        layer_forward(t, l);
        HP_TRY(hp_forward_end(t->units[unit_of(t, l)]));
    }
    return HP_OK;
}

hp_status tiny_evaluate(tiny *t, int step, double *out_loss) {
    HP_TRY(hp_fsdp_begin(t->fsdp, HP_EVALUATE));
    HP_TRY(forward(t, step, 0));
    HP_TRY(loss_of(t, out_loss));
    return hp_fsdp_end(t->fsdp);
}

hp_status tiny_pass(tiny *t, int step, int pass, double *out_loss) {
    HP_TRY(hp_fsdp_begin(t->fsdp, pass + 1 < t->c.n_passes ? HP_NO_SYNC : HP_SYNC));
    HP_TRY(forward(t, step, pass));
    HP_TRY(loss_of(t, out_loss));
    for (int l = t->n_layers; l-- > 0;) {
        HP_TRY(hp_backward_begin(t->units[unit_of(t, l)]));
        layer_backward(t, l);
        HP_TRY(hp_backward_end(t->units[unit_of(t, l)]));
    }
    return hp_fsdp_end(t->fsdp);
}

hp_status tiny_step(tiny *t, int step, double *out_loss) {
    double sum = 0;
    for (int pass = 0; pass < t->c.n_passes; pass++) {
        double loss;
        HP_TRY(tiny_pass(t, step, pass, &loss));
        sum += loss;
    }
    *out_loss = sum / t->c.n_passes;
    return HP_OK;
}

/* ---- digests ----------------------------------------------------------------------------- */

static uint64_t hash_shard(const tiny *t, const hp_param *p, const hp_shard *shard,
                           const void *values, uint64_t seed) {
    uint64_t sum = 0;
    const size_t bytes = hp_dtype_size(shard->dtype);
    const uint64_t rows = (uint64_t)(shard->end - shard->begin);
    const bool is_flat = hp_fsdp_mode(t->fsdp) == HP_MAPPED;
    const bool is_inner = p->n_dims == 2 && p->shard_dim == 1 && !is_flat;
    const uint64_t width = p->n_dims == 2 && !is_flat ? (uint64_t)p->shape[1] : 1;
    for (uint64_t k = 0; k < shard->n_elements; k++) {
        const uint64_t index = is_inner ? k / rows * width + (uint64_t)shard->begin + k % rows
                                        : (uint64_t)shard->begin * width + k;
        uint64_t bits = 0;
        memcpy(&bits, (const unsigned char *)values + k * bytes, bytes);
        uint64_t state = seed ^ (index * UINT64_C(0x9e3779b97f4a7c15)) ^ (bits << 1);
        sum += hpi_random_next(&state);
    }
    return sum;
}

hp_status tiny_digest(tiny *t, int of_gradients, uint64_t *out_digest) {
    uint64_t mine = 0, all = 0;
    const bool is_flat = t->c.n_replicas == 1;
    const int replica = is_flat ? 0 : hp_mesh_coordinate(t->mesh, 0);
    const int shard_rank = hp_mesh_coordinate(t->mesh, is_flat ? 0 : 1);
    for (int l = 0; l < t->c.n_units && replica == 0; l++)
        for (int j = 0; j < t->n_params; j++) {
            hp_shard shard;
            HP_TRY(hp_param_shard(t->units[l], j, &shard));
            const void *values = of_gradients ? shard.grad : shard.values;
            if (t->params[l][j].shard_dim == HP_REPLICATED && shard_rank)
                continue; /* counted once */
            if (values)
                mine +=
                    hash_shard(t, &t->params[l][j], &shard, values, (uint64_t)(l * N_PARAMS + j));
        }
    HP_TRY(hp_all_reduce(hp_world_group(t->world), &mine, &all, 1, HP_INT64, HP_SUM));
    *out_digest = all;
    return HP_OK;
}

/* ---- training ---------------------------------------------------------------------------- */

static int compare_times(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static hp_status train(tiny *t, tiny_result *r) {
    uint64_t times[128], digest;
    for (int step = 0; step < t->c.n_steps; step++) {
        const uint64_t began = hpi_now_ns();
        HP_TRY(tiny_step(t, step, &r->losses[step]));
        times[step] = hpi_now_ns() - began;
        if (t->c.max_norm > 0)
            HP_TRY(hp_clip_grad_norm(t->fsdp, t->c.max_norm, 2.0, &r->norms[step]));
        HP_TRY(tiny_digest(t, 1, &digest));
        r->gradients = r->gradients * 31 + digest;
        if (t->optimizer)
            HP_TRY(hp_optimizer_step(t->optimizer, t->c.learning_rate));
    }
    qsort(times, (size_t)t->c.n_steps, sizeof *times, compare_times);
    r->step_ns = times[t->c.n_steps / 2];
    return tiny_digest(t, 0, &r->weights);
}

hp_status tiny_train(hp_world *world, const tiny_config *config, tiny_result *out_result) {
    tiny *t = NULL;
    memset(out_result, 0, sizeof *out_result);
    hp_status status = tiny_create(world, config, &t);
    if (!status)
        status = train(t, out_result);
    hp_error error;
    hp_last_error_get(&error);
    tiny_destroy(t);
    return status ? hpi_error_set(&error) : HP_OK;
}
