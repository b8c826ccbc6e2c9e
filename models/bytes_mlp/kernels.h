/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes_mlp/kernels.h - the arithmetic of the model, on plain row-major fp32 matrices.
 *
 * Every function is a plain loop in which each element of the output is summed in ascending order
 * of the inner index, one product and one addition at a time. So the bits do not depend on the
 * vector width, on blocking, or on how many rows there are. Matrices that are written overlap none
 * that are read.
 */
#ifndef BYTES_MLP_KERNELS_H
#define BYTES_MLP_KERNELS_H

#include <stddef.h>

/* A matrix that is read as it lies (row_step = its width, column_step = 1) or transposed. */
typedef struct bytes_mlp_matrix {
    const float *data;
    size_t row_step, column_step;
} bytes_mlp_matrix;

/* c[i][j] += sum over p of a(i, p) * b[p][j].  c: [n_i][n_j], a: n_i x n_p, b: [n_p][n_j]. */
void bytes_mlp_matmul_add(float *c, bytes_mlp_matrix a, const float *b, size_t n_i, size_t n_p,
                          size_t n_j);

/* out[j][i] = in[i][j].  in: [n_i][n_j]. */
void bytes_mlp_transpose(float *out, const float *in, size_t n_i, size_t n_j);

/* Every row of c is `row`.  c: [n_i][n_j]. */
void bytes_mlp_fill_rows(float *c, const float *row, size_t n_i, size_t n_j);

/* row[j] += sum over i of c[i][j]. */
void bytes_mlp_sum_rows_add(float *row, const float *c, size_t n_i, size_t n_j);

/* a += b. */
void bytes_mlp_add(float *a, const float *b, size_t n);

/* x[i] = h[i] * scale[i], scale[i] = 1 / sqrt(mean of h[i][j]^2 + 1e-5).  h, x: [n_i][n_j].
 * Source: Zhang and Sennrich 2019, without gain. */
void bytes_mlp_norm(float *x, float *scale, const float *h, size_t n_i, size_t n_j);

/* dh += the gradient of the norm: scale * (dx - x * mean of dx * x).  All: [n_i][n_j]. */
void bytes_mlp_norm_grad_add(float *dh, const float *dx, const float *x, const float *scale,
                             size_t n_i, size_t n_j);

/* a = max(a, 0). */
void bytes_mlp_relu(float *a, size_t n);

/* da = 0 where a, the output of relu, is 0. */
void bytes_mlp_relu_grad(float *da, const float *a, size_t n);

/* logits become probabilities, row by row. Returns the sum over rows of -log p[target[i]], in nats
 * and fp64; the log is of the softmax, so a probability that underflows still has a finite loss. */
double bytes_mlp_softmax_loss(float *logits, const unsigned char *target, size_t n_i, size_t n_j);

#endif
