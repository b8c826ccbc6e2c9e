/* SPDX-License-Identifier: Apache-2.0
 *
 * base/floats.h - single numbers between fp32 and the formats below it, by integer code that
 * compilers vectorise.
 *
 * fp16, fp8 e4m3 and fp8 e5m2 are one function each way with two parameters: bits of the
 * significand and bias of the exponent. Each value is rounded once, to nearest even, subnormals
 * included; a NaN stays a NaN. Selections are masks, as in coll/kernels/lanes.h. Sources: IEEE
 * 754-2019; OCP 8-bit Floating Point Specification (OFP8) 1.0, 2023; Micikevicius et al. 2022, "FP8
 * formats for deep learning".
 */
#ifndef HPI_FLOATS_H
#define HPI_FLOATS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t hpi_bits_of_fp32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static inline float hpi_fp32_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
/* a where the condition (0 or 1) holds, else b. */
static inline uint32_t hpi_select(uint32_t condition, uint32_t a, uint32_t b) {
    return (a & -condition) | (b & ~-condition);
}

#define HPI_FP32_INFINITY 0x7f800000U /* bits without a sign; a NaN's are greater */

/* ---- formats of `m` bits of significand and exponent bias `bias` -------------------------- */

/* The magnitude (bits of an fp32 without sign) in the format, as if its exponents had no upper end:
 * what the format cannot hold is greater than its largest number. */
static inline uint32_t hpi_small_of_fp32(uint32_t magnitude, int m, int bias) {
    const int shift = 23 - m;
    const uint32_t rounded = magnitude + (1U << (shift - 1)) - 1 + (magnitude >> shift & 1);
    const uint32_t normal = (rounded >> shift) - ((uint32_t)(127 - bias) << m);
    /* Below the least normal number: in the sum with a power of two whose last bit is the format's
     * least step, the addition itself rounds to a multiple of that step. */
    const uint32_t power = (uint32_t)(127 + 24 - bias - m) << 23;
    const float sum = hpi_fp32_of_bits(magnitude) + hpi_fp32_of_bits(power);
    const uint32_t subnormal = hpi_bits_of_fp32(sum) - power;
    return hpi_select(magnitude < (uint32_t)(128 - bias) << 23, subnormal, normal);
}

/* The other way, for numbers: exact. Not for infinities and NaN. */
static inline uint32_t hpi_small_to_fp32(uint32_t magnitude, int m, int bias) {
    const uint32_t normal = (magnitude << (23 - m)) + ((uint32_t)(127 - bias) << 23);
    const float step = hpi_fp32_of_bits((uint32_t)(127 + 1 - bias - m) << 23);
    const uint32_t subnormal = hpi_bits_of_fp32((float)(int32_t)magnitude * step);
    return hpi_select(magnitude < 1U << m, subnormal, normal);
}

/* ---- fp16: beyond 65504, from the tie 65520 on, an infinity -------------------------------- */

static inline uint16_t hpi_fp32_to_fp16(float f) {
    const uint32_t bits = hpi_bits_of_fp32(f), magnitude = bits & 0x7fffffffU;
    const uint32_t any = hpi_small_of_fp32(magnitude, 10, 15);
    const uint32_t number = hpi_select(any < 0x7c00U, any, 0x7c00U);
    const uint32_t nan = 0x7e00U | (magnitude >> 13 & 0x3ffU);
    return (uint16_t)((bits >> 16 & 0x8000U) |
                      hpi_select(magnitude > HPI_FP32_INFINITY, nan, number));
}
static inline float hpi_fp16_to_fp32(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffU, sign = (uint32_t)(h & 0x8000U) << 16;
    const uint32_t number = hpi_small_to_fp32(magnitude, 10, 15);
    const uint32_t quiet = hpi_select(magnitude > 0x7c00U, 0x400000U, 0); /* as instructions do */
    const uint32_t special = HPI_FP32_INFINITY | magnitude << 13 | quiet;
    return hpi_fp32_of_bits(sign | hpi_select(magnitude >= 0x7c00U, special, number));
}

/* ---- bf16: the upper half of an fp32 ------------------------------------------------------- */

static inline float hpi_bf16_to_fp32(uint16_t h) {
    return hpi_fp32_of_bits((uint32_t)h << 16);
}
static inline uint16_t hpi_fp32_to_bf16(float f) {
    const uint32_t bits = hpi_bits_of_fp32(f);
    if ((bits & 0x7fffffffU) > HPI_FP32_INFINITY)
        return (uint16_t)((bits >> 16) | 0x40U);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/* ---- fp8 e4m3 (E4M3FN): up to 448; no infinity, what is beyond and infinities become NaN ---- */

static inline uint8_t hpi_fp32_to_e4m3(float f) {
    const uint32_t bits = hpi_bits_of_fp32(f);
    const uint32_t any = hpi_small_of_fp32(bits & 0x7fffffffU, 3, 7);
    return (uint8_t)((bits >> 24 & 0x80U) | hpi_select(any < 0x7fU, any, 0x7fU));
}
static inline float hpi_e4m3_to_fp32(uint8_t code) {
    const uint32_t magnitude = code & 0x7fU, sign = (uint32_t)(code & 0x80U) << 24;
    const uint32_t number = hpi_small_to_fp32(magnitude, 3, 7);
    return hpi_fp32_of_bits(sign | hpi_select(magnitude == 0x7fU, 0x7fc00000U, number));
}

/* ---- fp8 e5m2: up to 57344; from the tie 61440 on, an infinity ------------------------------ */

static inline uint8_t hpi_fp32_to_e5m2(float f) {
    const uint32_t bits = hpi_bits_of_fp32(f), magnitude = bits & 0x7fffffffU;
    const uint32_t any = hpi_small_of_fp32(magnitude, 2, 15);
    const uint32_t number = hpi_select(any < 0x7cU, any, 0x7cU);
    return (uint8_t)((bits >> 24 & 0x80U) |
                     hpi_select(magnitude > HPI_FP32_INFINITY, 0x7eU, number));
}
static inline float hpi_e5m2_to_fp32(uint8_t code) {
    const uint32_t magnitude = code & 0x7fU, sign = (uint32_t)(code & 0x80U) << 24;
    const uint32_t number = hpi_small_to_fp32(magnitude, 2, 15);
    const uint32_t special = HPI_FP32_INFINITY | magnitude << 21;
    return hpi_fp32_of_bits(sign | hpi_select(magnitude >= 0x7cU, special, number));
}

/* fp64 on its way to bf16 or fp16. Through a nearest fp32 it could be rounded twice; "to odd", what
 * is cut off leaves a mark in the last bit, and the second rounding sees on which side of a tie the
 * value was. Source: Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved
 * algorithms using rounding to odd" (p + 2 bits suffice). */
static inline float hpi_fp64_to_fp32_odd(double d) {
    const float f = (float)d;
    const uint32_t bits = hpi_bits_of_fp32(f);
    if ((double)f == d || d != d)
        return f;
    /* Inexact: of the two neighbours the one whose last bit is 1. */
    const bool is_beyond = (f < 0 ? -(double)f : (double)f) > (d < 0 ? -d : d);
    return hpi_fp32_of_bits(bits & 1U ? bits : is_beyond ? bits - 1 : bits + 1);
}

#endif
