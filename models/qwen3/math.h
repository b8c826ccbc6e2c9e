/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/math.h - elementary functions that a plain loop can be vectorised over.
 *
 * libm's are a call per element. Here every step is an addition, a multiplication or a choice that
 * exists for vectors too, without contraction, so a loop gives the same bits whatever its vector
 * width. Source: Cody and Waite 1980 (reduction in two parts); Moshier, Cephes expf (polynomial).
 */
#ifndef QWEN3_MATH_H
#define QWEN3_MATH_H

#include "../kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Inside a MODEL_KERNEL: compiled into each of its copies. */
#define QWEN3_INLINE static inline __attribute__((always_inline))

/* bf16 is the upper half of an fp32. Rounded to nearest even; a NaN stays a (quiet) NaN. */
static inline float qwen3_bf16_to_fp32(uint16_t h) {
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint16_t qwen3_fp32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    return (uint16_t)(((bits & 0x7fffffffU) > 0x7f800000U ? bits | 0x400000U : rounded) >> 16);
}

/* Element i of an array of fp32 or bf16. is_bf16 is a constant where it is called, so that no loop
 * asks. */
typedef uint16_t qwen3_any_bf16 __attribute__((may_alias));
QWEN3_INLINE float qwen3_load(const void *p, size_t i, bool is_bf16) {
    return is_bf16 ? qwen3_bf16_to_fp32(((const qwen3_any_bf16 *)p)[i]) : ((const float *)p)[i];
}
QWEN3_INLINE void qwen3_store(void *p, size_t i, bool is_bf16, float x) {
    if (is_bf16)
        ((qwen3_any_bf16 *)p)[i] = qwen3_fp32_to_bf16(x);
    else
        ((float *)p)[i] = x;
}

/* A sum runs in so many lanes, lane l taking the elements i with i % QWEN3_LANES == l in order: the
 * same bits for every vector width. */
enum { QWEN3_LANES = 16 };
/* lane[0, QWEN3_LANES), which are overwritten, as a balanced tree. */
static inline float qwen3_sum_lanes(float *lane) {
    for (size_t half = QWEN3_LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/* 2^n for n in [-126, 127]. */
static inline float qwen3_power_of_two(int32_t n) {
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* e^x, within 1 ulp. Above 88.72 it is infinite; below -87.33 subnormal, then zero; NaN stays. */
static inline float qwen3_exp(float x) {
    const float shift = 12582912.0F; /* 1.5 * 2^23: adding it leaves the nearest integer */
    /* Beyond, the result is infinite or zero anyway. One choice between two values of x: two
     * constants would become branches, and gcc 12 vectorises them for AVX-512 alone. */
    x = fabsf(x) > 105.0F ? copysignf(105.0F, x) : x;
    const float shifted = x * 1.44269504F + shift;
    const float n = shifted - shift;
    /* The first part of ln 2 has so few bits that n times it is exact. */
    const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * (r * r) + r + 1.0F;
    /* n reaches outside the exponents of a float: half of it at a time. */
    uint32_t bits, zero;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &shift, sizeof zero);
    const int32_t whole = (int32_t)(bits - zero); /* n: the low bits of `shifted` count by one */
    const int32_t half = whole >> 1;
    return p * qwen3_power_of_two(half) * qwen3_power_of_two(whole - half);
}

#endif
