/* SPDX-License-Identifier: Apache-2.0
 *
 * test_convert.c - hp_convert between fp64, fp32, fp16 and bf16.
 *
 * Over every fp16 and bf16 value and over fp64 and fp32 values next to the ties, against a
 * reference that compares distances; in place both ways; and what it refuses, with nothing touched.
 */
#include "base/base.h"
#include "support/oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_BF16 = 65536, N_WIDE = 20000 };

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
    assert_int_equal(hp_convert(in, HP_BF16, f, HP_FP32, N_BF16), HP_OK);
    assert_int_equal(hp_convert(in, HP_BF16, d, HP_FP64, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++) {
        const float expected = oracle_from_bf16((uint16_t)i);
        assert_true(isnan(expected) ? isnan(f[i]) && isnan(d[i])
                                    : memcmp(&f[i], &expected, 4) == 0 && d[i] == (double)expected);
    }
    assert_int_equal(hp_convert(f, HP_FP32, back, HP_BF16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_bf16(back[i], in[i]);
    assert_int_equal(hp_convert(d, HP_FP64, back, HP_BF16, N_BF16), HP_OK);
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
        assert_int_equal(hp_convert(values, HP_FP64, got, HP_BF16, 5), HP_OK);
        for (int i = 0; i < 5; i++)
            if ((h & 0x7fff) < 0x7f7f) /* above, the next one is an infinity */
                check_bf16(got[i], nearest_bf16(values[i]));
        float narrow[5];
        assert_int_equal(hp_convert(values, HP_FP64, narrow, HP_FP32, 5), HP_OK);
        for (int i = 0; i < 5; i++)
            assert_true(narrow[i] == (float)values[i]);
        assert_int_equal(hp_convert(narrow, HP_FP32, got, HP_BF16, 5), HP_OK);
        for (int i = 0; i < 5; i++)
            check_bf16(got[i], oracle_to_bf16(narrow[i]));
    }
}

/* ---- fp16 ---- */

static void check_fp16(double value, uint16_t got, uint16_t expected) {
    uint64_t first;
    if (!oracle_same(HP_FP16, &got, &expected, 1, &first))
        fail_msg("of %a expected %04x, got %04x", value, expected, got);
}

/* fp64 to fp16: no double rounding, because oracle_round is exact in fp64. */
static uint16_t nearest_fp16(double d) {
    const double rounded = oracle_round(d, 10, 15); /* an fp32 as long as fp16 can tell */
    return oracle_to_fp16((float)fmin(fmax(rounded, -0x1p17), 0x1p17));
}

static void test_every_fp16(void **state) {
    static uint16_t in[N_BF16], back[N_BF16];
    static float f[N_BF16];
    static double d[N_BF16];
    (void)state;
    for (int i = 0; i < N_BF16; i++)
        in[i] = (uint16_t)i;
    assert_int_equal(hp_convert(in, HP_FP16, f, HP_FP32, N_BF16), HP_OK);
    assert_int_equal(hp_convert(in, HP_FP16, d, HP_FP64, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++) {
        const float expected = oracle_from_fp16((uint16_t)i);
        assert_true(isnan(expected) ? isnan(f[i]) && isnan(d[i])
                                    : memcmp(&f[i], &expected, 4) == 0 && d[i] == (double)expected);
#ifdef __FLT16_MAX__
        _Float16 h;
        memcpy(&h, &in[i], sizeof h);
        assert_true(isnan(expected) || (float)h == f[i]);
#endif
    }
    assert_int_equal(hp_convert(f, HP_FP32, back, HP_FP16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_fp16(d[i], back[i], in[i]);
    assert_int_equal(hp_convert(d, HP_FP64, back, HP_FP16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_fp16(d[i], back[i], in[i]);
    /* Among the halves: as through fp32. */
    static uint16_t other[N_BF16];
    assert_int_equal(hp_convert(in, HP_FP16, other, HP_BF16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_bf16(other[i], oracle_to_bf16(f[i]));
    assert_int_equal(hp_convert(in, HP_BF16, other, HP_FP16, N_BF16), HP_OK);
    for (int i = 0; i < N_BF16; i++)
        check_fp16(i, other[i], oracle_to_fp16(oracle_from_bf16((uint16_t)i)));
}

/* The tie above every finite fp16, infinity's included, and its neighbours in fp64 and fp32. */
static void test_ties_of_fp16(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7c00; h++) {
        const double here = (double)oracle_from_fp16(h);
        const double above = h == 0x7bff ? 65536 : (double)oracle_from_fp16((uint16_t)(h + 1));
        const double tie = (here + above) / 2;
        const float tie32 = (float)tie; /* exact */
        const double values[] = {tie,
                                 nextafter(tie, INFINITY),
                                 nextafter(tie, 0),
                                 (double)nextafterf(tie32, INFINITY),
                                 (double)nextafterf(tie32, 0),
                                 -tie,
                                 -nextafter(tie, INFINITY),
                                 -nextafter(tie, 0)};
        uint16_t got[8];
        float narrow[8];
        assert_int_equal(hp_convert(values, HP_FP64, got, HP_FP16, 8), HP_OK);
        for (int i = 0; i < 8; i++)
            check_fp16(values[i], got[i], nearest_fp16(values[i]));
        assert_int_equal(hp_convert(values, HP_FP64, narrow, HP_FP32, 8), HP_OK);
        assert_int_equal(hp_convert(narrow, HP_FP32, got, HP_FP16, 8), HP_OK);
        for (int i = 0; i < 8; i++) {
            check_fp16((double)narrow[i], got[i], oracle_to_fp16(narrow[i]));
#ifdef __FLT16_MAX__
            const _Float16 compiled = (_Float16)narrow[i];
            uint16_t bits;
            memcpy(&bits, &compiled, sizeof bits);
            check_fp16((double)narrow[i], got[i], bits);
#endif
        }
    }
}

/* What lies far outside: the extremes of fp64 and fp32, and all magnitudes of fp32 between. */
static void test_fp16_of_any_magnitude(void **state) {
    const double extremes[] = {
        0x1p-1074, -0x1p-1074, 0x1.fffffffffffffp1023, -0x1p1000, INFINITY, -INFINITY, NAN, -0.0};
    const uint16_t expected[] = {0, 0x8000, 0x7c00, 0xfc00, 0x7c00, 0xfc00, 0x7e00, 0x8000};
    uint16_t got[8];
    (void)state;
    assert_int_equal(hp_convert(extremes, HP_FP64, got, HP_FP16, 8), HP_OK);
    for (int i = 0; i < 8; i++)
        check_fp16(extremes[i], got[i], expected[i]);
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 65521 / 8) {
        const uint32_t narrow = (uint32_t)bits;
        float f;
        memcpy(&f, &narrow, sizeof f);
        assert_int_equal(hp_convert(&f, HP_FP32, got, HP_FP16, 1), HP_OK);
        check_fp16((double)f, got[0], oracle_to_fp16(f));
    }
}

static void test_convert_in_place(void **state) {
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_FP16, HP_BF16};
    static unsigned char data[N_WIDE * 8], apart[N_WIDE * 8];
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            oracle_fill(dtypes[i], data, N_WIDE, (uint64_t)(i * 3 + k));
            assert_int_equal(hp_convert(data, dtypes[i], apart, dtypes[k], N_WIDE), HP_OK);
            assert_int_equal(hp_convert(data, dtypes[i], data, dtypes[k], N_WIDE), HP_OK);
            assert_memory_equal(data, apart, N_WIDE * hp_dtype_size(dtypes[k]));
        }
}

static void test_odd_addresses_and_copies(void **state) {
    static unsigned char in[9 * 8 + 1], out[9 * 8 + 3];
    double wide[9];
    float narrow[9];
    (void)state;
    for (int i = 0; i < 9; i++)
        wide[i] = i / 3.0;
    memcpy(in + 1, wide, sizeof wide);
    assert_int_equal(hp_convert(in + 1, HP_FP64, out + 3, HP_FP32, 9), HP_OK);
    memcpy(narrow, out + 3, sizeof narrow);
    for (int i = 0; i < 9; i++)
        assert_true(narrow[i] == (float)wide[i]);
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++) { /* any to itself */
        memset(out, 0, sizeof out);
        assert_int_equal(hp_convert(in + 1, dtype, out, dtype, 8), HP_OK);
        assert_memory_equal(out, in + 1, 8 * hp_dtype_size(dtype));
        assert_int_equal(out[8 * hp_dtype_size(dtype)], 0);
        assert_int_equal(hp_convert(out, dtype, out, dtype, 8), HP_OK);
    }
}

static void refused(hp_status status, const char *part, const void *in, hp_dtype in_dtype,
                    void *out, hp_dtype out_dtype, uint64_t count) {
    assert_int_equal(hp_convert(in, in_dtype, out, out_dtype, count), status);
    if (!strstr(hp_last_error(), part))
        fail_msg("expected \"%s\" in \"%s\"", part, hp_last_error());
}

static void test_refusals(void **state) {
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, before[8];
    uint16_t h[8] = {0};
    (void)state;
    memcpy(before, a, sizeof a);
    refused(HP_ERR_UNSUPPORTED, "given int8 to fp32", h, HP_INT8, a, HP_FP32, 8);
    refused(HP_ERR_UNSUPPORTED, "given int64 to fp64", h, HP_INT64, a, HP_FP64, 1);
    refused(HP_ERR_ARGUMENT, "given 8 and 1", h, (hp_dtype)8, a, HP_FP32, 8);
    refused(HP_ERR_ARGUMENT, "given 1 and -1", h, HP_FP32, a, (hp_dtype)-1, 8);
    refused(HP_ERR_ARGUMENT, "given NULL", NULL, HP_BF16, a, HP_FP32, 8);
    refused(HP_ERR_ARGUMENT, "given NULL", h, HP_BF16, NULL, HP_FP32, 8);
    refused(HP_ERR_ARGUMENT, "fit in memory", h, HP_BF16, a, HP_FP32, UINT64_MAX / 2);
    assert_memory_equal(a, before, sizeof a);
    assert_int_equal(hp_convert(NULL, HP_BF16, NULL, HP_FP32, 0), HP_OK); /* nothing to do */
}

/* Four fp32 take 16 bytes, four bf16 take 8: in front of the other, behind it, and just apart. */
static void test_overlaps(void **state) {
    unsigned char bytes[64] = {0};
    (void)state;
    refused(HP_ERR_ARGUMENT, "16 and 8 bytes", bytes, HP_FP32, bytes + 15, HP_BF16, 4);
    refused(HP_ERR_ARGUMENT, "16 and 8 bytes", bytes + 7, HP_FP32, bytes, HP_BF16, 4);
    refused(HP_ERR_ARGUMENT, "16 and 16 bytes", bytes + 1, HP_FP32, bytes, HP_FP32, 4);
    assert_int_equal(hp_convert(bytes, HP_FP32, bytes + 16, HP_BF16, 4), HP_OK);
    assert_int_equal(hp_convert(bytes + 8, HP_FP32, bytes, HP_BF16, 4), HP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_every_fp16),
        cmocka_unit_test(test_ties_of_fp16),
        cmocka_unit_test(test_fp16_of_any_magnitude),
        cmocka_unit_test(test_convert_in_place),
        cmocka_unit_test(test_odd_addresses_and_copies),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
