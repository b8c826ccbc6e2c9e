/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/lanes.h - one vector of the instruction set for which the including file is compiled.
 *
 * A vector is `vec`, whatever it holds; each function says what it takes it for. Arithmetic is that
 * of the compiler's vector types (gcc and clang have the same), which is that of C, lane by lane.
 * Intrinsics stand where those have no word: conversions of fp16, stores past the caches, and parts
 * of a vector. Without AVX a vector is 16 bytes: SSE2, which every x86-64 has, or NEON.
 */
#ifndef HPI_LANES_H
#define HPI_LANES_H

#include "kernels.h"

#if defined(__AVX512BW__) && defined(__AVX512VL__)
enum { VECTOR = 64 };
#elif defined(__AVX2__) && defined(__F16C__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
enum { HALF = VECTOR / 2 };

#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LANES(type, bytes) __attribute__((vector_size(bytes), may_alias)) type

typedef LANES(uint8_t, VECTOR) vec;
typedef LANES(double, VECTOR) fp64s;
typedef LANES(float, VECTOR) fp32s;
typedef LANES(uint64_t, VECTOR) u64s;
typedef LANES(uint32_t, VECTOR) u32s;
typedef LANES(int64_t, VECTOR) s64s;
typedef LANES(int32_t, VECTOR) s32s;
typedef LANES(int8_t, VECTOR) s8s;
typedef LANES(uint16_t, HALF) u16s; /* as many as u32s */
typedef LANES(int16_t, HALF) s16s;

/* ---- memory, at any address ---- */

INLINE vec load(const unsigned char *from) {
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* `streams`: past the caches, to an address that is a multiple of the bytes stored. */
INLINE void store(unsigned char *to, vec v, bool streams) {
#if defined(__x86_64__)
    if (streams) {
#if defined(__AVX512BW__)
        _mm512_stream_si512((void *)to, (__m512i)v);
#elif defined(__AVX2__)
        _mm256_stream_si256((void *)to, (__m256i)v);
#else
        _mm_stream_si128((void *)to, (__m128i)v);
#endif
        return;
    }
#endif
    (void)streams;
    memcpy(to, &v, sizeof v);
}

INLINE void store_half(unsigned char *to, u16s v, bool streams) {
#if defined(__x86_64__)
    if (streams) {
#if defined(__AVX512BW__)
        _mm256_stream_si256((void *)to, (__m256i)v);
#elif defined(__AVX2__)
        _mm_stream_si128((void *)to, (__m128i)v);
#else
        long long both;
        memcpy(&both, &v, sizeof both);
        _mm_stream_si64((void *)to, both);
#endif
        return;
    }
#endif
    (void)streams;
    memcpy(to, &v, sizeof v);
}

/* Less than a vector. */
INLINE void copy_part(unsigned char *to, const unsigned char *from, uint64_t bytes) {
#if defined(__AVX512BW__)
    const __mmask64 mask = (UINT64_C(1) << bytes) - 1;
    _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_loadu_epi8(mask, from));
#else
    memcpy(to, from, bytes);
#endif
}

/* ---- between 16 bits and fp32 ---- */

INLINE u32s pick(u32s mask, u32s a, u32s b) {
    return (mask & a) | (~mask & b);
}

INLINE u16s load_half(const unsigned char *from) {
    u16s half;
    memcpy(&half, from, sizeof half);
    return half;
}

/* gcc 12 makes five instructions of the conversion between 16 and 32 bits that it has one for. */
INLINE u32s widen(u16s v) {
#if defined(__AVX512BW__)
    return (u32s)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(__AVX2__)
    return (u32s)_mm256_cvtepu16_epi32((__m128i)v);
#else
    return __builtin_convertvector(v, u32s);
#endif
}

/* Of lanes below 65536. */
INLINE u16s narrow(u32s v) {
#if defined(__AVX512BW__)
    return (u16s)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
    const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v); /* in each half of it */
    return (u16s)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(v, u16s);
#endif
}

/* hpi_fp32_to_bf16, in the upper half of each lane; the lower half is of no meaning. */
INLINE u32s round_to_bf16(vec v) {
    const u32s bits = (u32s)v, rounded = bits + 0x7fffU + (bits >> 16 & 1U);
#if defined(__AVX512BW__)
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (u32s)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)bits,
                                      _mm512_set1_epi32(0x400000));
#else
    return pick((u32s)((s32s)(bits & 0x7fffffffU) > (int32_t)HPI_FP32_INFINITY), bits | 0x400000U,
                rounded);
#endif
}

/* The instructions round as floats.h does, a NaN keeps the upper bits of its payload, and denormals
 * count whatever the modes of the thread say. Without one it is the code of floats.h on lanes. */
INLINE vec widen_fp16(u16s half) {
#if defined(__AVX512BW__)
    return (vec)_mm512_cvtph_ps((__m256i)half);
#elif defined(__AVX2__)
    return (vec)_mm256_cvtph_ps((__m128i)half);
#elif defined(__aarch64__)
    return (vec)vcvt_f32_f16((float16x4_t)half);
#else
    const u32s bits = widen(half), magnitude = bits & 0x7fffU, sign = (bits & 0x8000U) << 16;
    const fp32s steps = __builtin_convertvector((s32s)magnitude, fp32s);
    const u32s normal = (magnitude << 13) + (112U << 23), subnormal = (u32s)(steps * 0x1p-24F);
    const u32s number = pick((u32s)(magnitude < 0x400U), subnormal, normal);
    const u32s quiet = (u32s)(magnitude > 0x7c00U) & 0x400000U;
    const u32s special = HPI_FP32_INFINITY | magnitude << 13 | quiet;
    return (vec)(sign | pick((u32s)(magnitude >= 0x7c00U), special, number));
#endif
}

INLINE u16s narrow_fp16(vec v) {
#if defined(__AVX512BW__)
    return (u16s)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
    return (u16s)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
    return (u16s)vcvt_f16_f32((float32x4_t)v);
#else
    const u32s bits = (u32s)v, magnitude = bits & 0x7fffffffU;
    const u32s rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
    const u32s normal = (rounded >> 13) - (112U << 10);
    const u32s subnormal = (u32s)((fp32s)magnitude + 0.5F) - 0x3f000000U; /* its step is 2^-24 */
    const u32s any = pick((u32s)(magnitude < 0x38800000U), subnormal, normal);
    const u32s number = pick((u32s)((s32s)any < 0x7c00), any, 0x7c00U - (u32s){0});
    const u32s nan = 0x7e00U | (magnitude >> 13 & 0x3ffU);
    const u32s small = pick((u32s)((s32s)magnitude > 0x7f800000), nan, number);
    return narrow((bits >> 16 & 0x8000U) | small);
#endif
}

/* ---- sum, max, min ---- */

INLINE vec sum_fp64(vec a, vec b) {
    return (vec)((fp64s)a + (fp64s)b);
}
INLINE vec sum_fp32(vec a, vec b) {
    return (vec)((fp32s)a + (fp32s)b);
}

/* A NaN wins, as the sum, and +0 is greater than -0. */
#if defined(__aarch64__)
#define COMPARE(type, neon_type, letters)                                                          \
    INLINE vec max_##type(vec a, vec b) {                                                          \
        return (vec)vmaxq_##letters((neon_type)a, (neon_type)b);                                   \
    }                                                                                              \
    INLINE vec min_##type(vec a, vec b) {                                                          \
        return (vec)vminq_##letters((neon_type)a, (neon_type)b);                                   \
    }
COMPARE(fp64, float64x2_t, f64)
COMPARE(fp32, float32x4_t, f32)
#elif defined(__x86_64__)
/* Of equal numbers, and where one is a NaN, the instruction takes the second. So in both orders it
 * gives both zeros, of which `and` makes +0 and `or` -0. */
#if defined(__AVX512BW__)
#define PACKED(name, letters) _mm512_##name##_##letters
#elif defined(__AVX2__)
#define PACKED(name, letters) _mm256_##name##_##letters
#else
#define PACKED(name, letters) _mm_##name##_##letters
#endif
#ifdef __AVX512BW__
#define SUM_WHERE_NAN(letters, x, y, best)                                                         \
    (vec) _mm512_mask_add_##letters(best, _mm512_cmp_##letters##_mask((x), (y), _CMP_UNORD_Q),     \
                                    (x), (y))
#else
#define SUM_WHERE_NAN(letters, x, y, best)                                                         \
    where_nan((vec)((x != x) | (y != y)), (vec)(x + y), (vec)best)
INLINE vec where_nan(vec is_nan, vec sum, vec best) {
    return (is_nan & sum) | (~is_nan & best);
}
#endif
#define COMPARE(which, type, letters, join)                                                        \
    INLINE vec which##_##type(vec a, vec b) {                                                      \
        const type##s x = (type##s)a, y = (type##s)b;                                              \
        const type##s first = PACKED(which, letters)(x, y), second = PACKED(which, letters)(y, x); \
        return SUM_WHERE_NAN(letters, x, y, (type##s)((vec)first join(vec) second));               \
    }
COMPARE(max, fp64, pd, &)
COMPARE(min, fp64, pd, |)
COMPARE(max, fp32, ps, &)
COMPARE(min, fp32, ps, |)
#else
/* Equal numbers differ at most in the sign of zero, which `and` clears and `or` keeps; what is
 * neither greater, less nor equal is a NaN. */
#define COMPARE(name, floats, bits, better, join)                                                  \
    INLINE vec name(vec a, vec b) {                                                                \
        const floats x = (floats)a, y = (floats)b;                                                 \
        const bits is_a = (bits)(x better y), is_b = (bits)(y better x);                           \
        const bits is_both = (bits)(x == y), is_nan = ~(is_a | is_b | is_both);                    \
        const bits both = (bits)a join(bits) b;                                                    \
        return (vec)(((bits)a & is_a) | ((bits)b & is_b) | (both & is_both) |                      \
                     ((bits)(x + y) & is_nan));                                                    \
    }
COMPARE(max_fp64, fp64s, u64s, >, &)
COMPARE(min_fp64, fp64s, u64s, <, |)
COMPARE(max_fp32, fp32s, u32s, >, &)
COMPARE(min_fp32, fp32s, u32s, <, |)
#endif

/* Sums wrap; `compared` says whether max and min see a sign. */
#define INTEGER(name, wrapping, compared)                                                          \
    INLINE vec sum_##name(vec a, vec b) {                                                          \
        return (vec)((wrapping)a + (wrapping)b);                                                   \
    }                                                                                              \
    INLINE vec max_##name(vec a, vec b) {                                                          \
        const vec is_a = (vec)((compared)a > (compared)b);                                         \
        return (is_a & a) | (~is_a & b);                                                           \
    }                                                                                              \
    INLINE vec min_##name(vec a, vec b) {                                                          \
        const vec is_a = (vec)((compared)a < (compared)b);                                         \
        return (is_a & a) | (~is_a & b);                                                           \
    }
INTEGER(int64, u64s, s64s)
INTEGER(int32, u32s, s32s)
INTEGER(int8, vec, s8s)
INTEGER(uint8, vec, vec)

#endif
