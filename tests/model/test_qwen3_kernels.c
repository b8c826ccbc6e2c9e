/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_kernels.c - the loops between the products have the bits of the obvious loop.
 *
 * Each kernel is written down a second time, one element at a time, with the order of sums that
 * kernels.h promises, and compiled for the baseline processor; the library's version runs at
 * whatever width the loader chose. What is not a matter of order (exponential, loss) is compared
 * with fp64.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qwen3/kernels.h"
#include "qwen3/math.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 160 * 96 }; /* elements of the largest case */

static void fill(float *out, size_t n, float amplitude, uint64_t state) {
    for (size_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        out[i] = amplitude * (float)((double)(state >> 11) * 0x1.0p-52 - 1);
    }
}

/* A norm's weights, around 1, in dtype. */
static void fill_weights(hp_dtype dtype, void *out, size_t n, uint64_t seed) {
    float w[MOST];
    fill(w, n, 0.5F, seed);
    for (size_t j = 0; j < n; j++)
        w[j] += 1;
    qwen3_round(dtype, w, n, out);
}

static float get(hp_dtype dtype, const void *p, size_t i) {
    float f;
    qwen3_widen(dtype, (const char *)p + i * hp_dtype_size(dtype), 1, &f);
    return f;
}
static void put(hp_dtype dtype, void *p, size_t i, float f) {
    qwen3_round(dtype, &f, 1, (char *)p + i * hp_dtype_size(dtype));
}

static const hp_dtype dtypes[] = {HP_FP32, HP_BF16};

/* ---- numbers ---- */

static void the_exponential_is_within_an_ulp(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 9973) {
        const uint32_t b = (uint32_t)bits;
        float x;
        memcpy(&x, &b, sizeof x);
        const double want = exp((double)x);
        if (want > 1.2e-38 && want < 3.4e38)
            assert_true(fabs((double)qwen3_exp(x) / want - 1) < 0x1p-23);
    }
    assert_true(qwen3_exp(0.0F) == 1.0F);
    assert_true(qwen3_exp(-INFINITY) == 0.0F);
    assert_true(qwen3_exp(-1e30F) == 0.0F);
    assert_true(isinf(qwen3_exp(89.0F)) && isinf(qwen3_exp(INFINITY)));
    assert_true(isnan(qwen3_exp(NAN)));
}

static void bf16_is_rounded_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = qwen3_bf16_to_fp32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(qwen3_bf16_to_fp32(qwen3_fp32_to_bf16(f))));
        else
            assert_int_equal(qwen3_fp32_to_bf16(f), h);
    }
    assert_int_equal(qwen3_fp32_to_bf16(0x1.01p0F), 0x3f80);       /* a tie, down to even */
    assert_int_equal(qwen3_fp32_to_bf16(0x1.03p0F), 0x3f82);       /* a tie, up to even */
    assert_int_equal(qwen3_fp32_to_bf16(0x1.010002p0F), 0x3f81);   /* just above a tie */
    assert_int_equal(qwen3_fp32_to_bf16(0x1.fffffep127F), 0x7f80); /* beyond the largest */
}

/* ---- norms ---- */

static float tree(float *lane) {
    for (size_t l = 0; l < 8; l++)
        lane[l] += lane[l + 8];
    for (size_t l = 0; l < 4; l++)
        lane[l] += lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

static float plain_rstd(const float *h, size_t width, float eps) {
    float lane[16] = {0};
    for (size_t j = 0; j < width; j++)
        lane[j % 16] += h[j] * h[j];
    return 1.0F / sqrtf(tree(lane) / (float)width + eps);
}

/* Sum of n rows, 64 of them at a time. */
static void plain_sum_rows(const float *rows, size_t n, size_t width, float *out) {
    for (size_t j = 0; j < width; j++) {
        out[j] = 0;
        for (size_t first = 0; first < n; first += 64) {
            float block = 0;
            for (size_t i = first; i < n && i < first + 64; i++)
                block += rows[i * width + j];
            out[j] += block;
        }
    }
}

static void check_norm(const qwen3_rows *r) {
    static float w[MOST], h[MOST], x[MOST], want[MOST], rstd[MOST];
    const size_t size = hp_dtype_size(r->dtype);
    fill_weights(r->dtype, w, r->width, 1);
    fill(h, r->n * r->width, 3, 2);
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->width; j++) {
            const float *row = h + i * r->width;
            put(r->dtype, want, i * r->width + j,
                row[j] * plain_rstd(row, r->width, r->eps) * get(r->dtype, w, j));
        }
    qwen3_norm(r, w, h, x, rstd);
    assert_memory_equal(x, want, r->n * r->width * size);
    for (size_t i = 0; i < r->n; i++)
        assert_true(rstd[i] == plain_rstd(h + i * r->width, r->width, r->eps));
}

static void check_norm_backward(const qwen3_rows *r) {
    static float w[MOST], h[MOST], rstd[MOST], dx[MOST], dh[MOST], want[MOST], terms[MOST];
    static float d_w[2 * MOST], want_d_w[MOST];
    const size_t width = r->width;
    fill_weights(r->dtype, w, width, 1);
    fill(h, r->n * width, 3, 2);
    fill(dx, r->n * width, 2, 3);
    fill(dh, r->n * width, 1, 4);
    memcpy(want, dh, sizeof want);
    for (size_t i = 0; i < r->n; i++) {
        const float *row = h + i * width, *d = dx + i * width;
        float lane[16] = {0};
        rstd[i] = plain_rstd(row, width, r->eps);
        for (size_t j = 0; j < width; j++)
            lane[j % 16] += d[j] * get(r->dtype, w, j) * row[j];
        const float mean = tree(lane) * rstd[i] / (float)width;
        for (size_t j = 0; j < width; j++) {
            const float y = row[j] * rstd[i];
            want[i * width + j] += rstd[i] * (d[j] * get(r->dtype, w, j) - y * mean);
            terms[i * width + j] = d[j] * y;
        }
    }
    plain_sum_rows(terms, r->n, width, want_d_w);
    memset(d_w, 0xff, sizeof d_w);
    qwen3_norm_backward(r, w, h, rstd, dx, dh, d_w);
    assert_memory_equal(dh, want, r->n * width * sizeof *dh);
    assert_memory_equal(d_w, want_d_w, width * sizeof *d_w);
}

static void norms_have_the_bits_of_plain_loops(void **state) {
    (void)state;
    static const size_t widths[] = {1, 6, 15, 16, 17, 31, 64, 96}, ns[] = {0, 1, 63, 64, 65, 150};
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (size_t k = 0; k < sizeof ns / sizeof *ns; k++) {
                const qwen3_rows r = {ns[k], widths[i], dtypes[d], 1e-3F};
                check_norm(&r);
                check_norm_backward(&r);
            }
}

/* ---- turned heads ---- */

static void check_turn(const qwen3_heads *r) {
    static float w[MOST], raw[MOST], turned[MOST], want[MOST], rstd[MOST];
    const size_t dim = r->head_dim, half = dim / 2, n = r->n * r->n_heads;
    fill_weights(r->dtype, w, dim, 1);
    fill(raw, n * dim, 3, 2);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < half; j++) {
            const float *row = raw + i * dim, scale = plain_rstd(row, dim, r->eps);
            const size_t angle = i / r->n_heads % r->seq * half + j;
            const float a = row[j] * scale * get(r->dtype, w, j);
            const float b = row[j + half] * scale * get(r->dtype, w, j + half);
            const float cosine = r->cosines[angle], sine = r->sines[angle];
            put(r->dtype, want, i * dim + j, a * cosine - b * sine);
            put(r->dtype, want, i * dim + j + half, b * cosine + a * sine);
        }
    qwen3_turn(r, w, raw, turned, rstd);
    assert_memory_equal(turned, want, n * dim * hp_dtype_size(r->dtype));
    for (size_t i = 0; i < n; i++)
        assert_true(rstd[i] == plain_rstd(raw + i * dim, dim, r->eps));
}

/* One head: d, the gradient of what was turned, becomes that of raw; terms: of w, per element. */
static void plain_turn_backward(const qwen3_heads *r, const void *w, const float *raw,
                                const float *cosines, const float *sines, float *d, float *terms) {
    const size_t dim = r->head_dim, half = dim / 2;
    const float scale = plain_rstd(raw, dim, r->eps);
    float lane[16] = {0};
    for (size_t j = 0; j < half; j++) {
        const float da = d[j] * cosines[j] + d[j + half] * sines[j];
        const float db = d[j + half] * cosines[j] - d[j] * sines[j];
        d[j] = da;
        d[j + half] = db;
        lane[j % 16] +=
            da * get(r->dtype, w, j) * raw[j] + db * get(r->dtype, w, j + half) * raw[j + half];
    }
    const float mean = tree(lane) * scale / (float)dim;
    for (size_t j = 0; j < dim; j++) {
        const float y = raw[j] * scale;
        terms[j] = d[j] * y;
        d[j] = scale * (d[j] * get(r->dtype, w, j) - y * mean);
    }
}

static void check_turn_backward(const qwen3_heads *r) {
    static float w[MOST], raw[MOST], d[MOST], d_raw[MOST], want[MOST], rstd[MOST], terms[MOST];
    static float d_w[2 * MOST], want_d_w[MOST];
    const size_t dim = r->head_dim, n = r->n * r->n_heads;
    fill_weights(r->dtype, w, dim, 1);
    fill(raw, n * dim, 3, 2);
    fill(d, n * dim, 1, 3);
    for (size_t i = 0; i < n; i++) {
        const size_t angle = i / r->n_heads % r->seq * (dim / 2);
        float row[MOST];
        memcpy(row, d + i * dim, dim * sizeof *row);
        rstd[i] = plain_rstd(raw + i * dim, dim, r->eps);
        plain_turn_backward(r, w, raw + i * dim, r->cosines + angle, r->sines + angle, row,
                            terms + i * dim);
        for (size_t j = 0; j < dim; j++)
            put(r->dtype, want, i * dim + j, row[j]);
    }
    plain_sum_rows(terms, n, dim, want_d_w);
    memset(d_w, 0xff, sizeof d_w);
    qwen3_turn_backward(r, w, raw, rstd, d, d_raw, d_w);
    assert_memory_equal(d_raw, want, n * dim * hp_dtype_size(r->dtype));
    assert_memory_equal(d_w, want_d_w, dim * sizeof *d_w);
}

static void turned_heads_have_the_bits_of_plain_loops(void **state) {
    (void)state;
    static const size_t dims[] = {2, 6, 32, 38, 64}, n_heads[] = {1, 3};
    float cosines[MOST], sines[MOST];
    fill(cosines, MOST, 1, 8);
    fill(sines, MOST, 1, 9);
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (size_t k = 0; k < 2; k++) {
                const qwen3_heads r = {35,        7,     n_heads[k], dims[i],
                                       dtypes[d], 1e-3F, cosines,    sines};
                check_turn(&r);
                check_turn_backward(&r);
            }
}

/* ---- SwiGLU ---- */

static void swiglu_has_the_bits_of_plain_loops(void **state) {
    (void)state;
    enum { N = 333 };
    float gate[N], up[N], d[N], act[N], d_gate[N], d_up[N], again[N];
    fill(gate, N, 20, 1);
    fill(up, N, 3, 2);
    fill(d, N, 1, 3);
    gate[0] = -200; /* exp(200) is infinite */
    for (size_t k = 0; k < 2; k++) {
        const hp_dtype dtype = dtypes[k];
        qwen3_swiglu(dtype, N, gate, up, act);
        qwen3_swiglu_backward(dtype, N, gate, up, d, again, d_gate, d_up);
        assert_memory_equal(act, again, N * hp_dtype_size(dtype));
        for (size_t i = 0; i < N; i++) {
            const float s = 1.0F / (1.0F + qwen3_exp(-gate[i])), silu = gate[i] * s;
            float want[3];
            put(dtype, want, 0, silu * up[i]);
            put(dtype, want + 1, 0, d[i] * up[i] * (s + silu * (1.0F - s)));
            put(dtype, want + 2, 0, d[i] * silu);
            assert_true(get(dtype, act, i) == get(dtype, want, 0));
            assert_true(get(dtype, d_gate, i) == get(dtype, want + 1, 0));
            assert_true(get(dtype, d_up, i) == get(dtype, want + 2, 0));
        }
    }
    assert_true(get(HP_BF16, act, 0) == 0.0F && get(HP_BF16, d_gate, 0) == 0.0F);
}

/* ---- cross-entropy ---- */

static double exact_lse(const float *row, size_t n) {
    double most = (double)row[0], sum = 0;
    for (size_t j = 1; j < n; j++)
        most = fmax(most, (double)row[j]);
    for (size_t j = 0; j < n; j++)
        sum += exp((double)row[j] - most);
    return most + log(sum);
}

/* Rows of `vocab` logits, every third one without a target. */
static void check_cross_entropy(size_t vocab, float amplitude) {
    enum { N = 5 };
    const float weight = 0.125F;
    float *logits = calloc(N * vocab, sizeof *logits), *narrow = calloc(N * vocab, sizeof *narrow);
    assert_true(logits && narrow);
    int32_t targets[N];
    qwen3_softmax rows[N];
    double want = 0;
    fill(logits, N * vocab, amplitude, vocab);
    memcpy(narrow, logits, N * vocab * sizeof *logits);
    for (size_t i = 0; i < N; i++) {
        targets[i] = i % 3 == 2 ? -100 : (int32_t)((i * 7919) % vocab);
        if (targets[i] >= 0)
            want += exact_lse(logits + i * vocab, vocab) -
                    (double)logits[i * vocab + (size_t)targets[i]];
    }
    assert_true(fabs(qwen3_cross_entropy(N, vocab, logits, targets, rows) - want) <
                2e-7 * (want + N));
    qwen3_cross_entropy_backward(HP_BF16, N, vocab, targets, rows, weight, narrow);
    for (size_t i = 0; i < N; i++) {
        const float *row = logits + i * vocab;
        const uint16_t *rounded = (const uint16_t *)(narrow + i * vocab);
        for (size_t j = 0; j < vocab; j++) {
            const bool is_target = (int32_t)j == targets[i];
            const float p =
                qwen3_exp(row[j] - rows[i].most - rows[i].log_sum) - (is_target ? 1.0F : 0.0F);
            assert_int_equal(rounded[j], targets[i] < 0 ? 0 : qwen3_fp32_to_bf16(p * weight));
        }
    }
    memcpy(narrow, logits, N * vocab * sizeof *logits);
    qwen3_cross_entropy_backward(HP_FP32, N, vocab, targets, rows, weight, logits);
    for (size_t i = 0; i < N; i++) {
        const double lse = exact_lse(narrow + i * vocab, vocab);
        for (size_t j = 0; j < vocab; j++) {
            const double p = exp((double)narrow[i * vocab + j] - lse);
            const double g = targets[i] < 0 ? 0 : p - ((int32_t)j == targets[i]);
            assert_true(fabs((double)logits[i * vocab + j] - g * (double)weight) < 1e-6);
        }
    }
    free(logits);
    free(narrow);
}

static void cross_entropy_agrees_with_fp64(void **state) {
    (void)state;
    static const size_t vocabularies[] = {1, 5, 16, 256, 257, 10007};
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        check_cross_entropy(vocabularies[i], 4);
        check_cross_entropy(vocabularies[i], 50);
    }
}

static void cross_entropy_is_stable(void **state) {
    (void)state;
    const int32_t target = 1;
    qwen3_softmax row;
    const float huge[3] = {3e38F, 3e38F, -3e38F};
    assert_true(fabs(qwen3_cross_entropy(1, 3, huge, &target, &row) - log(2)) < 1e-6);
    const float closed[3] = {-INFINITY, 2, 2}; /* a logit that was masked */
    assert_true(fabs(qwen3_cross_entropy(1, 3, closed, &target, &row) - log(2)) < 1e-6);
    const float unlikely[3] = {1000, 0, 0};
    assert_true(qwen3_cross_entropy(1, 3, unlikely, &target, &row) == 1000);
    const float broken[3] = {0, 1, NAN};
    assert_true(isnan(qwen3_cross_entropy(1, 3, broken, &target, &row)));
    assert_true(qwen3_cross_entropy(0, 3, broken, &target, &row) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_exponential_is_within_an_ulp),
        cmocka_unit_test(bf16_is_rounded_to_nearest_even),
        cmocka_unit_test(norms_have_the_bits_of_plain_loops),
        cmocka_unit_test(turned_heads_have_the_bits_of_plain_loops),
        cmocka_unit_test(swiglu_has_the_bits_of_plain_loops),
        cmocka_unit_test(cross_entropy_agrees_with_fp64),
        cmocka_unit_test(cross_entropy_is_stable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
