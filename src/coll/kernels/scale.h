/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/scale.h - the power of two by which a block of fp8 is divided.
 *
 * It is the least one that brings the block's largest finite magnitude to the format's largest
 * number or below: 448 = 1.75 x 2^8 for e4m3, 57344 = 1.75 x 2^15 for e5m2. So no finite value
 * overflows, and a block whose values some power of two takes into the format stays exact.
 */
#ifndef HPI_SCALE_H
#define HPI_SCALE_H

#include "kernels.h"

/* 2^exponent, a number of fp32. */
static inline float hpi_power_of_two(int exponent) {
    const uint32_t normal = (uint32_t)(exponent + 127) << 23;
    return hpi_fp32_of_bits(exponent < -126 ? 1U << (exponent + 149) : normal);
}

/* Of a block: its scale, and the two factors that take it away, as 1 / scale may be beyond fp32. */
typedef struct hpi_scaling {
    float scale, first, second;
} hpi_scaling;

/* From the bits of the largest magnitude, when 1.75 x 2^top is the format's largest number and
 * 2^least its least step. The scale needs not be so small that this step falls below the least step
 * of fp32. */
static inline hpi_scaling hpi_scaling_of(uint32_t largest, int top, int least) {
    const bool is_subnormal = largest < 1U << 23; /* a multiple of 2^-149 */
    const uint32_t bits = is_subnormal ? hpi_bits_of_fp32((float)largest) : largest;
    const bool is_above = (bits & 0x7fffffU) > 0x600000U; /* 1.75 */
    const int any = (int)(bits >> 23) - 127 - (is_subnormal ? 149 : 0) - top + is_above;
    const int exponent = any < -149 - least ? -149 - least : any;
    return (hpi_scaling){hpi_power_of_two(exponent), hpi_power_of_two(-exponent / 2),
                         hpi_power_of_two(-exponent + exponent / 2)};
}

#endif
