/* SPDX-License-Identifier: Apache-2.0
 *
 * test_floats.c - fp16, to and from the other floats, rounded once, over every value it has.
 *
 * What is right is said by weights_round_to, in double arithmetic, and by the definition of fp16.
 */
#include "base/base.h"
#include "unit/weights_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_HALVES = 65536 };
static uint16_t halves[N_HALVES];

static int make_halves(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_HALVES; i++)
        halves[i] = (uint16_t)i;
    return 0;
}

static void every_fp16_is_widened(void **state) {
    (void)state;
    static const hp_dtype to[] = {HP_FP32, HP_FP64, HP_BF16, HP_FP16};
    double *out = calloc(N_HALVES, sizeof *out);
    assert_non_null(out);
    for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
        assert_int_equal(hpi_convert(halves, HP_FP16, out, to[k], N_HALVES), HP_OK);
        for (uint32_t i = 0; i < N_HALVES; i++)
            assert_true(weights_same(weights_round(weights_read(halves, HP_FP16, i), to[k]),
                                     weights_read(out, to[k], i)));
    }
    free(out);
}

/* n values of `from`, which must become fp16 by rounding once. */
static void check_narrowed(const void *values, hp_dtype from, uint64_t n) {
    uint16_t *out = calloc(n, sizeof *out);
    assert_non_null(out);
    assert_int_equal(hpi_convert(values, from, out, HP_FP16, n), HP_OK);
    for (uint64_t i = 0; i < n; i++) {
        const double value = weights_read(values, from, i);
        if (!weights_same(weights_round(value, HP_FP16), weights_read(out, HP_FP16, i)))
            fail_msg("%a became %a", value, weights_read(out, HP_FP16, i));
    }
    free(out);
}

/* Each fp16, each middle between two, and the nearest numbers on both sides of these. */
static void fp16_is_rounded_to_nearest_even(void **state) {
    (void)state;
    enum { N = 6 * N_HALVES };
    float *singles = calloc(N, sizeof *singles);
    double *doubles = calloc(N, sizeof *doubles);
    assert_non_null(singles);
    assert_non_null(doubles);
    for (uint32_t i = 0; i < N_HALVES; i++) {
        const double at = weights_read(halves, HP_FP16, i);
        const double next = weights_read(halves, HP_FP16, (i + 1) % N_HALVES);
        const double middle = (at + next) / 2;
        const double places[] = {at, middle};
        for (int p = 0; p < 2; p++) {
            float *s = singles + 6 * i + 3 * p;
            double *d = doubles + 6 * i + 3 * p;
            s[0] = (float)places[p];
            s[1] = nextafterf(s[0], INFINITY);
            s[2] = nextafterf(s[0], -INFINITY);
            d[0] = places[p];
            d[1] = nextafter(d[0], (double)INFINITY); /* through fp32 it would become the tie */
            d[2] = nextafter(d[0], -(double)INFINITY);
        }
    }
    check_narrowed(singles, HP_FP32, N);
    check_narrowed(doubles, HP_FP64, N);
    free(doubles);
    free(singles);
}

static void every_bf16_is_narrowed(void **state) {
    (void)state;
    check_narrowed(halves, HP_BF16, N_HALVES);
}

static void far_ends_and_random_bits(void **state) {
    (void)state;
    enum { N = 100000 };
    static const double ends[] = {1e-300, -1e-300, 1e300,        -1e300, 0x1p-1074,
                                  -0.0,   0x1p-25, 0x1.0001p-25, 65520,  65519.999999999};
    check_narrowed(ends, HP_FP64, sizeof ends / sizeof *ends);
    uint64_t seed = 7, *bits = calloc(N, sizeof *bits);
    assert_non_null(bits);
    for (int i = 0; i < N; i++)
        bits[i] = hpi_random_next(&seed);
    check_narrowed(bits, HP_FP64, N);
    check_narrowed(bits, HP_FP32, N);
    for (int i = 0; i < N; i++) /* exponents around those of fp16 */
        bits[i] = (bits[i] & ~(UINT64_C(0x7ff) << 52)) | (990 + bits[i] % 60) << 52;
    check_narrowed(bits, HP_FP64, N);
    free(bits);
}

static void integers_are_refused(void **state) {
    (void)state;
    int64_t whole[2] = {1, 2}, copy[2];
    assert_int_equal(hpi_convert(whole, HP_INT64, copy, HP_FP16, 1), HP_ERR_UNSUPPORTED);
    assert_int_equal(hpi_convert(halves, HP_FP16, copy, HP_INT64, 1), HP_ERR_UNSUPPORTED);
    assert_int_equal(hpi_convert(whole, HP_INT64, copy, HP_INT64, 2), HP_OK);
    assert_memory_equal(whole, copy, sizeof whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp16_is_widened),  cmocka_unit_test(fp16_is_rounded_to_nearest_even),
        cmocka_unit_test(every_bf16_is_narrowed), cmocka_unit_test(far_ends_and_random_bits),
        cmocka_unit_test(integers_are_refused),
    };
    return cmocka_run_group_tests(tests, make_halves, NULL);
}
