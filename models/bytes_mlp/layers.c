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

static bytes_mlp_matrix plain(const float *data, size_t n_columns) {
    return (bytes_mlp_matrix){data, n_columns, 1};
}

static bytes_mlp_matrix transposed(const float *data, size_t n_columns) {
    return (bytes_mlp_matrix){data, 1, n_columns};
}

/* out = in w + b.  in: [n][n_in], w: [n_in][n_out]. */
static void linear(float *out, const float *in, const float *w, const float *b, size_t n,
                   size_t n_in, size_t n_out) {
    bytes_mlp_fill_rows(out, b, n, n_out);
    bytes_mlp_matmul_add(out, plain(in, n_in), w, n, n_in, n_out);
}

/* The gradients of linear for d_out; d_in may not be NULL. `turned` is room for w transposed. */
static void linear_grad(float *d_in, float *d_w, float *d_b, const float *d_out, const float *in,
                        const float *w, float *turned, size_t n, size_t n_in, size_t n_out) {
    bytes_mlp_sum_rows(d_b, d_out, n, n_out);
    memset(d_w, 0, n_in * n_out * sizeof *d_w);
    bytes_mlp_matmul_add(d_w, transposed(in, n_in), d_out, n_in, n, n_out);
    bytes_mlp_transpose(turned, w, n_in, n_out);
    memset(d_in, 0, n * n_in * sizeof *d_in);
    bytes_mlp_matmul_add(d_in, plain(d_out, n_out), turned, n, n_out, n_in);
}

/* The table's row for window place w of the row whose byte stands at `byte`. */
static size_t table_offset(const bytes_mlp_sizes *s, const unsigned char *byte, size_t w) {
    return (w * BYTES_MLP_VOCABULARY + *(byte - 1 - w)) * s->width;
}

void bytes_mlp_embed(const bytes_mlp_sizes *s, float *h, const float *table,
                     const unsigned char *samples, size_t n_samples) {
    memset(h, 0, n_samples * s->seq * s->width * sizeof *h);
    for (size_t i = 0; i < n_samples * s->seq; i++, h += s->width) {
        const unsigned char *byte = samples + (i / s->seq + 1) * s->window + i;
        for (size_t w = 0; w < s->window; w++) {
            const float *row = table + table_offset(s, byte, w);
            for (size_t j = 0; j < s->width; j++)
                h[j] += row[j];
        }
    }
}

void bytes_mlp_embed_grad(const bytes_mlp_sizes *s, float *d_table, const float *dh,
                          const unsigned char *samples, size_t n_samples) {
    memset(d_table, 0, s->window * BYTES_MLP_VOCABULARY * s->width * sizeof *d_table);
    for (size_t i = 0; i < n_samples * s->seq; i++, dh += s->width) {
        const unsigned char *byte = samples + (i / s->seq + 1) * s->window + i;
        for (size_t w = 0; w < s->window; w++) {
            float *row = d_table + table_offset(s, byte, w);
            for (size_t j = 0; j < s->width; j++)
                row[j] += dh[j];
        }
    }
}

void bytes_mlp_block_forward(const bytes_mlp_sizes *s, float *h, bytes_mlp_block w,
                             bytes_mlp_saved saved, size_t n) {
    bytes_mlp_norm(saved.x, saved.scale, h, n, s->width);
    linear(saved.a, saved.x, w.w1, w.b1, n, s->width, s->hidden);
    bytes_mlp_relu(saved.a, n * s->hidden);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < s->width; j++)
            h[i * s->width + j] += w.b2[j];
    bytes_mlp_matmul_add(h, plain(saved.a, s->hidden), w.w2, n, s->hidden, s->width);
}

void bytes_mlp_block_backward(const bytes_mlp_sizes *s, float *dh, bytes_mlp_block w,
                              bytes_mlp_block_grad grad, bytes_mlp_saved saved,
                              bytes_mlp_scratch scratch, size_t n) {
    linear_grad(scratch.d_wide, grad.w2, grad.b2, dh, saved.a, w.w2, scratch.transposed, n,
                s->hidden, s->width);
    bytes_mlp_relu_grad(scratch.d_wide, saved.a, n * s->hidden);
    linear_grad(scratch.d_x, grad.w1, grad.b1, scratch.d_wide, saved.x, w.w1, scratch.transposed, n,
                s->width, s->hidden);
    bytes_mlp_norm_grad_add(dh, scratch.d_x, saved.x, saved.scale, n, s->width);
}

double bytes_mlp_head_forward(const bytes_mlp_sizes *s, const float *h, const float *w,
                              const float *b, float *x, float *scale, float *probabilities,
                              const unsigned char *target, size_t n) {
    bytes_mlp_norm(x, scale, h, n, s->width);
    linear(probabilities, x, w, b, n, s->width, BYTES_MLP_VOCABULARY);
    return bytes_mlp_softmax_loss(probabilities, target, n, BYTES_MLP_VOCABULARY);
}

void bytes_mlp_head_backward(const bytes_mlp_sizes *s, float *dh, const float *w, float *d_w,
                             float *d_b, const float *x, const float *scale, float *probabilities,
                             const unsigned char *target, bytes_mlp_scratch scratch, size_t n) {
    const float share = n ? 1 / (float)n : 0;
    for (size_t i = 0; i < n; i++) {
        float *row = probabilities + i * BYTES_MLP_VOCABULARY;
        row[target[i]] -= 1;
        for (size_t j = 0; j < BYTES_MLP_VOCABULARY; j++)
            row[j] *= share;
    }
    linear_grad(scratch.d_x, d_w, d_b, probabilities, x, w, scratch.transposed, n, s->width,
                BYTES_MLP_VOCABULARY);
    memset(dh, 0, n * s->width * sizeof *dh);
    bytes_mlp_norm_grad_add(dh, scratch.d_x, x, scale, n, s->width);
}
