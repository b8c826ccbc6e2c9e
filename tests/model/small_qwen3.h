/* SPDX-License-Identifier: Apache-2.0
 *
 * small_qwen3.h - a small model trained over ranks, for the tests of qwen3.
 *
 * Samples are arithmetic progressions modulo the vocabulary; the first token of each has no target,
 * so that every sample counts the same. A digest adds one hash per element, of (parameter, place,
 * bits), so ranks hash their own shards and it does not depend on the mesh.
 */
#ifndef SMALL_QWEN3_H
#define SMALL_QWEN3_H

#include "base/base.h"
#include "qwen3/inside.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <string.h>

enum { SMALL_MOST_TOKENS = 256 };

typedef struct small_config {
    qwen3_config model;
    qwen3_options options; /* batch: sequences of one rank in one pass */
    hp_fsdp_config fsdp;
    const char *matmul;
    int n_replicas, n_shards, n_accumulate;
    const char *optimizer;
    double learning_rate, max_norm;
    int n_tensor; /* ranks that compute the same samples together; of the shards. 0: none */
} small_config;

typedef struct small {
    const small_config *config;
    hp_world *world;
    hp_mesh *mesh;
    hp_group *tensor;
    hp_matmul *matmul;
    hp_fsdp *fsdp;
    qwen3 *model;
    hp_optimizer *optimizer;
} small;

/* Generated code is invisible to sanitizers. */
#ifdef HP_PLAIN_KERNELS
#define SMALL_MATMUL "plain"
#else
#define SMALL_MATMUL "auto"
#endif

/* Odd sizes, grouped heads, and weights large enough that attention is not uniform. */
static inline small_config small_config_init(void) {
    small_config c = {
        {0}, QWEN3_OPTIONS_INIT, HP_FSDP_CONFIG_INIT, SMALL_MATMUL, 1, 1, 1, "adamw", 1e-2, 1.0, 0};
    c.model = (qwen3_config)QWEN3_CONFIG_INIT;
    c.model.vocab_size = 29;
    c.model.hidden_size = 20;
    c.model.intermediate_size = 36;
    c.model.num_hidden_layers = 2;
    c.model.num_attention_heads = 4;
    c.model.num_key_value_heads = 2;
    c.model.head_dim = 6;
    c.model.initializer_range = 0.3;
    c.options.batch = 1;
    c.options.seq = 7;
    c.options.seed = 5;
    return c;
}

/* sgd: with momentum, so that it has a state too. */
static inline hp_optimizer *small_optimizer(hp_fsdp *fsdp, const small_config *config) {
    hp_optimizer_config optimizer_config = HP_OPTIMIZER_CONFIG_INIT;
    hp_optimizer *optimizer;
    if (strcmp(config->optimizer, "sgd") == 0)
        optimizer_config.momentum = 0.9;
    RANK_OK(hp_optimizer_create(fsdp, config->optimizer, &optimizer_config, &optimizer));
    return optimizer;
}

/* Ranks that have samples of their own, and which of them this one is. */
static inline int small_n_data(const small *s) {
    return hp_world_size(s->world) / (s->config->n_tensor ? s->config->n_tensor : 1);
}
static inline int small_data_rank(const small *s) {
    return hp_world_rank(s->world) / (s->config->n_tensor ? s->config->n_tensor : 1);
}

/* The mesh is what the config says; where it has one rank, so has the world. */
static inline small small_begin(hp_world *world, const small_config *config) {
    small s = {.config = config, .world = world};
    qwen3_options options = config->options;
    RANK_OK(hp_mesh_create(world, (int[]){config->n_replicas, config->n_shards}, 2, &s.mesh));
    RANK_OK(hp_fsdp_create(s.mesh, &config->fsdp, &s.fsdp));
    RANK_OK(hp_matmul_open(config->matmul, 1, &s.matmul));
    options.matmul = s.matmul;
    if (config->n_tensor)
        RANK_OK(hp_group_split(hp_world_group(world), small_data_rank(&s), 0, &s.tensor));
    options.tensor = s.tensor;
    RANK_OK(qwen3_create(s.fsdp, &config->model, &options, &s.model));
    RANK_OK(hp_fsdp_commit(s.fsdp));
    s.optimizer = small_optimizer(s.fsdp, config);
    return s;
}

static inline void small_end(small *s) {
    hp_optimizer_destroy(s->optimizer);
    hp_fsdp_destroy(s->fsdp);
    qwen3_destroy(s->model);
    hp_matmul_close(s->matmul);
    hp_group_destroy(s->tensor);
    hp_mesh_destroy(s->mesh);
}

/* Sample number `sample` of all that there are. tokens, targets: [seq]. */
static inline void small_sample(const small_config *c, int sample, int seq, int32_t *tokens,
                                int32_t *targets) {
    const int vocab = c->model.vocab_size, first = sample * 11 + 3, step = 1 + sample % 3;
    for (int i = 0; i < seq; i++) {
        tokens[i] = (first + i * step) % vocab;
        targets[i] = i ? (first + (i + 1) * step) % vocab : -1;
    }
}

/* Forward and backward of one pass over `batch` samples from number `first` on. Returns the sum of
 * their losses. */
static inline double small_pass(small *s, hp_pass pass, int first) {
    const small_config *c = s->config;
    const int batch = c->options.batch, seq = c->options.seq;
    int32_t tokens[SMALL_MOST_TOKENS], targets[SMALL_MOST_TOKENS];
    double loss = 0;
    int64_t n_targets = 0;
    for (int j = 0; j < batch; j++)
        small_sample(c, first + j, seq, tokens + j * seq, targets + j * seq);
    const qwen3_batch b = {tokens, targets, batch, seq};
    RANK_OK(hp_fsdp_begin(s->fsdp, pass));
    RANK_OK(qwen3_forward(s->model, &b, &loss, &n_targets));
    RANK_CHECK(s->tensor || n_targets == (int64_t)batch * (seq - 1));
    if (pass != HP_EVALUATE)
        RANK_OK(qwen3_backward(s->model, 1.0 / c->n_accumulate));
    RANK_OK(hp_fsdp_end(s->fsdp));
    return loss;
}

/* Sample (step, pass k, data rank d, j) is number step * global + (k * D + d) * batch + j. Returns
 * the mean loss over the global batch; gradients are reduced, nothing is updated. */
static inline double small_gradients(small *s, int step) {
    const small_config *c = s->config;
    const int n_ranks = small_n_data(s), rank = small_data_rank(s);
    const int batch = c->options.batch, global = c->n_accumulate * n_ranks * batch;
    double loss = 0;
    for (int k = 0; k < c->n_accumulate; k++)
        loss += small_pass(s, k + 1 < c->n_accumulate ? HP_NO_SYNC : HP_SYNC,
                           step * global + (k * n_ranks + rank) * batch);
    RANK_OK(hp_all_reduce(hp_world_group(s->world), &loss, &loss, 1, HP_FP64, HP_SUM));
    return loss / (global * (c->options.seq - 1));
}

static inline double small_step(small *s, int step) {
    double norm;
    const double loss = small_gradients(s, step);
    RANK_OK(hp_clip_grad_norm(s->fsdp, s->config->max_norm, 2.0, &norm));
    RANK_OK(hp_optimizer_step(s->optimizer, s->config->learning_rate));
    return loss;
}

/* The call fails with this status, and its sentence holds this text. */
#define FAILS_SAYING(call, status, text)                                                           \
    do {                                                                                           \
        RANK_FAILS(call, status);                                                                  \
        RANK_CHECK(strstr(hp_last_error(), text) != NULL);                                         \
    } while (0)

/* ---- all parameters ---- */

/* Unit and number of each parameter that is not another name. */
typedef struct small_param {
    hp_unit *unit;
    int number;
} small_param;

static inline int small_n_params(const qwen3 *model) {
    return 3 + model->config.num_hidden_layers * QWEN3_N_LAYER_PARAMS -
           (model->config.tie_word_embeddings != 0);
}

/* In the order: table, norm, (head,) layers. */
static inline small_param small_param_at(const qwen3 *model, int i) {
    const int n_ends = 3 - (model->config.tie_word_embeddings != 0);
    if (i == 0)
        return (small_param){model->embed, QWEN3_TABLE};
    if (i < n_ends)
        return (small_param){model->head, i == 1 ? model->head_norm : model->head_w};
    return (small_param){model->layers[(i - n_ends) / QWEN3_N_LAYER_PARAMS],
                         (i - n_ends) % QWEN3_N_LAYER_PARAMS};
}

static inline uint64_t small_hash(const hp_shard *shard, const float *values, int param) {
    uint64_t sum = 0;
    const uint64_t rows = (uint64_t)(shard->end - shard->begin);
    for (uint64_t k = 0; k < shard->n_elements; k++) {
        uint32_t bits;
        memcpy(&bits, &values[k], sizeof bits);
        const uint64_t place = (uint64_t)shard->begin * (shard->n_elements / rows) + k;
        sum += qwen3_mix(qwen3_mix(place ^ ((uint64_t)param << 40)) ^ bits);
    }
    return sum;
}

/* Of all weights, or of all gradients; equal on all ranks. */
static inline uint64_t small_digest(small *s, bool is_of_gradients) {
    uint64_t sum = 0;
    for (int i = 0; i < small_n_params(s->model); i++) {
        hp_shard shard;
        const small_param p = small_param_at(s->model, i);
        RANK_OK(hp_param_shard(p.unit, p.number, &shard));
        RANK_CHECK(shard.dtype == HP_FP32);
        if (hp_mesh_coordinate(s->mesh, 0) == 0 && shard.n_elements)
            sum += small_hash(&shard, is_of_gradients ? shard.grad : shard.values, i);
    }
    RANK_OK(hp_all_reduce(hp_world_group(s->world), &sum, &sum, 1, HP_INT64, HP_SUM));
    return sum;
}

#endif
