/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/model_qwen3.c - models/qwen3 as a row of the table.
 *
 * Sizes come from the options, or from DIR/config.json with --model DIR, whose weights are loaded
 * where there are some. A sample is seq + 1 tokens: each but the last predicts the one behind it.
 */
#include "carry.h"
#include "fail.h"
#include "model.h"

#include <qwen3/qwen3.h>

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct state {
    qwen3_config config;
    carried files; /* of --model DIR, for the export */
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
    if (out->max_position_embeddings < o->seq)
        out->max_position_embeddings = (int)o->seq;
    out->rope_theta = 1000;
    out->initializer_range = 0.8 / sqrt((double)o->hidden_size);
}

static hp_status find_file(const char *directory, const char *name, bool *inout_found) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) >= sizeof path)
        return fail(HP_ERR_ARGUMENT, "expected --model to be a path below %zu bytes", sizeof path);
    const bool is_there = access(path, F_OK) == 0;
    if (!is_there && errno != ENOENT)
        return fail(HP_ERR_FILE, "expected to look for %s: %s", path, strerror(errno));
    *inout_found = *inout_found || is_there;
    return HP_OK;
}

static bool is_weights_name(const char *name) {
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",
                                       ".pt",          ".pth",        ".gguf"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (length > strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* Whoever names a directory of weights means to train those, and not first ones. */
static hp_status refuse_others(const char *directory) {
    DIR *entries = opendir(directory);
    if (!entries)
        return fail(HP_ERR_FILE, "expected to list --model %s: %s", directory, strerror(errno));
    hp_status status = HP_OK;
    for (struct dirent *entry; status == HP_OK && (entry = readdir(entries));)
        if (is_weights_name(entry->d_name))
            status = fail(HP_ERR_FILE,
                          "expected weights in model.safetensors or model.safetensors.index.json "
                          "of --model %s, found %s alone",
                          directory, entry->d_name);
    (void)closedir(entries);
    return status;
}

static hp_status find_weights(const char *directory, bool *out_found) {
    *out_found = false;
    TRY(find_file(directory, "model.safetensors", out_found));
    TRY(find_file(directory, "model.safetensors.index.json", out_found));
    return *out_found ? HP_OK : refuse_others(directory);
}

/* Who has given --save before gives the same directory now. */
static hp_status refuse_directory(const char *directory, int error) {
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/hf/config.json", directory);
    if (n < (int)sizeof path && access(path, F_OK) == 0)
        return fail(HP_ERR_ARGUMENT, "%s/config.json is not there; did you mean --model %s/hf?",
                    directory, directory);
    return fail(HP_ERR_ARGUMENT,
                "expected --model to be qwen3, bytes-mlp or a directory with config.json, given "
                "%s: %s",
                directory, strerror(error));
}

static hp_status read_directory(model *m, state *s) {
    const char *directory = m->options->model;
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", directory) >= sizeof path)
        return fail(HP_ERR_ARGUMENT, "expected --model to be a path below %zu bytes", sizeof path);
    if (access(path, F_OK) != 0)
        return refuse_directory(directory, errno);
    TRY(find_weights(directory, &m->has_weights));
    if (strcmp(m->options->export, "none") != 0)
        TRY(carried_read(directory, &s->files));
    return qwen3_config_read(path, &s->config);
}

static hp_status find_sizes(model *m, state *s, uint32_t data_vocab) {
    const options *o = m->options;
    const qwen3_config defaults = QWEN3_CONFIG_INIT;
    s->config = defaults;
    if (options_is_directory(o))
        return read_directory(m, s);
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

static hp_status check_tensor(const options *o, const qwen3_config *c) {
    if (c->num_key_value_heads % o->tp != 0)
        return fail(HP_ERR_ARGUMENT,
                    "expected --tp to divide the model's %d heads of keys and values, given %d",
                    c->num_key_value_heads, (int)o->tp);
    return HP_OK;
}

static void write_sizes(const qwen3_config *c, char *out_text, size_t size) {
    snprintf(out_text, size,
             "qwen3: vocabulary %d, hidden-size %d, layers %d, heads %d, kv-heads %d, head-dim %d, "
             "intermediate-size %d",
             c->vocab_size, c->hidden_size, c->num_hidden_layers, c->num_attention_heads,
             c->num_key_value_heads, c->head_dim, c->intermediate_size);
}

static hp_status open_model(model *m, uint32_t data_vocab) {
    const options *o = m->options;
    state *s = m->state = calloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    TRY(find_sizes(m, s, data_vocab));
    TRY(check_tensor(o, &s->config));
    write_sizes(&s->config, m->sizes, sizeof m->sizes);
    m->sample_tokens = (int)o->seq + 1;
    m->vocab_size = s->config.vocab_size;
    m->n_units = s->config.num_hidden_layers + 3; /* tied, the embedding is used twice */
    return take_memory(s, (size_t)(o->batch * o->seq));
}

/* ---- memory and weights ---- */

static hp_status open_engine(model *m, state *s) {
    const options *o = m->options;
    TRY(hp_matmul_open(o->is_given[OPTION_matmul] ? o->matmul : NULL, (int)o->threads, &s->matmul));
    m->engine = s->matmul->name;
    if (s->matmul->note) /* why "auto" is plain loops */
        snprintf(m->engine_note, sizeof m->engine_note, "%s", s->matmul->note);
    return HP_OK;
}

static hp_status create(model *m, hp_fsdp *fsdp) {
    const options *o = m->options;
    state *s = m->state;
    qwen3_options config = QWEN3_OPTIONS_INIT;
    TRY(open_engine(m, s));
    config.batch = (int)o->batch;
    config.seq = (int)o->seq;
    config.recompute = o->recompute;
    config.seed = (uint64_t)o->seed;
    config.matmul = s->matmul;
    config.generate = *o->sample != 0;
    config.tensor = m->tensor;
    TRY(hp_dtype_parse(o->param_dtype, &config.dtype));
    TRY(qwen3_create(fsdp, &s->config, &config, &s->model));
    m->n_parameters = qwen3_n_parameters(s->model);
    m->activation_bytes = qwen3_activation_bytes(s->model);
    return HP_OK;
}

static hp_status load(model *m, hp_fsdp *fsdp) {
    return m->has_weights ? hp_weights_load(fsdp, m->options->model) : HP_OK;
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

static hp_status generate(model *m, const int32_t *prompt, int n_prompt, uint64_t seed, int n,
                          int32_t *out_tokens) {
    const qwen3_sampling sampling = {m->options->temperature, (int)m->options->top_k, seed};
    return qwen3_generate(((state *)m->state)->model, prompt, n_prompt, &sampling, n, out_tokens);
}

/* ---- out ---- */

static hp_status export_model(model *m, hp_fsdp *fsdp, const char *directory) {
    const state *s = m->state;
    char text[8192];
    carried files = s->files; /* and config.json behind them */
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    TRY(hp_dtype_parse(m->options->export_dtype, &config.dtype));
    if (qwen3_config_write(&s->config, config.dtype, text, sizeof text) < 0)
        return fail(HP_ERR_LIMIT, "expected a config.json below %zu bytes", sizeof text);
    files.names[files.n] = "config.json";
    files.texts[files.n] = text;
    config.file_names = files.names;
    config.file_texts = (const char *const *)files.texts;
    config.n_files = files.n + 1;
    return hp_weights_save(fsdp, directory, &config);
}

static void close_model(model *m) {
    state *s = m->state;
    if (!s)
        return;
    qwen3_destroy(s->model);
    hp_matmul_close(s->matmul);
    carried_free(&s->files);
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
