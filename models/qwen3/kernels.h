/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/kernels.h - the arithmetic between the matrix products, row by row, on row-major fp32.
 *
 * `dtype` (fp32 or bf16) is of norm weights and of operands of products, which are rounded once,
 * where they are stored. A sum along a row runs in 16 lanes (lane l takes the columns j with j % 16
 * == l, in order), which are then added as a balanced tree; a sum over rows goes by 64 rows at a
 * time. So the bits depend neither on the vector width nor on what other rows hold. What is written
 * overlaps nothing that is read.
 */
#ifndef QWEN3_KERNELS_H
#define QWEN3_KERNELS_H

#include <hyperparallel/base.h>

/* a += b. */
void qwen3_add(float *a, const float *b, size_t n);

/* Between fp32 and dtype; fp32 is copied. */
void qwen3_round(hp_dtype dtype, const float *in, size_t n, void *out);
void qwen3_widen(hp_dtype dtype, const void *in, size_t n, float *out);

typedef struct qwen3_rows {
    size_t n, width;
    hp_dtype dtype;
    float eps;
} qwen3_rows;

/* x = h * rstd * w with rstd = 1 / sqrt(mean of h^2 + eps), a row of h at a time. w: [width] and x
 * in dtype; rstd: [n]. Source: Zhang and Sennrich 2019. */
void qwen3_norm(const qwen3_rows *r, const void *w, const float *h, void *x, float *rstd);
/* dh += the gradient through the norm; d_w: the gradient of w, in its first [width] of [2 * width]
 * (the rest is working room). dx, dh: [n][width]. */
void qwen3_norm_backward(const qwen3_rows *r, const void *w, const float *h, const float *rstd,
                         const float *dx, float *dh, float *d_w);

/* Heads of n tokens that stand in sequences of `seq`: [n][n_heads][head_dim]. */
typedef struct qwen3_heads {
    size_t n, seq, n_heads, head_dim;
    hp_dtype dtype;
    float eps;
    const float *cosines, *sines; /* [seq][head_dim / 2]: of a sequence's positions */
} qwen3_heads;

/* Each head is normed (w: [head_dim]), then elements i and i + head_dim / 2 are turned by the angle
 * of the position. raw: fp32; turned: dtype; rstd: [n][n_heads].
 * Source: Su et al. 2021, in the half-split form of Hugging Face. */
void qwen3_turn(const qwen3_heads *r, const void *w, const float *raw, void *turned, float *rstd);
/* d_turned: fp32; d_raw: in dtype, an operand of products; d_w: as in qwen3_norm_backward. */
void qwen3_turn_backward(const qwen3_heads *r, const void *w, const float *raw, const float *rstd,
                         const float *d_turned, void *d_raw, float *d_w);

/* act = silu(gate) * up, silu(x) = x / (1 + exp(-x)). act: dtype. Source: Shazeer 2020. */
void qwen3_swiglu(hp_dtype dtype, size_t n, const float *gate, const float *up, void *act);
/* act once more, and both gradients: all three in dtype. */
void qwen3_swiglu_backward(hp_dtype dtype, size_t n, const float *gate, const float *up,
                           const float *d_act, void *act, void *d_gate, void *d_up);

/* softmax(row)[j] = exp(row[j] - most - log_sum). */
typedef struct qwen3_softmax {
    float most, log_sum;
} qwen3_softmax;

/* Returns the sum over rows of -log softmax(logits)[target], in nats and fp64; a target below 0
 * does not count. rows: [n], written where the target counts. */
double qwen3_cross_entropy(size_t n, size_t vocab, const float *logits, const int32_t *targets,
                           qwen3_softmax *rows);
/* Each row of logits becomes (softmax - onehot) * weight in dtype, zeros where the target does not
 * count. The rows stay where they are: bf16 fills the first half of each. */
void qwen3_cross_entropy_backward(hp_dtype dtype, size_t n, size_t vocab, const int32_t *targets,
                                  const qwen3_softmax *rows, float weight, float *logits);

#endif
