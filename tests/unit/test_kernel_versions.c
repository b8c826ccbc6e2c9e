/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kernel_versions.c - the loops of each instruction set that this processor has, against plain
 * ones.
 *
 * One operation on one element is written here, from floats.h, which test_convert and test_floats
 * hold to arithmetic in double; sums of more come from the oracle. Every value of 16 bits meets
 * every special one. The last cases print how fast each version is, and assert nothing about it.
 */
#include "base/convert.h"
#include "coll/kernels/scale.h"
#include "support/oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define FOR_EACH_VERSION(v)                                                                        \
    for (int v##_index = 0; v##_index < 8; v##_index++)                                            \
        for (const hpi_kernel_version *v = hpi_kernel_version_at(v##_index); v; v = NULL)

enum { N_OPS = 3 }; /* sum, max, min, as the kernels count them */

/* ---- one element, plainly ---- */

static float widened(hp_dtype dtype, uint16_t bits) {
    return dtype == HP_FP16 ? hpi_fp16_to_fp32(bits) : hpi_bf16_to_fp32(bits);
}
static uint16_t narrowed(hp_dtype dtype, float f) {
    return dtype == HP_FP16 ? hpi_fp32_to_fp16(f) : hpi_fp32_to_bf16(f);
}

static double combined(int op, double a, double b) {
    if (op == 0 || isnan(a) || isnan(b))
        return a + b;
    if (a == b)
        return (op == 1) == (signbit(a) != 0) ? b : a; /* max takes +0, min takes -0 */
    return (op == 1) == (a > b) ? a : b;
}
static float combined_fp32(int op, float a, float b) {
    return op == 0 ? a + b : (float)combined(op, (double)a, (double)b);
}

static int64_t combined_int(int op, int64_t a, int64_t b) {
    if (op == 0)
        return (int64_t)((uint64_t)a + (uint64_t)b);
    return (op == 1) == (a > b) ? a : b;
}

static void check_same(const hpi_kernel_version *v, const char *what, int op, hp_dtype dtype,
                       const void *got, const void *expected, uint64_t count) {
    uint64_t first;
    if (!oracle_same(dtype, got, expected, count, &first))
        fail_msg("%s: %s of %s (op %d) differs at %llu of %llu", v->name, what,
                 hp_dtype_name(dtype), op, (unsigned long long)first, (unsigned long long)count);
}

/* ---- 16 bits: every value with every special one ---- */

enum { N_HALVES = 65536 };

/* Zeros, subnormals, ones, the largest, the infinities, NaN quiet and signalling with payloads. */
static const uint16_t special_fp16[] = {0,      0x8000, 1,      0x8001, 0x3ff,  0x83ff, 0x400,
                                        0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                                        0x7e00, 0xfe00, 0x7c01, 0xfd55, 0x7fff};
static const uint16_t special_bf16[] = {0,      0x8000, 1,      0x8001, 0x7f,   0x80ff, 0x80,
                                        0x3f80, 0xbf80, 0x3f81, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                                        0x7fc0, 0xffc0, 0x7f81, 0xffaa, 0x7fff};
enum { N_SPECIAL = sizeof special_fp16 / sizeof *special_fp16 };

static void check_halves(hp_dtype dtype, const uint16_t *special) {
    static uint16_t all[N_HALVES], other[N_HALVES], expected[N_HALVES], got[N_HALVES];
    static float expected_wide[N_HALVES], got_wide[N_HALVES];
    const hpi_pass pass = {.n = 2, .n_out = 1, .divisor = 1, .reciprocal = 1};
    const void *in[2] = {all, other};
    void *out = got, *out_wide = got_wide;
    for (int i = 0; i < N_HALVES; i++)
        all[i] = (uint16_t)i;
    for (int s = 0; s < N_SPECIAL; s++)
        for (int op = 0; op < N_OPS; op++) {
            for (int i = 0; i < N_HALVES; i++) {
                other[i] = special[s];
                expected_wide[i] =
                    combined_fp32(op, widened(dtype, all[i]), widened(dtype, special[s]));
                expected[i] = narrowed(dtype, expected_wide[i]);
            }
            FOR_EACH_VERSION(v) {
                v->kernels[dtype].to_own[op](&pass, in, &out, 0, N_HALVES);
                check_same(v, "to_own", op, dtype, got, expected, N_HALVES);
                v->kernels[dtype].to_sum[op](&pass, in, &out_wide, 0, N_HALVES);
                check_same(v, "to_sum", op, HP_FP32, got_wide, expected_wide, N_HALVES);
            }
        }
}

static void every_half_meets_every_special_one(void **state) {
    (void)state;
    check_halves(HP_FP16, special_fp16);
    check_halves(HP_BF16, special_bf16);
}

/* One input is only converted: the bits of floats.h, those of NaN too. */
static void every_half_is_widened(void **state) {
    static uint16_t all[N_HALVES];
    static float expected[N_HALVES], got[N_HALVES];
    const hpi_pass pass = {.n = 1, .n_out = 1, .divisor = 1, .reciprocal = 1};
    const void *in = all;
    void *out = got;
    (void)state;
    for (hp_dtype dtype = HP_FP16; dtype <= HP_BF16; dtype++) {
        for (int i = 0; i < N_HALVES; i++) {
            all[i] = (uint16_t)i;
            expected[i] = widened(dtype, (uint16_t)i);
        }
        FOR_EACH_VERSION(v) {
            v->kernels[dtype].to_sum[0](&pass, &in, &out, 0, N_HALVES);
            assert_memory_equal(got, expected, sizeof got);
        }
    }
}

/* All upper 19 bits of an fp32, before each of the lower 13 around which something is rounded:
 * every fp16 and bf16, each tie between two, its neighbours, and NaN of many payloads. */
static void fp32_is_narrowed(void **state) {
    static const uint32_t lower[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    enum { N_UPPER = 1 << 19, N_LOWER = sizeof lower / sizeof *lower, PIECE = 1 << 14 };
    static uint32_t bits[PIECE];
    static uint16_t expected[PIECE], got[PIECE];
    const hpi_pass pass = {.n = 1, .n_out = 1, .divisor = 1, .reciprocal = 1};
    const void *in = bits;
    void *out = got;
    (void)state;
    for (hp_dtype dtype = HP_FP16; dtype <= HP_BF16; dtype++)
        for (int l = 0; l < N_LOWER; l++)
            for (uint32_t upper = 0; upper < N_UPPER; upper += PIECE) {
                for (uint32_t i = 0; i < PIECE; i++) {
                    bits[i] = (upper + i) << 13 | lower[l];
                    expected[i] = narrowed(dtype, hpi_fp32_of_bits(bits[i]));
                }
                FOR_EACH_VERSION(v) {
                    v->kernels[dtype].merge_to_own[0](&pass, &in, &out, 0, PIECE);
                    if (memcmp(got, expected, sizeof got) != 0)
                        fail_msg("%s: %s after %08x, lower bits %x", v->name, hp_dtype_name(dtype),
                                 (unsigned)bits[0], (unsigned)lower[l]);
                }
            }
}

/* Sums of fp32 that are rounded when they are loaded, and nothing after. */
static void rounded_terms_are_summed(void **state) {
    enum { PIECE = 1 << 14 };
    static uint32_t bits[PIECE], other[PIECE];
    static float expected[PIECE], got[PIECE];
    const hpi_pass pass = {.n = 2, .n_out = 1, .divisor = 1, .reciprocal = 1};
    const void *in[2] = {bits, other};
    void *out = got;
    uint64_t seed = 3;
    (void)state;
    for (hp_dtype half = HP_FP16; half <= HP_BF16; half++)
        for (int round = 0; round < 16; round++)
            for (int op = 0; op < N_OPS; op++) {
                for (uint32_t i = 0; i < PIECE; i++) {
                    bits[i] = ((uint32_t)round * PIECE + i) << 14 | (i % 3 ? 0x1000 : 0x1001);
                    other[i] = (uint32_t)hpi_random_next(&seed);
                    const float a = hpi_fp32_of_bits(bits[i]), b = hpi_fp32_of_bits(other[i]);
                    expected[i] = combined_fp32(op, widened(half, narrowed(half, a)),
                                                widened(half, narrowed(half, b)));
                }
                FOR_EACH_VERSION(v) {
                    v->rounding[half == HP_BF16 ? HPI_BY_BF16 : HPI_BY_FP16].to_sum[op](
                        &pass, in, &out, 0, PIECE);
                    check_same(v, "rounded terms", op, HP_FP32, got, expected, PIECE);
                }
            }
}

/* ---- floats and integers by pairs ---- */

static const uint64_t special_fp64[] = {
    0,
    UINT64_C(1) << 63,
    1,
    UINT64_C(0x8000000000000001),
    UINT64_C(0x000fffffffffffff),
    UINT64_C(0x0010000000000000),
    UINT64_C(0x3ff0000000000000),
    UINT64_C(0xbff0000000000000),
    UINT64_C(0x3ff0000000000001),
    UINT64_C(0x3ca0000000000000), /* half of the last place of 1: a tie */
    UINT64_C(0x7fefffffffffffff),
    UINT64_C(0xffefffffffffffff),
    UINT64_C(0x7ff0000000000000),
    UINT64_C(0xfff0000000000000),
    UINT64_C(0x7ff8000000000000),
    UINT64_C(0xfff8000000000123),
    UINT64_C(0x7ff0000000000001),
    UINT64_C(0xfff4000000000000),
};
static const uint32_t special_fp32[] = {
    0,          0x80000000, 1,          0x80000001, 0x7fffff,   0x800000,
    0x3f800000, 0xbf800000, 0x3f800001, 0x33800000, 0x7f7fffff, 0xff7fffff,
    0x7f800000, 0xff800000, 0x7fc00000, 0xffc00123, 0x7f800001, 0xffa00000,
};
static const int64_t special_int[] = {0,
                                      1,
                                      -1,
                                      127,
                                      -128,
                                      255,
                                      128,
                                      INT32_MAX,
                                      INT32_MIN,
                                      INT32_MAX - 1,
                                      INT64_MAX,
                                      INT64_MIN,
                                      INT64_MAX - 1,
                                      77};

/* All pairs of n values, a dtype's width each. */
static void check_pairs(hp_dtype dtype, const void *values, uint64_t n) {
    const uint64_t size = hp_dtype_size(dtype), count = n * n;
    unsigned char *rows = calloc(4 * count, size);
    assert_non_null(rows);
    unsigned char *b = rows + count * size, *expected = b + count * size;
    void *got = expected + count * size;
    const void *in[2] = {rows, b};
    for (uint64_t i = 0; i < count; i++) {
        memcpy(rows + i * size, (const unsigned char *)values + i / n * size, size);
        memcpy(b + i * size, (const unsigned char *)values + i % n * size, size);
    }
    const hpi_pass pass = {.n = 2, .n_out = 1, .divisor = 1, .reciprocal = 1};
    for (int op = 0; op < N_OPS; op++) {
        for (uint64_t i = 0; i < count; i++) {
            const unsigned char *x = rows + i * size, *y = b + i * size;
            unsigned char *to = expected + i * size;
            if (dtype == HP_FP64) {
                double p, q;
                memcpy(&p, x, size);
                memcpy(&q, y, size);
                p = combined(op, p, q);
                memcpy(to, &p, size);
            } else if (dtype == HP_FP32) {
                float p, q;
                memcpy(&p, x, size);
                memcpy(&q, y, size);
                p = combined_fp32(op, p, q);
                memcpy(to, &p, size);
            } else {
                int64_t p = 0, q = 0;
                memcpy(&p, x, size);
                memcpy(&q, y, size);
                if (dtype != HP_UINT8) { /* the sign moves up */
                    p = (int64_t)((uint64_t)p << (64 - 8 * size)) >> (64 - 8 * size);
                    q = (int64_t)((uint64_t)q << (64 - 8 * size)) >> (64 - 8 * size);
                }
                p = combined_int(op, p, q);
                memcpy(to, &p, size);
            }
        }
        FOR_EACH_VERSION(v) {
            memset(got, 0x5a, count * size);
            v->kernels[dtype].to_own[op](&pass, in, &got, 0, count);
            check_same(v, "a pair", op, dtype, got, expected, count);
        }
    }
    free(rows);
}

static void special_values_in_pairs(void **state) {
    enum { N_INT = sizeof special_int / sizeof *special_int };
    int32_t int32s[N_INT];
    uint8_t bytes[256];
    (void)state;
    for (int i = 0; i < N_INT; i++)
        int32s[i] = (int32_t)special_int[i];
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    check_pairs(HP_FP64, special_fp64, sizeof special_fp64 / sizeof *special_fp64);
    check_pairs(HP_FP32, special_fp32, sizeof special_fp32 / sizeof *special_fp32);
    check_pairs(HP_INT64, special_int, N_INT);
    check_pairs(HP_INT32, int32s, N_INT);
    check_pairs(HP_INT8, bytes, 256);
    check_pairs(HP_UINT8, bytes, 256);
}

/* ---- fp8 ---- */

static uint8_t encoded(int format, float f) {
    return format == 0 ? hpi_fp32_to_e4m3(f) : hpi_fp32_to_e5m2(f);
}
static float decoded(int format, uint8_t code) {
    return format == 0 ? hpi_e4m3_to_fp32(code) : hpi_e5m2_to_fp32(code);
}

/* Every code, at each of these scales and with every rest of a vector. */
static void fp8_is_decoded(void **state) {
    static const float scales[] = {1, 0.5F, 0x1p120F, -3, 0x1p-140F, 0x1p-120F};
    uint8_t codes[256];
    float expected[256], got[256 + 1];
    (void)state;
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (int format = 0; format < 2; format++)
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
            for (int i = 0; i < 256; i++)
                expected[i] = decoded(format, codes[i]) * scales[s];
            FOR_EACH_VERSION(v)
            for (uint64_t first = 0; first < 40; first++) {
                const uint64_t count = 256 - first;
                got[count] = 7;
                v->fp8[format].decode(codes + first, scales[s], got, count);
                check_same(v, "decoded fp8", format, HP_FP32, got, expected + first, count);
                assert_true(got[count] == 7);
            }
        }
}

/* All upper halves of an fp32, with lower halves next to a tie, times a few factors. */
static void fp8_is_encoded(void **state) {
    static const uint32_t lower[] = {0, 1, 0x8000, 0xffff};
    static const float factors[][2] = {{1, 1}, {0.5F, 0.5F}, {0x1p100F, 0x1p40F}};
    static uint32_t bits[N_HALVES];
    static uint8_t expected[N_HALVES], got[N_HALVES];
    (void)state;
    for (int format = 0; format < 2; format++)
        for (int l = 0; l < 4; l++)
            for (int f = 0; f < 3; f++) {
                const float one = factors[f][0], two = factors[f][1];
                for (uint32_t i = 0; i < N_HALVES; i++) {
                    bits[i] = i << 16 | lower[l];
                    expected[i] = encoded(format, hpi_fp32_of_bits(bits[i]) * one * two);
                }
                FOR_EACH_VERSION(v) {
                    v->fp8[format].encode(bits, one, two, got, N_HALVES);
                    assert_memory_equal(got, expected, sizeof got);
                    memset(got, 0, 64);
                    v->fp8[format].encode(bits + 5, one, two, got, 37);
                    assert_memory_equal(got, expected + 5, 37);
                    assert_int_equal(got[37], 0);
                }
            }
}

static void the_largest_of_a_block_is_found(void **state) {
    uint32_t bits[140];
    (void)state;
    for (uint64_t count = 0; count <= 140; count++) {
        uint32_t expected = 0;
        oracle_fill(HP_FP32, bits, count, count + 1);
        for (uint64_t i = 0; i < count; i++)
            if ((bits[i] & 0x7fffffffU) < HPI_FP32_INFINITY && (bits[i] & 0x7fffffffU) > expected)
                expected = bits[i] & 0x7fffffffU;
        FOR_EACH_VERSION(v)
        assert_int_equal(v->fp8[count % 2].largest_finite(bits, count), expected);
    }
}

/* ---- sums of fp32 that is rounded to fp8, block by block ---- */

/* A block of one kind: ties and numbers around one exponent; zeros; the ends of fp32; specials. */
static void fill_block(uint32_t *bits, uint64_t count, int kind, uint64_t *seed) {
    static const uint32_t exponents[] = {100, 127, 62, 76, 222, 254, 20, 1};
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t any = (uint32_t)hpi_random_next(seed), down = any >> 24 & 31;
        const uint32_t exponent = exponents[kind % 8] > down ? exponents[kind % 8] - down : 0;
        const uint32_t mask = any & 1 ? 0x7fffff : any & 2 ? 0x7c0000 : 0x780000;
        bits[i] = (any & 0x80000000U) | exponent << 23 | ((uint32_t)hpi_random_next(seed) & mask);
        if (kind >= 8)
            bits[i] = kind == 8 ? any & 0x80000000U : special_fp32[any % 18];
    }
}

static void round_block(int format, const uint32_t *bits, uint64_t count, float *out) {
    const hpi_fp8 *plain = &hpi_kernel_version_at(0)->fp8[format];
    const hpi_scaling s = hpi_scaling_of(plain->largest_finite(bits, count), format == 0 ? 8 : 15,
                                         format == 0 ? -9 : -16);
    for (uint64_t i = 0; i < count; i++)
        out[i] = decoded(format, encoded(format, hpi_fp32_of_bits(bits[i]) * s.first * s.second)) *
                 s.scale;
}

static void rounded_blocks_are_summed(void **state) {
    enum { BLOCK = HPI_FP8_BLOCK, COUNT = 40 * BLOCK + 77, N_KINDS = 10 };
    static uint32_t bits[HPI_LEAVES][COUNT];
    static float terms[HPI_LEAVES][COUNT], expected[COUNT], got[2][COUNT + 1];
    const void *in[HPI_LEAVES];
    void *out[2] = {got[0], got[1]};
    uint64_t seed = 5;
    (void)state;
    for (int format = 0; format < 2; format++)
        for (int n = 1; n <= HPI_LEAVES; n *= 2)
            for (int op = 0; op < N_OPS; op++) {
                const hpi_pass pass = {.n = n, .n_out = 2, .divisor = 1, .reciprocal = 1};
                for (int i = 0; i < n; i++) {
                    in[i] = bits[i];
                    for (uint64_t at = 0; at < COUNT; at += BLOCK) {
                        const uint64_t length = hpi_min(BLOCK, COUNT - at);
                        const int kind = at / BLOCK < 12 ? (int)(at / BLOCK) / 4 : (int)(at % 1009);
                        fill_block(bits[i] + at, length, kind % N_KINDS, &seed);
                        round_block(format, bits[i] + at, length, terms[i] + at);
                    }
                }
                for (int step = 1; step < n; step *= 2) /* the tree */
                    for (int i = 0; i < n; i += 2 * step)
                        for (int k = 0; k < COUNT; k++)
                            terms[i][k] = combined_fp32(op, terms[i][k], terms[i + step][k]);
                memcpy(expected, terms[0], sizeof expected);
                FOR_EACH_VERSION(v) {
                    got[0][COUNT] = got[1][COUNT] = 7;
                    v->rounding[HPI_BY_E4M3 + format].to_sum[op](&pass, in, out, 0, 5 * BLOCK);
                    v->rounding[HPI_BY_E4M3 + format].to_sum[op](&pass, in, out, 5 * BLOCK, COUNT);
                    check_same(v, "rounded blocks", op, HP_FP32, got[0], expected, COUNT);
                    check_same(v, "rounded blocks", op, HP_FP32, got[1], expected, COUNT);
                    assert_true(got[0][COUNT] == 7 && got[1][COUNT] == 7);
                }
            }
}

/* ---- conversions ---- */

/* Each loop against that which every processor has, from every value of 16 bits, from all upper
 * halves of fp32 next to ties, and from these as fp64; the bits of NaN too. */
static void conversions_agree(void **state) {
    enum { COUNT = 3 * N_HALVES };
    static uint32_t wide[COUNT];
    static uint16_t half[COUNT];
    static double widest[COUNT];
    static uint64_t expected[COUNT + 1], got[COUNT + 1];
    const void *const in[] = {widest, wide, half, half};
    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        half[i] = (uint16_t)i;
        wide[i] = i % N_HALVES << 16 | (i / N_HALVES == 0   ? 0
                                        : i / N_HALVES == 1 ? 0x1000
                                                            : 0x1001);
        widest[i] = (double)hpi_fp32_of_bits(wide[i]) * (1 + (i % 3) * 0x1p-40);
    }
    for (hp_dtype from = HP_FP64; from <= HP_BF16; from++)
        for (hp_dtype to = HP_FP64; to <= HP_BF16; to++) {
            int last = 0;
            while (hpi_convert_loop_of(from, to, last + 1))
                last++;
            hpi_convert_loop *const plain = hpi_convert_loop_of(from, to, last);
            for (int version = 0; version < last; version++)
                for (uint64_t skipped = 0; skipped < 40; skipped += skipped < 18 ? 1 : 7) {
                    const uint64_t count = skipped ? 300 - skipped : COUNT;
                    const unsigned char *at = in[from];
                    at += skipped * hp_dtype_size(from);
                    memset(got, 0, (count + 1) * sizeof *got);
                    memset(expected, 0, (count + 1) * sizeof *expected);
                    plain(at, expected, count);
                    hpi_convert_loop_of(from, to, version)(at, got, count);
                    assert_memory_equal(got, expected, (count + 1) * sizeof *got);
                }
        }
}

/* ---- hpi_reduce_into: the tree, any length and place ---- */

enum { MOST_N = 17, MOST_OUT = 3, ROOM = 40000 };

typedef struct rows {
    unsigned char in[MOST_N][ROOM], out[MOST_OUT][ROOM], expected[ROOM];
    unsigned char *scratch;
} rows;

typedef struct job {
    hp_dtype dtype, out_dtype;
    hp_reduce op;
    int n, n_out;
    uint64_t count, in_offset, out_offset; /* bytes from a boundary of 64 */
    bool is_streaming, is_in_place;
} job;

static const unsigned char *boundary(const unsigned char *row) {
    return row + (64 - (uintptr_t)row % 64) % 64 + 64;
}

static void check_job(const hpi_kernel_version *v, rows *r, const job *j) {
    const void *in[MOST_N];
    void *out[MOST_OUT];
    const uint64_t size = hp_dtype_size(j->out_dtype), bytes = j->count * size;
    for (int i = 0; i < j->n; i++) /* each elsewhere */
        in[i] = boundary(r->in[i]) + (j->in_offset + (uint64_t)i * 3) % 64;
    memset(r->out, 0xa5, sizeof r->out);
    for (int k = 0; k < j->n_out; k++)
        out[k] = (unsigned char *)boundary(r->out[k]) + j->out_offset;
    for (int i = 0; i < j->n; i++)
        oracle_fill(j->dtype, (void *)in[i], j->count, j->count * 31 + (uint64_t)i);
    oracle_reduce(j->dtype, j->out_dtype, j->op, in, j->n, r->expected, j->count);
    if (j->is_in_place)
        for (int k = 0; k < j->n_out && k < j->n; k++)
            out[k] = (void *)in[k];

    const hpi_reduction reduction = {
        &v->kernels[j->dtype], j->dtype, j->out_dtype, j->op, j->n, r->scratch};
    hpi_reduce_into(&reduction, in, out, j->n_out, j->count, j->is_streaming);
    for (int k = 0; k < j->n_out; k++) {
        uint64_t first;
        const unsigned char *got = out[k];
        if (!oracle_same(j->out_dtype, got, r->expected, j->count, &first))
            fail_msg("%s: %s to %s, op %d, n %d, output %d of %d, count %llu, streaming %d, in "
                     "place %d: differs at %llu",
                     v->name, hp_dtype_name(j->dtype), hp_dtype_name(j->out_dtype), (int)j->op,
                     j->n, k, j->n_out, (unsigned long long)j->count, j->is_streaming,
                     j->is_in_place, (unsigned long long)first);
        if (!j->is_in_place)
            for (int b = 0; b < 64; b++)
                assert_true(got[-1 - b] == 0xa5 && got[bytes + (uint64_t)b] == 0xa5);
    }
}

/* What differs from job to job comes from a sequence; every count up to a few blocks of the widest
 * vectors is met, and some of several pages. */
static void check_jobs(rows *r, hp_dtype dtype, uint64_t count, uint64_t *seed) {
    const uint64_t random = hpi_random_next(seed);
    const uint64_t size = hp_dtype_size(dtype);
    job j = {.dtype = dtype,
             .out_dtype = random & 1 ? dtype : hpi_sum_dtype(dtype),
             .op = (hp_reduce)(random >> 8 & 3),
             .n = 1 + (int)(random >> 16) % MOST_N,
             .n_out = 1 + (int)(random >> 24) % MOST_OUT,
             .count = count,
             .in_offset = random >> 32 & 63,
             .out_offset = random & 2 ? 0 : random >> 40 & 63,
             .is_streaming = random & 4,
             .is_in_place = random & 8};
    if (j.n > MOST_N || j.n < 1)
        j.n = 2;
    if (random & 16)
        j.n = 1 << (random >> 56 & 3); /* those that are added in registers */
    if (j.op == HP_AVG && !hpi_dtype_is_float(dtype))
        j.op = HP_SUM;
    if (j.is_in_place) {
        j.out_dtype = dtype;
        j.n_out = j.n_out > j.n ? j.n : j.n_out;
    }
    assert_true(count * hpi_max(size, hp_dtype_size(j.out_dtype)) + 256 <= ROOM);
    FOR_EACH_VERSION(v) check_job(v, r, &j);
}

static void any_length_and_place(void **state) {
    rows *r = hpi_alloc(1, sizeof *r);
    uint64_t seed = 5;
    (void)state;
    assert_non_null(r);
    r->scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(MOST_N));
    assert_non_null(r->scratch);
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++) {
        for (uint64_t count = 0; count <= 300; count++)
            check_jobs(r, dtype, count, &seed);
        for (int i = 0; i < 12; i++) {
            const uint64_t most = (ROOM - 256) / hp_dtype_size(hpi_sum_dtype(dtype));
            check_jobs(r, dtype, most - hpi_random_next(&seed) % (most / 2), &seed);
        }
    }
    hpi_free(r->scratch);
    hpi_free(r);
}

/* By 2, 4 and 8 it is a product; of subnormals too the quotient is rounded once. */
static void quotients_are_rounded_once(void **state) {
    enum { COUNT = 4096 };
    static uint32_t bits[COUNT];
    static float got[COUNT], expected[COUNT];
    const void *in[MOST_N];
    void *out = got;
    unsigned char *scratch = hpi_alloc_aligned(64, hpi_scratch_bytes(MOST_N));
    uint64_t seed = 9, first;
    (void)state;
    assert_non_null(scratch);
    for (int n = 1; n <= MOST_N; n++) {
        for (int i = 0; i < COUNT; i++)
            bits[i] = (uint32_t)hpi_random_next(&seed) & (i % 2 ? 0x81ffffff : 0xffffffff);
        for (int i = 0; i < n; i++)
            in[i] = bits;
        oracle_reduce(HP_FP32, HP_FP32, HP_AVG, in, n, expected, COUNT);
        FOR_EACH_VERSION(v) {
            const hpi_reduction r = {&v->kernels[HP_FP32], HP_FP32, HP_FP32, HP_AVG, n, scratch};
            hpi_reduce_into(&r, in, &out, 1, COUNT, false);
            if (!oracle_same(HP_FP32, got, expected, COUNT, &first))
                fail_msg("%s: the mean of %d times %08x is wrong", v->name, n,
                         (unsigned)bits[first]);
        }
    }
    hpi_free(scratch);
}

/* ---- how fast ---- */

static double seconds_of(const hpi_reduction *r, const void *const *in, void *out, uint64_t count,
                         int times) {
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < 5; round++) {
        const uint64_t begin = hpi_now_ns();
        for (int i = 0; i < times; i++)
            hpi_reduce_into(r, in, &out, 1, count, false);
        least = hpi_min(least, hpi_now_ns() - begin);
    }
    return (double)least / times / 1e9;
}

enum { BYTES = 16384, TIMES = 20 }; /* of each operand; calls in a round */

static double seconds_of_conversion(hpi_convert_loop *loop, const void *in, void *out,
                                    uint64_t count) {
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < 5; round++) {
        const uint64_t begin = hpi_now_ns();
        for (int i = 0; i < TIMES; i++)
            loop(in, out, count);
        least = hpi_min(least, hpi_now_ns() - begin);
    }
    return (double)least / TIMES / 1e9;
}

/* Bytes of the wider side per second, 16 KiB of it. */
static void speeds_of_conversions(void **state) {
    unsigned char *data = hpi_alloc_aligned(64, 2 * BYTES);
    (void)state;
    assert_non_null(data);
    memset(data, 0, 2 * BYTES);
    printf("GB/s, convert to");
    for (hp_dtype to = HP_FP64; to <= HP_BF16; to++)
        printf("%8s", hp_dtype_name(to));
    for (int version = 0; version < 2; version++)
        for (hp_dtype from = HP_FP64; from <= HP_BF16; from++) {
            printf("\n%-12s%4s", version ? "plain loop" : "in use", hp_dtype_name(from));
            for (hp_dtype to = HP_FP64; to <= HP_BF16; to++) {
                hpi_convert_loop *loop = hpi_convert_loop_of(from, to, version);
                const uint64_t size = hpi_max(hp_dtype_size(from), hp_dtype_size(to));
                if (loop)
                    printf("%8.1f",
                           BYTES / 1e9 /
                               seconds_of_conversion(loop, data, data + BYTES, BYTES / size));
                else
                    printf("%8s", "");
            }
        }
    printf("\n");
    hpi_free(data);
}

/* Bytes of an output per second. */
static void speeds(void **state) {
    static const char *const names[] = {
        [HP_SUM] = "sum", [HP_AVG] = "avg", [HP_MAX] = "max", [HP_MIN] = "min"};
    unsigned char *data = hpi_alloc_aligned(64, 5 * BYTES);
    (void)state;
    assert_non_null(data);
    memset(data, 0, 5 * BYTES);
    const void *in[4] = {data, data + BYTES, data + 2 * BYTES, data + 3 * BYTES};
    void *out = data + 4 * BYTES;
    printf("GB/s            ");
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        printf("%8s", hp_dtype_name(dtype));
    FOR_EACH_VERSION(v)
    for (hp_reduce op = HP_SUM; op <= HP_MIN; op++)
        for (int n = 2; n <= 4; n += 2) {
            printf("\n%-14s%s%d", v->name, names[op], n);
            for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++) {
                const hpi_reduction r = {&v->kernels[dtype], dtype, dtype, op, n, NULL};
                const uint64_t count = BYTES / hp_dtype_size(dtype);
                if (op == HP_AVG && !hpi_dtype_is_float(dtype))
                    printf("%8s", "");
                else
                    printf("%8.1f", BYTES / seconds_of(&r, in, out, count, TIMES) / 1e9);
            }
        }
    printf("\n");
    hpi_free(data);
}

/* ---- who has won ---- */

static bool is_nan(hp_dtype dtype, const unsigned char *x) {
    double d;
    return hpi_dtype_is_float(dtype) && hp_convert(x, dtype, &d, HP_FP64, 1) == HP_OK && isnan(d);
}

/* Every distance from a word's end, at an odd address; what lies behind stays. */
static void winners_are_found_and_kept(void **state) {
    enum { MOST = 200, SPOILED = 0x5a };
    static unsigned char a[MOST * 8 + 1], b[MOST * 8 + 1], got[MOST * 8 + 8],
        expected[MOST * 8 + 8];
    (void)state;
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++) {
        const size_t size = hp_dtype_size(dtype);
        const int row = __builtin_ctzll(size);
        unsigned char *x = a + 1, *y = b + 1;
        oracle_fill(dtype, x, MOST, 3);
        oracle_fill(dtype, y, MOST, 4);
        for (int k = 0; k < MOST; k += 1 + k % 3)
            memcpy(y + k * size, x + k * size, size);
        if (hpi_dtype_is_float(dtype)) { /* any NaN with another one; +0 with -0 */
            memset(x + 5 * size, 0xff, size);
            memset(y + 5 * size, 0x7f, size);
            memset(x + 7 * size, 0, size);
            memset(y + 7 * size, 0, size);
            y[8 * size - 1] = 0x80;
        }
        FOR_EACH_VERSION(v) for (uint64_t count = 0; count <= MOST; count++) {
            const uint64_t infinity = dtype == HP_FP64   ? 0x7ff0000000000000
                                      : dtype == HP_FP32 ? 0x7f800000
                                      : dtype == HP_FP16 ? 0x7c00
                                      : dtype == HP_BF16 ? 0x7f80
                                                         : UINT64_MAX;
            uint64_t words[MOST / 64 + 2] = {0};
            words[(count + 63) / 64] = 4711;
            memset(got, SPOILED, sizeof got);
            memset(expected, SPOILED, sizeof expected);
            v->winners->same[row](x, y, infinity, words, count);
            v->winners->keep[row](words, x, got + 1, count);
            for (uint64_t k = 0; k < count; k++) {
                const unsigned char *p = x + k * size, *q = y + k * size;
                const bool is_same =
                    memcmp(p, q, size) == 0 || (is_nan(dtype, p) && is_nan(dtype, q));
                assert_int_equal(words[k / 64] >> k % 64 & 1, is_same);
                memset(expected + 1 + k * size, 0, size);
                if (is_same)
                    memcpy(expected + 1 + k * size, p, size);
            }
            assert_true(count % 64 == 0 || words[count / 64] >> count % 64 == 0);
            assert_int_equal(words[(count + 63) / 64], 4711);
            assert_memory_equal(got, expected, sizeof got);
        }
    }
}

/* As a plain loop over comparisons has it: NaN first, then the value, then the sign of a zero. */
static bool is_better(hp_dtype dtype, hp_reduce op, const unsigned char *x,
                      const unsigned char *y) {
    const size_t size = hp_dtype_size(dtype);
    const void *both[2] = {x, y};
    unsigned char result[8];
    uint64_t unused;
    if (is_nan(dtype, y) || oracle_same(dtype, x, y, 1, &unused))
        return false;
    oracle_reduce(dtype, dtype, op, both, 2, result, 1);
    return is_nan(dtype, x) || memcmp(result, x, size) == 0;
}

/* Of every number of inputs that loops tell apart; the gradient lies in an output, one input in
 * another. */
static void gradients_are_given(void **state) {
    enum { MOST = 150, MOST_INPUTS = 5, ROOM_BYTES = MOST * 8 + 2 };
    static unsigned char given[MOST_INPUTS][ROOM_BYTES], in[MOST_INPUTS][ROOM_BYTES],
        gradient[ROOM_BYTES], out[MOST_INPUTS][ROOM_BYTES], expected[MOST_INPUTS][ROOM_BYTES];
    (void)state;
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        for (hp_reduce op = HP_MAX; op <= HP_MIN; op++)
            for (int n = 1; n <= MOST_INPUTS; n++) {
                const size_t size = hp_dtype_size(dtype);
                for (int i = 0; i < n; i++)
                    oracle_fill(dtype, given[i] + 1, MOST, 30 + (uint64_t)i);
                for (int k = 0; k < MOST * n; k += 1 + k % 4) /* alike on some */
                    memcpy(given[k % n] + 1 + (size_t)(k / n) * size,
                           given[0] + 1 + (size_t)(k / n) * size, size);
                for (int i = 0; i < n && hpi_dtype_is_float(dtype); i++) { /* zeros */
                    memset(given[i] + 1 + 3 * size, 0, size);
                    given[i][4 * size] = i % 2 ? 0 : 0x80;
                }
                oracle_fill(dtype, gradient + 1, MOST, 29);
                FOR_EACH_VERSION(v)
                for (uint64_t count = 0; count <= MOST; count += count < 70 ? 1 : 13) {
                    const void *from[MOST_INPUTS];
                    void *to[MOST_INPUTS];
                    const uint64_t sign = UINT64_C(1) << (8 * size - 1);
                    const uint64_t infinity = dtype == HP_FP64   ? 0x7ff0000000000000
                                              : dtype == HP_FP32 ? 0x7f800000
                                              : dtype == HP_FP16 ? 0x7c00
                                                                 : 0x7f80;
                    const hpi_order order = {
                        (op == HP_MIN ? UINT64_MAX : 0) ^ (dtype == HP_UINT8 ? sign : 0), infinity};
                    memcpy(in, given, sizeof in);
                    memset(out, 0x5a, sizeof out);
                    memset(expected, 0x5a, sizeof expected);
                    for (int i = 0; i < n; i++) {
                        from[i] = in[i] + 1;
                        to[i] = i == n - 1 ? in[i] + 1 : out[i] + 1;
                    }
                    memcpy(out[0], gradient, sizeof gradient);
                    memcpy(expected[0], gradient, sizeof gradient);
                    memcpy(expected[n - 1], n > 1 ? given[n - 1] : gradient, ROOM_BYTES);
                    if (n == 1)
                        to[0] = out[0] + 1;
                    for (uint64_t k = 0; k < count; k++) {
                        int winner = 0;
                        for (int i = 1; i < n; i++)
                            if (is_better(dtype, op, given[i] + 1 + k * size,
                                          given[winner] + 1 + k * size))
                                winner = i;
                        for (int i = 0; i < n; i++)
                            memset(expected[i] + 1 + k * size, 0, size);
                        memcpy(expected[winner] + 1 + k * size, gradient + 1 + k * size, size);
                    }
                    v->winners->give[hpi_dtype_is_float(dtype)][__builtin_ctzll(size)](
                        &order, from, n, out[0] + 1, to, count);
                    for (int i = 0; i < n; i++)
                        assert_memory_equal((unsigned char *)to[i] - 1, expected[i], ROOM_BYTES);
                }
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_given),
        cmocka_unit_test(winners_are_found_and_kept),
        cmocka_unit_test(every_half_meets_every_special_one),
        cmocka_unit_test(every_half_is_widened),
        cmocka_unit_test(fp32_is_narrowed),
        cmocka_unit_test(rounded_terms_are_summed),
        cmocka_unit_test(special_values_in_pairs),
        cmocka_unit_test(fp8_is_decoded),
        cmocka_unit_test(fp8_is_encoded),
        cmocka_unit_test(the_largest_of_a_block_is_found),
        cmocka_unit_test(rounded_blocks_are_summed),
        cmocka_unit_test(conversions_agree),
        cmocka_unit_test(any_length_and_place),
        cmocka_unit_test(quotients_are_rounded_once),
        cmocka_unit_test(speeds),
        cmocka_unit_test(speeds_of_conversions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
