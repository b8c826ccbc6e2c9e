/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes_mlp/layers.c - forward and backward of embedding, block and head.
 *
 * Each product is bytes_mlp_matmul_add. An input's gradient needs the weights transposed; copying
 * them costs a few percent of the product and lets one kernel serve all three products.
 */
#include "layers.h"
#include "kernels.h"

#include <string.h>

/* ---- sums over samples ---- */

/* Adds up what `leaf` writes for each sample: `n` floats, of which all are written. */
typedef struct tree {
    void (*leaf)(const void *context, size_t sample, float *out);
    const void *context;
    size_t n;
} tree;

static size_t half_of(size_t n) { /* the largest power of two below n */
    size_t half = 1;
    while (2 * half < n)
        half *= 2;
    return half;
}

size_t bytes_mlp_tree_levels(size_t n_samples) {
    size_t n = 1;
    for (size_t samples = 1; samples < n_samples; samples *= 2)
        n++;
    return n;
}

/* sum(b, e) = sum(b, m) + sum(m, e), m - b being half_of(e - b). room: [levels][n]. */
static void sum_range(const tree *t, size_t begin, size_t end, float *out, float *room) {
    if (end - begin == 1) {
        t->leaf(t->context, begin, out);
        return;
    }
    const size_t middle = begin + half_of(end - begin);
    sum_range(t, begin, middle, out, room);
    sum_range(t, middle, end, room, room + t->n);
    bytes_mlp_add(out, room, t->n);
}

/* A rank without samples contributes zeros. */
static void sum_samples(const tree *t, size_t n_samples, float *out, float *room) {
    if (n_samples)
        sum_range(t, 0, n_samples, out, room);
    else
        memset(out, 0, t->n * sizeof *out);
}

/* ---- a linear layer ---- */

/* out = in w + b.  in: [n][n_in], w: [n_in][n_out]. */
static void linear(float *out, const float *in, const float *w, const float *b, size_t n,
                   size_t n_in, size_t n_out) {
    bytes_mlp_fill_rows(out, b, n, n_out);
    bytes_mlp_matmul_add(out, (bytes_mlp_matrix){in, n_in, 1}, w, n, n_in, n_out);
}

typedef struct linear_rows {
    const float *in, *d_out;
    size_t seq, n_in, n_out;
} linear_rows;

static void weight_grad_of(const void *context, size_t sample, float *out) {
    const linear_rows *l = context;
    const bytes_mlp_matrix in_transposed = {l->in + sample * l->seq * l->n_in, 1, l->n_in};
    memset(out, 0, l->n_in * l->n_out * sizeof *out);
    bytes_mlp_matmul_add(out, in_transposed, l->d_out + sample * l->seq * l->n_out, l->n_in, l->seq,
                         l->n_out);
}

static void bias_grad_of(const void *context, size_t sample, float *out) {
    const linear_rows *l = context;
    memset(out, 0, l->n_out * sizeof *out);
    bytes_mlp_sum_rows_add(out, l->d_out + sample * l->seq * l->n_out, l->seq, l->n_out);
}

/* The gradients of linear, from rows.d_out. */
static void linear_grad(float *d_in, float *d_w, float *d_b, linear_rows rows, const float *w,
                        bytes_mlp_scratch scratch, size_t n_samples) {
    const size_t n = n_samples * rows.seq;
    const tree weights = {weight_grad_of, &rows, rows.n_in * rows.n_out};
    const tree biases = {bias_grad_of, &rows, rows.n_out};
    sum_samples(&weights, n_samples, d_w, scratch.tree);
    sum_samples(&biases, n_samples, d_b, scratch.tree);
    bytes_mlp_transpose(scratch.transposed, w, rows.n_in, rows.n_out);
    memset(d_in, 0, n * rows.n_in * sizeof *d_in);
    bytes_mlp_matmul_add(d_in, (bytes_mlp_matrix){rows.d_out, rows.n_out, 1}, scratch.transposed, n,
                         rows.n_out, rows.n_in);
}

/* ---- embedding ---- */

/* Sample i's first row. */
static const unsigned char *first_byte(const bytes_mlp_sizes *s, const unsigned char *samples,
                                       size_t i) {
    return samples + i * (s->window + s->seq) + s->window;
}

/* Nearest byte first: the order of the sum is the window's. */
static void embed_row(const bytes_mlp_sizes *s, float *h, const float *table,
                      const unsigned char *byte) {
    memset(h, 0, s->width * sizeof *h);
    for (size_t w = 0; w < s->window; w++)
        bytes_mlp_add(h, table + (w * BYTES_MLP_VOCABULARY + *(byte - 1 - w)) * s->width, s->width);
}

void bytes_mlp_embed(const bytes_mlp_sizes *s, float *h, const float *table,
                     const unsigned char *samples, size_t n_samples) {
    for (size_t i = 0; i < n_samples; i++)
        for (size_t row = 0; row < s->seq; row++, h += s->width)
            embed_row(s, h, table, first_byte(s, samples, i) + row);
}

typedef struct embed_rows {
    const bytes_mlp_sizes *s;
    const float *dh;
    const unsigned char *samples;
    size_t w; /* place in the window: its part of the table is summed by itself, in the cache */
} embed_rows;

static void table_grad_of(const void *context, size_t sample, float *out) {
    const embed_rows *e = context;
    const size_t width = e->s->width, seq = e->s->seq;
    const unsigned char *byte = first_byte(e->s, e->samples, sample) - 1 - e->w;
    memset(out, 0, BYTES_MLP_VOCABULARY * width * sizeof *out);
    for (size_t row = 0; row < seq; row++)
        bytes_mlp_add(out + byte[row] * width, e->dh + (sample * seq + row) * width, width);
}

void bytes_mlp_embed_grad(const bytes_mlp_sizes *s, float *d_table, const float *dh,
                          const unsigned char *samples, bytes_mlp_scratch scratch,
                          size_t n_samples) {
    const size_t n = BYTES_MLP_VOCABULARY * s->width;
    for (size_t w = 0; w < s->window; w++) {
        const embed_rows rows = {s, dh, samples, w};
        const tree table = {table_grad_of, &rows, n};
        sum_samples(&table, n_samples, d_table + w * n, scratch.tree);
    }
}

/* ---- block ---- */

void bytes_mlp_block_forward(const bytes_mlp_sizes *s, float *h, bytes_mlp_block w,
                             bytes_mlp_saved saved, size_t n_samples) {
    const size_t n = n_samples * s->seq;
    bytes_mlp_norm(saved.x, saved.scale, h, n, s->width);
    linear(saved.a, saved.x, w.w1, w.b1, n, s->width, s->hidden);
    bytes_mlp_relu(saved.a, n * s->hidden);
    for (size_t i = 0; i < n; i++)
        bytes_mlp_add(h + i * s->width, w.b2, s->width);
    bytes_mlp_matmul_add(h, (bytes_mlp_matrix){saved.a, s->hidden, 1}, w.w2, n, s->hidden,
                         s->width);
}

void bytes_mlp_block_backward(const bytes_mlp_sizes *s, float *dh, bytes_mlp_block w,
                              bytes_mlp_block_grad grad, bytes_mlp_saved saved,
                              bytes_mlp_scratch scratch, size_t n_samples) {
    const size_t n = n_samples * s->seq;
    const linear_rows second = {saved.a, dh, s->seq, s->hidden, s->width};
    const linear_rows first = {saved.x, scratch.d_wide, s->seq, s->width, s->hidden};
    linear_grad(scratch.d_wide, grad.w2, grad.b2, second, w.w2, scratch, n_samples);
    bytes_mlp_relu_grad(scratch.d_wide, saved.a, n * s->hidden);
    linear_grad(scratch.d_x, grad.w1, grad.b1, first, w.w1, scratch, n_samples);
    bytes_mlp_norm_grad_add(dh, scratch.d_x, saved.x, saved.scale, n, s->width);
}

/* ---- head ---- */

typedef struct loss_rows {
    float *probabilities;
    const unsigned char *target;
    size_t seq;
} loss_rows;

/* The tree over samples again, of numbers in fp64. */
static double sum_losses(const loss_rows *l, size_t begin, size_t end) {
    if (end - begin > 1) {
        const size_t middle = begin + half_of(end - begin);
        const double left = sum_losses(l, begin, middle);
        return left + sum_losses(l, middle, end);
    }
    return bytes_mlp_softmax_loss(l->probabilities + begin * l->seq * BYTES_MLP_VOCABULARY,
                                  l->target + begin * l->seq, l->seq, BYTES_MLP_VOCABULARY);
}

double bytes_mlp_head_forward(const bytes_mlp_sizes *s, const float *h, const float *w,
                              const float *b, float *x, float *scale, float *probabilities,
                              const unsigned char *target, size_t n_samples) {
    const size_t n = n_samples * s->seq;
    const loss_rows rows = {probabilities, target, s->seq};
    bytes_mlp_norm(x, scale, h, n, s->width);
    linear(probabilities, x, w, b, n, s->width, BYTES_MLP_VOCABULARY);
    return n_samples ? sum_losses(&rows, 0, n_samples) : 0;
}

/* The gradient of weight times the mean loss by the logits: (probability - 1 at the target) *
 * weight / n. */
static void logit_grad(float *probabilities, const unsigned char *target, size_t n, float weight) {
    for (size_t i = 0; i < n; i++) {
        float *row = probabilities + i * BYTES_MLP_VOCABULARY;
        row[target[i]] -= 1;
        for (size_t j = 0; j < BYTES_MLP_VOCABULARY; j++)
            row[j] *= weight / (float)n;
    }
}

void bytes_mlp_head_backward(const bytes_mlp_sizes *s, float *dh, const float *w, float *d_w,
                             float *d_b, const float *x, const float *scale, float *probabilities,
                             const unsigned char *target, double weight, bytes_mlp_scratch scratch,
                             size_t n_samples) {
    const size_t n = n_samples * s->seq;
    const linear_rows rows = {x, probabilities, s->seq, s->width, BYTES_MLP_VOCABULARY};
    logit_grad(probabilities, target, n, (float)weight);
    linear_grad(scratch.d_x, d_w, d_b, rows, w, scratch, n_samples);
    memset(dh, 0, n * s->width * sizeof *dh);
    bytes_mlp_norm_grad_add(dh, scratch.d_x, x, scale, n, s->width);
}
