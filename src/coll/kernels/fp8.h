/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/fp8.h - fp8 e4m3 and e5m2 in vectors: the functions of floats.h, lane by lane and bit by
 * bit, and the largest number of a block, from which its scale comes.
 *
 * An e5m2 is the upper byte of an fp16. An e4m3 whose exponent is taken for one of fp16 is 2^-8 of
 * itself, and fp16 holds all of them.
 */
#ifndef HPI_FP8_H
#define HPI_FP8_H

#include "lanes.h"

enum { FP32S = VECTOR / 4 }; /* elements of a vector */

typedef LANES(uint8_t, FP32S) u8s;

INLINE u16s load_bytes(const uint8_t *from) {
#if defined(__AVX512BW__)
    return (u16s)_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)from));
#elif defined(__AVX2__)
    return (u16s)_mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)from));
#else
    u8s b;
    memcpy(&b, from, sizeof b);
    return __builtin_convertvector(b, u16s);
#endif
}

/* Lanes below 256. */
INLINE void store_bytes(uint8_t *to, u32s v) {
#if defined(__AVX512BW__)
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
    const __m128i halves = (__m128i)narrow(v);
    _mm_storel_epi64((void *)to, _mm_packus_epi16(halves, halves));
#else
    const u8s b = __builtin_convertvector(v, u8s);
    memcpy(to, &b, sizeof b);
#endif
}

/* ---- one vector ---- */

typedef fp32s decode_of(u16s codes);
typedef u32s encode_of(fp32s v);

INLINE fp32s decode_e4m3(u16s codes) {
    const u16s magnitude = codes & 0x7f, is_nan = (u16s)(magnitude == 0x7f);
    const u16s number = (codes & 0x80) << 8 | magnitude << 7, nan = (codes & 0x80) << 8 | 0x7e00;
    return (fp32s)widen_fp16((is_nan & nan) | (~is_nan & number)) * 256.0F;
}
INLINE fp32s decode_e5m2(u16s codes) {
    return (fp32s)widen_fp16(codes << 8);
}

/* hpi_small_of_fp32, its comparisons signed: there is no instruction for others below AVX-512. */
INLINE u32s small_of_fp32(u32s magnitude, int m, int bias) {
    const int shift = 23 - m;
    const uint32_t power = (uint32_t)(127 + 24 - bias - m) << 23;
    const u32s rounded = magnitude + ((1U << (shift - 1)) - 1) + (magnitude >> shift & 1U);
    const u32s normal = (rounded >> shift) - ((uint32_t)(127 - bias) << m);
    const u32s subnormal = (u32s)((fp32s)magnitude + hpi_fp32_of_bits(power)) - power;
    return pick((u32s)((s32s)magnitude < (128 - bias) << 23), subnormal, normal);
}
INLINE u32s at_most(u32s v, int32_t most) {
    return pick((u32s)((s32s)v < most), v, (u32s)((s32s){0} + most));
}

INLINE u32s encode_e4m3(fp32s v) {
    const u32s any = small_of_fp32((u32s)v & 0x7fffffffU, 3, 7);
    return ((u32s)v >> 24 & 0x80U) | at_most(any, 0x7f);
}
INLINE u32s encode_e5m2(fp32s v) {
    const u32s magnitude = (u32s)v & 0x7fffffffU;
    const u32s number = at_most(small_of_fp32(magnitude, 2, 15), 0x7c);
    const u32s is_nan = (u32s)(v != v);
    return ((u32s)v >> 24 & 0x80U) | pick(is_nan, (u32s){0} + 0x7eU, number);
}

/* ---- loops; the last vector may not be whole ---- */

INLINE void decode_all(decode_of *decode, const uint8_t *in, float scale, unsigned char *out,
                       uint64_t count) {
    uint64_t at = 0;
    for (; at + FP32S <= count; at += FP32S)
        store(out + 4 * at, (vec)(decode(load_bytes(in + at)) * scale), false);
    if (at < count) {
        uint8_t codes[FP32S] = {0};
        unsigned char wide[VECTOR];
        memcpy(codes, in + at, count - at);
        store(wide, (vec)(decode(load_bytes(codes)) * scale), false);
        memcpy(out + 4 * at, wide, 4 * (count - at));
    }
}

INLINE void encode_all(encode_of *encode, const unsigned char *in, float first, float second,
                       uint8_t *out, uint64_t count) {
    uint64_t at = 0;
    for (; at + FP32S <= count; at += FP32S)
        store_bytes(out + at, encode((fp32s)load(in + 4 * at) * first * second));
    if (at < count) {
        unsigned char wide[VECTOR] = {0};
        uint8_t codes[FP32S];
        memcpy(wide, in + 4 * at, 4 * (count - at));
        store_bytes(codes, encode((fp32s)load(wide) * first * second));
        memcpy(out + at, codes, count - at);
    }
}

INLINE s32s larger_finite(s32s largest, vec v) {
    const s32s magnitude = (s32s)v & 0x7fffffff;
    const s32s finite = magnitude & (magnitude < (int32_t)HPI_FP32_INFINITY);
    return (s32s)max_int32((vec)largest, (vec)finite);
}

static uint32_t largest_finite(const void *data, uint64_t count) {
    const unsigned char *in = data;
    unsigned char rest[VECTOR] = {0};
    s32s lanes = {0};
    int32_t each[FP32S], largest = 0;
    uint64_t at = 0;
    for (; at + FP32S <= count; at += FP32S)
        lanes = larger_finite(lanes, load(in + 4 * at));
    memcpy(rest, in + 4 * at, 4 * (count - at));
    lanes = larger_finite(lanes, load(rest));
    memcpy(each, &lanes, sizeof each);
    for (int i = 0; i < FP32S; i++)
        largest = each[i] > largest ? each[i] : largest;
    return (uint32_t)largest;
}

#define FP8(name)                                                                                  \
    static void decode_all_##name(const uint8_t *in, float scale, void *out, uint64_t count) {     \
        decode_all(decode_##name, in, scale, out, count);                                          \
    }                                                                                              \
    static void encode_all_##name(const void *in, float first, float second, uint8_t *out,         \
                                  uint64_t count) {                                                \
        encode_all(encode_##name, in, first, second, out, count);                                  \
    }
FP8(e4m3)
FP8(e5m2)

static const hpi_fp8 fp8[2] = {{largest_finite, encode_all_e4m3, decode_all_e4m3},
                               {largest_finite, encode_all_e5m2, decode_all_e5m2}};

#endif
