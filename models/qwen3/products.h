/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/products.h - the three matrix products of a linear map y = x W^T, W being [n_out][n_in].
 *
 * Operands (x, W, dy) are in the shape's dtype. add: to what is there already, which is how the
 * residual stream and the sums over several maps of one input come about.
 */
#ifndef QWEN3_PRODUCTS_H
#define QWEN3_PRODUCTS_H

#include "layers.h"

typedef struct qwen3_linear {
    const qwen3_shape *s;
    size_t n, n_in, n_out;
    size_t y_step; /* elements from a row of y or dy to the next; 0: n_out */
    size_t w_step; /* the same of W and dW; 0: n_in */
} qwen3_linear;

/* y: [n][n_out], in y_dtype. */
HP_MUST_CHECK hp_status qwen3_product(const qwen3_linear *l, const void *x, const void *w, bool add,
                                      hp_dtype y_dtype, void *y);
/* dx = dy W: [n][n_in], in dx_dtype. */
HP_MUST_CHECK hp_status qwen3_product_dx(const qwen3_linear *l, const void *dy, const void *w,
                                         bool add, hp_dtype dx_dtype, void *dx);
/* dw = dy^T x: [n_out][n_in], in grad_dtype, whatever n is. wide: qwen3_wide_elements. */
HP_MUST_CHECK hp_status qwen3_product_dw(const qwen3_linear *l, const void *dy, const void *x,
                                         float *wide, void *dw);

/* dw is in bf16 and its product in fp32: no engine has that. */
bool qwen3_is_narrowed(const qwen3_shape *s);
/* Room that qwen3_product_dw needs for maps of up to n_in inputs; 0 where the engine rounds. */
size_t qwen3_wide_elements(const qwen3_shape *s, size_t n_in);

#endif
