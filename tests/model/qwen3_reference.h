/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3_reference.h - the whole network a second time, in fp64 and in the plainest way.
 *
 * One token after the other, one sum after the other, no caches of anything; written from the
 * formulas, not from the layers that it checks. Source: as models/qwen3/qwen3.h.
 */
#ifndef QWEN3_REFERENCE_H
#define QWEN3_REFERENCE_H

#include "small_qwen3.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARAMS = 32, MOST_WIDTH = 64, MOST_SEQ = 16 };

/* Weights by number (small_param_at), [out][in]. */
typedef struct network {
    const qwen3_config *c;
    double *w[MOST_PARAMS];
    size_t n[MOST_PARAMS];
} network;

static inline const double *layer_weight(const network *net, int l, int param) {
    const int n_ends = 3 - (net->c->tie_word_embeddings != 0);
    return net->w[n_ends + l * QWEN3_N_LAYER_PARAMS + param];
}

static inline void reference_norm(const double *x, const double *gain, int n, double eps,
                                  double *out) {
    double squares = 0;
    for (int j = 0; j < n; j++)
        squares += x[j] * x[j];
    const double scale = 1 / sqrt(squares / n + eps);
    for (int j = 0; j < n; j++)
        out[j] = x[j] * scale * gain[j];
}

/* out[n_out] = w x */
static inline void reference_linear(const double *w, const double *x, int n_out, int n_in,
                                    double *out) {
    for (int i = 0; i < n_out; i++) {
        out[i] = 0;
        for (int j = 0; j < n_in; j++)
            out[i] += w[i * n_in + j] * x[j];
    }
}

/* Each head normed, then pairs (i, i + dim / 2) turned by position. */
static inline void reference_heads(const network *net, double *x, int n_heads, const double *gain,
                                   int position) {
    const int dim = net->c->head_dim, half = dim / 2;
    for (int h = 0; h < n_heads; h++) {
        double *head = x + h * dim, normed[MOST_WIDTH];
        reference_norm(head, gain, dim, net->c->rms_norm_eps, normed);
        for (int i = 0; i < half; i++) {
            const double angle = position * pow(net->c->rope_theta, -2.0 * i / dim);
            head[i] = normed[i] * cos(angle) - normed[i + half] * sin(angle);
            head[i + half] = normed[i + half] * cos(angle) + normed[i] * sin(angle);
        }
    }
}

static inline double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One position's heads over the keys so far. */
static inline void reference_attend(const network *net, const double *q, double k[][MOST_WIDTH],
                                    double v[][MOST_WIDTH], int position, double *out) {
    const int dim = net->c->head_dim, n_heads = net->c->num_attention_heads;
    const int group = n_heads / net->c->num_key_value_heads;
    for (int h = 0; h < n_heads; h++) {
        double p[MOST_SEQ], total = 0;
        for (int t = 0; t <= position; t++)
            total += p[t] = exp(dot(q + h * dim, k[t] + h / group * dim, dim) / sqrt(dim));
        for (int i = 0; i < dim; i++) {
            out[h * dim + i] = 0;
            for (int t = 0; t <= position; t++)
                out[h * dim + i] += p[t] / total * v[t][h / group * dim + i];
        }
    }
}

static inline void reference_attention(const network *net, int l, int seq, double h[][MOST_WIDTH]) {
    const qwen3_config *c = net->c;
    const int hidden = c->hidden_size, n_q = c->num_attention_heads * c->head_dim;
    const int n_kv = c->num_key_value_heads * c->head_dim;
    double k[MOST_SEQ][MOST_WIDTH], v[MOST_SEQ][MOST_WIDTH];
    for (int t = 0; t < seq; t++) {
        double x[MOST_WIDTH], q[MOST_WIDTH], attended[MOST_WIDTH], out[MOST_WIDTH];
        reference_norm(h[t], layer_weight(net, l, QWEN3_INPUT_NORM), hidden, c->rms_norm_eps, x);
        reference_linear(layer_weight(net, l, QWEN3_Q), x, n_q, hidden, q);
        reference_linear(layer_weight(net, l, QWEN3_K), x, n_kv, hidden, k[t]);
        reference_linear(layer_weight(net, l, QWEN3_V), x, n_kv, hidden, v[t]);
        reference_heads(net, q, c->num_attention_heads, layer_weight(net, l, QWEN3_Q_NORM), t);
        reference_heads(net, k[t], c->num_key_value_heads, layer_weight(net, l, QWEN3_K_NORM), t);
        reference_attend(net, q, k, v, t, attended);
        reference_linear(layer_weight(net, l, QWEN3_O), attended, hidden, n_q, out);
        for (int i = 0; i < hidden; i++)
            h[t][i] += out[i];
    }
}

static inline void reference_mlp(const network *net, int l, int seq, double h[][MOST_WIDTH]) {
    const qwen3_config *c = net->c;
    const int hidden = c->hidden_size, wide = c->intermediate_size;
    for (int t = 0; t < seq; t++) {
        double x[MOST_WIDTH], gate[MOST_WIDTH], up[MOST_WIDTH], out[MOST_WIDTH];
        reference_norm(h[t], layer_weight(net, l, QWEN3_POST_NORM), hidden, c->rms_norm_eps, x);
        reference_linear(layer_weight(net, l, QWEN3_GATE), x, wide, hidden, gate);
        reference_linear(layer_weight(net, l, QWEN3_UP), x, wide, hidden, up);
        for (int i = 0; i < wide; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        reference_linear(layer_weight(net, l, QWEN3_DOWN), gate, hidden, wide, out);
        for (int i = 0; i < hidden; i++)
            h[t][i] += out[i];
    }
}

/* Sum over the targets of one sequence; out_logits [seq][vocab], or NULL. */
static inline double reference_sequence(const network *net, const int32_t *tokens,
                                        const int32_t *targets, int seq, double *out_logits) {
    const qwen3_config *c = net->c;
    const int hidden = c->hidden_size, vocab = c->vocab_size;
    const double *head = c->tie_word_embeddings ? net->w[0] : net->w[2];
    double h[MOST_SEQ][MOST_WIDTH], loss = 0;
    for (int t = 0; t < seq; t++)
        memcpy(h[t], net->w[0] + tokens[t] * hidden, (size_t)hidden * sizeof(double));
    for (int l = 0; l < c->num_hidden_layers; l++) {
        reference_attention(net, l, seq, h);
        reference_mlp(net, l, seq, h);
    }
    for (int t = 0; t < seq; t++) {
        double x[MOST_WIDTH], logits[MOST_WIDTH], total = 0;
        reference_norm(h[t], net->w[1], hidden, c->rms_norm_eps, x);
        reference_linear(head, x, vocab, hidden, logits);
        for (int i = 0; i < vocab; i++)
            total += exp(logits[i]);
        loss += targets[t] < 0 ? 0 : log(total) - logits[targets[t]];
        if (out_logits)
            memcpy(out_logits + t * vocab, logits, (size_t)vocab * sizeof(double));
    }
    return loss;
}

/* Mean over the targets of samples 0 to batch - 1. */
static inline double reference_loss(const network *net, const small_config *config,
                                    double *out_logits) {
    const int seq = config->options.seq;
    double loss = 0;
    for (int j = 0; j < config->options.batch; j++) {
        int32_t tokens[MOST_SEQ], targets[MOST_SEQ];
        small_sample(config, j, seq, tokens, targets);
        loss += reference_sequence(
            net, tokens, targets, seq,
            out_logits ? out_logits + (size_t)(j * seq * config->model.vocab_size) : NULL);
    }
    return loss / (config->options.batch * (seq - 1));
}

/* The weights of a world of one rank, as its products see them. */
static inline void network_read(network *net, const small *s) {
    net->c = &s->config->model;
    for (int i = 0; i < small_n_params(s->model); i++) {
        hp_shard shard;
        const small_param p = small_param_at(s->model, i);
        RANK_OK(hp_param_shard(p.unit, p.number, &shard));
        net->n[i] = shard.n_elements;
        net->w[i] = malloc(shard.n_elements * sizeof(double));
        RANK_CHECK(net->w[i] != NULL);
        for (uint64_t k = 0; k < shard.n_elements; k++) {
            const float value = ((const float *)shard.values)[k];
            const bool is_narrow = s->config->options.dtype == HP_BF16;
            net->w[i][k] = is_narrow ? hpi_bf16_to_fp32(hpi_fp32_to_bf16(value)) : value;
        }
    }
}

static inline void network_free(network *net, const small *s) {
    for (int i = 0; i < small_n_params(s->model); i++)
        free(net->w[i]);
}

#endif
