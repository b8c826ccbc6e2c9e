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

INLINE s32s greater(s32s a, s32s b) {
#if defined(__AVX512BW__)
    return (s32s)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (s32s)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return (s32s)max_int32((vec)a, (vec)b);
#endif
}
/* Of all lanes. */
INLINE uint32_t greatest(s32s v) {
#if defined(__AVX512BW__)
    return (uint32_t)_mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t each[FP32S], most;
    memcpy(each, &v, sizeof each);
    most = each[0];
    for (int i = 1; i < FP32S; i++)
        most = each[i] > most ? each[i] : most;
    return (uint32_t)most;
#endif
}
INLINE s32s lesser(s32s a, s32s b) {
#if defined(__AVX512BW__)
    return (s32s)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (s32s)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
    return (s32s)min_int32((vec)a, (vec)b);
#endif
}

/* ---- one vector ---- */

typedef fp32s decode_of(u16s codes);
typedef u32s encode_of(fp32s v);

INLINE fp32s decode_e4m3(u16s codes) {
    const u16s shifted = (u16s)((s16s)(codes << 8) >> 1); /* the sign is there twice */
    const u16s number = shifted & 0xbf80, is_nan = (u16s)((number & 0x3f80) == 0x3f80);
    return (fp32s)widen_fp16(number ^ (is_nan & (0x3f80 ^ 0x7e00))) * 256.0F;
}
INLINE fp32s decode_e5m2(u16s codes) {
    return (fp32s)widen_fp16(codes << 8);
}

/* Magnitudes in a format of m bits and this bias. The sum with a power of two whose last bit is the
 * step of the format there rounds to a multiple of that step, for subnormals as for others; the
 * exponent of the magnitude, or the least one, says which step that is. No magnitude may be above
 * `most`, which stands for all that have no code of their own. */
INLINE u32s small_of_fp32(u32s any, int m, int bias, float most) {
    const int32_t least = (128 - bias) << 23;
    const u32s magnitude = (u32s)lesser((s32s)any, (s32s){0} + (int32_t)hpi_bits_of_fp32(most));
    const u32s exponent = (u32s)greater((s32s)(magnitude & HPI_FP32_INFINITY), (s32s){0} + least);
    const u32s power = exponent + ((uint32_t)(23 - m) << 23);
    const u32s steps = (u32s)((fp32s)magnitude + (fp32s)power) - power;
    return steps + (exponent >> (23 - m)) - ((uint32_t)least >> (23 - m));
}

/* 480 would follow 448; its code is NaN's. */
INLINE u32s encode_e4m3(fp32s v) {
    return ((u32s)v >> 24 & 0x80U) | small_of_fp32((u32s)v & 0x7fffffffU, 3, 7, 480);
}
/* 65536 would follow 57344; its code is infinity's. */
INLINE u32s encode_e5m2(fp32s v) {
    const u32s magnitude = (u32s)v & 0x7fffffffU;
    const u32s number = small_of_fp32(magnitude, 2, 15, 65536);
    return ((u32s)v >> 24 & 0x80U) |
           pick((u32s)((s32s)magnitude > (int32_t)HPI_FP32_INFINITY), (u32s){0} + 0x7eU, number);
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

/* Both ways in registers: what an element is once it has been 8 bits. */
INLINE void round_all(encode_of *encode, decode_of *decode, const unsigned char *in, float first,
                      float second, float scale, unsigned char *out, uint64_t count) {
    uint64_t at = 0;
    for (; at + FP32S <= count; at += FP32S) {
        const u32s codes = encode((fp32s)load(in + 4 * at) * first * second);
        store(out + 4 * at, (vec)(decode(narrow(codes)) * scale), false);
    }
    if (at < count) {
        uint8_t codes[FP32S] = {0};
        encode_all(encode, in + 4 * at, first, second, codes, count - at);
        decode_all(decode, codes, scale, out + 4 * at, count - at);
    }
}

/* The largest magnitude, of all or of the finite ones, as bits. */
INLINE uint32_t largest_up_to(const unsigned char *in, uint64_t count, bool is_any) {
    unsigned char rest[VECTOR] = {0};
    s32s lanes = {0};
    for (uint64_t at = 0; at < count; at += FP32S) {
        const bool is_whole = at + FP32S <= count;
        if (!is_whole)
            memcpy(rest, in + 4 * at, 4 * (count - at));
        const s32s magnitude = (s32s)load(is_whole ? in + 4 * at : rest) & 0x7fffffff;
        s32s counts = (s32s)(magnitude < (int32_t)HPI_FP32_INFINITY);
        if (is_any)
            counts = (s32s){0} - 1;
        lanes = greater(lanes, magnitude & counts);
    }
    return greatest(lanes);
}

/* Mostly all are finite, which shows in the largest. */
static uint32_t largest_finite(const void *in, uint64_t count) {
    const uint32_t largest = largest_up_to(in, count, true);
    return largest < HPI_FP32_INFINITY ? largest : largest_up_to(in, count, false);
}

#define FP8(name)                                                                                  \
    static void decode_all_##name(const uint8_t *in, float scale, void *out, uint64_t count) {     \
        decode_all(decode_##name, in, scale, out, count);                                          \
    }                                                                                              \
    static void encode_all_##name(const void *in, float first, float second, uint8_t *out,         \
                                  uint64_t count) {                                                \
        encode_all(encode_##name, in, first, second, out, count);                                  \
    }                                                                                              \
    static void round_all_##name(const void *in, float first, float second, float scale,           \
                                 void *out, uint64_t count) {                                      \
        round_all(encode_##name, decode_##name, in, first, second, scale, out, count);             \
    }
FP8(e4m3)
FP8(e5m2)

static const hpi_fp8 fp8[2] = {{largest_finite, encode_all_e4m3, decode_all_e4m3, round_all_e4m3},
                               {largest_finite, encode_all_e5m2, decode_all_e5m2, round_all_e5m2}};

#endif
