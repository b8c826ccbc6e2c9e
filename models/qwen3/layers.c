/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/layers.c - one decoder layer: h += attention(norm(h)), h += swiglu(norm(h)).
 *
 * Saved are the inputs of what is not linear, as the products leave them; whatever an elementwise
 * loop makes of them (normed, turned, activated) is computed again by the same loop in the
 * backward, which costs little beside a product and gives the same bits. The residual additions
 * happen inside the products. Of ranks that compute together each has its tokens of h and its heads
 * and columns inside (tensor.h). Source: Qwen Team 2025 (Qwen3 technical report).
 */
#include "common.h"
#include "kernels.h"
#include "layout.h"
#include "tensor.h"

#include <math.h>
#include <string.h>

void qwen3_rope_fill(size_t n_positions, size_t head_dim, double theta, float *cosines,
                     float *sines) {
    const size_t half = head_dim / 2;
    for (size_t position = 0; position < n_positions; position++)
        for (size_t i = 0; i < half; i++) {
            const double frequency = pow(theta, -2.0 * (double)i / (double)head_dim);
            cosines[position * half + i] = (float)cos((double)position * frequency);
            sines[position * half + i] = (float)sin((double)position * frequency);
        }
}

/* ---- memory ---- */

/* What a forward leaves. Columns: hidden, or all heads' head_dim, or intermediate. */
typedef struct saved {
    float *h;         /* [own]: the layer's input */
    float *q, *k;     /* [n]: queries and keys before their norm */
    void *v, *out;    /* [n]: values; what attention gave */
    float *lse;       /* [n_heads][n] */
    float *middle;    /* [own]: h between the two halves */
    float *gate, *up; /* [n] */
} saved;

/* Room of the attention half; what stands behind `k_rstd` is the backward's. */
typedef struct attention_room {
    void *x, *q, *k;                             /* operands: normed h; turned queries and keys */
    float *rstd, *q_rstd, *k_rstd;               /* of rows of h; of heads */
    void *dy, *d_out, *dq_raw, *dk_raw, *dv_raw; /* operands */
    float *dx, *dq, *dk, *dv;
    float *d_w, *wide;
    void *attention;
} attention_room;

/* Room of the other half; what stands behind `act` is the backward's. */
typedef struct swiglu_room {
    void *x;
    float *rstd;
    void *act, *dy, *d_gate, *d_up; /* operands */
    float *d_act, *dx;
    float *d_w, *wide;
} swiglu_room;

/* Everything that a function of this file works on. */
typedef struct work {
    const qwen3_shape *s;
    size_t n_sequences, seq, n;
    qwen3_part own;                   /* this rank's tokens */
    qwen3_part heads, kv_heads, wide; /* its heads and columns */
    size_t q_width, kv_width;         /* of these heads together */
    qwen3_layer_weights w;            /* where this rank's part of each begins */
    qwen3_layer_grads g;
    saved saved;
    void *scratch;
} work;

static work work_of(const qwen3_shape *s, size_t n_sequences, size_t seq) {
    work t = {.s = s, .n_sequences = n_sequences, .seq = seq, .n = n_sequences * seq};
    t.own = qwen3_part_of(&s->tensor, t.n);
    t.heads = qwen3_part_of(&s->tensor, s->n_heads);
    t.kv_heads = qwen3_part_of(&s->tensor, s->n_kv_heads);
    t.wide = qwen3_part_of(&s->tensor, s->intermediate);
    t.q_width = t.heads.n * s->head_dim;
    t.kv_width = t.kv_heads.n * s->head_dim;
    return t;
}

static size_t lay_saved(const work *t, void *memory, saved *out) {
    qwen3_layout l = {memory, 0};
    const hp_dtype dtype = t->s->dtype;
    out->h = qwen3_take(&l, HP_FP32, t->own.n * t->s->hidden);
    out->q = qwen3_take(&l, HP_FP32, t->n * t->q_width);
    out->k = qwen3_take(&l, HP_FP32, t->n * t->kv_width);
    out->v = qwen3_take(&l, dtype, t->n * t->kv_width);
    out->out = qwen3_take(&l, dtype, t->n * t->q_width);
    out->lse = qwen3_take(&l, HP_FP32, t->n * t->heads.n);
    out->middle = qwen3_take(&l, HP_FP32, t->own.n * t->s->hidden);
    out->gate = qwen3_take(&l, HP_FP32, t->n * t->wide.n);
    out->up = qwen3_take(&l, HP_FP32, t->n * t->wide.n);
    return l.n_bytes;
}

static qwen3_attention attention_of(const work *t, void *scratch) {
    return (qwen3_attention){.n_sequences = t->n_sequences,
                             .seq = t->seq,
                             .n_heads = t->heads.n,
                             .n_kv_heads = t->kv_heads.n,
                             .head_dim = t->s->head_dim,
                             .dtype = t->s->dtype,
                             .matmul = t->s->matmul,
                             .scratch = scratch};
}

/* Rows that `operand` rounds into. */
static size_t rounded_rows(const work *t) {
    return t->s->dtype == HP_FP32 ? 0 : t->n;
}

/* Rows of a gradient of h as an operand: the others' as well. */
static size_t gathered_rows(const work *t) {
    return t->own.n < t->n ? t->n : rounded_rows(t);
}

static size_t lay_attention(const work *t, void *memory, attention_room *out) {
    qwen3_layout l = {memory, 0};
    const qwen3_shape *s = t->s;
    const qwen3_attention attention = attention_of(t, NULL);
    out->x = qwen3_take(&l, s->dtype, t->n * s->hidden);
    out->q = qwen3_take(&l, s->dtype, t->n * t->q_width);
    out->k = qwen3_take(&l, s->dtype, t->n * t->kv_width);
    out->rstd = qwen3_take(&l, HP_FP32, t->own.n);
    out->q_rstd = qwen3_take(&l, HP_FP32, t->n * t->heads.n);
    out->k_rstd = qwen3_take(&l, HP_FP32, t->n * t->kv_heads.n);
    out->dy = qwen3_take(&l, s->dtype, gathered_rows(t) * s->hidden);
    out->d_out = qwen3_take(&l, s->dtype, t->n * t->q_width);
    out->dq_raw = qwen3_take(&l, s->dtype, t->n * t->q_width);
    out->dk_raw = qwen3_take(&l, s->dtype, t->n * t->kv_width);
    out->dv_raw = qwen3_take(&l, s->dtype, rounded_rows(t) * t->kv_width);
    out->dx = qwen3_take(&l, HP_FP32, t->own.n * s->hidden);
    out->dq = qwen3_take(&l, HP_FP32, t->n * t->q_width);
    out->dk = qwen3_take(&l, HP_FP32, t->n * t->kv_width);
    out->dv = qwen3_take(&l, HP_FP32, t->n * t->kv_width);
    out->d_w = qwen3_take(&l, HP_FP32, 2 * qwen3_larger(s->hidden, s->head_dim));
    out->wide =
        qwen3_take(&l, HP_FP32, qwen3_wide_elements(s, qwen3_larger(s->hidden, t->q_width)));
    out->attention = qwen3_take(&l, HP_INT8, qwen3_attention_scratch_bytes(&attention));
    return l.n_bytes;
}

static size_t lay_swiglu(const work *t, void *memory, swiglu_room *out) {
    qwen3_layout l = {memory, 0};
    const qwen3_shape *s = t->s;
    out->x = qwen3_take(&l, s->dtype, t->n * s->hidden);
    out->rstd = qwen3_take(&l, HP_FP32, t->own.n);
    out->act = qwen3_take(&l, s->dtype, t->n * t->wide.n);
    out->dy = qwen3_take(&l, s->dtype, gathered_rows(t) * s->hidden);
    out->d_gate = qwen3_take(&l, s->dtype, t->n * t->wide.n);
    out->d_up = qwen3_take(&l, s->dtype, t->n * t->wide.n);
    out->d_act = qwen3_take(&l, HP_FP32, t->n * t->wide.n);
    out->dx = qwen3_take(&l, HP_FP32, t->own.n * s->hidden);
    out->d_w = qwen3_take(&l, HP_FP32, 2 * s->hidden);
    out->wide = qwen3_take(&l, HP_FP32, qwen3_wide_elements(s, qwen3_larger(s->hidden, t->wide.n)));
    return l.n_bytes;
}

size_t qwen3_saved_bytes(const qwen3_shape *s, size_t n_sequences, size_t seq) {
    const work t = work_of(s, n_sequences, seq);
    saved unused;
    return lay_saved(&t, NULL, &unused);
}

size_t qwen3_scratch_bytes(const qwen3_shape *s, size_t n_sequences, size_t seq) {
    const work t = work_of(s, n_sequences, seq);
    attention_room attention;
    swiglu_room swiglu;
    const size_t halves =
        qwen3_larger(lay_attention(&t, NULL, &attention), lay_swiglu(&t, NULL, &swiglu));
    /* qwen3_layer_one has what a forward saves in front. */
    return qwen3_larger(qwen3_saved_bytes(s, 1, 1) + halves, qwen3_ends_scratch_bytes(s, t.own.n));
}

/* ---- forward ---- */

/* Maps into heads and columns, and out of them. */
static qwen3_linear linear_in(const work *t, size_t n_out) {
    return (qwen3_linear){t->s, t->n, t->s->hidden, n_out, 0, 0};
}
static qwen3_linear linear_o(const work *t) {
    return (qwen3_linear){t->s, t->n, t->q_width, t->s->hidden, 0, t->s->n_heads * t->s->head_dim};
}
static qwen3_linear linear_down(const work *t) {
    return (qwen3_linear){t->s, t->n, t->wide.n, t->s->hidden, 0, t->s->intermediate};
}

/* This rank's rows of an operand [n][hidden]. */
static void *own_rows(const work *t, void *x) {
    return (char *)x + t->own.begin * t->s->hidden * hp_dtype_size(t->s->dtype);
}

/* Into this rank's rows of x. */
static void norm(const work *t, const void *w, const float *h, void *x, float *rstd) {
    const qwen3_rows rows = {t->own.n, t->s->hidden, t->s->dtype, t->s->eps};
    qwen3_norm(&rows, w, h, own_rows(t, x), rstd);
}

/* Heads whose sequences begin at `position`. */
static qwen3_heads heads(const work *t, size_t n_heads, size_t position) {
    const qwen3_shape *s = t->s;
    const size_t angles = position * s->head_dim / 2;
    return (qwen3_heads){t->n,
                         t->seq,
                         n_heads,
                         s->head_dim,
                         s->dtype,
                         s->eps,
                         s->cosines + angles,
                         s->sines + angles};
}

/* From h to what attention takes: room q, and keys and values wherever they are wanted. */
static hp_status queries_keys_values(const work *t, const attention_room *r, size_t position,
                                     const float *h, void *k, void *v) {
    const qwen3_linear of_q = linear_in(t, t->q_width);
    const qwen3_linear of_kv = linear_in(t, t->kv_width);
    const qwen3_heads q_heads = heads(t, t->heads.n, position);
    const qwen3_heads k_heads = heads(t, t->kv_heads.n, position);
    norm(t, t->w.input_norm, h, r->x, r->rstd);
    TRY(qwen3_gather_product(&of_q, r->x, t->w.q, HP_FP32, t->saved.q));
    TRY(qwen3_product(&of_kv, r->x, t->w.k, false, HP_FP32, t->saved.k));
    TRY(qwen3_product(&of_kv, r->x, t->w.v, false, t->s->dtype, v));
    qwen3_turn(&q_heads, t->w.q_norm, t->saved.q, r->q, r->q_rstd);
    qwen3_turn(&k_heads, t->w.k_norm, t->saved.k, k, r->k_rstd);
    return HP_OK;
}

/* k, v: where turned keys and values are to stay. */
static hp_status attention_forward(const work *t, const attention_room *r, float *h, void *k,
                                   void *v) {
    const saved *to = &t->saved;
    const qwen3_attention attention = attention_of(t, r->attention);
    const qwen3_linear of_o = linear_o(t);
    memcpy(to->h, h, t->own.n * t->s->hidden * sizeof *h);
    TRY(queries_keys_values(t, r, 0, h, k, v));
    TRY(qwen3_attention_forward(&attention, r->q, k, v, to->out, to->lse));
    return qwen3_scatter_product(&of_o, to->out, t->w.o, h);
}

static hp_status swiglu_forward(const work *t, float *h) {
    swiglu_room r;
    lay_swiglu(t, t->scratch, &r);
    const saved *v = &t->saved;
    const qwen3_linear in = linear_in(t, t->wide.n);
    const qwen3_linear down = linear_down(t);
    memcpy(v->middle, h, t->own.n * t->s->hidden * sizeof *h);
    norm(t, t->w.post_norm, h, r.x, r.rstd);
    TRY(qwen3_gather_product(&in, r.x, t->w.gate, HP_FP32, v->gate));
    TRY(qwen3_product(&in, r.x, t->w.up, false, HP_FP32, v->up));
    qwen3_swiglu(t->s->dtype, t->n * t->wide.n, v->gate, v->up, r.act);
    return qwen3_scatter_product(&down, r.act, t->w.down, h);
}

hp_status qwen3_layer_forward(const qwen3_shape *s, size_t n_sequences, size_t seq,
                              const qwen3_layer_weights *w, float *h, void *memory, void *scratch) {
    work t = work_of(s, n_sequences, seq);
    attention_room r;
    lay_saved(&t, memory, &t.saved);
    lay_attention(&t, scratch, &r);
    t.w = qwen3_own_weights(s, w);
    t.scratch = scratch;
    TRY(attention_forward(&t, &r, h, r.k, t.saved.v));
    return swiglu_forward(&t, h);
}

hp_status qwen3_layer_first(const qwen3_shape *s, size_t n, const qwen3_layer_weights *w, float *h,
                            void *k_cache, void *v_cache, void *memory, void *scratch) {
    work t = work_of(s, 1, n);
    attention_room r;
    lay_saved(&t, memory, &t.saved);
    lay_attention(&t, scratch, &r);
    t.w = qwen3_own_weights(s, w);
    t.scratch = scratch;
    TRY(attention_forward(&t, &r, h, k_cache, v_cache));
    return swiglu_forward(&t, h);
}

/* The attention half for one token, whose keys and values stay in the caches. */
static hp_status attention_one(const work *t, size_t position, float *h, void *k_cache,
                               void *v_cache) {
    attention_room r;
    lay_attention(t, t->scratch, &r);
    work whole = *t; /* attention sees the sequence up to here */
    whole.seq = position + 1;
    const qwen3_attention attention = attention_of(&whole, r.attention);
    const qwen3_linear of_o = linear_o(t);
    const size_t row_bytes = t->kv_width * hp_dtype_size(t->s->dtype);
    TRY(queries_keys_values(t, &r, position, h, (char *)k_cache + position * row_bytes,
                            (char *)v_cache + position * row_bytes));
    qwen3_attention_one(&attention, r.q, k_cache, v_cache, position + 1, t->saved.out);
    return qwen3_scatter_product(&of_o, t->saved.out, t->w.o, h);
}

hp_status qwen3_layer_one(const qwen3_shape *s, size_t position, const qwen3_layer_weights *w,
                          float *h, void *k_cache, void *v_cache, void *scratch) {
    work t = work_of(s, 1, 1);
    t.scratch = (char *)scratch + lay_saved(&t, scratch, &t.saved);
    t.w = qwen3_own_weights(s, w);
    TRY(attention_one(&t, position, h, k_cache, v_cache));
    return swiglu_forward(&t, h);
}

/* ---- backward ---- */

/* fp32 as an operand of products: itself, or rounded into `room`. */
static const void *operand(const work *t, const float *values, size_t n, void *room) {
    if (t->s->dtype == HP_FP32)
        return values;
    qwen3_round(t->s->dtype, values, n, room);
    return room;
}

/* The gradient of h as one, [n][hidden], of which this rank's rows are there. */
static void *gathered_operand(const work *t, float *dh, void *room) {
    if (t->own.n == t->n && t->s->dtype == HP_FP32)
        return dh;
    qwen3_round(t->s->dtype, dh, t->own.n * t->s->hidden, own_rows(t, room));
    return room;
}

/* dh += dx through the norm, and the gradient of its weights. */
static void norm_backward(const work *t, const void *w, const float *h, const float *rstd,
                          const float *dx, float *dh, float *d_w, void *grad) {
    const qwen3_rows rows = {t->own.n, t->s->hidden, t->s->dtype, t->s->eps};
    qwen3_norm_backward(&rows, w, h, rstd, dx, dh, d_w);
    qwen3_round(t->s->grad_dtype, d_w, t->s->hidden, grad);
}

static hp_status swiglu_backward(const work *t, float *dh) {
    swiglu_room r;
    lay_swiglu(t, t->scratch, &r);
    const saved *v = &t->saved;
    const qwen3_layer_weights *w = &t->w;
    const qwen3_linear in = linear_in(t, t->wide.n);
    const qwen3_linear down = linear_down(t);
    void *dy = gathered_operand(t, dh, r.dy);
    TRY(qwen3_gather_dx(&down, dy, w->down, HP_FP32, r.d_act));
    qwen3_swiglu_backward(t->s->dtype, t->n * t->wide.n, v->gate, v->up, r.d_act, r.act, r.d_gate,
                          r.d_up);
    TRY(qwen3_product_dw(&down, dy, r.act, r.wide, t->g.down));
    norm(t, w->post_norm, v->middle, r.x, r.rstd);
    TRY(qwen3_gather_dw(&in, r.d_gate, r.x, r.wide, t->g.gate));
    TRY(qwen3_product_dw(&in, r.d_up, r.x, r.wide, t->g.up));
    TRY(qwen3_scatter_dx(&in, r.d_gate, w->gate, false, r.dx));
    TRY(qwen3_scatter_dx(&in, r.d_up, w->up, true, r.dx));
    norm_backward(t, w->post_norm, v->middle, r.rstd, r.dx, dh, r.d_w, t->g.post_norm);
    return HP_OK;
}

/* Through attention: room dq, dk and dv, of turned queries and keys, and the gradient of o. The
 * room's q and k, which the forward left to other layers, are turned again. */
static hp_status attention_core_backward(const work *t, const attention_room *r, void *dy) {
    const saved *v = &t->saved;
    const qwen3_attention attention = attention_of(t, r->attention);
    const qwen3_linear of_o = linear_o(t);
    const qwen3_heads q_heads = heads(t, t->heads.n, 0);
    const qwen3_heads k_heads = heads(t, t->kv_heads.n, 0);
    TRY(qwen3_gather_dx(&of_o, dy, t->w.o, t->s->dtype, r->d_out));
    TRY(qwen3_product_dw(&of_o, dy, v->out, r->wide, t->g.o));
    qwen3_turn(&q_heads, t->w.q_norm, v->q, r->q, r->q_rstd);
    qwen3_turn(&k_heads, t->w.k_norm, v->k, r->k, r->k_rstd);
    return qwen3_attention_backward(&attention, r->q, r->k, v->v, v->out, v->lse, r->d_out, r->dq,
                                    r->dk, r->dv);
}

/* The gradients of heads that were normed and turned: an operand, and the norm's weights. */
static void turn_backward(const work *t, const qwen3_heads *of, const void *w, const float *raw,
                          const float *rstd, const float *d_turned, void *d_raw, float *d_w,
                          void *grad) {
    qwen3_turn_backward(of, w, raw, rstd, d_turned, d_raw, d_w);
    qwen3_round(t->s->grad_dtype, d_w, of->head_dim, grad);
}

static hp_status attention_backward(const work *t, float *dh) {
    attention_room r;
    lay_attention(t, t->scratch, &r);
    const saved *v = &t->saved;
    const qwen3_layer_weights *w = &t->w;
    const qwen3_layer_grads *g = &t->g;
    const qwen3_linear of_q = linear_in(t, t->q_width);
    const qwen3_linear of_kv = linear_in(t, t->kv_width);
    const qwen3_heads q_heads = heads(t, t->heads.n, 0);
    const qwen3_heads k_heads = heads(t, t->kv_heads.n, 0);
    TRY(attention_core_backward(t, &r, gathered_operand(t, dh, r.dy)));
    turn_backward(t, &q_heads, w->q_norm, v->q, r.q_rstd, r.dq, r.dq_raw, r.d_w, g->q_norm);
    turn_backward(t, &k_heads, w->k_norm, v->k, r.k_rstd, r.dk, r.dk_raw, r.d_w, g->k_norm);
    const void *dv = operand(t, r.dv, t->n * t->kv_width, r.dv_raw);
    norm(t, w->input_norm, v->h, r.x, r.rstd);
    TRY(qwen3_gather_dw(&of_q, r.dq_raw, r.x, r.wide, g->q));
    TRY(qwen3_product_dw(&of_kv, r.dk_raw, r.x, r.wide, g->k));
    TRY(qwen3_product_dw(&of_kv, dv, r.x, r.wide, g->v));
    TRY(qwen3_scatter_dx(&of_q, r.dq_raw, w->q, false, r.dx));
    TRY(qwen3_scatter_dx(&of_kv, r.dk_raw, w->k, true, r.dx));
    TRY(qwen3_scatter_dx(&of_kv, dv, w->v, true, r.dx));
    norm_backward(t, w->input_norm, v->h, r.rstd, r.dx, dh, r.d_w, g->input_norm);
    return HP_OK;
}

hp_status qwen3_layer_backward(const qwen3_shape *s, size_t n_sequences, size_t seq,
                               const qwen3_layer_weights *w, const qwen3_layer_grads *g,
                               const void *memory, float *dh, void *scratch) {
    work t = work_of(s, n_sequences, seq);
    lay_saved(&t, (void *)memory, &t.saved); /* read alone from here on */
    t.w = qwen3_own_weights(s, w);
    t.g = qwen3_own_grads(s, g);
    t.scratch = scratch;
    TRY(swiglu_backward(&t, dh));
    return attention_backward(&t, dh);
}
