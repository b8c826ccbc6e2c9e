/* SPDX-License-Identifier: Apache-2.0
 *
 * oracle.c - the serial reference of every reduction, and of what low precision does to its terms.
 */
#include "support/oracle.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bf16 ---- */

float oracle_from_bf16(uint16_t h) {
    const uint32_t bits = (uint32_t)h * 65536U;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* As if the exponent had no upper end: what follows the largest bf16 is 2^128. */
static double bf16_value(uint16_t h) {
    return h % 0x8000 == 0x7f80 ? (h >= 0x8000 ? -0x1p128 : 0x1p128) : (double)oracle_from_bf16(h);
}

uint16_t oracle_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t below = (uint16_t)(bits / 65536U); /* towards zero */
    if (isnan(f))
        return 0x7fc0;
    if (isinf(f))
        return below;
    const uint16_t above = (uint16_t)(below + 1);
    const double to_below = fabs((double)f - bf16_value(below));
    const double to_above = fabs(bf16_value(above) - (double)f);
    if (to_below == to_above)
        return below % 2 == 0 ? below : above;
    return to_below < to_above ? below : above;
}

/* ---- fp16 ---- */

double oracle_round(double x, int n_bits, int bias) {
    if (x == 0 || isnan(x) || isinf(x))
        return x;
    const int exponent = ilogb(x) < 1 - bias ? 1 - bias : ilogb(x);
    const double step = ldexp(1, exponent - n_bits);
    return nearbyint(x / step) * step;
}

float oracle_from_fp16(uint16_t h) {
    const int exponent = h >> 10 & 31, significand = h & 1023;
    double x = exponent ? ldexp(1024 + significand, exponent - 25) : ldexp(significand, -24);
    if (exponent == 31)
        x = significand ? NAN : INFINITY;
    return (float)(h & 0x8000 ? -x : x);
}

uint16_t oracle_to_fp16(float f) {
    const double x = fabs(oracle_round((double)f, 10, 15));
    const unsigned sign = signbit(f) ? 0x8000 : 0;
    if (isnan(f))
        return 0x7e00;
    if (x > 65504)
        return (uint16_t)(sign | 0x7c00);
    if (x < 0x1p-14)
        return (uint16_t)(sign | (unsigned)ldexp(x, 24));
    return (uint16_t)(sign |
                      ((unsigned)(ilogb(x) + 14) * 1024 + (unsigned)ldexp(x, 10 - ilogb(x))));
}

/* ---- one element ---- */

typedef struct value {
    double d; /* of fp64 */
    float f;  /* of the other floats */
    int64_t i;
} value;

static value load(hp_dtype dtype, const void *data, uint64_t k) {
    value v = {0};
    const unsigned char *at = (const unsigned char *)data + k * hp_dtype_size(dtype);
    uint16_t half;
    int32_t i32;
    memcpy(&half, at, hp_dtype_size(dtype) == 2 ? 2 : 0);
    switch (dtype) {
    case HP_FP64:
        memcpy(&v.d, at, sizeof v.d);
        break;
    case HP_FP32:
        memcpy(&v.f, at, sizeof v.f);
        break;
    case HP_FP16:
        v.f = oracle_from_fp16(half);
        break;
    case HP_BF16:
        v.f = oracle_from_bf16(half);
        break;
    case HP_INT64:
        memcpy(&v.i, at, sizeof v.i);
        break;
    case HP_INT32:
        memcpy(&i32, at, sizeof i32);
        v.i = i32;
        break;
    case HP_INT8:
        v.i = (signed char)*at;
        break;
    case HP_UINT8:
        v.i = *at;
        break;
    default:
        abort();
    }
    return v;
}

/* Integers lose their upper bytes (the machine is little-endian). */
static void store(hp_dtype dtype, void *data, uint64_t k, value v) {
    unsigned char *at = (unsigned char *)data + k * hp_dtype_size(dtype);
    if (dtype == HP_BF16 || dtype == HP_FP16) {
        const uint16_t half = dtype == HP_BF16 ? oracle_to_bf16(v.f) : oracle_to_fp16(v.f);
        memcpy(at, &half, sizeof half);
    } else if (dtype == HP_FP32) {
        memcpy(at, &v.f, sizeof v.f);
    } else if (dtype == HP_FP64) {
        memcpy(at, &v.d, sizeof v.d);
    } else {
        memcpy(at, &v.i, hp_dtype_size(dtype));
    }
}

/* Numbers in double are exact for fp32, so one comparison serves both. */
static double pick(hp_reduce op, double a, double b) {
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == 0 && b == 0 && signbit(a) != signbit(b))
        return op == HP_MAX ? 0.0 : -0.0;
    if (op == HP_MAX)
        return a > b ? a : b;
    return a < b ? a : b;
}

static value combine(hp_reduce op, value a, value b) {
    if (op == HP_SUM || op == HP_AVG) {
        a.d = a.d + b.d;
        a.f = a.f + b.f;
        a.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i);
        return a;
    }
    a.d = pick(op, a.d, b.d);
    a.f = (float)pick(op, (double)a.f, (double)b.f);
    a.i = op == HP_MAX ? (a.i > b.i ? a.i : b.i) : (a.i < b.i ? a.i : b.i);
    return a;
}

static value tree(hp_dtype dtype, hp_reduce op, const void *const *in, int begin, int end,
                  uint64_t k) {
    if (end - begin == 1)
        return load(dtype, in[begin], k);
    int half = 1;
    while (half * 2 < end - begin)
        half *= 2;
    return combine(op, tree(dtype, op, in, begin, begin + half, k),
                   tree(dtype, op, in, begin + half, end, k));
}

void oracle_reduce(hp_dtype dtype, hp_dtype out_dtype, hp_reduce op, const void *const *in, int n,
                   void *out, uint64_t count) {
    for (uint64_t k = 0; k < count; k++) {
        value v = tree(dtype, op, in, 0, n, k);
        if (op == HP_AVG) {
            v.d /= (double)n;
            v.f /= (float)n;
        }
        store(out_dtype, out, k, v);
    }
}

/* ---- low precision on the wire ---- */

typedef struct fp8 {
    int n_bits, bias;
    double largest;
    bool has_infinity;
} fp8;

static float fp8_value(const fp8 *format, double scale, float x) {
    if (isinf(x) && !format->has_infinity)
        return NAN;
    return (float)(oracle_round((double)x / scale, format->n_bits, format->bias) * scale);
}

static void fp8_block(const fp8 *format, const float *in, float *out, uint64_t count) {
    /* The least step of a format, times its scale, need not be below 2^-149. */
    double scale = ldexp(1, -149 - (1 - format->bias - format->n_bits)), largest = 0;
    for (uint64_t k = 0; k < count; k++)
        if (isfinite(in[k]))
            largest = fmax(largest, fabs((double)in[k]));
    while (largest > format->largest * scale)
        scale *= 2;
    for (uint64_t k = 0; k < count; k++)
        out[k] = fp8_value(format, scale, in[k]);
}

void oracle_wire(hp_wire wire, hp_dtype dtype, const void *in, float *out, uint64_t count) {
    static const fp8 e4m3 = {3, 7, 448, false}, e5m2 = {2, 15, 57344, true};
    for (uint64_t k = 0; k < count; k++) {
        out[k] = load(dtype, in, k).f;
        if (wire == HP_WIRE_FP16)
            out[k] = oracle_from_fp16(oracle_to_fp16(out[k]));
        if (wire == HP_WIRE_BF16)
            out[k] = oracle_from_bf16(oracle_to_bf16(out[k]));
    }
    for (uint64_t k = 0; k < count && wire >= HP_WIRE_FP8_E4M3; k += 128)
        fp8_block(wire == HP_WIRE_FP8_E4M3 ? &e4m3 : &e5m2, out + k, out + k,
                  count - k < 128 ? count - k : 128);
}

/* ---- comparing ---- */

static bool is_nan_at(hp_dtype dtype, const unsigned char *at) {
    uint64_t bits = 0;
    memcpy(&bits, at, hp_dtype_size(dtype));
    switch (dtype) {
    case HP_FP64:
        return (bits & INT64_MAX) > UINT64_C(0x7ff0000000000000);
    case HP_FP32:
        return (bits & 0x7fffffff) > 0x7f800000;
    case HP_FP16:
        return (bits & 0x7fff) > 0x7c00;
    case HP_BF16:
        return (bits & 0x7fff) > 0x7f80;
    default:
        return false;
    }
}

bool oracle_same(hp_dtype dtype, const void *a, const void *b, uint64_t count,
                 uint64_t *out_first) {
    const uint64_t size = hp_dtype_size(dtype);
    const unsigned char *x = a, *y = b;
    if (memcmp(a, b, count * size) == 0)
        return true;
    for (uint64_t k = 0; k < count; k++, x += size, y += size)
        if (memcmp(x, y, size) != 0 && !(is_nan_at(dtype, x) && is_nan_at(dtype, y))) {
            *out_first = k;
            return false;
        }
    return true;
}

/* ---- data ---- */

static uint64_t next_random(uint64_t *state) { /* xorshift64* */
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

static double random_double(uint64_t *state, double tiny, double huge) {
    const uint64_t r = next_random(state);
    switch (r % 128) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
        return -INFINITY;
    case 3:
    case 4:
    case 5:
        return -0.0;
    case 6:
    case 7:
        return 0.0;
    case 8:
    case 9:
        return (r & 1024 ? tiny : -tiny) * (double)(r >> 32 & 127); /* denormals */
    case 10:
        return r & 1024 ? huge : -huge;
    default: /* widely different magnitudes, so that the order of additions shows */
        return ldexp((double)(int64_t)r, (int)(r >> 8 & 31) - 80);
    }
}

static void fill_one(hp_dtype dtype, unsigned char *at, uint64_t *state) {
    if (dtype == HP_FP64) {
        const double d = random_double(state, 0x1p-1074, DBL_MAX);
        memcpy(at, &d, sizeof d);
    } else if (dtype == HP_FP32) {
        const float f = (float)random_double(state, 0x1p-149, FLT_MAX);
        memcpy(at, &f, sizeof f);
    } else if (dtype == HP_BF16) {
        const uint16_t h = oracle_to_bf16((float)random_double(state, 0x1p-133, 0x1.fep127));
        memcpy(at, &h, sizeof h);
    } else if (dtype == HP_FP16) {
        const uint16_t h = oracle_to_fp16((float)random_double(state, 0x1p-24, 65504));
        memcpy(at, &h, sizeof h);
    } else {
        const uint64_t bits_of = 8 * hp_dtype_size(dtype);
        const uint64_t r = next_random(state), extreme = (uint64_t)1 << (bits_of - 1);
        const uint64_t bits = r % 64 == 0 ? extreme : r % 64 == 1 ? extreme - 1 : r;
        memcpy(at, &bits, hp_dtype_size(dtype));
    }
}

void oracle_fill(hp_dtype dtype, void *data, uint64_t count, uint64_t seed) {
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    if (state == 0)
        state = 1;
    unsigned char *at = data;
    for (uint64_t k = 0; k < count; k++, at += hp_dtype_size(dtype))
        fill_one(dtype, at, &state);
}
