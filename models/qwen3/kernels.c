/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/kernels.c - plain loops that the compiler vectorises over columns.
 *
 * A function that knows two dtypes is written once, as a body that takes is_bf16, and compiled for
 * both, so that no loop asks. Nothing here is a visible share of a step beside the products.
 */
#include "kernels.h"
#include "math.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

enum { BLOCK_ROWS = 64 };

/* Of a function that knows two dtypes. */
#define BODY QWEN3_INLINE void

/* The sum over j in [0, n) of `term`, an expression in j. */
#define SUM_IN_LANES(out_sum, n, term)                                                             \
    do {                                                                                           \
        float lane_[QWEN3_LANES] = {0};                                                            \
        const size_t whole_ = (n) - (n) % QWEN3_LANES;                                             \
        for (size_t first_ = 0; first_ < whole_; first_ += QWEN3_LANES)                            \
            for (size_t l_ = 0; l_ < QWEN3_LANES; l_++) {                                          \
                const size_t j = first_ + l_;                                                      \
                lane_[l_] += (term);                                                               \
            }                                                                                      \
        for (size_t j = whole_; j < (n); j++)                                                      \
            lane_[j - whole_] += (term);                                                           \
        *(out_sum) = qwen3_sum_lanes(lane_);                                                       \
    } while (0)

/* ---- adding, rounding ---- */

MODEL_KERNEL void qwen3_add(float *restrict a, const float *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] += b[i];
}

MODEL_KERNEL void qwen3_round(hp_dtype dtype, const float *restrict in, size_t n,
                              void *restrict out) {
    if (dtype == HP_BF16)
        for (size_t i = 0; i < n; i++)
            qwen3_store(out, i, true, in[i]);
    else if (n > 0)
        memcpy(out, in, n * sizeof *in);
}

MODEL_KERNEL void qwen3_widen(hp_dtype dtype, const void *restrict in, size_t n,
                              float *restrict out) {
    if (dtype == HP_BF16)
        for (size_t i = 0; i < n; i++)
            out[i] = qwen3_load(in, i, true);
    else if (n > 0)
        memcpy(out, in, n * sizeof *out);
}

/* ---- sums over rows ---- */

/* sums: [2][width], the total and the sum of the block at hand. */
static void begin_sums(float *sums, size_t width) {
    memset(sums, 0, 2 * width * sizeof *sums);
}

/* After row i of n: at the end of a block its sum goes into the total. */
static inline void end_row(float *restrict sums, size_t width, size_t i, size_t n) {
    if ((i + 1) % BLOCK_ROWS != 0 && i + 1 != n)
        return;
    for (size_t j = 0; j < width; j++) {
        sums[j] += sums[width + j];
        sums[width + j] = 0;
    }
}

/* ---- norm ---- */

static inline float reciprocal_root(const float *row, size_t width, float eps) {
    float squares;
    SUM_IN_LANES(&squares, width, row[j] * row[j]);
    return 1.0F / sqrtf(squares / (float)width + eps);
}

BODY norm(const qwen3_rows *r, bool is_bf16, const void *restrict w, const float *restrict h,
          void *restrict x, float *restrict rstd) {
    const size_t width = r->width;
    for (size_t i = 0; i < r->n; i++) {
        const float *row = h + i * width, scale = reciprocal_root(row, width, r->eps);
        for (size_t j = 0; j < width; j++)
            qwen3_store(x, i * width + j, is_bf16, row[j] * scale * qwen3_load(w, j, is_bf16));
        rstd[i] = scale;
    }
}

MODEL_KERNEL void qwen3_norm(const qwen3_rows *r, const void *w, const float *h, void *x,
                             float *rstd) {
    if (r->dtype == HP_BF16)
        norm(r, true, w, h, x, rstd);
    else
        norm(r, false, w, h, x, rstd);
}

/* With y = h * rstd: dh += rstd * (g - y * mean of g * y), where g = dx * w. */
BODY norm_backward(const qwen3_rows *r, bool is_bf16, const void *restrict w,
                   const float *restrict h, const float *restrict rstd, const float *restrict dx,
                   float *restrict dh, float *restrict d_w) {
    const size_t width = r->width;
    begin_sums(d_w, width);
    for (size_t i = 0; i < r->n; i++, h += width, dx += width, dh += width) {
        const float scale = rstd[i];
        float dot;
        SUM_IN_LANES(&dot, width, dx[j] * qwen3_load(w, j, is_bf16) * h[j]);
        const float mean = dot * scale / (float)width;
        for (size_t j = 0; j < width; j++) {
            const float y = h[j] * scale;
            dh[j] += scale * (dx[j] * qwen3_load(w, j, is_bf16) - y * mean);
            d_w[width + j] += dx[j] * y;
        }
        end_row(d_w, width, i, r->n);
    }
}

MODEL_KERNEL void qwen3_norm_backward(const qwen3_rows *r, const void *w, const float *h,
                                      const float *rstd, const float *dx, float *dh, float *d_w) {
    if (r->dtype == HP_BF16)
        norm_backward(r, true, w, h, rstd, dx, dh, d_w);
    else
        norm_backward(r, false, w, h, rstd, dx, dh, d_w);
}

/* ---- norm and rotation of heads ---- */

/* One head: a = x[i], b = x[i + half] become a cos - b sin, b cos + a sin. */
BODY turn_head(bool is_bf16, size_t half, const void *restrict w, const float *restrict raw,
               float scale, const float *restrict cosines, const float *restrict sines,
               void *restrict turned) {
    for (size_t i = 0; i < half; i++) {
        const float a = raw[i] * scale * qwen3_load(w, i, is_bf16);
        const float b = raw[i + half] * scale * qwen3_load(w, i + half, is_bf16);
        qwen3_store(turned, i, is_bf16, a * cosines[i] - b * sines[i]);
        qwen3_store(turned, i + half, is_bf16, b * cosines[i] + a * sines[i]);
    }
}

BODY turn(const qwen3_heads *r, bool is_bf16, const void *w, const float *raw, void *turned,
          float *rstd) {
    const size_t width = r->head_dim, half = width / 2, size = is_bf16 ? 2 : 4;
    for (size_t i = 0; i < r->n * r->n_heads; i++) {
        const size_t angles = i / r->n_heads % r->seq * half;
        rstd[i] = reciprocal_root(raw + i * width, width, r->eps);
        turn_head(is_bf16, half, w, raw + i * width, rstd[i], r->cosines + angles,
                  r->sines + angles, (char *)turned + i * width * size);
    }
}

MODEL_KERNEL void qwen3_turn(const qwen3_heads *r, const void *w, const float *raw, void *turned,
                             float *rstd) {
    if (r->dtype == HP_BF16)
        turn(r, true, w, raw, turned, rstd);
    else
        turn(r, false, w, raw, turned, rstd);
}

/* One head: the gradient is turned back (da, db), then goes through the norm as in norm_backward.
 * Turning twice costs less than keeping what it gave. */
BODY turn_head_backward(bool is_bf16, size_t half, const void *restrict w,
                        const float *restrict raw, float scale, const float *restrict cosines,
                        const float *restrict sines, const float *restrict d, void *restrict d_raw,
                        float *restrict d_w) {
    float dot;
    SUM_IN_LANES(&dot, half,
                 (d[j] * cosines[j] + d[j + half] * sines[j]) * qwen3_load(w, j, is_bf16) * raw[j] +
                     (d[j + half] * cosines[j] - d[j] * sines[j]) *
                         qwen3_load(w, j + half, is_bf16) * raw[j + half]);
    const float mean = dot * scale / (float)(2 * half);
    for (size_t i = 0; i < half; i++) {
        const float da = d[i] * cosines[i] + d[i + half] * sines[i];
        const float db = d[i + half] * cosines[i] - d[i] * sines[i];
        const float a = raw[i] * scale, b = raw[i + half] * scale;
        qwen3_store(d_raw, i, is_bf16, scale * (da * qwen3_load(w, i, is_bf16) - a * mean));
        qwen3_store(d_raw, i + half, is_bf16,
                    scale * (db * qwen3_load(w, i + half, is_bf16) - b * mean));
        d_w[i] += da * a;
        d_w[i + half] += db * b;
    }
}

BODY turn_backward(const qwen3_heads *r, bool is_bf16, const void *w, const float *raw,
                   const float *rstd, const float *d_turned, void *d_raw, float *d_w) {
    const size_t width = r->head_dim, half = width / 2, n = r->n * r->n_heads;
    const size_t size = is_bf16 ? 2 : 4;
    begin_sums(d_w, width);
    for (size_t i = 0; i < n; i++) {
        const size_t angles = i / r->n_heads % r->seq * half;
        turn_head_backward(is_bf16, half, w, raw + i * width, rstd[i], r->cosines + angles,
                           r->sines + angles, d_turned + i * width,
                           (char *)d_raw + i * width * size, d_w + width);
        end_row(d_w, width, i, n);
    }
}

MODEL_KERNEL void qwen3_turn_backward(const qwen3_heads *r, const void *w, const float *raw,
                                      const float *rstd, const float *d_turned, void *d_raw,
                                      float *d_w) {
    if (r->dtype == HP_BF16)
        turn_backward(r, true, w, raw, rstd, d_turned, d_raw, d_w);
    else
        turn_backward(r, false, w, raw, rstd, d_turned, d_raw, d_w);
}

/* ---- SwiGLU ---- */

static inline float sigmoid(float x) {
    return 1.0F / (1.0F + qwen3_exp(-x));
}

BODY swiglu(size_t n, bool is_bf16, const float *restrict gate, const float *restrict up,
            void *restrict act) {
    for (size_t i = 0; i < n; i++)
        qwen3_store(act, i, is_bf16, gate[i] * sigmoid(gate[i]) * up[i]);
}

MODEL_KERNEL void qwen3_swiglu(hp_dtype dtype, size_t n, const float *gate, const float *up,
                               void *act) {
    if (dtype == HP_BF16)
        swiglu(n, true, gate, up, act);
    else
        swiglu(n, false, gate, up, act);
}

/* silu'(x) = s + silu(x) (1 - s), s = sigmoid(x). */
BODY swiglu_backward(size_t n, bool is_bf16, const float *restrict gate, const float *restrict up,
                     const float *restrict d_act, void *restrict act, void *restrict d_gate,
                     void *restrict d_up) {
    for (size_t i = 0; i < n; i++) {
        const float s = sigmoid(gate[i]), silu = gate[i] * s;
        qwen3_store(act, i, is_bf16, silu * up[i]);
        qwen3_store(d_gate, i, is_bf16, d_act[i] * up[i] * (s + silu * (1.0F - s)));
        qwen3_store(d_up, i, is_bf16, d_act[i] * silu);
    }
}

MODEL_KERNEL void qwen3_swiglu_backward(hp_dtype dtype, size_t n, const float *gate,
                                        const float *up, const float *d_act, void *act,
                                        void *d_gate, void *d_up) {
    if (dtype == HP_BF16)
        swiglu_backward(n, true, gate, up, d_act, act, d_gate, d_up);
    else
        swiglu_backward(n, false, gate, up, d_act, act, d_gate, d_up);
}

/* ---- cross-entropy ---- */

/* Of a row; NaN is passed over here and shows in the sum. */
static inline float largest(const float *row, size_t n) {
    float lane[QWEN3_LANES];
    for (size_t l = 0; l < QWEN3_LANES; l++)
        lane[l] = row[0];
    const size_t whole = n - n % QWEN3_LANES;
    for (size_t j = 0; j < whole; j += QWEN3_LANES)
        for (size_t l = 0; l < QWEN3_LANES; l++)
            lane[l] = row[j + l] > lane[l] ? row[j + l] : lane[l];
    for (size_t j = whole; j < n; j++)
        lane[0] = row[j] > lane[0] ? row[j] : lane[0];
    for (size_t l = 1; l < QWEN3_LANES; l++)
        lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    return lane[0];
}

enum { PIECE = 4096 }; /* columns whose exponentials are summed in fp32 before they join in fp64 */

/* The log of the sum of exponentials, from which `most` was taken off first: none overflows. */
static inline double log_of_sum(const float *row, size_t n, float most) {
    double sum = 0;
    for (size_t first = 0; first < n; first += PIECE) {
        const size_t n_piece = n - first < PIECE ? n - first : PIECE;
        float part;
        SUM_IN_LANES(&part, n_piece, qwen3_exp(row[first + j] - most));
        sum += (double)part;
    }
    /* cppcheck-suppress invalidFunctionArg ; a row has a logit, so the sum is at least 1 */
    return log(sum);
}

MODEL_KERNEL double qwen3_cross_entropy(size_t n, size_t vocab, const float *logits,
                                        const int32_t *targets, qwen3_softmax *rows) {
    double loss = 0;
    for (size_t i = 0; i < n; i++, logits += vocab) {
        if (targets[i] < 0)
            continue;
        assert((size_t)targets[i] < vocab);
        const float most = largest(logits, vocab);
        const double log_sum = log_of_sum(logits, vocab, most);
        loss += log_sum + ((double)most - (double)logits[targets[i]]);
        rows[i] = (qwen3_softmax){most, (float)log_sum};
    }
    return loss;
}

/* A piece at a time through `probabilities`: bf16 grows over what has been read already. */
BODY cross_entropy_row(bool is_bf16, size_t vocab, float *logits, size_t target, qwen3_softmax row,
                       float weight) {
    float probabilities[256];
    enum { N = sizeof probabilities / sizeof *probabilities };
    for (size_t first = 0; first < vocab; first += N) {
        const size_t n = vocab - first < N ? vocab - first : N;
        for (size_t j = 0; j < n; j++)
            probabilities[j] = qwen3_exp(logits[first + j] - row.most - row.log_sum);
        if (target - first < n)
            probabilities[target - first] -= 1.0F;
        for (size_t j = 0; j < n; j++)
            qwen3_store(logits, first + j, is_bf16, probabilities[j] * weight);
    }
}

MODEL_KERNEL void qwen3_cross_entropy_backward(hp_dtype dtype, size_t n, size_t vocab,
                                               const int32_t *targets, const qwen3_softmax *rows,
                                               float weight, float *logits) {
    for (size_t i = 0; i < n; i++, logits += vocab) {
        if (targets[i] < 0)
            memset(logits, 0, vocab * sizeof *logits);
        else if (dtype == HP_BF16)
            cross_entropy_row(true, vocab, logits, (size_t)targets[i], rows[i], weight);
        else
            cross_entropy_row(false, vocab, logits, (size_t)targets[i], rows[i], weight);
    }
}
