/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes_mlp/kernels.c - plain loops that the compiler vectorises over the columns of the output.
 *
 * The matrix product works on four rows of the output and four of the inner index at a time: four
 * rows of b are loaded once for sixteen products, and the four rows of c stay in the first-level
 * cache. A sum over columns (norm, softmax) runs in fp64 in ascending order instead, which costs
 * little beside the products.
 */
#include "kernels.h"
#include "../kernel.h"

#include <math.h>
#include <string.h>

/* Four rows of c, four rows of b. w: what a holds there. */
static inline void add_4x4(float *restrict c, const float *restrict b, float w[4][4], size_t n_j) {
    float *c0 = c, *c1 = c + n_j, *c2 = c + 2 * n_j, *c3 = c + 3 * n_j;
    const float *b0 = b, *b1 = b + n_j, *b2 = b + 2 * n_j, *b3 = b + 3 * n_j;
    for (size_t j = 0; j < n_j; j++) {
        c0[j] = c0[j] + w[0][0] * b0[j] + w[0][1] * b1[j] + w[0][2] * b2[j] + w[0][3] * b3[j];
        c1[j] = c1[j] + w[1][0] * b0[j] + w[1][1] * b1[j] + w[1][2] * b2[j] + w[1][3] * b3[j];
        c2[j] = c2[j] + w[2][0] * b0[j] + w[2][1] * b1[j] + w[2][2] * b2[j] + w[2][3] * b3[j];
        c3[j] = c3[j] + w[3][0] * b0[j] + w[3][1] * b1[j] + w[3][2] * b2[j] + w[3][3] * b3[j];
    }
}

/* One row of c, one of b. */
static inline void add_1x1(float *restrict c, const float *restrict b, float w, size_t n_j) {
    for (size_t j = 0; j < n_j; j++)
        c[j] += w * b[j];
}

/* What is left over when sizes are no multiple of four, in the same order of sums. */
static inline void add_rest(float *restrict c, bytes_mlp_matrix a, const float *restrict b,
                            size_t n_rows, size_t n_p, size_t n_j) {
    for (size_t i = 0; i < n_rows; i++)
        for (size_t p = 0; p < n_p; p++)
            add_1x1(c + i * n_j, b + p * n_j, a.data[i * a.row_step + p * a.column_step], n_j);
}

/* The part of a that begins at (i, p). */
static inline bytes_mlp_matrix at(bytes_mlp_matrix a, size_t i, size_t p) {
    a.data += i * a.row_step + p * a.column_step;
    return a;
}

MODEL_KERNEL void bytes_mlp_matmul_add(float *restrict c, bytes_mlp_matrix a,
                                       const float *restrict b, size_t n_i, size_t n_p,
                                       size_t n_j) {
    const size_t i_end = n_i / 4 * 4, p_end = n_p / 4 * 4;
    for (size_t i = 0; i < i_end; i += 4) {
        for (size_t p = 0; p < p_end; p += 4) {
            const bytes_mlp_matrix tile = at(a, i, p);
            float w[4][4];
            for (size_t x = 0; x < 4; x++)
                for (size_t y = 0; y < 4; y++)
                    w[x][y] = tile.data[x * a.row_step + y * a.column_step];
            add_4x4(c + i * n_j, b + p * n_j, w, n_j);
        }
        add_rest(c + i * n_j, at(a, i, p_end), b + p_end * n_j, 4, n_p - p_end, n_j);
    }
    add_rest(c + i_end * n_j, at(a, i_end, 0), b, n_i - i_end, n_p, n_j);
}

void bytes_mlp_transpose(float *restrict out, const float *restrict in, size_t n_i, size_t n_j) {
    for (size_t j = 0; j < n_j; j++)
        for (size_t i = 0; i < n_i; i++)
            out[j * n_i + i] = in[i * n_j + j];
}

void bytes_mlp_fill_rows(float *restrict c, const float *restrict row, size_t n_i, size_t n_j) {
    for (size_t i = 0; i < n_i; i++)
        memcpy(c + i * n_j, row, n_j * sizeof *row);
}

MODEL_KERNEL void bytes_mlp_sum_rows_add(float *restrict row, const float *restrict c, size_t n_i,
                                         size_t n_j) {
    for (size_t i = 0; i < n_i; i++)
        for (size_t j = 0; j < n_j; j++)
            row[j] += c[i * n_j + j];
}

MODEL_KERNEL void bytes_mlp_add(float *restrict a, const float *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] += b[i];
}

/* fp64, so that a long row loses nothing; in order, since the compiler may not reorder it. */
static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t j = 0; j < n; j++)
        sum += (double)a[j] * (double)b[j];
    return sum;
}

void bytes_mlp_norm(float *restrict x, float *restrict scale, const float *restrict h, size_t n_i,
                    size_t n_j) {
    for (size_t i = 0; i < n_i; i++, h += n_j, x += n_j) {
        scale[i] = (float)(1 / sqrt(dot(h, h, n_j) / (double)n_j + 1e-5));
        for (size_t j = 0; j < n_j; j++)
            x[j] = h[j] * scale[i];
    }
}

void bytes_mlp_norm_grad_add(float *restrict dh, const float *restrict dx, const float *restrict x,
                             const float *restrict scale, size_t n_i, size_t n_j) {
    for (size_t i = 0; i < n_i; i++, dh += n_j, dx += n_j, x += n_j) {
        const float mean = (float)(dot(dx, x, n_j) / (double)n_j);
        for (size_t j = 0; j < n_j; j++)
            dh[j] += scale[i] * (dx[j] - x[j] * mean);
    }
}

MODEL_KERNEL void bytes_mlp_relu(float *a, size_t n) {
    for (size_t i = 0; i < n; i++)
        a[i] = a[i] > 0 ? a[i] : 0;
}

MODEL_KERNEL void bytes_mlp_relu_grad(float *restrict da, const float *restrict a, size_t n) {
    for (size_t i = 0; i < n; i++)
        da[i] = a[i] > 0 ? da[i] : 0;
}

/* One row: the largest logit is taken off first, so that no exponential overflows. */
static double softmax_row(float *logits, size_t target, size_t n) {
    float most = logits[0];
    for (size_t j = 1; j < n; j++)
        most = logits[j] > most ? logits[j] : most;
    const double target_logit = (double)logits[target] - (double)most;
    double sum = 0;
    for (size_t j = 0; j < n; j++) {
        logits[j] = expf(logits[j] - most);
        sum += (double)logits[j];
    }
    const float scale = (float)(1 / sum);
    for (size_t j = 0; j < n; j++)
        logits[j] *= scale;
    /* cppcheck-suppress invalidFunctionArg ; a row has a logit, so the sum is at least 1 */
    return log(sum) - target_logit;
}

double bytes_mlp_softmax_loss(float *logits, const unsigned char *target, size_t n_i, size_t n_j) {
    double loss = 0;
    for (size_t i = 0; i < n_i; i++)
        loss += softmax_row(logits + i * n_j, target[i], n_j);
    return loss;
}
