/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_parallel.h - a training whose tensor-parallel groups the transport carries, and whose
 * data-parallel groups use symmetric memory, ordered by one stream.
 *
 * x [rows][D] goes through W0 [D][D], a W1 [D][H] cut by columns, relu, and a W2 [H][D] cut by
 * rows, so that the sum over the tensor group is made once forward and once backward; gradients are
 * then summed over the data group. A rank that holds everything alone, in halves that it adds in
 * the groups' order, must come to the same bits. Ranks: 2 data x 2 tensor, tensor varying fastest.
 */
#ifndef TENSOR_PARALLEL_H
#define TENSOR_PARALLEL_H

#include <hyperparallel/hyperparallel.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { TP_ROWS = 6, TP_D = 8, TP_H = 10, TP_HALF = TP_H / 2, TP_STEPS = 8, TP_RANKS = 4 };
enum { TP_X = TP_ROWS * TP_D, TP_W = TP_D * TP_D, TP_CUT = TP_D * TP_HALF };

/* The part of the model that one tensor rank has; weights and gradients alike. */
typedef struct tp_part {
    float w0[TP_W], w1[TP_CUT], w2[TP_CUT];
} tp_part;

typedef struct tp_pass {
    float x1[TP_X], h[TP_ROWS * TP_HALF], y[TP_X], dx1[TP_X];
} tp_pass;

/* Small numbers that a float holds whole, other ones for each place. */
static inline float tp_number(uint32_t place) {
    return (float)(int)((place * UINT32_C(2654435761) >> 20) % 17) / 16.0F - 0.5F;
}

static inline void tp_fill(float *out, uint32_t n, uint32_t from) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = tp_number(from + i);
}

static inline tp_part tp_first_weights(int tensor) {
    tp_part p;
    tp_fill(p.w0, TP_W, 1000);
    tp_fill(p.w1, TP_CUT, 2000 + 1000 * (uint32_t)tensor);
    tp_fill(p.w2, TP_CUT, 5000 + 1000 * (uint32_t)tensor);
    return p;
}

/* out[rows][columns] = a * b; a is [rows][inner], or transposed; b likewise. */
static inline void tp_multiply(const float *a, bool a_turned, const float *b, bool b_turned,
                               int rows, int inner, int columns, float *out) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = 0;
            for (int k = 0; k < inner; k++)
                sum += a[a_turned ? k * rows + i : i * inner + k] *
                       b[b_turned ? j * inner + k : k * columns + j];
            out[i * columns + j] = sum;
        }
}

/* As far as the first sum over the tensor group: y is this part's. */
static inline void tp_forward(const tp_part *p, const float *x, tp_pass *f) {
    tp_multiply(x, false, p->w0, false, TP_ROWS, TP_D, TP_D, f->x1);
    tp_multiply(f->x1, false, p->w1, false, TP_ROWS, TP_D, TP_HALF, f->h);
    for (int i = 0; i < TP_ROWS * TP_HALF; i++)
        f->h[i] = f->h[i] > 0 ? f->h[i] : 0;
    tp_multiply(f->h, false, p->w2, false, TP_ROWS, TP_HALF, TP_D, f->y);
}

/* From the whole y (the target is x) as far as the second sum: dx1 is this part's. */
static inline void tp_backward(const tp_part *p, const float *x, tp_pass *f, tp_part *grad) {
    float dy[TP_X], dh[TP_ROWS * TP_HALF];
    for (int i = 0; i < TP_X; i++)
        dy[i] = (f->y[i] - x[i]) / (2 * TP_ROWS);
    tp_multiply(f->h, true, dy, false, TP_HALF, TP_ROWS, TP_D, grad->w2);
    tp_multiply(dy, false, p->w2, true, TP_ROWS, TP_D, TP_HALF, dh);
    for (int i = 0; i < TP_ROWS * TP_HALF; i++)
        dh[i] = f->h[i] > 0 ? dh[i] : 0;
    tp_multiply(f->x1, true, dh, false, TP_D, TP_ROWS, TP_HALF, grad->w1);
    tp_multiply(dh, false, p->w1, true, TP_ROWS, TP_HALF, TP_D, f->dx1);
}

static inline void tp_input_gradient(const float *x, const tp_pass *f, tp_part *grad) {
    tp_multiply(x, true, f->dx1, false, TP_D, TP_ROWS, TP_D, grad->w0);
}

static inline void tp_add(float *to, const float *one, const float *other, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        to[i] = one[i] + other[i];
}

static inline void tp_update(tp_part *p, const tp_part *grad) {
    float *w = (float *)p;
    const float *g = (const float *)grad;
    for (size_t i = 0; i < sizeof *p / sizeof *w; i++)
        w[i] -= 0.25F * g[i];
}

static inline void tp_batch(int step, int data, float *out_x) {
    tp_fill(out_x, TP_X, 10000 + 500 * (uint32_t)(2 * step + data));
}

/* ---- one rank that is all of them -------------------------------------------------------------
 */

static inline void tp_reference_step(tp_part *parts, int step) {
    static _Thread_local tp_pass pass[2];
    static _Thread_local tp_part grad[2][2]; /* [data][tensor] */
    for (int data = 0; data < 2; data++) {
        float x[TP_X];
        tp_batch(step, data, x);
        for (int t = 0; t < 2; t++)
            tp_forward(&parts[t], x, &pass[t]);
        tp_add(pass[0].y, pass[0].y, pass[1].y, TP_X);
        memcpy(pass[1].y, pass[0].y, sizeof pass[0].y);
        for (int t = 0; t < 2; t++)
            tp_backward(&parts[t], x, &pass[t], &grad[data][t]);
        tp_add(pass[0].dx1, pass[0].dx1, pass[1].dx1, TP_X);
        memcpy(pass[1].dx1, pass[0].dx1, sizeof pass[0].dx1);
        for (int t = 0; t < 2; t++)
            tp_input_gradient(x, &pass[t], &grad[data][t]);
    }
    for (int t = 0; t < 2; t++) {
        tp_add((float *)&grad[0][t], (const float *)&grad[0][t], (const float *)&grad[1][t],
               sizeof(tp_part) / sizeof(float));
        tp_update(&parts[t], &grad[0][t]);
    }
}

/* ---- four ranks -------------------------------------------------------------------------------
 */

typedef struct tp_rank {
    hp_mesh *mesh;           /* {data, tensor} */
    hp_group *tensor, *data; /* over the transport; over symmetric memory */
    hp_stream *stream;
    hp_symm memory;
    tp_part weights, *grad; /* gradients lie in symmetric memory, where the other data rank reads */
    tp_pass pass;
} tp_rank;

#define TP_TRY(call)                                                                               \
    do {                                                                                           \
        const hp_status tp_status_ = (call);                                                       \
        if (tp_status_ < 0)                                                                        \
            return tp_status_;                                                                     \
    } while (0)

static inline hp_status tp_open(hp_world *world, tp_rank *out) {
    void *pointer;
    *out = (tp_rank){0};
    TP_TRY(hp_mesh_create(world, (int[]){2, 2}, 2, &out->mesh));
    out->data = hp_mesh_group(out->mesh, 0);
    TP_TRY(
        hp_group_duplicate_over(hp_mesh_group(out->mesh, 1), HP_CARRIER_TRANSPORT, &out->tensor));
    TP_TRY(hp_stream_create(NULL, &out->stream));
    TP_TRY(hp_symm_alloc(world, out->data, sizeof *out->grad, 0, &out->memory));
    TP_TRY(hp_symm_pointer(out->memory, hp_group_rank(out->data), out->data, &pointer));
    out->grad = pointer;
    out->weights = tp_first_weights(hp_group_rank(out->tensor));
    return HP_OK;
}

static inline hp_status tp_close(tp_rank *r) {
    hp_stream_destroy(r->stream);
    TP_TRY(hp_symm_free(r->memory));
    hp_group_destroy(r->tensor);
    hp_mesh_destroy(r->mesh);
    return HP_OK;
}

static inline hp_status tp_sum(tp_rank *r, hp_group *group, float *data, uint64_t count) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_ALL_REDUCE;
    call.group = group;
    call.in = call.out = data;
    call.count = count;
    call.wire = HP_WIRE_FULL;
    call.stream = r->stream;
    return hp_coll_run(&call);
}

/* Both groups' sums go on one stream, in this order: gradients of W1 and W2 lie first. */
static inline hp_status tp_step(tp_rank *r, int step) {
    float x[TP_X];
    tp_batch(step, hp_group_rank(r->data), x);
    tp_forward(&r->weights, x, &r->pass);
    TP_TRY(tp_sum(r, r->tensor, r->pass.y, TP_X));
    TP_TRY(hp_stream_synchronize(r->stream));
    tp_backward(&r->weights, x, &r->pass, r->grad);
    TP_TRY(tp_sum(r, r->tensor, r->pass.dx1, TP_X));
    TP_TRY(tp_sum(r, r->data, r->grad->w1, TP_CUT));
    TP_TRY(tp_sum(r, r->data, r->grad->w2, TP_CUT));
    TP_TRY(hp_stream_synchronize(r->stream));
    tp_input_gradient(x, &r->pass, r->grad);
    TP_TRY(tp_sum(r, r->data, r->grad->w0, TP_W));
    TP_TRY(hp_stream_synchronize(r->stream));
    tp_update(&r->weights, r->grad);
    return HP_OK;
}

/* *out_is_equal: after each step this rank's weights have the reference's bits. */
static inline hp_status tp_train(hp_world *world, bool *out_is_equal) {
    static _Thread_local tp_rank r;
    static _Thread_local tp_part reference[2];
    TP_TRY(tp_open(world, &r));
    *out_is_equal = true;
    for (int t = 0; t < 2; t++)
        reference[t] = tp_first_weights(t);
    for (int step = 0; step < TP_STEPS; step++) {
        tp_reference_step(reference, step);
        TP_TRY(tp_step(&r, step));
        *out_is_equal &=
            memcmp(&r.weights, &reference[hp_group_rank(r.tensor)], sizeof r.weights) == 0;
    }
    return tp_close(&r);
}

#endif
