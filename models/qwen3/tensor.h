/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/tensor.h - linear maps of ranks that compute one batch together.
 *
 * Between products a rank has some of the tokens, one after the other; inside attention and the
 * feed-forward part it has all tokens, and some of the heads and columns. A map into them takes the
 * tokens of all ranks (gather), the one out of them sums over ranks and leaves each its own tokens
 * (scatter); in a backward it is the other way round. Whoever is alone has everything, and the maps
 * are those of products.h. Source: Korthikanti et al. 2022 (sequence parallelism).
 *
 * l->n: tokens of all ranks. W, its gradient, and n_in or n_out: this rank's part. A matrix that is
 * gathered has room for all tokens and holds this rank's in their place; the others' are brought.
 */
#ifndef QWEN3_TENSOR_H
#define QWEN3_TENSOR_H

#include "products.h"

enum { QWEN3_MOST_TENSOR = 64 }; /* ranks together */

/* Of n tokens, heads or columns: this rank's, from `begin` on. */
typedef struct qwen3_part {
    size_t begin, n;
} qwen3_part;
qwen3_part qwen3_part_of(const qwen3_tensor *t, size_t n);

/* y = x W^T, [n][n_out]. x is gathered, [n][n_in]. */
HP_MUST_CHECK hp_status qwen3_gather_product(const qwen3_linear *l, void *x, const void *w,
                                             hp_dtype y_dtype, void *y);
/* y += the sum over ranks of x W^T: fp32, this rank's tokens. x: [n][n_in]. */
HP_MUST_CHECK hp_status qwen3_scatter_product(const qwen3_linear *l, const void *x, const void *w,
                                              float *y);
/* dx = dy W, [n][n_in]. dy is gathered, [n][n_out]. */
HP_MUST_CHECK hp_status qwen3_gather_dx(const qwen3_linear *l, void *dy, const void *w,
                                        hp_dtype dx_dtype, void *dx);
/* dx = the sum over ranks of dy W, or +=: fp32, this rank's tokens. dy: [n][n_out]. */
HP_MUST_CHECK hp_status qwen3_scatter_dx(const qwen3_linear *l, const void *dy, const void *w,
                                         bool add, float *dx);
/* dw = dy^T x, as qwen3_product_dw. dy: [n][n_out]; x is gathered, [n][n_in]. */
HP_MUST_CHECK hp_status qwen3_gather_dw(const qwen3_linear *l, const void *dy, void *x, float *wide,
                                        void *dw);

/* Where this rank's part of each matrix of a layer begins: rows of q, k, v, gate and up, columns of
 * o and down. Of gradients, what is the others' becomes zero: the sum over ranks takes theirs. */
qwen3_layer_weights qwen3_own_weights(const qwen3_shape *s, const qwen3_layer_weights *w);
qwen3_layer_grads qwen3_own_grads(const qwen3_shape *s, const qwen3_layer_grads *g);

#endif
