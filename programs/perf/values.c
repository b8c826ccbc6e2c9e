/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/values.c - the periods, made once for each type and operation.
 *
 * Numbers are doubles until they are stored: all are whole and small, or powers of two, so every
 * type and every partial sum holds them exactly, but where the order of additions is to be seen.
 */
#include "values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that look as if drawn; source: the finalizer of MurmurHash3. */
static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6bU;
    x ^= x >> 13;
    x *= 0xc2b2ae35U;
    return x ^ x >> 16;
}

/* ---- numbers ---- */

/* A prime of the whole numbers that the type holds exactly: a multiple of 17 is 0 for none below.
 */
static uint32_t modulus(hp_dtype dtype) {
    switch (dtype) {
    case HP_INT8:
    case HP_UINT8:
    case HP_BF16:
        return 251;
    case HP_FP16:
        return 2039;
    default:
        return 65521;
    }
}

static bool shows_order(const values_config *c, unsigned position) {
    return (c->dtype == HP_FP32 || c->dtype == HP_FP64) && (c->op == HP_SUM || c->op == HP_AVG) &&
           c->n_ranks > 2 && !c->is_rounded && position % 8 == 5;
}

/* From 1 to 7: ranks of one seven differ at every place, others at six of seven. */
static double contribution(int rank, unsigned position) {
    const uint32_t r = (uint32_t)rank;
    return 1 + (mix(position) % 7 + r + r / 7 * (mix(~position) % 7)) % 7;
}

double values_number(const values_config *c, int rank, unsigned position) {
    if (!c->reduces) {
        const double value = (mix(position) % 65521 + 17U * (uint32_t)rank) % modulus(c->dtype);
        return c->dtype == HP_INT8 ? value - 125 : value;
    }
    const double x = contribution(rank, position);
    if (shows_order(c, position) && (int)(mix(position) % (uint32_t)c->n_ranks) == rank)
        return c->dtype == HP_FP64 ? 0x1p53 : 0x1p24; /* where an odd number is rounded off */
    return c->op == HP_MAX && c->dtype != HP_UINT8 ? x - 8 : x; /* so that a stray 0 is seen */
}

/* ---- reductions ---- */

static double add(const values_config *c, double a, double b) {
    const double sum = a + b; /* of two floats: rounding it once more is rounding once */
    return c->dtype == HP_FP64 ? sum : (float)sum;
}

static double combine(const values_config *c, double a, double b) {
    if (c->op == HP_MAX)
        return a > b ? a : b;
    if (c->op == HP_MIN)
        return a < b ? a : b;
    return add(c, a, b);
}

static double tree(const values_config *c, const double *x, int n) {
    int left = 1;
    if (n == 1)
        return x[0];
    while (2 * left < n)
        left *= 2;
    return combine(c, tree(c, x, left), tree(c, x + left, n - left));
}

double values_reduce(const values_config *c, const double *x) {
    const double sum = tree(c, x, c->n_ranks);
    if (c->op != HP_AVG)
        return sum;
    return c->dtype == HP_FP64 ? sum / c->n_ranks : (double)((float)sum / (float)c->n_ranks);
}

/* ---- types ---- */

size_t values_size(hp_dtype dtype) {
    static const unsigned char sizes[] = {8, 4, 2, 2, 8, 4, 1, 1};
    return sizes[dtype];
}

/* Sign, exponent and fraction of a float of 16 bits, rounded to nearest even. */
static uint16_t half_bits(double number, int fraction_bits, int bias) {
    int exponent;
    if (number == 0)
        return 0;
    const double f = frexp(fabs(number), &exponent); /* in [1/2, 1) */
    const int whole = (int)nearbyint(ldexp(f, fraction_bits + 1));
    /* `whole` holds the leading 1, which raises the exponent by one: so does a carry. */
    const int bits = ((exponent - 2 + bias) << fraction_bits) + whole;
    return (uint16_t)(bits | (number < 0 ? 0x8000 : 0));
}

#define STORE(type, value)                                                                         \
    do {                                                                                           \
        const type stored_ = (type)(value);                                                        \
        memcpy(out, &stored_, sizeof stored_);                                                     \
    } while (0)

void values_store(hp_dtype dtype, double number, void *out) {
    switch (dtype) {
    case HP_FP64:
        STORE(double, number);
        break;
    case HP_FP32:
        STORE(float, number);
        break;
    case HP_FP16:
        STORE(uint16_t, half_bits(number, 10, 15));
        break;
    case HP_BF16:
        STORE(uint16_t, half_bits(number, 7, 127));
        break;
    case HP_INT64:
        STORE(int64_t, number);
        break;
    case HP_INT32:
        STORE(int32_t, number);
        break;
    case HP_INT8: /* sums wrap */
        STORE(uint8_t, (int64_t)number);
        break;
    case HP_UINT8:
        STORE(uint8_t, (int64_t)number);
        break;
    }
}

/* ---- streams ---- */

static unsigned char *period_of(const values *v, int rank) {
    const int row = rank == VALUES_REDUCED ? v->n_ranks : rank;
    return v->periods + (size_t)row * VALUES_PERIOD * v->element_bytes;
}

static void make(const values_config *c, double *x, values *v) {
    for (unsigned p = 0; p < VALUES_PERIOD; p++) {
        for (int r = 0; r < c->n_ranks; r++) {
            x[r] = values_number(c, r, p);
            values_store(c->dtype, x[r], period_of(v, r) + p * v->element_bytes);
        }
        if (c->reduces)
            values_store(c->dtype, values_reduce(c, x),
                         period_of(v, VALUES_REDUCED) + p * v->element_bytes);
    }
}

bool values_create(const values_config *config, values *out_values) {
    const size_t n = (size_t)config->n_ranks;
    values v = {.element_bytes = values_size(config->dtype), .n_ranks = config->n_ranks};
    double *x = calloc(n, sizeof *x);
    v.periods = calloc((n + 1) * VALUES_PERIOD, v.element_bytes);
    if (!x || !v.periods) {
        free(x);
        free(v.periods);
        return false;
    }
    make(config, x, &v);
    free(x);
    *out_values = v;
    return true;
}

void values_destroy(values *v) {
    free(v->periods);
    v->periods = NULL;
}

/* The bytes from element `first` of an iteration on that lie together in the period, at most
 * `bytes`. */
static const unsigned char *piece(const values *v, int rank, uint64_t iteration, uint64_t first,
                                  uint64_t bytes, uint64_t *out_bytes) {
    const uint64_t shift = iteration % VALUES_PERIOD * VALUES_STEP;
    const uint64_t at = (first % VALUES_PERIOD + shift) % VALUES_PERIOD;
    const uint64_t left = (VALUES_PERIOD - at) * v->element_bytes;
    *out_bytes = bytes < left ? bytes : left;
    return period_of(v, rank) + at * v->element_bytes;
}

void values_fill(const values *v, int rank, uint64_t iteration, uint64_t first, uint64_t count,
                 void *out) {
    const uint64_t bytes = count * v->element_bytes;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        const unsigned char *from =
            piece(v, rank, iteration, first + at / v->element_bytes, bytes - at, &n);
        memcpy((unsigned char *)out + at, from, n);
    }
}

/* Words at any address; the last of them takes what is left. */
uint64_t values_read(const void *data, uint64_t bytes) {
    const unsigned char *bytes_of = data;
    uint64_t sum = 0, word = 0, at = 0;
    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, bytes_of + at, sizeof word);
        sum += word;
    }
    word = 0;
    memcpy(&word, bytes_of + at, bytes - at);
    return sum + word;
}

static uint64_t differing(const unsigned char *a, const unsigned char *b, uint64_t bytes,
                          size_t element_bytes) {
    uint64_t n = 0;
    if (memcmp(a, b, bytes) == 0)
        return 0;
    for (uint64_t at = 0; at < bytes; at += element_bytes)
        n += memcmp(a + at, b + at, element_bytes) != 0;
    return n;
}

uint64_t values_wrong(const values *v, int rank, uint64_t iteration, uint64_t first, uint64_t count,
                      const void *data) {
    const uint64_t bytes = count * v->element_bytes;
    uint64_t wrong = 0;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        const unsigned char *expected =
            piece(v, rank, iteration, first + at / v->element_bytes, bytes - at, &n);
        wrong += differing(expected, (const unsigned char *)data + at, n, v->element_bytes);
    }
    return wrong;
}
