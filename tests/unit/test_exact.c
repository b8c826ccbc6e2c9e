/* SPDX-License-Identifier: Apache-2.0
 *
 * test_exact.c - the sums behind clipping: the same integer in any order and cut, and the right
 * norm.
 *
 * The oracle is a plain sum in long double (64 bits of mantissa), whose error is far below the
 * fp64 result's half an ulp for the sizes used here.
 */
#include "fsdp/optimize/exact.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 5003 };

static float narrow[N];
static double wide[N];

/* Magnitudes over many powers of two, both signs, some zeros. */
static void fill(uint64_t seed, int spread) {
    for (int i = 0; i < N; i++) {
        const int exponent = (int)(hpi_random_next(&seed) % (uint64_t)(2 * spread)) - spread;
        const double value = ldexp(hpi_random_unit(&seed) - 0.5, exponent);
        narrow[i] = i % 97 ? (float)value : 0.0F;
        wide[i] = i % 97 ? value : -0.0;
    }
}

static void reverse(void) {
    for (int i = 0; i < N / 2; i++) {
        const float f = narrow[i];
        narrow[i] = narrow[N - 1 - i];
        narrow[N - 1 - i] = f;
        const double d = wide[i];
        wide[i] = wide[N - 1 - i];
        wide[N - 1 - i] = d;
    }
}

static double largest_of(const void *values, hp_dtype dtype, uint64_t n) {
    const uint64_t bits = hpi_exact_largest(values, dtype, n);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The sum over cuts at multiples of `step`, as if so many ranks held a piece each. */
static hpi_int128 sum_in_pieces(const void *values, hp_dtype dtype, uint64_t step, int power,
                                int e) {
    hpi_int128 sum = 0;
    for (uint64_t i = 0; i < N; i += step)
        hpi_exact_add((const char *)values + i * hp_dtype_size(dtype), dtype, hpi_min(step, N - i),
                      power, e, &sum);
    return sum;
}

static double norm_of(const void *values, hp_dtype dtype, int power) {
    const int e = hpi_exact_exponent(largest_of(values, dtype, N));
    return hpi_exact_norm(sum_in_pieces(values, dtype, N, power, e), power, e);
}

static void sums_do_not_depend_on_order_or_cuts(void **state) {
    (void)state;
    static const uint64_t steps[] = {1, 3, 8, 100, 1024, 1025, 4999, N};
    for (uint64_t seed = 1; seed <= 3; seed++)
        for (int power = 1; power <= 2; power++) {
            fill(seed, seed == 1 ? 1 : 40);
            const int e = hpi_exact_exponent(largest_of(wide, HP_FP64, N));
            const hpi_int128 whole32 = sum_in_pieces(narrow, HP_FP32, N, power, e);
            const hpi_int128 whole64 = sum_in_pieces(wide, HP_FP64, N, power, e);
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                assert_true(sum_in_pieces(narrow, HP_FP32, steps[s], power, e) == whole32);
                assert_true(sum_in_pieces(wide, HP_FP64, steps[s], power, e) == whole64);
            }
            reverse();
            assert_true(sum_in_pieces(narrow, HP_FP32, N, power, e) == whole32);
            assert_true(sum_in_pieces(wide, HP_FP64, N, power, e) == whole64);
        }
}

static void assert_close(double value, long double expected) {
    assert_true(fabsl(value - expected) <=
                2.0L * (long double)(nextafter(value, INFINITY) - value));
}

static void norms_are_right(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        long double ones[2] = {0}, squares[2] = {0};
        fill(seed, (int)seed);
        for (int i = 0; i < N; i++) {
            ones[0] += fabsl((long double)narrow[i]);
            squares[0] += (long double)narrow[i] * narrow[i];
            ones[1] += fabsl((long double)wide[i]);
            squares[1] += (long double)wide[i] * wide[i];
        }
        assert_close(norm_of(narrow, HP_FP32, 1), ones[0]);
        assert_close(norm_of(narrow, HP_FP32, 2), sqrtl(squares[0]));
        assert_close(norm_of(wide, HP_FP64, 1), ones[1]);
        assert_close(norm_of(wide, HP_FP64, 2), sqrtl(squares[1]));
    }
}

/* Whole numbers have exact answers. */
static void whole_numbers_are_exact(void **state) {
    (void)state;
    memset(narrow, 0, sizeof narrow);
    narrow[0] = 3;
    narrow[N - 1] = -4;
    assert_true(norm_of(narrow, HP_FP32, 2) == 5);
    assert_true(norm_of(narrow, HP_FP32, 1) == 7);
    for (int i = 0; i < N; i++)
        narrow[i] = i % 2 ? 3.0F : -3.0F;
    assert_true(norm_of(narrow, HP_FP32, 1) == 3.0 * N);
}

/* Numbers at both ends of each type, where a single power of two would overflow. */
static void extremes_keep_their_scale(void **state) {
    (void)state;
    static const double ends[] = {0x1p-1074, 0x1.8p-1070, 0x1p-1022,
                                  0x1p-600,  0x1p+1000,   0x1p+1022};
    memset(wide, 0, sizeof wide);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        for (int k = 0; k < 4; k++)
            wide[1000 * k + 7] = k % 2 ? ends[i] : -ends[i];
        assert_true(norm_of(wide, HP_FP64, 2) == 2 * ends[i]);
        assert_true(norm_of(wide, HP_FP64, 1) == (ends[i] > 0x1p+1021 ? INFINITY : 4 * ends[i]));
    }
    memset(narrow, 0, sizeof narrow);
    narrow[5] = narrow[6] = narrow[7] = narrow[8] = 0x1p-149F;
    assert_true(norm_of(narrow, HP_FP32, 2) == 0x1p-148);
    narrow[5] = narrow[6] = narrow[7] = narrow[8] = 0x1p+127F;
    assert_true(norm_of(narrow, HP_FP32, 2) == 0x1p+128);
}

static void the_largest_orders_nan_above_infinity(void **state) {
    (void)state;
    fill(3, 10);
    assert_true(hpi_exact_largest(NULL, HP_FP32, 0) == 0);
    narrow[17] = -INFINITY;
    wide[17] = -INFINITY;
    assert_true(isinf(largest_of(narrow, HP_FP32, N)));
    assert_true(isinf(largest_of(wide, HP_FP64, N)));
    narrow[N - 1] = -NAN;
    wide[0] = NAN;
    assert_true(isnan(largest_of(narrow, HP_FP32, N)));
    assert_true(isnan(largest_of(wide, HP_FP64, N)));
    const double infinite = INFINITY;
    uint64_t bits;
    memcpy(&bits, &infinite, sizeof bits);
    assert_true(hpi_exact_largest(narrow, HP_FP32, N) > bits);
    for (int i = 0; i < 64; i++) { /* wherever it stands */
        const double expected = 2.0 + i;
        float few[64] = {0};
        few[i] = (float)-expected;
        assert_true(largest_of(few, HP_FP32, 64) == expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_do_not_depend_on_order_or_cuts),
        cmocka_unit_test(norms_are_right),
        cmocka_unit_test(whole_numbers_are_exact),
        cmocka_unit_test(extremes_keep_their_scale),
        cmocka_unit_test(the_largest_orders_nan_above_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
