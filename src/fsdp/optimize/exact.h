/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/optimize/exact.h - sums of |x| and of x^2 that do not depend on the order of the additions.
 *
 * Every term is scaled by a power of two that all ranks agree on, so that the largest |x| is in
 * [1/2, 1), rounded to a multiple of 2^-78, and added as a 128-bit integer. Integers add in any
 * order and over any sharding to the same sum.
 *
 * Bounds: up to 2^48 elements in all. An fp32 square is exact before that rounding; an fp64 square
 * is rounded to fp64 first. With N elements the sum is off by at most N * 2^-79 of the largest
 * term's scale, which is N * 2^-77 of the sum. Source: Demmel and Nguyen, "Parallel Reproducible
 * Summation", 2015 (the split by a large constant).
 */
#ifndef HPI_EXACT_H
#define HPI_EXACT_H

#include "../../base/base.h"

__extension__ typedef __int128 hpi_int128;

/* The bits of the largest |x| as fp64: they order as integers do, any infinity above all numbers,
 * any NaN above infinity. 0 for no elements. dtype fp32 or fp64. */
uint64_t hpi_exact_largest(const void *values, hp_dtype dtype, uint64_t n);

/* The power of two that brings the largest |x|, finite and not zero, into [1/2, 1): |x| * 2^-e. */
int hpi_exact_exponent(double largest);

/* Add |x * 2^-exponent|^power to *sum, in units of 2^-78; power is 1 or 2. */
void hpi_exact_add(const void *values, hp_dtype dtype, uint64_t n, int power, int exponent,
                   hpi_int128 *sum);

/* The norm that belongs to a sum: (sum * 2^-78)^(1/power) * 2^exponent. */
double hpi_exact_norm(hpi_int128 sum, int power, int exponent);

#endif
