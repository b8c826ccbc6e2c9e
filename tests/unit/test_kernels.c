/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kernels.c - the tree sum, without ranks.
 *
 * The tree for up to 40 inputs, so that every shape of its recursion is met, at odd addresses and
 * with every remainder of a vector.
 */
#include "coll/coll.h"
#include "coll/kernels.h"
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
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_special_pairs),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
