/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/tensor.c - the library's fused products, for linear maps.
 *
 * What is gathered stays for the other maps that take the same rows and for gradients of weights,
 * so a block crosses once.
 */
#include "tensor.h"
#include "common.h"

#include <hyperparallel/fused.h>

#include <string.h>

/* The first ranks have one more, so that no rank has more of a smaller n. */
static size_t begin_of(const qwen3_tensor *t, size_t n, int rank) {
    const size_t n_ranks = (size_t)t->n_ranks, r = (size_t)rank, more = n % n_ranks;
    return n / n_ranks * r + (r < more ? r : more);
}

qwen3_part qwen3_part_of(const qwen3_tensor *t, size_t n) {
    if (!t->group)
        return (qwen3_part){0, n};
    const size_t begin = begin_of(t, n, t->rank);
    return (qwen3_part){begin, begin_of(t, n, t->rank + 1) - begin};
}

static bool is_alone(const qwen3_linear *l) {
    return !l->s->tensor.group;
}

/* ---- arguments ---- */

/* A call, and what it copies: the tokens of each rank. */
typedef struct fused {
    hp_fused_args args;
    int64_t rows[QWEN3_MOST_TENSOR];
} fused;

/* Into c, `n` wide; b is W, or with a weight's gradient what it is multiplied with. */
static void fused_begin(const qwen3_linear *l, const void *b, size_t n, void *c, fused *out) {
    const qwen3_tensor *t = &l->s->tensor;
    const hp_fused_args args = HP_FUSED_ARGS_INIT;
    for (int i = 0; i < t->n_ranks; i++)
        out->rows[i] = (int64_t)(begin_of(t, l->n, i + 1) - begin_of(t, l->n, i));
    out->args = args;
    out->args.group = t->group;
    out->args.matmul = l->s->matmul;
    out->args.rows = out->rows;
    out->args.dtype = l->s->dtype;
    out->args.b = b;
    out->args.ldb = (int64_t)(l->w_step ? l->w_step : l->n_in);
    out->args.n = out->args.ldc = (int64_t)n;
    out->args.c = c;
}

/* a: rows of `width`, of all tokens. */
static void take(const void *a, size_t width, fused *out) {
    out->args.a = a;
    out->args.k = out->args.lda = (int64_t)width;
}

/* a: this rank's in place. */
static void take_gathered(const qwen3_linear *l, void *a, size_t width, fused *out) {
    const size_t begin = qwen3_part_of(&l->s->tensor, l->n).begin;
    take((const char *)a + begin * width * hp_dtype_size(l->s->dtype), width, out);
    out->args.gathered = a;
    out->args.ld_gathered = (int64_t)width;
}

/* ---- the maps ---- */

hp_status qwen3_gather_product(const qwen3_linear *l, void *x, const void *w, hp_dtype y_dtype,
                               void *y) {
    if (is_alone(l))
        return qwen3_product(l, x, w, false, y_dtype, y);
    fused f;
    fused_begin(l, w, l->n_out, y, &f);
    take_gathered(l, x, l->n_in, &f);
    f.args.transpose_b = 1;
    f.args.out_dtype = y_dtype;
    return hp_all_gather_matmul(&f.args);
}

hp_status qwen3_scatter_product(const qwen3_linear *l, const void *x, const void *w, float *y) {
    if (is_alone(l))
        return qwen3_product(l, x, w, true, HP_FP32, y);
    fused f;
    fused_begin(l, w, l->n_out, y, &f);
    take(x, l->n_in, &f);
    f.args.transpose_b = 1;
    f.args.accumulate = 1;
    return hp_matmul_reduce_scatter(&f.args);
}

hp_status qwen3_gather_dx(const qwen3_linear *l, void *dy, const void *w, hp_dtype dx_dtype,
                          void *dx) {
    if (is_alone(l))
        return qwen3_product_dx(l, dy, w, false, dx_dtype, dx);
    fused f;
    fused_begin(l, w, l->n_in, dx, &f);
    take_gathered(l, dy, l->n_out, &f);
    f.args.out_dtype = dx_dtype;
    return hp_all_gather_matmul(&f.args);
}

hp_status qwen3_scatter_dx(const qwen3_linear *l, const void *dy, const void *w, bool add,
                           float *dx) {
    if (is_alone(l))
        return qwen3_product_dx(l, dy, w, add, HP_FP32, dx);
    fused f;
    fused_begin(l, w, l->n_in, dx, &f);
    take(dy, l->n_out, &f);
    f.args.accumulate = add;
    return hp_matmul_reduce_scatter(&f.args);
}

/* The gradient is [n_out][n_in], and W's step is its own. */
static hp_status fused_dw(const qwen3_linear *l, const void *dy, void *x, void *dw) {
    fused f;
    fused_begin(l, dy, l->n_out, dw, &f);
    take_gathered(l, x, l->n_in, &f);
    f.args.ldc = f.args.ldb;
    f.args.ldb = (int64_t)l->n_out;
    f.args.transpose_c = 1;
    f.args.out_dtype = l->s->grad_dtype;
    return hp_all_gather_weight_grad(&f.args);
}

/* A product without columns. */
static hp_status gather(const qwen3_linear *l, void *x) {
    fused f;
    fused_begin(l, NULL, 0, NULL, &f);
    take_gathered(l, x, l->n_in, &f);
    return hp_all_gather_matmul(&f.args);
}

hp_status qwen3_gather_dw(const qwen3_linear *l, const void *dy, void *x, float *wide, void *dw) {
    if (!is_alone(l) && !qwen3_is_narrowed(l->s))
        return fused_dw(l, dy, x, dw);
    if (!is_alone(l))
        TRY(gather(l, x));
    return qwen3_product_dw(l, dy, x, wide, dw);
}

/* ---- this rank's part of a layer ---- */

/* Elements in front of it, in each matrix. */
typedef struct offsets {
    size_t q, kv, o, gate, down;
} offsets;

static offsets offsets_of(const qwen3_shape *s) {
    const size_t query = qwen3_part_of(&s->tensor, s->n_heads).begin * s->head_dim;
    const size_t key = qwen3_part_of(&s->tensor, s->n_kv_heads).begin * s->head_dim;
    const size_t column = qwen3_part_of(&s->tensor, s->intermediate).begin;
    return (offsets){query * s->hidden, key * s->hidden, query, column * s->hidden, column};
}

static const void *after(const void *w, hp_dtype dtype, size_t n_elements) {
    return (const char *)w + n_elements * hp_dtype_size(dtype);
}

qwen3_layer_weights qwen3_own_weights(const qwen3_shape *s, const qwen3_layer_weights *w) {
    const offsets n = offsets_of(s);
    qwen3_layer_weights own = *w;
    own.q = after(w->q, s->dtype, n.q);
    own.k = after(w->k, s->dtype, n.kv);
    own.v = after(w->v, s->dtype, n.kv);
    own.o = after(w->o, s->dtype, n.o);
    own.gate = after(w->gate, s->dtype, n.gate);
    own.up = after(w->up, s->dtype, n.gate);
    own.down = after(w->down, s->dtype, n.down);
    return own;
}

/* Zero [outer][n][inner] but for this rank's part of each [n]; returns where that begins. */
static void *clear(const qwen3_shape *s, void *grad, size_t outer, size_t n, size_t inner) {
    const qwen3_part own = qwen3_part_of(&s->tensor, n);
    const size_t step = inner * hp_dtype_size(s->grad_dtype), end = own.begin + own.n;
    char *row = grad;
    for (size_t i = 0; own.n < n && i < outer; i++, row += n * step) {
        memset(row, 0, own.begin * step);
        memset(row + end * step, 0, (n - end) * step);
    }
    return (char *)grad + own.begin * step;
}

qwen3_layer_grads qwen3_own_grads(const qwen3_shape *s, const qwen3_layer_grads *g) {
    const size_t head = s->head_dim * s->hidden;
    qwen3_layer_grads own = *g;
    own.q = clear(s, g->q, 1, s->n_heads, head);
    own.k = clear(s, g->k, 1, s->n_kv_heads, head);
    own.v = clear(s, g->v, 1, s->n_kv_heads, head);
    own.o = clear(s, g->o, s->hidden, s->n_heads, s->head_dim);
    own.gate = clear(s, g->gate, 1, s->intermediate, s->hidden);
    own.up = clear(s, g->up, 1, s->intermediate, s->hidden);
    own.down = clear(s, g->down, s->hidden, s->intermediate, 1);
    return own;
}
