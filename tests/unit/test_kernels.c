/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kernels.c - conversions and the tree sum, without ranks.
 *
 * Conversions over every bf16 value and over fp64 and fp32 values next to the ties, against a
 * reference that compares distances; in place both ways. The tree for up to 40 inputs, so that
 * every shape of its recursion is met, at odd addresses and with every remainder of a vector.
 */
#include "coll/coll.h"
#include "coll/kernels.h"
#include "support/oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_BF16 = 65536, N_WIDE = 20000 };

/* ---- conversions ---- */

/* fp64 to bf16 by distances; exact in long double, whose 64-bit significand holds all of them. */
static uint16_t nearest_bf16(double d) {
    uint16_t h = oracle_to_bf16((float)d); /* at most a step off */
    if (isnan(d) || isinf(oracle_from_bf16(h)))
        return h;
    uint16_t best = h;
    for (int step = -1; step <= 1; step++) {
        const uint16_t c = (uint16_t)(h + step);
        if ((c ^ h) & 0x8000 || isnan(oracle_from_bf16(c)))
            continue;
        const long double far = fabsl((long double)d - (long double)oracle_from_bf16(c));
        const long double near = fabsl((long double)d - (long double)oracle_from_bf16(best));
        if (far < near || (far == near && c % 2 == 0))
            best = c;
    }
    return best;
}

static void check_bf16(uint16_t got, uint16_t expected) {
    uint64_t first;
    if (!oracle_same(HP_BF16, &got, &expected, 1, &first))
        fail_msg("expected %04x, got %04x", expected, got);
}

static void test_every_bf16(void **state) {
    static uint16_t in[N_BF16], back[N_BF16];
    static float f[N_BF16];
    static double d[N_BF16];
    (void)state;
    for (int i = 0; i < N_BF16; i++)
        in[i] = (uint16_t)i;
    assert_int_equal(hpi_convert(in, HP_BF16, f, HP_FP32, N_BF16), HP_OK);
    assert_int_equal(hpi_convert(in, HP_BF16, d, HP_FP64, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++) {
        const float expected = oracle_from_bf16((uint16_t)i);
        assert_true(isnan(expected) ? isnan(f[i]) && isnan(d[i])
                                    : memcmp(&f[i], &expected, 4) == 0 && d[i] == (double)expected);
    }
    assert_int_equal(hpi_convert(f, HP_FP32, back, HP_BF16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_bf16(back[i], in[i]);
    assert_int_equal(hpi_convert(d, HP_FP64, back, HP_BF16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_bf16(back[i], in[i]);
}

/* The tie above every finite bf16, and its neighbours in fp64 and in fp32. */
static void test_ties(void **state) {
    (void)state;
    for (uint32_t h = 0; h < N_BF16; h++) {
        const uint32_t bits = h << 16 | 0x8000U;
        float tie;
        memcpy(&tie, &bits, sizeof tie);
        if ((h & 0x7fff) >= 0x7f80)
            continue;
        const double values[] = {tie, nextafter(tie, INFINITY), nextafter(tie, -INFINITY),
                                 nextafterf(tie, INFINITY), nextafterf(tie, -INFINITY)};
        uint16_t got[5];
        assert_int_equal(hpi_convert(values, HP_FP64, got, HP_BF16, 5), HP_OK);
        for (int i = 0; i < 5; i++)
            if ((h & 0x7fff) < 0x7f7f) /* above, the next one is an infinity */
                check_bf16(got[i], nearest_bf16(values[i]));
        float narrow[5];
        assert_int_equal(hpi_convert(values, HP_FP64, narrow, HP_FP32, 5), HP_OK);
        for (int i = 0; i < 5; i++)
            assert_true(narrow[i] == (float)values[i]);
        assert_int_equal(hpi_convert(narrow, HP_FP32, got, HP_BF16, 5), HP_OK);
        for (int i = 0; i < 5; i++)
            check_bf16(got[i], oracle_to_bf16(narrow[i]));
    }
}

static void test_convert_in_place(void **state) {
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_BF16};
    static unsigned char data[N_WIDE * 8], apart[N_WIDE * 8];
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            oracle_fill(dtypes[i], data, N_WIDE, (uint64_t)(i * 3 + k));
            assert_int_equal(hpi_convert(data, dtypes[i], apart, dtypes[k], N_WIDE), HP_OK);
            assert_int_equal(hpi_convert(data, dtypes[i], data, dtypes[k], N_WIDE), HP_OK);
            assert_memory_equal(data, apart, N_WIDE * hp_dtype_size(dtypes[k]));
        }
}

static void test_convert_refuses(void **state) {
    uint64_t a = 1, b = 2;
    (void)state;
    assert_int_equal(hpi_convert(&a, HP_FP16, &b, HP_FP32, 1), HP_ERR_UNSUPPORTED);
    assert_non_null(strstr(hp_last_error(), "fp16"));
    assert_int_equal(hpi_convert(&a, HP_INT64, &b, HP_FP64, 1), HP_ERR_UNSUPPORTED);
    assert_int_equal(hpi_convert(&a, HP_INT64, &b, HP_INT64, 1), HP_OK);
    assert_int_equal(b, 1);
}

/* ---- the tree ---- */

enum { MOST_INPUTS = 40, MOST_COUNT = 150 };

static void check_tree(hp_dtype dtype, hp_dtype out_dtype, hp_reduce op, int n, uint64_t count,
                       unsigned char *scratch) {
    static unsigned char data[MOST_INPUTS][MOST_COUNT * 8 + 16], expected[MOST_COUNT * 8];
    const void *in[MOST_INPUTS];
    uint64_t first = 0;
    for (int i = 0; i < n; i++) {
        in[i] = data[i] + i % 9;
        oracle_fill(dtype, data[i] + i % 9, count, (uint64_t)(n * 100 + i) * 256 + count);
    }
    const hpi_reduction r = {hpi_kernel_of(dtype), dtype, out_dtype, op, n, scratch};
    const void *got = hpi_reduce_chunk(&r, in, count);
    oracle_reduce(dtype, out_dtype, op, in, n, expected, count);
    if (!oracle_same(out_dtype, got, expected, count, &first))
        fail_msg("%s of %d x %llu %s to %s is wrong at %llu", op == HP_SUM ? "sum" : "op", n,
                 (unsigned long long)count, hp_dtype_name(dtype), hp_dtype_name(out_dtype),
                 (unsigned long long)first);
}

static void test_tree(void **state) {
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_BF16, HP_INT64};
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(MOST_INPUTS));
    (void)state;
    assert_non_null(scratch);
    for (int n = 1; n <= MOST_INPUTS; n++)
        for (int i = 0; i < 4; i++)
            for (hp_reduce op = HP_SUM; op <= HP_MIN; op++) {
                const uint64_t count = 1 + (uint64_t)(n * 37 + i * 11 + (int)op) % MOST_COUNT;
                if (op == HP_AVG && dtypes[i] == HP_INT64)
                    continue;
                check_tree(dtypes[i], dtypes[i], op, n, count, scratch);
                check_tree(dtypes[i], hpi_sum_dtype(dtypes[i]), op, n, count, scratch);
            }
    hpi_free(scratch);
}

/* Every special value against every other: NaN, the infinities, both zeros, denormals, numbers. */
static void test_special_pairs(void **state) {
    static const double values[] = {NAN,      INFINITY,  -INFINITY, 0.0, -0.0,
                                    0x1p-130, -0x1p-130, 2,         -2};
    enum { N = sizeof values / sizeof *values };
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_BF16};
    double pairs[2][N * N];
    unsigned char data[2][N * N * 8], expected[N * N * 8];
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(2));
    const void *in[2] = {data[0], data[1]};
    uint64_t first;
    (void)state;
    for (int i = 0; i < N * N; i++) {
        pairs[0][i] = values[i / N];
        pairs[1][i] = values[i % N];
    }
    for (int d = 0; d < 3; d++) {
        for (int k = 0; k < 2; k++)
            assert_int_equal(hpi_convert(pairs[k], HP_FP64, data[k], dtypes[d], N * N), HP_OK);
        for (hp_reduce op = HP_SUM; op <= HP_MIN; op++) {
            const hpi_reduction r = {
                hpi_kernel_of(dtypes[d]), dtypes[d], dtypes[d], op, 2, scratch};
            const void *got = hpi_reduce_chunk(&r, in, N * N);
            oracle_reduce(dtypes[d], dtypes[d], op, in, 2, expected, N * N);
            assert_true(oracle_same(dtypes[d], got, expected, N * N, &first));
        }
    }
    hpi_free(scratch);
}

static void test_table(void **state) {
    (void)state;
    assert_null(hpi_kernel_of(HP_FP16));
    assert_null(hpi_kernel_of(HP_INT8));
    assert_null(hpi_kernel_of((hp_dtype)99));
    assert_non_null(hpi_kernel_of(HP_INT64));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_convert_in_place),
        cmocka_unit_test(test_convert_refuses),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_special_pairs),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
