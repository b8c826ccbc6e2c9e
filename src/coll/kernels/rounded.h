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
    const fp32s power = (fp32s)((u32s)exponent + (((uint32_t)(23 - m) << 23) | 0x400000U));
    const fp32s rounded = ((fp32s)v + power) - power;
    return (vec)((u32s)rounded | (bits & 0x80000000U)); /* of a zero the sum has lost it */
}
INLINE acc load_by_e4m3(const unsigned char *from, uint32_t least) {
    return (acc){.v = round_by(load(from), least, 3)};
}
INLINE acc load_by_e5m2(const unsigned char *from, uint32_t least) {
    return (acc){.v = round_by(load(from), least, 2)};
}

/* The largest magnitude of a whole block, as bits. */
INLINE uint32_t largest_of_block(const unsigned char *in) {
    s32s a = {0}, b = {0};
#pragma GCC unroll 16
    for (uint64_t at = 0; at < 4 * BLOCK; at += 2 * VECTOR) {
        a = greater(a, (s32s)load(in + at) & 0x7fffffff);
        b = greater(b, (s32s)load(in + at + VECTOR) & 0x7fffffff);
    }
    return greatest(greater(a, b));
}

enum { LEAST_EXPONENT = 64, MOST_EXPONENT = 220 };

/* Bits of the block's least normal number; 0: it takes the long way. A block of zeros is like any
 * other. */
INLINE uint32_t least_of_block(const unsigned char *in, format f) {
    const uint32_t largest = largest_of_block(in);
    const uint32_t exponent = (largest + 0x1fffffU) >> 23; /* one more above 1.75 */
    if (largest != 0 && (exponent < LEAST_EXPONENT || exponent > MOST_EXPONENT))
        return 0;
    return ((largest ? exponent : LEAST_EXPONENT) + (uint32_t)(f.least - f.top)) << 23;
}

/* false: a block of them takes the long way. */
INLINE bool find_least(uint32_t (*least)[HPI_LEAVES], const void *const *in, int n, uint64_t at,
                       format f) {
    bool are_all = true;
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (uint64_t b = 0; b < GROUP; b++) {
            least[b][i] = least_of_block((const unsigned char *)in[i] + 4 * (at + b * BLOCK), f);
            are_all &= least[b][i] != 0;
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

/* One pass for both: what is known of blocks, then their elements, which are near by then. */
INLINE void reduce_blocks(shape s, hpi_loop *sum, format f, const hpi_pass *given,
                          const void *const *inputs, int n_known, void *const *out, uint64_t begin,
                          uint64_t end) {
    enum { STEP = GROUP * BLOCK };
    const hpi_pass pass = *given;
    const int n = n_known ? n_known : pass.n, n_accs = n > 2 ? 2 : MOST_ACCS;
    const unsigned char *in[HPI_LEAVES];
    uint32_t least[GROUP][HPI_LEAVES];
    uint64_t at = begin;
    for (int i = 0; i < n; i++)
        in[i] = inputs[i];
    for (uint64_t left = end - at; left > 0; left = end - at) {
        if (left >= STEP && find_least(least, inputs, n, at, f)) {
            for (uint64_t k = 0; k < STEP; k += (uint64_t)n_accs * s.lanes)
                reduce_block(s, &pass, in, least[k / BLOCK], n_known, 4 * (at + k), out,
                             4 * (at + k), n_accs);
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
