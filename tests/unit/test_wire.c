/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire.c - the formats of the wire, without ranks.
 *
 * fp8 over all 256 codes and over every tie between neighbours; blocks and their scales, with zero,
 * NaN, infinities, subnormals and the extremes of fp32, against the oracle bit for bit; the kernels
 * that sum encoded elements.
 */
#include "coll/staged/wire.h"
#include "support/oracle.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 1000 };
static const hp_wire wires[] = {HP_WIRE_FP16, HP_WIRE_BF16, HP_WIRE_FP8_E4M3, HP_WIRE_FP8_E5M2};

/* ---- single numbers of fp8 ---- */

typedef struct format {
    int n_bits, bias, n_finite; /* codes [0, n_finite) are numbers */
    uint8_t (*encode)(float f);
    float (*decode)(uint8_t code);
} format;
static const format formats[] = {{3, 7, 0x7f, hpi_fp32_to_e4m3, hpi_e4m3_to_fp32},
                                 {2, 15, 0x7c, hpi_fp32_to_e5m2, hpi_e5m2_to_fp32}};

/* The number that a code stands for, as if exponents had no upper end. */
static double value_of(const format *f, int code) {
    const int exponent = code >> f->n_bits, significand = code & ((1 << f->n_bits) - 1);
    const int implied = exponent ? 1 << f->n_bits : 0;
    return ldexp(implied + significand, (exponent ? exponent : 1) - f->bias - f->n_bits);
}

static void test_every_code(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int code = 0; code < 256; code++) {
            const format *f = &formats[i];
            const float got = f->decode((uint8_t)code);
            const int magnitude = code & 0x7f;
            const bool is_nan = magnitude > 0x7c || (i == 0 && magnitude == 0x7f);
            assert_int_equal(!!signbit(got), code >> 7);
            if (magnitude < f->n_finite)
                assert_true(fabs((double)got) == value_of(f, magnitude));
            else
                assert_true(i == 1 && magnitude == 0x7c ? isinf(got) : is_nan && isnan(got));
            if (!isnan(got))
                assert_int_equal(f->encode(got), code);
        }
    assert_true(value_of(&formats[0], 0x7e) == 448 && value_of(&formats[1], 0x7b) == 57344);
    assert_true(value_of(&formats[0], 1) == 0x1p-9 && value_of(&formats[1], 1) == 0x1p-16);
}

/* Above the last finite code the next value belongs to NaN (e4m3) or infinity (e5m2). */
static void test_every_tie(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int code = 0; code < formats[i].n_finite; code++) {
            const format *f = &formats[i];
            const float tie = (float)((value_of(f, code) + value_of(f, code + 1)) / 2);
            const int even = code % 2 ? code + 1 : code;
            assert_int_equal(f->encode(tie), even);
            assert_int_equal(f->encode(nextafterf(tie, 0)), code);
            assert_int_equal(f->encode(nextafterf(tie, INFINITY)), code + 1);
            assert_int_equal(f->encode(-tie), even | 0x80);
        }
}

static void test_what_fp8_cannot_hold(void **state) {
    const float beyond[] = {FLT_MAX, INFINITY, -INFINITY};
    (void)state;
    for (int k = 0; k < 3; k++) {
        assert_true(isnan(hpi_e4m3_to_fp32(hpi_fp32_to_e4m3(beyond[k]))));
        assert_true(hpi_e5m2_to_fp32(hpi_fp32_to_e5m2(beyond[k])) ==
                    (beyond[k] > 0 ? INFINITY : -INFINITY));
    }
    for (int i = 0; i < 2; i++) {
        assert_true(isnan(formats[i].decode(formats[i].encode(NAN))));
        assert_true(isnan(formats[i].decode(formats[i].encode(-NAN))));
        assert_int_equal(formats[i].encode(FLT_TRUE_MIN), 0);
        assert_int_equal(formats[i].encode(-0.0F), 0x80);
    }
}

/* ---- blocks ---- */

/* `count` elements there and back. */
static const float *through(hp_wire wire, hp_dtype dtype, const void *in, uint64_t count) {
    static unsigned char encoded[4 * MOST + 4], scratch[4 * HPI_CHUNK_BYTES];
    static float out[MOST];
    const hpi_kernel kernel = hpi_wire_kernel(wire);
    const hpi_reduction r = {&kernel, HP_FP32, HP_FP32, HP_SUM, 1, scratch};
    const void *rows[1] = {encoded};
    const uint64_t bytes = hpi_wire_bytes(wire, count);
    encoded[bytes] = 0x5a;
    hpi_wire_encode(wire, dtype, in, count, encoded);
    assert_int_equal(encoded[bytes], 0x5a);
    memcpy(out, hpi_reduce_chunk(&r, rows, count), count * sizeof *out);
    return out;
}

static void check_through(hp_wire wire, hp_dtype dtype, const void *in, uint64_t count) {
    static float expected[MOST];
    uint64_t first = 0;
    const float *got = through(wire, dtype, in, count);
    oracle_wire(wire, dtype, in, expected, count);
    if (!oracle_same(HP_FP32, got, expected, count, &first))
        fail_msg("wire %d of %llu %s: expected %a at %llu, got %a", (int)wire,
                 (unsigned long long)count, hp_dtype_name(dtype), (double)expected[first],
                 (unsigned long long)first, (double)got[first]);
}

static void test_blocks_of_any_data(void **state) {
    static const hp_dtype dtypes[] = {HP_FP32, HP_FP16, HP_BF16};
    static unsigned char data[MOST * 4 + 1];
    (void)state;
    for (int w = 0; w < 4; w++)
        for (int d = 0; d < 3; d++)
            for (uint64_t count = 1; count <= MOST; count += count < 140 ? 1 : 43) {
                oracle_fill(dtypes[d], data + count % 2, count, count * 12 + (uint64_t)(w * 3 + d));
                check_through(wires[w], dtypes[d], data + count % 2, count);
            }
}

/* Numbers around 2^exponent alone, over all exponents of fp32, at every place of a significand that
 * decides about the scale. */
static void test_scales_over_all_of_fp32(void **state) {
    static const double significands[] = {1, 1.5, 0x1.bfffffp0, 1.75, 0x1.c00002p0, 0x1.fffffep0};
    float block[HPI_FP8_BLOCK];
    (void)state;
    for (int exponent = -149; exponent <= 127; exponent++)
        for (int s = 0; s < 6; s++) {
            block[0] = (float)ldexp(significands[s], exponent);
            for (int k = 1; k < HPI_FP8_BLOCK; k++)
                block[k] =
                    (float)ldexp(k % 2 ? 1.0 + k / 128.0 : -1.0 - k / 200.0, exponent - k / 8);
            if (isfinite(block[0]))
                for (int w = 0; w < 4; w++)
                    check_through(wires[w], HP_FP32, block, HPI_FP8_BLOCK);
        }
}

static void test_blocks_without_a_finite_number(void **state) {
    float block[3][HPI_FP8_BLOCK];
    (void)state;
    for (int k = 0; k < HPI_FP8_BLOCK; k++) {
        block[0][k] = k % 2 ? -0.0F : 0.0F;
        block[1][k] = k % 2 ? -NAN : NAN;
        block[2][k] = k % 2 ? INFINITY : 0x1p-149F;
    }
    for (int i = 0; i < 3; i++)
        for (int w = 0; w < 4; w++)
            check_through(wires[w], HP_FP32, block[i], HPI_FP8_BLOCK);
}

/* What the format represents, under any power of two, stays exact. */
static void test_what_fp8_represents_is_exact(void **state) {
    static const hp_wire fp8[] = {HP_WIRE_FP8_E4M3, HP_WIRE_FP8_E5M2};
    float block[HPI_FP8_BLOCK];
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int scale = -149 + (i ? 16 : 9); scale <= (i ? 112 : 119); scale++) {
            for (int k = 0; k < HPI_FP8_BLOCK; k++)
                block[k] = (float)ldexp(value_of(&formats[i], k % formats[i].n_finite), scale);
            assert_memory_equal(through(fp8[i], HP_FP32, block, HPI_FP8_BLOCK), block,
                                sizeof block);
        }
}

/* ---- sums of encoded elements ---- */

static void test_trees_of_encoded_terms(void **state) {
    enum { N = 9, COUNT = 300 };
    static float data[COUNT], rounded[N][COUNT];
    static unsigned char encoded[N][COUNT * 2 + 64], expected[COUNT * 4];
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(N));
    const void *in[N], *rows[N];
    uint64_t first;
    (void)state;
    for (int w = 0; w < 4; w++) {
        const hpi_kernel kernel = hpi_wire_kernel(wires[w]);
        for (int i = 0; i < N; i++) {
            oracle_fill(HP_FP32, data, COUNT, (uint64_t)(w * N + i));
            hpi_wire_encode(wires[w], HP_FP32, data, COUNT, encoded[i]);
            oracle_wire(wires[w], HP_FP32, data, rounded[i], COUNT);
            in[i] = encoded[i];
            rows[i] = rounded[i];
        }
        for (int n = 1; n <= N; n++)
            for (hp_reduce op = HP_SUM; op <= HP_MIN; op++)
                for (hp_dtype out = HP_FP32; out <= HP_BF16; out++) {
                    const hpi_reduction r = {&kernel, HP_FP32, out, op, n, scratch};
                    const void *got = hpi_reduce_chunk(&r, in, COUNT);
                    oracle_reduce(HP_FP32, out, op, rows, n, expected, COUNT);
                    if (!oracle_same(out, got, expected, COUNT, &first))
                        fail_msg("wire %d, op %d of %d to %s differs at %llu", (int)wires[w],
                                 (int)op, n, hp_dtype_name(out), (unsigned long long)first);
                }
    }
    hpi_free(scratch);
}

/* ---- rounded in registers ---- */

/* Numbers of every exponent, ties of every format among them, and what is no number. */
static float any_fp32(uint64_t *seed) {
    static const uint32_t special[] = {0, 0x80000000U, 0x7f800000U, 0xff800000U, 0x7fc01234U, 1};
    const uint64_t random = hpi_random_next(seed);
    if (random % 16 == 0)
        return hpi_fp32_of_bits(special[random / 16 % (sizeof special / sizeof *special)]);
    const uint32_t bits = (uint32_t)(random >> 32);
    return hpi_fp32_of_bits(random % 2 ? bits & 0xfffff000U : bits); /* few bits: ties */
}

/* A NaN stays one, whatever its payload. */
static void assert_same(const float *got, const float *expected, uint64_t count) {
    for (uint64_t k = 0; k < count; k++)
        if (!isnan(expected[k]) || !isnan(got[k]))
            assert_int_equal(hpi_bits_of_fp32(got[k]), hpi_bits_of_fp32(expected[k]));
}

/* The rounding loops of each instruction set against the single numbers of floats.h. */
static void test_rounding_while_reading(void **state) {
    const hpi_kernel_version *version;
    float a[MOST], b[MOST], got[MOST], expected[MOST];
    uint64_t seed = 5;
    (void)state;
    for (int v = 0; (version = hpi_kernel_version_at(v)); v++)
        for (int turn = 0; turn < 200; turn++) {
            const bool is_bf16 = turn % 2;
            const uint64_t count = 1 + hpi_random_next(&seed) % MOST;
            const hpi_pass pass = {.n = 2, .n_out = 1, .divisor = 1, .reciprocal = 1};
            const void *const in[] = {a, b};
            void *const out = got;
            for (uint64_t k = 0; k < count; k++) {
                a[k] = any_fp32(&seed);
                b[k] = k % 3 ? 0 : any_fp32(&seed);
                expected[k] = is_bf16 ? hpi_bf16_to_fp32(hpi_fp32_to_bf16(a[k])) +
                                            hpi_bf16_to_fp32(hpi_fp32_to_bf16(b[k]))
                                      : hpi_fp16_to_fp32(hpi_fp32_to_fp16(a[k])) +
                                            hpi_fp16_to_fp32(hpi_fp32_to_fp16(b[k]));
            }
            version->rounding[is_bf16].to_sum[0](&pass, in, &out, 0, count);
            assert_same(got, expected, count);
        }
}

/* fp8, both ways at once, against one after the other. */
static void test_fp8_both_ways(void **state) {
    const hpi_kernel_version *version;
    float in[MOST], got[MOST], expected[MOST];
    uint8_t codes[MOST];
    uint64_t seed = 7;
    (void)state;
    for (int v = 0; (version = hpi_kernel_version_at(v)); v++)
        for (int turn = 0; turn < 200; turn++) {
            const hpi_fp8 *fp8 = &version->fp8[turn % 2];
            const uint64_t count = 1 + hpi_random_next(&seed) % MOST;
            const int exponent = (int)(hpi_random_next(&seed) % 40) - 20;
            const float scale = ldexpf(1, exponent), first = ldexpf(1, -exponent);
            for (uint64_t k = 0; k < count; k++)
                in[k] = any_fp32(&seed);
            fp8->encode(in, first, 1, codes, count);
            fp8->decode(codes, scale, expected, count);
            fp8->round(in, first, 1, scale, got, count);
            assert_same(got, expected, count);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_every_tie),
        cmocka_unit_test(test_what_fp8_cannot_hold),
        cmocka_unit_test(test_blocks_of_any_data),
        cmocka_unit_test(test_scales_over_all_of_fp32),
        cmocka_unit_test(test_blocks_without_a_finite_number),
        cmocka_unit_test(test_what_fp8_represents_is_exact),
        cmocka_unit_test(test_trees_of_encoded_terms),
        cmocka_unit_test(test_rounding_while_reading),
        cmocka_unit_test(test_fp8_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
