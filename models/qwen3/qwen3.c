/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/qwen3.c - the model is made: its units, with Hugging Face's names, and its memory.
 *
 * The tied model's embedding, last norm and head are one unit that is used at both ends of a pass;
 * it stays gathered in between. Everything that a pass needs is cut out of one piece of memory.
 */
#include "inside.h"
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char call[] = "qwen3_create";

/* ---- arguments ---- */

/* Query heads follow: their number is a multiple of that of key-value heads. */
static hp_status check_tensor(const qwen3_config *config, int n_ranks) {
    if (n_ranks > QWEN3_MOST_TENSOR)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected a tensor group of at most %d ranks, given %d",
                            QWEN3_MOST_TENSOR, n_ranks);
    if (config->num_key_value_heads % n_ranks != 0)
        return hp_error_set(
            HP_ERR_ARGUMENT, call,
            "expected the ranks of a tensor group to divide the %d key-value heads, "
            "given %d",
            config->num_key_value_heads, n_ranks);
    return HP_OK;
}

static hp_status check_options(const qwen3_config *config, const qwen3_options *o) {
    if (o->size != sizeof *o)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected qwen3_options of %zu bytes, given %zu: use "
                            "QWEN3_OPTIONS_INIT",
                            sizeof *o, o->size);
    /* So that the sum of all sizes cannot overflow. */
    if (o->batch < 1 || o->seq < 1 || (int64_t)o->batch * o->seq > 1 << 24)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected batch and seq of 1 or more, 2^24 tokens together at most, "
                            "given %d and %d",
                            o->batch, o->seq);
    if (o->seq > config->max_position_embeddings)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected a seq within the %d of max_position_embeddings, given %d",
                            config->max_position_embeddings, o->seq);
    if (o->dtype != HP_FP32 && o->dtype != HP_BF16)
        return hp_error_set(HP_ERR_ARGUMENT, call, "expected dtype fp32 or bf16, given %s",
                            hp_dtype_name(o->dtype));
    if (!o->matmul)
        return hp_error_set(HP_ERR_ARGUMENT, call, "expected an hp_matmul, given NULL");
    return o->tensor ? check_tensor(config, hp_group_size(o->tensor)) : HP_OK;
}

/* ---- the units ---- */

static hp_param matrix(const char *name, int64_t rows, int64_t columns, qwen3_first *first) {
    hp_param p = HP_PARAM_INIT;
    p.name = name;
    p.n_dims = 2;
    p.shape[0] = rows;
    p.shape[1] = columns;
    p.fill = qwen3_fill_normal;
    p.fill_context = first;
    return p;
}

static hp_param norm(const char *name, int64_t n) {
    hp_param p = HP_PARAM_INIT;
    p.name = name;
    p.n_dims = 1;
    p.shape[0] = n;
    p.fill = qwen3_fill_ones;
    return p;
}

/* Names and shapes are copied by the library; first values are asked for during commit. */
static hp_status declare(qwen3 *model, const char *unit, const hp_param *params, int n,
                         const hp_unit_config *config, hp_unit **out_unit) {
    TRY(hp_unit_create(model->fsdp, unit, params, n, config, out_unit));
    for (int j = 0; j < n; j++)
        if (!params[j].tied_to)
            model->n_parameters +=
                (uint64_t)(params[j].shape[0] * (params[j].n_dims == 2 ? params[j].shape[1] : 1));
    return HP_OK;
}

/* Element `tensor` of model->first. */
static qwen3_first *first_of(qwen3 *model, int tensor) {
    qwen3_first *first = &model->first[tensor];
    first->seed = qwen3_mix(qwen3_mix(model->options.seed) ^ (uint64_t)tensor);
    first->deviation = model->config.initializer_range;
    return first;
}

static hp_status declare_layer(qwen3 *model, int l) {
    static const char *const suffix[QWEN3_N_LAYER_PARAMS] = {
        [QWEN3_INPUT_NORM] = "input_layernorm", [QWEN3_Q] = "self_attn.q_proj",
        [QWEN3_K] = "self_attn.k_proj",         [QWEN3_V] = "self_attn.v_proj",
        [QWEN3_Q_NORM] = "self_attn.q_norm",    [QWEN3_K_NORM] = "self_attn.k_norm",
        [QWEN3_O] = "self_attn.o_proj",         [QWEN3_POST_NORM] = "post_attention_layernorm",
        [QWEN3_GATE] = "mlp.gate_proj",         [QWEN3_UP] = "mlp.up_proj",
        [QWEN3_DOWN] = "mlp.down_proj",
    };
    const qwen3_config *c = &model->config;
    const int64_t hidden = c->hidden_size, wide = c->intermediate_size, dim = c->head_dim;
    const int64_t q = c->num_attention_heads * dim, kv = c->num_key_value_heads * dim;
    /* [out][in]; one column stands for a vector. */
    const int64_t shape[QWEN3_N_LAYER_PARAMS][2] = {
        [QWEN3_INPUT_NORM] = {hidden, 0}, [QWEN3_Q] = {q, hidden},
        [QWEN3_K] = {kv, hidden},         [QWEN3_V] = {kv, hidden},
        [QWEN3_Q_NORM] = {dim, 0},        [QWEN3_K_NORM] = {dim, 0},
        [QWEN3_O] = {hidden, q},          [QWEN3_POST_NORM] = {hidden, 0},
        [QWEN3_GATE] = {wide, hidden},    [QWEN3_UP] = {wide, hidden},
        [QWEN3_DOWN] = {hidden, wide},
    };
    char unit[32], name[QWEN3_N_LAYER_PARAMS][80];
    hp_param params[QWEN3_N_LAYER_PARAMS];
    snprintf(unit, sizeof unit, "layer%d", l);
    for (int j = 0; j < QWEN3_N_LAYER_PARAMS; j++) {
        snprintf(name[j], sizeof name[j], "model.layers.%d.%s.weight", l, suffix[j]);
        params[j] = shape[j][1] ? matrix(name[j], shape[j][0], shape[j][1],
                                         first_of(model, 2 + l * QWEN3_N_LAYER_PARAMS + j))
                                : norm(name[j], shape[j][0]);
    }
    return declare(model, unit, params, QWEN3_N_LAYER_PARAMS, NULL, &model->layers[l]);
}

static const char table_name[] = "model.embed_tokens.weight";
static const char norm_name[] = "model.norm.weight";
static const char head_name[] = "lm_head.weight";

/* Embedding, last norm and head in one unit, which stays gathered from its first use to its last:
 * other layers are computed in between, but its forward begins the pass and its backward the way
 * back. */
static hp_status declare_tied(qwen3 *model) {
    enum { NORM = 1, HEAD = 2 };
    const qwen3_config *c = &model->config;
    hp_unit_config config = HP_UNIT_CONFIG_INIT;
    config.reshard_after_forward = 0;
    hp_param params[3] = {matrix(table_name, c->vocab_size, c->hidden_size, first_of(model, 0)),
                          [NORM] = norm(norm_name, c->hidden_size),
                          [HEAD] = matrix(head_name, c->vocab_size, c->hidden_size, NULL)};
    params[HEAD].tied_to = table_name;
    TRY(declare(model, "embed", params, 3, &config, &model->embed));
    model->head = model->embed;
    model->head_norm = NORM;
    model->head_w = HEAD;
    return HP_OK;
}

static hp_status declare_embed(qwen3 *model) {
    const qwen3_config *c = &model->config;
    const hp_param table = matrix(table_name, c->vocab_size, c->hidden_size, first_of(model, 0));
    return declare(model, "embed", &table, 1, NULL, &model->embed);
}

static hp_status declare_head(qwen3 *model) {
    const qwen3_config *c = &model->config;
    const hp_param params[2] = {
        norm(norm_name, c->hidden_size),
        matrix(head_name, c->vocab_size, c->hidden_size, first_of(model, 1)),
    };
    model->head_norm = 0;
    model->head_w = 1;
    return declare(model, "head", params, 2, NULL, &model->head);
}

static hp_status declare_units(qwen3 *model) {
    const bool is_tied = model->config.tie_word_embeddings != 0;
    TRY(is_tied ? declare_tied(model) : declare_embed(model));
    for (int l = 0; l < model->config.num_hidden_layers; l++)
        TRY(declare_layer(model, l));
    return is_tied ? HP_OK : declare_head(model);
}

/* ---- memory ---- */

static void lay_out_generation(qwen3 *model, qwen3_layout *l) {
    const qwen3_shape *s = &model->shape;
    const size_t seq = (size_t)model->options.seq;
    const size_t n_layers = (size_t)model->config.num_hidden_layers;
    const size_t cache = n_layers * seq * s->n_kv_heads * s->head_dim;
    model->keys = qwen3_take(l, s->dtype, cache);
    model->values = qwen3_take(l, s->dtype, cache);
    model->context = qwen3_take(l, HP_INT32, seq);
    model->candidates = qwen3_take(l, HP_UINT8, s->vocab * sizeof *model->candidates);
}

/* Generation reads one sequence on each rank alone. */
static size_t to_generate(const qwen3 *model, size_t n_bytes) {
    return model->options.generate ? n_bytes : 0;
}

/* Returns how many bytes it is; without memory that is all it is for. */
static size_t lay_out(qwen3 *model, void *memory) {
    qwen3_layout l = {memory, 0};
    const qwen3_shape *s = &model->shape, alone = qwen3_alone(*s);
    const size_t batch = (size_t)model->options.batch, seq = (size_t)model->options.seq;
    const size_t n = model->most_rows = qwen3_larger(qwen3_part_of(&s->tensor, batch * seq).n, 1);
    const size_t n_layers = (size_t)model->config.num_hidden_layers;
    const bool has_recompute = model->options.recompute != 0;
    model->cosines = qwen3_take(&l, HP_FP32, seq * s->head_dim / 2);
    model->sines = qwen3_take(&l, HP_FP32, seq * s->head_dim / 2);
    model->h = qwen3_take(&l, HP_FP32, qwen3_larger(n, to_generate(model, seq)) * s->hidden);
    model->saved_stride = (qwen3_saved_bytes(s, batch, seq) + 63) / 64 * 64;
    model->saved = qwen3_take(&l, HP_UINT8,
                              qwen3_larger((has_recompute ? 1 : n_layers) * model->saved_stride,
                                           to_generate(model, qwen3_saved_bytes(&alone, 1, seq))));
    model->inputs = qwen3_take(&l, HP_FP32, has_recompute ? n_layers * n * s->hidden : 0);
    model->logits = qwen3_take(&l, HP_FP32, n * s->vocab);
    model->head_saved = qwen3_take(&l, HP_UINT8, qwen3_head_saved_bytes(s, n));
    model->scratch =
        qwen3_take(&l, HP_UINT8,
                   qwen3_larger(qwen3_larger(qwen3_scratch_bytes(s, batch, seq),
                                             qwen3_ends_scratch_bytes(s, n)),
                                to_generate(model, qwen3_scratch_bytes(&alone, 1, seq))));
    if (model->options.generate)
        lay_out_generation(model, &l);
    return l.n_bytes;
}

static hp_status take_memory(qwen3 *model) {
    model->memory_bytes = lay_out(model, NULL);
    model->memory = aligned_alloc(64, model->memory_bytes);
    if (!model->memory)
        return hp_error_set(HP_ERR_MEMORY, call,
                            "expected %zu bytes for the activations of %d sequences of %d tokens",
                            model->memory_bytes, model->options.batch, model->options.seq);
    memset(model->memory, 0, model->memory_bytes); /* faulted in here, not in a step */
    lay_out(model, model->memory);
    qwen3_rope_fill((size_t)model->options.seq, model->shape.head_dim, model->config.rope_theta,
                    model->cosines, model->sines);
    model->shape.cosines = model->cosines;
    model->shape.sines = model->sines;
    return HP_OK;
}

/* ---- together ---- */

/* What the units give and take is the fsdp's to say; products compute in one dtype. */
static hp_status take_dtypes(qwen3 *model) {
    hp_dtype data;
    TRY(hp_param_dtypes(model->embed, QWEN3_TABLE, &data, &model->shape.grad_dtype));
    if (data == model->options.dtype)
        return HP_OK;
    return hp_error_set(HP_ERR_ARGUMENT, call,
                        "expected options.dtype to be the fsdp's param_dtype, %s, given %s",
                        hp_dtype_name(data), hp_dtype_name(model->options.dtype));
}

/* A group of one has nobody to compute with. */
static qwen3_tensor tensor_of(hp_group *group) {
    if (!group || hp_group_size(group) == 1)
        return (qwen3_tensor){.group = NULL};
    return (qwen3_tensor){group, hp_group_size(group), hp_group_rank(group)};
}

static qwen3_shape shape_of(const qwen3_config *c, const qwen3_options *o) {
    return (qwen3_shape){
        .hidden = (size_t)c->hidden_size,
        .intermediate = (size_t)c->intermediate_size,
        .n_heads = (size_t)c->num_attention_heads,
        .n_kv_heads = (size_t)c->num_key_value_heads,
        .head_dim = (size_t)c->head_dim,
        .vocab = (size_t)c->vocab_size,
        .eps = (float)c->rms_norm_eps,
        .dtype = o->dtype,
        .matmul = o->matmul,
        .tensor = tensor_of(o->tensor),
    };
}

static hp_status fill_model(qwen3 *model) {
    const size_t n_layers = (size_t)model->config.num_hidden_layers;
    model->layers = calloc(n_layers, sizeof *model->layers);
    model->first = calloc(2 + n_layers * QWEN3_N_LAYER_PARAMS, sizeof *model->first);
    if (!model->layers || !model->first)
        return hp_error_set(HP_ERR_MEMORY, call, "expected memory for the tables of %zu layers",
                            n_layers);
    TRY(declare_units(model));
    TRY(take_dtypes(model));
    return take_memory(model);
}

hp_status qwen3_create(hp_fsdp *fsdp, const qwen3_config *config, const qwen3_options *options,
                       qwen3 **out_model) {
    if (!fsdp || !config || !options || !out_model)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected fsdp, config, options and out_model, given NULL");
    TRY(qwen3_config_check(config));
    TRY(check_options(config, options));
    qwen3 *model = calloc(1, sizeof *model);
    if (!model)
        return hp_error_set(HP_ERR_MEMORY, call, "expected memory for a model");
    model->fsdp = fsdp;
    model->config = *config;
    model->options = *options;
    model->shape = shape_of(config, options);
    const hp_status status = fill_model(model);
    if (status < 0) {
        qwen3_destroy(model);
        return status;
    }
    *out_model = model;
    return HP_OK;
}

void qwen3_destroy(qwen3 *model) {
    if (!model)
        return;
    free(model->memory);
    free(model->layers);
    free(model->first);
    free(model);
}

uint64_t qwen3_n_parameters(const qwen3 *model) {
    return model->n_parameters;
}
uint64_t qwen3_activation_bytes(const qwen3 *model) {
    return model->memory_bytes;
}
