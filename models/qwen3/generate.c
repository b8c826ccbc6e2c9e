/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/generate.c - text, token by token.
 *
 * A pass takes the tokens that were not read yet through all layers: the beginning of the context
 * as one forward, then one token at a time. Keys and values of what was read are kept, so each is
 * computed once. Every rank computes the same tokens from the same weights and draws with the
 * same seed, so nobody needs to be told. Source: Fan et al. 2018 (top-k).
 */
#include "inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char call[] = "qwen3_generate";

/* ---- reading ---- */

static hp_status layer_over(qwen3 *model, int l, int first, int end) {
    const qwen3_shape shape = qwen3_alone(model->shape), *s = &shape;
    const size_t cache_bytes =
        (size_t)model->options.seq * s->n_kv_heads * s->head_dim * hp_dtype_size(s->dtype);
    unsigned char *keys = model->keys + (size_t)l * cache_bytes;
    unsigned char *values = model->values + (size_t)l * cache_bytes;
    TRY(hp_forward_begin(model->layers[l]));
    const qwen3_layer_weights w = qwen3_weights_of(model->layers[l]);
    if (first == 0)
        TRY(qwen3_layer_first(s, (size_t)end, &w, model->h, keys, values, model->saved,
                              model->scratch));
    else
        TRY(qwen3_layer_one(s, (size_t)first, &w, model->h, keys, values, model->scratch));
    return hp_forward_end(model->layers[l]);
}

/* Logits after the last token alone. */
static hp_status head_over(qwen3 *model, int n) {
    const qwen3_shape *s = &model->shape;
    TRY(hp_forward_begin(model->head));
    TRY(qwen3_head_forward(
        s, hp_param_data(model->head, model->head_norm), hp_param_data(model->head, model->head_w),
        model->h + (size_t)(n - 1) * s->hidden, 1, NULL, model->logits, model->head_saved, NULL));
    return hp_forward_end(model->head);
}

/* Positions [first, end) of the context; what was before them has been read. Either first is
 * 0 or there is one position: text grows by a token, or is begun again. */
static hp_status read_context(qwen3 *model, int first, int end) {
    TRY(hp_fsdp_begin(model->fsdp, HP_EVALUATE));
    model->has_forward = false; /* h and logits are used from here on */
    TRY(hp_forward_begin(model->embed));
    qwen3_embed_forward(&model->shape, hp_param_data(model->embed, QWEN3_TABLE),
                        model->context + first, (size_t)(end - first), model->h);
    TRY(hp_forward_end(model->embed));
    for (int l = 0; l < model->config.num_hidden_layers; l++)
        TRY(layer_over(model, l, first, end));
    TRY(head_over(model, end - first));
    return hp_fsdp_end(model->fsdp);
}

/* ---- drawing ---- */

static int by_logit(const void *a, const void *b) {
    const qwen3_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* The likeliest, the first of equals. */
static int32_t likeliest(const float *logits, int vocab) {
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

static double next_unit(uint64_t *state) { /* in [0, 1) */
    const uint64_t bits = qwen3_mix(*state);
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (double)(bits >> 11) * 0x1.0p-53;
}

/* Candidate i with probability exp(logit / temperature) over their sum. */
static int32_t draw(const qwen3_candidate *c, int n, float most, double temperature, double unit) {
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += exp(((double)c[i].logit - (double)most) / temperature);
    for (int i = 0; i < n; i++) {
        sum += exp(((double)c[i].logit - (double)most) / temperature);
        if (sum > unit * total)
            return c[i].token;
    }
    return c[n - 1].token; /* unit * total was rounded up */
}

static int32_t choose(qwen3 *model, const qwen3_sampling *sampling, uint64_t *state) {
    const int vocab = model->config.vocab_size;
    const int32_t best = likeliest(model->logits, vocab);
    if (sampling->temperature == 0)
        return best;
    for (int32_t v = 0; v < vocab; v++)
        model->candidates[v] = (qwen3_candidate){model->logits[v], v};
    int n = vocab;
    if (sampling->top_k > 0 && sampling->top_k < vocab) {
        qsort(model->candidates, (size_t)vocab, sizeof *model->candidates, by_logit);
        n = sampling->top_k;
    }
    return draw(model->candidates, n, model->logits[best], sampling->temperature, next_unit(state));
}

static hp_status check_logits(const qwen3 *model) {
    for (int32_t v = 0; v < model->config.vocab_size; v++)
        if (!isfinite(model->logits[v]))
            return hp_error_set(HP_ERR_STATE, call,
                                "expected finite logits, given %g of token %d: the weights have "
                                "diverged",
                                (double)model->logits[v], (int)v);
    return HP_OK;
}

/* ---- together ---- */

static hp_status check(const qwen3 *model, const int32_t *prompt, int n_prompt,
                       const qwen3_sampling *sampling, int n_tokens, const int32_t *out_tokens) {
    if (!model || !prompt || !sampling || n_prompt < 1 || n_tokens < 0 || (n_tokens && !out_tokens))
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected a model, a prompt of 1 or more tokens, sampling and room for "
                            "n_tokens, given a prompt of %d for %d",
                            n_prompt, n_tokens);
    if (!(sampling->temperature >= 0 && sampling->temperature < INFINITY) || sampling->top_k < 0)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected a temperature and a top_k of 0 or more, given %g and %d",
                            sampling->temperature, sampling->top_k);
    if (!model->options.generate)
        return hp_error_set(HP_ERR_STATE, call,
                            "expected a model made with options.generate, given one without");
    for (int i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= model->config.vocab_size)
            return hp_error_set(HP_ERR_ARGUMENT, call,
                                "expected tokens from 0 to vocab_size - 1 = %d, given %d at "
                                "position %d",
                                model->config.vocab_size - 1, (int)prompt[i], i);
    return HP_OK;
}

/* How much of the text is kept when the context is full. */
static int half(const qwen3 *model) {
    return model->options.seq > 1 ? model->options.seq / 2 : 1;
}

/* The prompt, or its end where it is longer than the context. Returns tokens. */
static int start_context(qwen3 *model, const int32_t *prompt, int n_prompt) {
    const int n = n_prompt <= model->options.seq ? n_prompt : half(model);
    memcpy(model->context, prompt + (n_prompt - n), (size_t)n * sizeof *prompt);
    return n;
}

hp_status qwen3_generate(qwen3 *model, const int32_t *prompt, int n_prompt,
                         const qwen3_sampling *sampling, int n_tokens, int32_t *out_tokens) {
    TRY(check(model, prompt, n_prompt, sampling, n_tokens, out_tokens));
    uint64_t state = sampling->seed;
    int n_read = 0, n = start_context(model, prompt, n_prompt);
    for (int i = 0; i < n_tokens; i++) {
        TRY(read_context(model, n_read, n));
        TRY(check_logits(model));
        out_tokens[i] = choose(model, sampling, &state);
        n_read = n;
        if (n == model->options.seq) { /* the later half is read again */
            n = half(model) - 1;
            memmove(model->context, model->context + (model->options.seq - n),
                    (size_t)n * sizeof *model->context);
            n_read = 0;
        }
        model->context[n++] = out_tokens[i];
    }
    return HP_OK;
}
