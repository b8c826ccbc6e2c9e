/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/products.c - hp_matmul_run for linear maps.
 *
 * An engine writes C in the operands' dtype, or fp32 for bf16. The one combination that is missing,
 * a bf16 gradient of fp32 operands, goes a band of rows at a time through fp32.
 */
#include "products.h"
#include "kernels.h"

enum { WIDE_ELEMENTS = 1 << 16 }; /* of a band: it stays in the second-level cache */

static hp_matmul_args args_of(const qwen3_linear *l, size_t m, size_t n, size_t k) {
    hp_matmul_args args = HP_MATMUL_ARGS_INIT;
    args.m = (int64_t)m;
    args.n = (int64_t)n;
    args.k = (int64_t)k;
    args.dtype = l->s->dtype;
    args.ldc = (int64_t)n;
    return args;
}

static int64_t y_step(const qwen3_linear *l) {
    return (int64_t)(l->y_step ? l->y_step : l->n_out);
}

static size_t w_step(const qwen3_linear *l) {
    return l->w_step ? l->w_step : l->n_in;
}

hp_status qwen3_product(const qwen3_linear *l, const void *x, const void *w, bool add,
                        hp_dtype y_dtype, void *y) {
    hp_matmul_args args = args_of(l, l->n, l->n_out, l->n_in);
    args.out_dtype = y_dtype;
    args.a = x;
    args.lda = (int64_t)l->n_in;
    args.b = w;
    args.ldb = (int64_t)w_step(l);
    args.transpose_b = 1;
    args.accumulate = add;
    args.c = y;
    args.ldc = y_step(l);
    return hp_matmul_run(l->s->matmul, &args);
}

hp_status qwen3_product_dx(const qwen3_linear *l, const void *dy, const void *w, bool add,
                           hp_dtype dx_dtype, void *dx) {
    hp_matmul_args args = args_of(l, l->n, l->n_in, l->n_out);
    args.out_dtype = dx_dtype;
    args.a = dy;
    args.lda = y_step(l);
    args.b = w;
    args.ldb = (int64_t)w_step(l);
    args.accumulate = add;
    args.c = dx;
    return hp_matmul_run(l->s->matmul, &args);
}

bool qwen3_is_narrowed(const qwen3_shape *s) {
    return s->dtype == HP_FP32 && s->grad_dtype == HP_BF16;
}

static size_t band_rows(size_t n_in) {
    return n_in < WIDE_ELEMENTS ? WIDE_ELEMENTS / n_in : 1;
}

size_t qwen3_wide_elements(const qwen3_shape *s, size_t n_in) {
    return !qwen3_is_narrowed(s) ? 0 : n_in < WIDE_ELEMENTS ? WIDE_ELEMENTS : n_in;
}

/* Rows [first, first + rows) of dw, `step` elements apart. */
static hp_status dw_rows(const qwen3_linear *l, size_t first, size_t rows, const void *dy,
                         const void *x, hp_dtype out_dtype, void *out, size_t step) {
    hp_matmul_args args = args_of(l, rows, l->n_in, l->n);
    args.out_dtype = out_dtype;
    args.a = (const char *)dy + first * hp_dtype_size(l->s->dtype);
    args.lda = y_step(l);
    args.transpose_a = 1;
    args.b = x;
    args.ldb = (int64_t)l->n_in;
    args.c = out;
    args.ldc = (int64_t)step;
    return hp_matmul_run(l->s->matmul, &args);
}

hp_status qwen3_product_dw(const qwen3_linear *l, const void *dy, const void *x, float *wide,
                           void *dw) {
    if (!qwen3_is_narrowed(l->s))
        return dw_rows(l, 0, l->n_out, dy, x, l->s->grad_dtype, dw, w_step(l));
    const size_t band = band_rows(l->n_in), row_bytes = w_step(l) * hp_dtype_size(HP_BF16);
    for (size_t first = 0; first < l->n_out; first += band) {
        const size_t rows = l->n_out - first < band ? l->n_out - first : band;
        const hp_status status = dw_rows(l, first, rows, dy, x, HP_FP32, wide, l->n_in);
        if (status < 0)
            return status;
        for (size_t i = 0; i < rows; i++)
            qwen3_round(HP_BF16, wide + i * l->n_in, l->n_in, (char *)dw + (first + i) * row_bytes);
    }
    return HP_OK;
}
