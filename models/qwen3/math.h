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

#include <stdint.h>
#include <string.h>

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
    /* A NaN passes both comparisons; its n is a number like any other and its r is NaN. */
    x = x < -105.0F ? -105.0F : x;
    x = x > 90.0F ? 90.0F : x;
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
