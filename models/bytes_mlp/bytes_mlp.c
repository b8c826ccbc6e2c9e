/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes_mlp/bytes_mlp.c - the model as units of an fsdp.
 *
 * Each unit's compute stands between its begin and its end, where hp_param_data and hp_param_grad
 * are valid; the arithmetic itself is in layers.c. First values come from a hash of (seed, tensor,
 * element), so a rank fills its own shard without knowing the others'.
 */
#include "bytes_mlp.h"
#include "layers.h"

#include <hyperparallel/coll.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(expression)                                                                            \
    do {                                                                                           \
        const hp_status try_status_ = (expression);                                                \
        if (try_status_ < 0)                                                                       \
            return try_status_;                                                                    \
    } while (0)

enum { VOCABULARY = BYTES_MLP_VOCABULARY };
/* Parameters of a unit, in the order of their declaration. */
enum { TABLE = 0 };
enum { W1 = 0, B1, W2, B2, N_BLOCK };
enum { HEAD_W = 0, HEAD_B, N_HEAD };

/* How a tensor is filled: uniform in [-amplitude, amplitude). */
typedef struct first_values {
    uint64_t seed;
    float amplitude;
} first_values;

struct bytes_mlp {
    bytes_mlp_config config;
    bytes_mlp_sizes sizes;
    hp_fsdp *fsdp;
    hp_unit *embedding, **block, *head;
    first_values *first; /* [2 + 2 * n_blocks], read during commit */
    uint64_t n_parameters;
    int n_samples; /* of the last forward */
    const unsigned char *samples;
    unsigned char *target;            /* [batch * seq] */
    float *h;                         /* [batch * seq][width]; its gradient during the backward */
    bytes_mlp_saved *saved;           /* [n_blocks] */
    float *x, *scale, *probabilities; /* of the head */
    bytes_mlp_scratch scratch;
    void *memory;
    size_t memory_bytes;
};

/* ---- first values ---- */

/* splitmix64's output function. Source: Steele, Lea, Flood, OOPSLA 2014. */
static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void fill_uniform(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const first_values *first = context;
    float *out = out_elements;
    for (uint64_t i = begin; i < end; i++) {
        const double unit = (double)(mix(first->seed ^ mix(i)) >> 11) * 0x1.0p-53;
        out[i - begin] = first->amplitude * (float)(2 * unit - 1);
    }
}

/* ---- the units ---- */

static hp_param matrix(const char *name, int rows, int columns, first_values *first) {
    hp_param p = HP_PARAM_INIT;
    p.name = name;
    p.n_dims = 2;
    p.shape[0] = rows;
    p.shape[1] = columns;
    p.fill = fill_uniform;
    p.fill_context = first;
    return p;
}

static hp_param vector(const char *name, int n) {
    hp_param p = HP_PARAM_INIT;
    p.name = name;
    p.n_dims = 1;
    p.shape[0] = n;
    return p;
}

/* Element `tensor` of model->first, so that a tensor's values have the given standard deviation. */
static first_values *first_of(bytes_mlp *model, int tensor, double deviation) {
    first_values *first = &model->first[tensor];
    first->seed = mix(model->config.seed ^ mix((uint64_t)tensor));
    first->amplitude = (float)(sqrt(3.0) * deviation);
    return first;
}

/* Names and shapes are copied by the library; first values are asked for during commit. */
static hp_status declare(bytes_mlp *model, const char *unit, const hp_param *params, int n,
                         hp_unit **out_unit) {
    for (int i = 0; i < n; i++)
        model->n_parameters +=
            (uint64_t)(params[i].shape[0] * (params[i].n_dims == 2 ? params[i].shape[1] : 1));
    return hp_unit_create(model->fsdp, unit, params, n, NULL, out_unit);
}

static hp_status declare_block(bytes_mlp *model, int i) {
    const bytes_mlp_config *c = &model->config;
    char unit[32], name[N_BLOCK][40];
    static const char *const suffix[N_BLOCK] = {"w1", "b1", "w2", "b2"};
    snprintf(unit, sizeof unit, "block%d", i);
    for (int j = 0; j < N_BLOCK; j++)
        snprintf(name[j], sizeof name[j], "%s.%s", unit, suffix[j]);
    /* w1 keeps the variance through relu (He et al. 2015); w2 is small, so that the sum of all
     * blocks starts as small as one of them would be. */
    const double w1 = sqrt(2.0 / c->width), w2 = 1 / sqrt(2.0 * c->hidden * c->n_blocks);
    const hp_param params[N_BLOCK] = {
        [W1] = matrix(name[W1], c->width, c->hidden, first_of(model, 2 + 2 * i, w1)),
        [B1] = vector(name[B1], c->hidden),
        [W2] = matrix(name[W2], c->hidden, c->width, first_of(model, 3 + 2 * i, w2)),
        [B2] = vector(name[B2], c->width),
    };
    return declare(model, unit, params, N_BLOCK, &model->block[i]);
}

static hp_status declare_units(bytes_mlp *model) {
    const bytes_mlp_config *c = &model->config;
    /* The table's rows are (place in the window, byte): cut evenly over any number of ranks. They
     * start small because norm scales them up: the first steps then turn them far (measured: 100
     * steps reach 1.53 instead of 1.80 nats). */
    const hp_param table = matrix("embedding.table", c->window * VOCABULARY, c->width,
                                  first_of(model, 0, 0.05 / sqrt(c->window)));
    TRY(declare(model, "embedding", &table, 1, &model->embedding));
    for (int i = 0; i < c->n_blocks; i++)
        TRY(declare_block(model, i));
    /* Small enough to start near the loss of guessing, log 256. */
    const hp_param head[N_HEAD] = {
        [HEAD_W] = matrix("head.w", c->width, VOCABULARY, first_of(model, 1, 0.5 / sqrt(c->width))),
        [HEAD_B] = vector("head.b", VOCABULARY),
    };
    return declare(model, "head", head, N_HEAD, &model->head);
}

/* ---- memory ---- */

/* The next `count` elements of `size` bytes, 64-byte aligned; with memory NULL it only counts. */
static void *carve(bytes_mlp *model, size_t count, size_t size) {
    const size_t begin = model->memory_bytes;
    model->memory_bytes = (begin + count * size + 63) / 64 * 64;
    return model->memory ? (char *)model->memory + begin : NULL;
}

static float *carve_floats(bytes_mlp *model, size_t count) {
    return carve(model, count, sizeof(float));
}

static void lay_out(bytes_mlp *model) {
    const bytes_mlp_sizes *s = &model->sizes;
    const size_t n_blocks = (size_t)model->config.n_blocks;
    const size_t n = (size_t)model->config.batch * s->seq;
    const size_t wide = s->hidden > VOCABULARY ? s->hidden : VOCABULARY;
    model->memory_bytes = 0;
    model->block = carve(model, n_blocks, sizeof *model->block);
    model->first = carve(model, 2 + 2 * n_blocks, sizeof *model->first);
    model->saved = carve(model, n_blocks, sizeof *model->saved);
    model->target = carve(model, n, 1);
    model->h = carve_floats(model, n * s->width);
    model->x = carve_floats(model, n * s->width);
    model->scale = carve_floats(model, n);
    model->probabilities = carve_floats(model, n * VOCABULARY);
    model->scratch.d_wide = carve_floats(model, n * wide);
    model->scratch.d_x = carve_floats(model, n * s->width);
    model->scratch.transposed = carve_floats(model, s->width * wide);
    model->scratch.tree =
        carve_floats(model, bytes_mlp_tree_levels((size_t)model->config.batch) * s->width * wide);
    for (size_t i = 0; i < n_blocks; i++) {
        const bytes_mlp_saved saved = {carve_floats(model, n * s->width), carve_floats(model, n),
                                       carve_floats(model, n * s->hidden)};
        if (model->memory)
            model->saved[i] = saved;
    }
}

static hp_status take_memory(bytes_mlp *model) {
    lay_out(model); /* how much */
    model->memory = aligned_alloc(64, model->memory_bytes);
    if (!model->memory)
        return HP_ERR_MEMORY;
    memset(model->memory, 0,
           model->memory_bytes); /* its pages are faulted in here, not in a step */
    lay_out(model);
    return HP_OK;
}

static bool is_within(int value, int most) {
    return value >= 1 && value <= most;
}

static bool config_is_good(const bytes_mlp_config *c) {
    return c->size == sizeof *c && is_within(c->window, 1024) && is_within(c->width, 8192) &&
           is_within(c->hidden, 32768) && is_within(c->n_blocks, 256) && is_within(c->seq, 65536) &&
           is_within(c->batch, 65536);
}

hp_status bytes_mlp_create(hp_fsdp *fsdp, const bytes_mlp_config *config, bytes_mlp **out_model) {
    const bytes_mlp_config defaults = BYTES_MLP_CONFIG_INIT;
    const bytes_mlp_config *c = config ? config : &defaults;
    if (!fsdp || !out_model || !config_is_good(c))
        return HP_ERR_ARGUMENT;
    bytes_mlp *model = calloc(1, sizeof *model);
    if (!model)
        return HP_ERR_MEMORY;
    model->fsdp = fsdp;
    model->config = *c;
    model->sizes =
        (bytes_mlp_sizes){(size_t)c->window, (size_t)c->seq, (size_t)c->width, (size_t)c->hidden};
    hp_status status = take_memory(model);
    if (status == HP_OK)
        status = declare_units(model);
    if (status < 0) {
        bytes_mlp_destroy(model);
        return status;
    }
    *out_model = model;
    return HP_OK;
}

void bytes_mlp_destroy(bytes_mlp *model) {
    if (!model)
        return;
    free(model->memory);
    free(model);
}

/* ---- forward and backward ---- */

/* Valid between begin and end of the unit. */
static bytes_mlp_block weights_of(const hp_unit *unit) {
    return (bytes_mlp_block){hp_param_data(unit, W1), hp_param_data(unit, B1),
                             hp_param_data(unit, W2), hp_param_data(unit, B2)};
}

static bytes_mlp_block_grad grads_of(hp_unit *unit) {
    return (bytes_mlp_block_grad){hp_param_grad(unit, W1), hp_param_grad(unit, B1),
                                  hp_param_grad(unit, W2), hp_param_grad(unit, B2)};
}

/* The loss reads the targets of all rows in one run. */
static void copy_targets(bytes_mlp *model) {
    const size_t seq = model->sizes.seq, window = model->sizes.window;
    for (size_t i = 0; i < (size_t)model->n_samples; i++)
        memcpy(model->target + i * seq, model->samples + i * (window + seq) + window, seq);
}

hp_status bytes_mlp_forward(bytes_mlp *model, const unsigned char *samples, int n_samples,
                            double *out_loss) {
    if (!model || !out_loss || n_samples < 0 || n_samples > model->config.batch ||
        (n_samples && !samples))
        return HP_ERR_ARGUMENT;
    const bytes_mlp_sizes *s = &model->sizes;
    model->samples = samples;
    model->n_samples = n_samples;
    copy_targets(model);

    TRY(hp_forward_begin(model->embedding));
    bytes_mlp_embed(s, model->h, hp_param_data(model->embedding, TABLE), samples,
                    (size_t)n_samples);
    TRY(hp_forward_end(model->embedding));

    for (int i = 0; i < model->config.n_blocks; i++) {
        TRY(hp_forward_begin(model->block[i]));
        bytes_mlp_block_forward(s, model->h, weights_of(model->block[i]), model->saved[i],
                                (size_t)model->n_samples);
        TRY(hp_forward_end(model->block[i]));
    }

    TRY(hp_forward_begin(model->head));
    *out_loss = bytes_mlp_head_forward(
        s, model->h, hp_param_data(model->head, HEAD_W), hp_param_data(model->head, HEAD_B),
        model->x, model->scale, model->probabilities, model->target, (size_t)model->n_samples);
    return hp_forward_end(model->head);
}

hp_status bytes_mlp_backward(bytes_mlp *model, double weight) {
    if (!model)
        return HP_ERR_ARGUMENT;
    const bytes_mlp_sizes *s = &model->sizes;
    float *dh = model->h;

    TRY(hp_backward_begin(model->head));
    bytes_mlp_head_backward(s, dh, hp_param_data(model->head, HEAD_W),
                            hp_param_grad(model->head, HEAD_W), hp_param_grad(model->head, HEAD_B),
                            model->x, model->scale, model->probabilities, model->target, weight,
                            model->scratch, (size_t)model->n_samples);
    TRY(hp_backward_end(model->head));

    for (int i = model->config.n_blocks; i-- > 0;) {
        TRY(hp_backward_begin(model->block[i]));
        bytes_mlp_block_backward(s, dh, weights_of(model->block[i]), grads_of(model->block[i]),
                                 model->saved[i], model->scratch, (size_t)model->n_samples);
        TRY(hp_backward_end(model->block[i]));
    }

    TRY(hp_backward_begin(model->embedding));
    bytes_mlp_embed_grad(s, hp_param_grad(model->embedding, TABLE), dh, model->samples,
                         model->scratch, (size_t)model->n_samples);
    return hp_backward_end(model->embedding);
}

/* ---- evaluation ---- */

/* Loss alone: no gradients are kept or reduced. */
static hp_status evaluate_pass(bytes_mlp *model, const unsigned char *samples, int n_samples,
                               double *inout_loss) {
    double loss = 0;
    TRY(hp_fsdp_begin(model->fsdp, HP_EVALUATE));
    TRY(bytes_mlp_forward(model, samples, n_samples, &loss));
    *inout_loss += loss;
    return hp_fsdp_end(model->fsdp);
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

/* Pass after pass takes the next batch for each rank; every rank makes every pass, even with no
 * samples left for it, since the units' gathers are collective. */
hp_status bytes_mlp_evaluate(bytes_mlp *model, hp_world *world, const unsigned char *samples,
                             int n_samples, double *out_loss) {
    if (!model || !world || !samples || n_samples < 1 || !out_loss)
        return HP_ERR_ARGUMENT;
    const int batch = model->config.batch;
    const size_t sample_bytes = model->sizes.window + model->sizes.seq;
    const int64_t stride = (int64_t)batch * hp_world_size(world);
    double loss = 0;
    for (int64_t first = 0; first < n_samples; first += stride) {
        const int64_t mine = first + (int64_t)batch * hp_world_rank(world);
        const int n = (int)clamp(n_samples - mine, 0, batch);
        const unsigned char *from = n ? samples + (size_t)mine * sample_bytes : samples;
        TRY(evaluate_pass(model, from, n, &loss));
    }
    TRY(hp_all_reduce(hp_world_group(world), &loss, &loss, 1, HP_FP64, HP_SUM));
    *out_loss = loss / ((double)n_samples * model->config.seq);
    return HP_OK;
}

uint64_t bytes_mlp_n_parameters(const bytes_mlp *model) {
    return model->n_parameters;
}
uint64_t bytes_mlp_activation_bytes(const bytes_mlp *model) {
    return model->memory_bytes;
}
