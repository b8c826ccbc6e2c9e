/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/rounded.h - sums of fp32 that are rounded once when they are loaded: the including file
 * gets `rounding`, a row for each of fp16, bf16, e4m3 and e5m2.
 *
 * What an element would be had it been fp8 under its block's scale follows without the scale. In
 * the sum with 1.5 x 2^k the addition itself rounds to multiples of 2^(k - 23), and taking 2^k away
 * is exact; k comes from the element's exponent, but not from less than that of the block's least
 * normal number. Blocks of which that is not so (infinities, NaN, sums or scales at the ends of
 * fp32) go through fp8.h, as does one that is not whole.
 */
#ifndef HPI_ROUNDED_H
#define HPI_ROUNDED_H

#include "fp8.h"
#include "loops.h"
#include "scale.h"

/* ---- 16 bits ---- */

INLINE acc load_by_fp16(const unsigned char *from, uint32_t least) {
    (void)least;
    return (acc){.v = widen_fp16(narrow_fp16(load(from)))};
}
INLINE acc load_by_bf16(const unsigned char *from, uint32_t least) {
    (void)least;
    return (acc){.v = (vec)(round_to_bf16(load(from)) & 0xffff0000U)};
}

#define FP32_BY_FP16(op)                                                                           \
    { load_by_fp16, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 4, 4 }
#define FP32_BY_BF16(op)                                                                           \
    { load_by_bf16, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 4, 4 }
OPS(by_fp16, fp32, FP32_BY_FP16)
OPS(by_bf16, fp32, FP32_BY_BF16)

/* ---- fp8 ---- */

enum { BLOCK = HPI_FP8_BLOCK, GROUP = 4 }; /* blocks whose scales are found together */

/* Of a format: bits of the significand behind the point, exponents of its largest number and of its
 * least normal one. */
typedef struct format {
    const hpi_fp8 *fp8;
    int m, top, least;
} format;

/* least: bits of the least normal number. */
INLINE vec round_by(vec v, uint32_t least, int m) {
    const u32s bits = (u32s)v;
    const s32s exponent = greater((s32s)(bits & HPI_FP32_INFINITY), (s32s){0} + (int32_t)least);
#if defined(__AVX512BW__)
    const __m512 e = (__m512)exponent, to_power = _mm512_set1_ps(1.5F * (float)(1 << (23 - m)));
    const u32s rounded =
        (u32s)_mm512_fnmadd_ps(e, to_power, _mm512_fmadd_ps(e, to_power, (__m512)v));
#else
    const fp32s power = (fp32s)((u32s)exponent + (((uint32_t)(23 - m) << 23) | 0x400000U));
    const u32s rounded = (u32s)(((fp32s)v + power) - power);
#endif
    return (vec)(rounded | (bits & 0x80000000U)); /* of a zero the sum has lost it */
}
INLINE acc load_by_e4m3(const unsigned char *from, uint32_t least) {
    return (acc){.v = round_by(load(from), least, 3)};
}
INLINE acc load_by_e5m2(const unsigned char *from, uint32_t least) {
    return (acc){.v = round_by(load(from), least, 2)};
}

/* Of the magnitudes of a whole block, lane by lane, as bits. */
INLINE s32s largest_lanes(const unsigned char *in) {
    s32s a = {0}, b = {0};
#pragma GCC unroll 16
    for (uint64_t at = 0; at < 4 * BLOCK; at += 2 * VECTOR) {
        a = greater(a, (s32s)load(in + at) & 0x7fffffff);
        b = greater(b, (s32s)load(in + at + VECTOR) & 0x7fffffff);
    }
    return greater(a, b);
}

/* The largest magnitude of each block of a group, as bits. */
INLINE void largest_of_group(const unsigned char *in, uint32_t *out_largest) {
#if defined(__AVX512BW__)
    __m512i m[GROUP];
#pragma GCC unroll 4
    for (int b = 0; b < GROUP; b++)
        m[b] = (__m512i)largest_lanes(in + 4 * BLOCK * b);
#define JOIN(a, b, one, other)                                                                     \
    _mm512_max_epi32(_mm512_shuffle_i64x2(a, b, one), _mm512_shuffle_i64x2(a, b, other))
    const __m512i ab = JOIN(m[0], m[1], 0x44, 0xee), cd = JOIN(m[2], m[3], 0x44, 0xee);
    __m512i each = JOIN(ab, cd, 0x88, 0xdd); /* four lanes of each */
#undef JOIN
    each = _mm512_max_epi32(each, _mm512_shuffle_epi32(each, _MM_PERM_BADC));
    each = _mm512_max_epi32(each, _mm512_shuffle_epi32(each, _MM_PERM_CDAB));
    _mm_storeu_si128((void *)out_largest,
                     _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, each)));
#else
    for (int b = 0; b < GROUP; b++)
        out_largest[b] = greatest(largest_lanes(in + 4 * BLOCK * b));
#endif
}

enum { LEAST_EXPONENT = 64, MOST_EXPONENT = 220 };

/* Bits of the least normal number of each block of a group. false: one takes the long way. A block
 * of zeros is like any other. */
INLINE bool least_of_group(const unsigned char *in, format f, uint32_t *out_least) {
    uint32_t largest[GROUP];
    bool are_all = true;
    largest_of_group(in, largest);
#pragma GCC unroll 4
    for (int b = 0; b < GROUP; b++) {
        const uint32_t any = largest[b] ? largest[b] : LEAST_EXPONENT << 23;
        const uint32_t exponent = (any + 0x1fffffU) >> 23; /* one more above 1.75 */
        are_all &= exponent - LEAST_EXPONENT <= MOST_EXPONENT - LEAST_EXPONENT;
        out_least[b] = (exponent + (uint32_t)(f.least - f.top)) << 23;
    }
    return are_all;
}

/* Of at most a block: each rounded by itself, and summed. */
static void reduce_slowly(hpi_loop *sum, format f, const hpi_pass *pass, const void *const *in,
                          void *const *out, uint64_t at, uint64_t count) {
    _Alignas(VECTOR) float rounded[HPI_LEAVES][BLOCK];
    const void *rows[HPI_LEAVES];
    hpi_pass one = *pass;
    one.n_out = 1;
    for (int i = 0; i < pass->n; i++) {
        const float *from = (const float *)in[i] + at;
        const hpi_scaling s =
            hpi_scaling_of(f.fp8->largest_finite(from, count), f.top, f.least - f.m);
        f.fp8->round(from, s.first, s.second, s.scale, rounded[i], count);
        rows[i] = rounded[i];
    }
    for (int k = 0; k < pass->n_out; k++) {
        void *to = (float *)out[k] + at;
        sum(&one, rows, &to, 0, count);
    }
}

/* The elements of the next group come while those of this one are summed. */
INLINE void look_ahead(const unsigned char *const *in, int n, uint64_t at, uint64_t bytes) {
    for (int i = 0; i < n; i++)
        for (uint64_t line = 0; line < bytes; line += 64)
            __builtin_prefetch(in[i] + at + line);
}

/* Elements of a group whose blocks are known by `least`, of each input. */
INLINE void reduce_group(shape s, const hpi_pass *pass, const unsigned char *const *in,
                         uint32_t (*least)[GROUP], int n_known, void *const *out, uint64_t at,
                         bool has_next) {
    const int n = n_known ? n_known : pass->n, n_accs = n > 2 ? 2 : MOST_ACCS;
    uint32_t own[HPI_LEAVES];
    for (uint64_t b = 0; b < GROUP; b++, at += BLOCK) {
        for (int i = 0; i < n; i++)
            own[i] = least[i][b];
        for (uint64_t k = 0; k < BLOCK; k += (uint64_t)n_accs * s.lanes) {
            if (has_next)
                look_ahead(in, n, 4 * (at + k + GROUP * BLOCK), (uint64_t)n_accs * VECTOR);
            reduce_block(s, pass, in, own, n_known, 4 * (at + k), out, 4 * (at + k), n_accs);
        }
    }
}

/* One pass for both: what is known of blocks, then their elements, which are near by then. */
INLINE void reduce_blocks(shape s, hpi_loop *sum, format f, const hpi_pass *given,
                          const void *const *inputs, int n_known, void *const *out, uint64_t begin,
                          uint64_t end) {
    enum { STEP = GROUP * BLOCK };
    const hpi_pass pass = *given;
    const unsigned char *in[HPI_LEAVES];
    uint32_t least[HPI_LEAVES][GROUP];
    const int n = n_known ? n_known : pass.n;
    uint64_t at = begin;
    for (int i = 0; i < n; i++)
        in[i] = inputs[i];
    while (at < end) {
        bool are_all = end - at >= STEP;
        for (int i = 0; are_all && i < n; i++)
            are_all = least_of_group(in[i] + 4 * at, f, least[i]);
        if (are_all) {
            reduce_group(s, &pass, in, least, n_known, out, at, end - at >= 2 * STEP);
            at += STEP;
            continue;
        }
        for (uint64_t b = 0; b < GROUP && at < end; b++) {
            const uint64_t length = end - at < BLOCK ? end - at : BLOCK;
            reduce_slowly(sum, f, given, inputs, out, at, length);
            at += length;
        }
    }
}

#define SUM_BY(format_name, shape_of, ...)                                                         \
    static void sum_by_##format_name##_fp32(const hpi_pass *pass, const void *const *in,           \
                                            void *const *out, uint64_t begin, uint64_t end) {      \
        const shape s = shape_of;                                                                  \
        const format f = __VA_ARGS__;                                                              \
        if (pass->n == 1)                                                                          \
            reduce_blocks(s, sum_fp32_fp32, f, pass, in, 1, out, begin, end);                      \
        else if (pass->n == 2)                                                                     \
            reduce_blocks(s, sum_fp32_fp32, f, pass, in, 2, out, begin, end);                      \
        else if (pass->n == 4)                                                                     \
            reduce_blocks(s, sum_fp32_fp32, f, pass, in, 4, out, begin, end);                      \
        else                                                                                       \
            reduce_blocks(s, sum_fp32_fp32, f, pass, in, 8, out, begin, end);                      \
    }
#define PICK_BY(op, format_name, shape_of, ...)                                                    \
    static void op##_by_##format_name##_fp32(const hpi_pass *pass, const void *const *in,          \
                                             void *const *out, uint64_t begin, uint64_t end) {     \
        const shape s = shape_of;                                                                  \
        const format f = __VA_ARGS__;                                                              \
        reduce_blocks(s, op##_fp32_fp32, f, pass, in, 0, out, begin, end);                         \
    }
#define OPS_BY(format_name, SHAPE, ...)                                                            \
    SUM_BY(format_name, SHAPE(sum), __VA_ARGS__)                                                   \
    PICK_BY(max, format_name, SHAPE(max), __VA_ARGS__)                                             \
    PICK_BY(min, format_name, SHAPE(min), __VA_ARGS__)
#define FP32_BY_E4M3(op)                                                                           \
    { load_by_e4m3, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 4, 4 }
#define FP32_BY_E5M2(op)                                                                           \
    { load_by_e5m2, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 4, 4 }
OPS_BY(e4m3, FP32_BY_E4M3, {&fp8[0], 3, 8, -6})
OPS_BY(e5m2, FP32_BY_E5M2, {&fp8[1], 2, 15, -14})

/* Contributions are rounded, partial results are not. */
#define ROUNDING_ROW(name, blocks)                                                                 \
    {                                                                                              \
        .to_sum = ROW(name, fp32), .to_own = ROW(name, fp32), .merge = ROW(fp32, fp32),            \
        .merge_to_own = ROW(fp32, fp32), .is_in_blocks = blocks                                    \
    }
static const hpi_kernel rounding[HPI_N_ROUNDINGS] = {[HPI_BY_FP16] = ROUNDING_ROW(by_fp16, false),
                                                     [HPI_BY_BF16] = ROUNDING_ROW(by_bf16, false),
                                                     [HPI_BY_E4M3] = ROUNDING_ROW(by_e4m3, true),
                                                     [HPI_BY_E5M2] = ROUNDING_ROW(by_e5m2, true)};

#endif
