/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/model_qwen3.c - models/qwen3 as a row of the table.
 *
 * Sizes come from the options, or from DIR/config.json with --model DIR, whose weights are loaded
 * where there are some. A sample is seq + 1 tokens: each but the last predicts the one behind it.
 */
#include "fail.h"
#include "model.h"

#include <qwen3/qwen3.h>

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct state {
    qwen3_config config;
    bool has_weights; /* of --model DIR */
    hp_matmul *matmul;
    qwen3 *model;
    int32_t *tokens, *targets; /* [batch][seq] each */
} state;

/* ---- sizes ---- */

/* What small models learn faster with than with the defaults of large ones: fewer far positions to
 * tell apart, and larger first weights. */
static void take_sizes(const options *o, uint32_t data_vocab, qwen3_config *out) {
    out->hidden_size = (int)o->hidden_size;
    out->num_hidden_layers = (int)o->layers;
    out->num_attention_heads = (int)o->heads;
    out->num_key_value_heads = (int)o->kv_heads;
    out->head_dim = (int)o->head_dim;
    out->intermediate_size = (int)o->intermediate_size;
    out->vocab_size = data_vocab <= INT_MAX ? (int)data_vocab : INT_MAX;
    out->rope_theta = 1000;
    out->initializer_range = 0.8 / sqrt((double)o->hidden_size);
}

static bool has_file(const char *directory, const char *name) {
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/%s", directory, name) < sizeof path &&
           access(path, F_OK) == 0;
}

static hp_status read_directory(state *s, const char *directory) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", directory) >= sizeof path)
        return fail(HP_ERR_ARGUMENT, "expected --model to be a path below %zu bytes", sizeof path);
    if (access(path, F_OK) != 0)
        return fail(HP_ERR_ARGUMENT,
                    "expected --model to be qwen3, bytes-mlp or a directory with config.json, "
                    "given %s: %s",
                    directory, strerror(errno));
    s->has_weights = has_file(directory, "model.safetensors") ||
                     has_file(directory, "model.safetensors.index.json");
    return qwen3_config_read(path, &s->config);
}

static hp_status find_sizes(state *s, const options *o, uint32_t data_vocab) {
    const qwen3_config defaults = QWEN3_CONFIG_INIT;
    s->config = defaults;
    if (options_is_directory(o))
        return read_directory(s, o->model);
    if (!data_vocab)
        return fail(HP_ERR_ARGUMENT, "expected --data to name its vocabulary's size, or --model "
                                     "DIR with a config.json that does");
    take_sizes(o, data_vocab, &s->config);
    return qwen3_config_check(&s->config);
}

static hp_status take_memory(state *s, size_t n_tokens) {
    s->tokens = malloc(n_tokens * sizeof *s->tokens);
    s->targets = malloc(n_tokens * sizeof *s->targets);
    if (!s->tokens || !s->targets)
        return fail(HP_ERR_MEMORY, "expected memory for %zu tokens", n_tokens);
    return HP_OK;
}

static hp_status open_model(model *m, uint32_t data_vocab) {
    const options *o = m->options;
    state *s = m->state = calloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    TRY(find_sizes(s, o, data_vocab));
    m->sample_tokens = (int)o->seq + 1;
    m->vocab_size = s->config.vocab_size;
    m->n_units = s->config.num_hidden_layers + 3; /* tied, the embedding is used twice */
    return take_memory(s, (size_t)(o->batch * o->seq));
}

/* ---- memory and weights ---- */

static hp_status create(model *m, hp_fsdp *fsdp) {
    const options *o = m->options;
    state *s = m->state;
    qwen3_options config = QWEN3_OPTIONS_INIT;
    TRY(hp_matmul_open(o->is_given[OPTION_matmul] ? o->matmul : NULL, (int)o->threads, &s->matmul));
    config.batch = (int)o->batch;
    config.seq = (int)o->seq;
    config.recompute = o->recompute;
    config.seed = (uint64_t)o->seed;
    config.matmul = s->matmul;
    config.generate = *o->sample != 0;
    TRY(hp_dtype_parse(o->param_dtype, &config.dtype));
    TRY(qwen3_create(fsdp, &s->config, &config, &s->model));
    m->n_parameters = qwen3_n_parameters(s->model);
    m->engine = s->matmul->name;
    m->activation_bytes = qwen3_activation_bytes(s->model);
    return HP_OK;
}

static hp_status load(model *m, hp_fsdp *fsdp) {
    const state *s = m->state;
    return s->has_weights ? hp_weights_load(fsdp, m->options->model) : HP_OK;
}

/* ---- passes ---- */

static void split(state *s, const int32_t *samples, size_t n, size_t seq) {
    for (size_t i = 0; i < n; i++) {
        const int32_t *sample = samples + i * (seq + 1);
        memcpy(s->tokens + i * seq, sample, seq * sizeof *sample);
        memcpy(s->targets + i * seq, sample + 1, seq * sizeof *sample);
    }
}

static hp_status forward(model *m, const int32_t *samples, int n, double *out_loss) {
    state *s = m->state;
    const int seq = m->sample_tokens - 1;
    int64_t n_targets = 0; /* all of them */
    split(s, samples, (size_t)n, (size_t)seq);
    const qwen3_batch batch = {s->tokens, s->targets, n, seq};
    return qwen3_forward(s->model, &batch, out_loss, &n_targets);
}

static hp_status backward(model *m, double weight) {
    return qwen3_backward(((state *)m->state)->model, weight);
}

static hp_status generate(model *m, const int32_t *prompt, int n_prompt, int n,
                          int32_t *out_tokens) {
    const options *o = m->options;
    const qwen3_sampling sampling = {o->temperature, (int)o->top_k, (uint64_t)o->seed};
    return qwen3_generate(((state *)m->state)->model, prompt, n_prompt, &sampling, n, out_tokens);
}

/* ---- out ---- */

static hp_status export_model(model *m, hp_fsdp *fsdp, const char *directory) {
    const state *s = m->state;
    char text[8192];
    const char *const name = "config.json", *const whole = text;
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    TRY(hp_dtype_parse(m->options->export_dtype, &config.dtype));
    if (qwen3_config_write(&s->config, config.dtype, text, sizeof text) < 0)
        return fail(HP_ERR_LIMIT, "expected a config.json below %zu bytes", sizeof text);
    config.file_names = &name;
    config.file_texts = &whole;
    config.n_files = 1;
    return hp_weights_save(fsdp, directory, &config);
}

static void close_model(model *m) {
    state *s = m->state;
    if (!s)
        return;
    qwen3_destroy(s->model);
    hp_matmul_close(s->matmul);
    free(s->tokens);
    free(s->targets);
    free(s);
    m->state = NULL;
}

const model_kind model_qwen3 = {.open = open_model,
                                .create = create,
                                .load = load,
                                .forward = forward,
                                .backward = backward,
                                .generate = generate,
                                .export = export_model,
                                .close = close_model};
