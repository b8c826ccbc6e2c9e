/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kernels.c - the tree sum, without ranks.
 *
 * The tree for up to 40 inputs, so that every shape of its recursion is met, at odd addresses and
 * with every remainder of a vector.
 */
#include "coll/coll.h"
#include "coll/kernels/kernels.h"
#include "support/oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

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
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(MOST_INPUTS));
    (void)state;
    assert_non_null(scratch);
    for (int n = 1; n <= MOST_INPUTS; n++)
        for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
            for (hp_reduce op = HP_SUM; op <= HP_MIN; op++) {
                const uint64_t count =
                    1 + (uint64_t)(n * 37 + (int)dtype * 11 + (int)op) % MOST_COUNT;
                if (op == HP_AVG && !hpi_dtype_is_float(dtype))
                    continue;
                check_tree(dtype, dtype, op, n, count, scratch);
                check_tree(dtype, hpi_sum_dtype(dtype), op, n, count, scratch);
            }
    hpi_free(scratch);
}

/* Every dtype and op over every number of elements up to a few vectors, for 1 to 9 inputs. */
static void test_every_remainder(void **state) {
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(9));
    (void)state;
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        for (hp_reduce op = HP_SUM; op <= HP_MIN; op++)
            for (int n = 1; n <= 9; n++)
                for (uint64_t count = 1; count <= 70; count += count < 34 ? 1 : 6)
                    if (op != HP_AVG || hpi_dtype_is_float(dtype))
                        check_tree(dtype, dtype, op, n, count, scratch);
    hpi_free(scratch);
}

/* What a pair of one integer type gives, as 64 bits of which the type keeps its own. */
static int64_t reduce_pair(hp_dtype dtype, hp_reduce op, int64_t a, int64_t b,
                           unsigned char *scratch) {
    const void *in[2] = {&a, &b};
    const hpi_reduction r = {hpi_kernel_of(dtype), dtype, dtype, op, 2, scratch};
    int64_t result = 0;
    memcpy(&result, hpi_reduce_chunk(&r, in, 1), hp_dtype_size(dtype));
    return result;
}

static void test_integers_wrap_and_compare_by_sign(void **state) {
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(2));
    (void)state;
    assert_int_equal(reduce_pair(HP_INT8, HP_SUM, 127, 1, scratch), 0x80);
    assert_int_equal(reduce_pair(HP_UINT8, HP_SUM, 255, 2, scratch), 1);
    assert_int_equal(reduce_pair(HP_INT32, HP_SUM, INT32_MAX, 1, scratch), 0x80000000);
    assert_true(reduce_pair(HP_INT64, HP_SUM, INT64_MAX, 1, scratch) == INT64_MIN);
    assert_int_equal(reduce_pair(HP_INT8, HP_MAX, -1, 1, scratch), 1);
    assert_int_equal(reduce_pair(HP_INT8, HP_MIN, -128, 127, scratch), 0x80);
    assert_int_equal(reduce_pair(HP_UINT8, HP_MAX, 255, 1, scratch), 255);
    assert_int_equal(reduce_pair(HP_UINT8, HP_MIN, 255, 1, scratch), 1);
    assert_int_equal(reduce_pair(HP_INT32, HP_MAX, -1, 1, scratch), 1);
    assert_int_equal(reduce_pair(HP_INT32, HP_MIN, INT32_MIN, 1, scratch), 0x80000000);
    hpi_free(scratch);
}

/* 8 x 65504 overflows fp16 and its mean does not: sums run in fp32. */
static void test_a_mean_of_fp16_does_not_overflow(void **state) {
    const uint16_t most = 0x7bff;
    const void *in[8];
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(8));
    hpi_reduction r = {hpi_kernel_of(HP_FP16), HP_FP16, HP_FP16, HP_AVG, 8, scratch};
    uint16_t got;
    (void)state;
    for (int i = 0; i < 8; i++)
        in[i] = &most;
    memcpy(&got, hpi_reduce_chunk(&r, in, 1), sizeof got);
    assert_int_equal(got, most);
    r.op = HP_SUM;
    memcpy(&got, hpi_reduce_chunk(&r, in, 1), sizeof got);
    assert_int_equal(got, 0x7c00);
    hpi_free(scratch);
}

/* Every special value against every other: NaN, the infinities, both zeros, denormals, numbers. */
static void test_special_pairs(void **state) {
    static const double values[] = {NAN,       INFINITY, -INFINITY, 0.0, -0.0, 0x1p-130,
                                    -0x1p-130, 0x1p-20,  -0x1p-20,  2,   -2};
    enum { N = sizeof values / sizeof *values };
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_FP16, HP_BF16};
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
    for (int d = 0; d < 4; d++) {
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
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        assert_non_null(hpi_kernel_of(dtype));
    assert_null(hpi_kernel_of((hp_dtype)(HP_UINT8 + 1)));
    assert_null(hpi_kernel_of((hp_dtype)-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_every_remainder),
        cmocka_unit_test(test_special_pairs),
        cmocka_unit_test(test_integers_wrap_and_compare_by_sign),
        cmocka_unit_test(test_a_mean_of_fp16_does_not_overflow),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
