/* SPDX-License-Identifier: Apache-2.0
 *
 * exact.c - order-free sums, at the speed of plain fp64 additions.
 *
 * A term t in [0, 1] is cut into three digits: multiples of 2^-26, 2^-52 and 2^-78. Adding and
 * subtracting 1.5 * 2^26 rounds t to a multiple of 2^-26, exactly what is left is cut again. A
 * digit is a whole number of at most 2^26 units, so 2^26 of them add exactly in one double: a
 * block is summed in doubles, in any order, and its three sums go into the 128-bit integer.
 */
#include "exact.h"

#include <math.h>

enum { BLOCK = 1024, LANES = 8, DIGIT_BITS = 26, N_DIGITS = 3, SUM_BITS = DIGIT_BITS * N_DIGITS };

/* ---- the largest ---------------------------------------------------------------------------- */

HPI_KERNEL static uint32_t largest_fp32(const uint32_t *bits, uint64_t n) {
    uint32_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t magnitude = bits[i] & 0x7fffffffU;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

HPI_KERNEL static uint64_t largest_fp64(const uint64_t *bits, uint64_t n) {
    uint64_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t magnitude = bits[i] & UINT64_C(0x7fffffffffffffff);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

uint64_t hpi_exact_largest(const void *values, hp_dtype dtype, uint64_t n) {
    if (dtype == HP_FP64)
        return largest_fp64(values, n);
    const uint32_t bits = largest_fp32(values, n);
    float narrow;
    memcpy(&narrow, &bits, sizeof narrow);
    const double wide = narrow;
    uint64_t wide_bits;
    memcpy(&wide_bits, &wide, sizeof wide_bits);
    return wide_bits;
}

int hpi_exact_exponent(double largest) {
    int exponent;
    (void)frexp(largest, &exponent);
    return exponent;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Eight doubles that are added as one: gcc, left alone, vectorises this loop the wrong way round.
 */
typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

struct digits {
    lanes sum[N_DIGITS];
};

HPI_KERNEL static void add_terms(const double *terms, int n, struct digits *out) {
    const double top = 0x1.8p+26, middle = 0x1.8p+0, bottom = 0x1.8p-26;
    lanes sum0 = {0}, sum1 = {0}, sum2 = {0};
    for (int i = 0; i < n; i += LANES) {
        lanes t;
        memcpy(&t, terms + i, sizeof t);
        const lanes first = (t + top) - top, rest = t - first;
        const lanes second = (rest + middle) - middle, last = rest - second;
        sum0 += first;
        sum1 += second;
        sum2 += (last + bottom) - bottom;
    }
    *out = (struct digits){{sum0, sum1, sum2}};
}

/* Scaling is in two steps: 2^-exponent alone may be larger than any double. */
HPI_KERNEL static void terms_fp32(const float *x, int n, int power, double half, double rest,
                                  double *out) {
    for (int i = 0; i < n; i++) {
        const double t = fabs((double)x[i]) * half * rest;
        out[i] = power == 2 ? t * t : t;
    }
}

HPI_KERNEL static void terms_fp64(const double *x, int n, int power, double half, double rest,
                                  double *out) {
    for (int i = 0; i < n; i++) {
        const double t = fabs(x[i]) * half * rest;
        out[i] = power == 2 ? t * t : t;
    }
}

/* Whole numbers of their unit, below 2^53: nothing is lost. */
static hpi_int128 collect(const struct digits *d) {
    static const double units_per_one[N_DIGITS] = {0x1p+26, 0x1p+52, 0x1p+78};
    hpi_int128 sum = 0;
    for (int digit = 0; digit < N_DIGITS; digit++) {
        int64_t units = 0;
        for (int k = 0; k < LANES; k++)
            units += (int64_t)(d->sum[digit][k] * units_per_one[digit]);
        sum = (sum << DIGIT_BITS) + units;
    }
    return sum;
}

void hpi_exact_add(const void *values, hp_dtype dtype, uint64_t n, int power, int exponent,
                   hpi_int128 *sum) {
    const double half = ldexp(1.0, -(exponent / 2)), rest = ldexp(1.0, -(exponent - exponent / 2));
    double terms[BLOCK];
    for (uint64_t i = 0; i < n; i += BLOCK) {
        struct digits digits;
        int n_here = (int)hpi_min(n - i, BLOCK);
        if (dtype == HP_FP64)
            terms_fp64((const double *)values + i, n_here, power, half, rest, terms);
        else
            terms_fp32((const float *)values + i, n_here, power, half, rest, terms);
        while (n_here % LANES)
            terms[n_here++] = 0;
        add_terms(terms, n_here, &digits);
        *sum += collect(&digits);
    }
}

double hpi_exact_norm(hpi_int128 sum, int power, int exponent) {
    const double mantissa = (double)sum; /* rounded once, to nearest */
    if (power == 1)
        return ldexp(mantissa, exponent - SUM_BITS);
    return ldexp(sqrt(mantissa), exponent - SUM_BITS / 2);
}
