/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/ends.c - the embedding in front of the layers, and norm, head and loss behind them.
 *
 * The gradient of the logits takes the logits' place, so nothing of [n][vocab] is held twice. A
 * token's row of the embedding's gradient is summed along a list of its positions, so nothing of
 * [vocab][hidden] is held in fp32.
 */
#include "common.h"
#include "kernels.h"
#include "layout.h"
#include "products.h"

#include <string.h>

/* ---- embedding ---- */

void qwen3_embed_forward(const qwen3_shape *s, const void *table, const int32_t *tokens, size_t n,
                         float *h) {
    const size_t row_bytes = s->hidden * hp_dtype_size(s->dtype);
    for (size_t i = 0; i < n; i++)
        qwen3_widen(s->dtype, (const char *)table + (size_t)tokens[i] * row_bytes, s->hidden,
                    h + i * s->hidden);
}

/* Where each token stands: first[token], then next[position], in order; -1 ends. */
typedef struct positions {
    int32_t *first, *next;
    float *sum; /* [hidden] */
} positions;

static size_t lay_positions(const qwen3_shape *s, size_t n, void *memory, positions *out) {
    qwen3_layout l = {memory, 0};
    out->first = qwen3_take(&l, HP_INT32, s->vocab);
    out->next = qwen3_take(&l, HP_INT32, n);
    out->sum = qwen3_take(&l, HP_FP32, s->hidden);
    return l.n_bytes;
}

static void list_positions(const qwen3_shape *s, const int32_t *tokens, size_t n, positions *p) {
    for (size_t token = 0; token < s->vocab; token++)
        p->first[token] = -1;
    for (size_t i = n; i-- > 0;) {
        p->next[i] = p->first[tokens[i]];
        p->first[tokens[i]] = (int32_t)i;
    }
}

void qwen3_embed_backward(const qwen3_shape *s, const int32_t *tokens, size_t n, const float *dh,
                          void *d_table, void *scratch) {
    const size_t row_bytes = s->hidden * hp_dtype_size(s->grad_dtype);
    positions p;
    lay_positions(s, n, scratch, &p);
    list_positions(s, tokens, n, &p);
    for (size_t token = 0; token < s->vocab; token++) {
        memset(p.sum, 0, s->hidden * sizeof *p.sum);
        for (int32_t i = p.first[token]; i >= 0; i = p.next[i])
            qwen3_add(p.sum, dh + (size_t)i * s->hidden, s->hidden);
        qwen3_round(s->grad_dtype, p.sum, s->hidden, (char *)d_table + token * row_bytes);
    }
}

/* ---- norm, head, loss ---- */

typedef struct saved {
    float *h, *rstd;        /* [n][hidden], [n] */
    void *x;                /* [n][hidden], normed: an operand */
    qwen3_softmax *softmax; /* [n] */
} saved;

static size_t lay_saved(const qwen3_shape *s, size_t n, void *memory, saved *out) {
    qwen3_layout l = {memory, 0};
    out->h = qwen3_take(&l, HP_FP32, n * s->hidden);
    out->rstd = qwen3_take(&l, HP_FP32, n);
    out->x = qwen3_take(&l, s->dtype, n * s->hidden);
    out->softmax = qwen3_take(&l, HP_FP32, 2 * n);
    return l.n_bytes;
}

size_t qwen3_head_saved_bytes(const qwen3_shape *s, size_t n) {
    saved unused;
    return lay_saved(s, n, NULL, &unused);
}

/* The backward's room. */
typedef struct head_room {
    float *dx, *d_w, *wide;
} head_room;

static size_t lay_head(const qwen3_shape *s, size_t n, void *memory, head_room *out) {
    qwen3_layout l = {memory, 0};
    out->dx = qwen3_take(&l, HP_FP32, n * s->hidden);
    out->d_w = qwen3_take(&l, HP_FP32, 2 * s->hidden);
    out->wide = qwen3_take(&l, HP_FP32, qwen3_wide_elements(s, s->hidden));
    return l.n_bytes;
}

size_t qwen3_ends_scratch_bytes(const qwen3_shape *s, size_t n) {
    positions p;
    head_room r;
    const size_t embedding = lay_positions(s, n, NULL, &p), head = lay_head(s, n, NULL, &r);
    return qwen3_larger(embedding, head);
}

hp_status qwen3_head_forward(const qwen3_shape *s, const void *norm, const void *w, const float *h,
                             size_t n, const int32_t *targets, float *logits, void *memory,
                             double *out_loss) {
    const qwen3_rows rows = {n, s->hidden, s->dtype, s->eps};
    const qwen3_linear head = {s, n, s->hidden, s->vocab, 0, 0};
    saved v;
    lay_saved(s, n, memory, &v);
    memcpy(v.h, h, n * s->hidden * sizeof *h);
    qwen3_norm(&rows, norm, h, v.x, v.rstd);
    const hp_status status = qwen3_product(&head, v.x, w, false, HP_FP32, logits);
    if (status == HP_OK && targets)
        *out_loss = qwen3_cross_entropy(n, s->vocab, logits, targets, v.softmax);
    return status;
}

hp_status qwen3_head_backward(const qwen3_shape *s, const void *norm, const void *w, void *d_norm,
                              void *d_w, const int32_t *targets, size_t n, double weight,
                              float *logits, const void *memory, float *dh, void *scratch) {
    const qwen3_rows rows = {n, s->hidden, s->dtype, s->eps};
    /* Rows of bf16 begin where those of fp32 did. */
    const size_t step = s->vocab * (sizeof *logits / hp_dtype_size(s->dtype));
    const qwen3_linear head = {s, n, s->hidden, s->vocab, step, 0};
    saved v;
    head_room r;
    lay_saved(s, n, (void *)memory, &v); /* read alone from here on */
    lay_head(s, n, scratch, &r);
    qwen3_cross_entropy_backward(s->dtype, n, s->vocab, targets, v.softmax, (float)weight, logits);
    hp_status status = qwen3_product_dw(&head, logits, v.x, r.wide, d_w);
    if (status == HP_OK)
        status = qwen3_product_dx(&head, logits, w, false, HP_FP32, r.dx);
    if (status != HP_OK)
        return status;
    memset(dh, 0, n * s->hidden * sizeof *dh);
    qwen3_norm_backward(&rows, norm, v.h, v.rstd, r.dx, dh, r.d_w);
    qwen3_round(s->grad_dtype, r.d_w, s->hidden, d_norm);
    return HP_OK;
}
