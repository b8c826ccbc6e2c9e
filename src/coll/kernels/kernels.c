/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.c - plain loops that add, compare and narrow; the tree that calls them.
 *
 * The tree of the bit contract is sum(b, e) = sum(b, m) + sum(m, e), m - b the largest power of two
 * below e - b. Its bottom, up to 8 inputs, is added in registers by one loop; above that,
 * accumulators of one chunk are merged in cache. Every addition stands in the source in the order
 * in which it happens, so the vector width changes nothing. A dtype is a row of `kernels`.
 */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))

/* Elements where the caller has them: any address, any declared type. */
typedef double any_fp64 __attribute__((aligned(1), may_alias));
typedef float any_fp32 __attribute__((aligned(1), may_alias));
typedef uint16_t any_fp16 __attribute__((aligned(1), may_alias));
typedef uint16_t any_bf16 __attribute__((aligned(1), may_alias));
typedef uint64_t any_int64 __attribute__((aligned(1), may_alias)); /* unsigned: sums wrap */
typedef uint32_t any_int32 __attribute__((aligned(1), may_alias));
typedef uint8_t any_int8;
typedef uint8_t any_uint8;

/* ---- elements ---- */

INLINE double load_fp64(double x) {
    return x;
}
INLINE float load_fp32(float x) {
    return x;
}
INLINE float load_fp16(uint16_t x) {
    return hpi_fp16_to_fp32(x);
}
INLINE float load_bf16(uint16_t x) {
    return hpi_bf16_to_fp32(x);
}

INLINE double sum_fp64(double a, double b) {
    return a + b;
}
INLINE float sum_fp32(float a, float b) {
    return a + b;
}

/* Sums wrap as unsigned ones do; `compared` says whether max and min see a sign. */
#define INTEGER(name, type, compared)                                                              \
    INLINE type load_##name(type x) {                                                              \
        return x;                                                                                  \
    }                                                                                              \
    INLINE type sum_##name(type a, type b) {                                                       \
        return (type)(a + b);                                                                      \
    }                                                                                              \
    INLINE type max_##name(type a, type b) {                                                       \
        return (compared)a > (compared)b ? a : b;                                                  \
    }                                                                                              \
    INLINE type min_##name(type a, type b) {                                                       \
        return (compared)a < (compared)b ? a : b;                                                  \
    }
INTEGER(int64, uint64_t, int64_t)
INTEGER(int32, uint32_t, int32_t)
INTEGER(int8, uint8_t, int8_t)
INTEGER(uint8, uint8_t, uint8_t)

/* Equal numbers differ at most in the sign of zero, which `and` clears and `or` keeps; what is
 * neither greater, less nor equal is a NaN, and so is its sum. By masks: with branches gcc 12 does
 * not use vectors below AVX-512, and is five times slower. */
#define COMPARE(type, bits_t, name, better, join)                                                  \
    INLINE type name(type a, type b) {                                                             \
        const type sum = a + b;                                                                    \
        bits_t x, y, nan;                                                                          \
        memcpy(&x, &a, sizeof x);                                                                  \
        memcpy(&y, &b, sizeof y);                                                                  \
        memcpy(&nan, &sum, sizeof nan);                                                            \
        const bits_t is_a = -(bits_t)(a better b), is_b = -(bits_t)(b better a);                   \
        const bits_t is_both = -(bits_t)(a == b), is_nan = ~(is_a | is_b | is_both);               \
        x = (x & is_a) | (y & is_b) | ((x join y)&is_both) | (nan & is_nan);                       \
        memcpy(&a, &x, sizeof a);                                                                  \
        return a;                                                                                  \
    }
COMPARE(double, uint64_t, max_fp64, >, &)
COMPARE(double, uint64_t, min_fp64, <, |)
COMPARE(float, uint32_t, max_fp32, >, &)
COMPARE(float, uint32_t, min_fp32, <, |)

/* ---- loops ---- */

/* acc[k] = op over the n inputs at k, n in {1, 2, 4, 8}. */
#define LEAVES(name, in_t, acc_t, load, op)                                                        \
    HPI_KERNEL static void name(const void *const *in, int n, void *out, uint64_t count) {         \
        acc_t *restrict acc = out;                                                                 \
        const in_t *restrict a = in[0], *restrict b = in[n > 1 ? 1 : 0];                           \
        if (n == 1) {                                                                              \
            for (uint64_t k = 0; k < count; k++)                                                   \
                acc[k] = load(a[k]);                                                               \
            return;                                                                                \
        }                                                                                          \
        if (n == 2) {                                                                              \
            for (uint64_t k = 0; k < count; k++)                                                   \
                acc[k] = op(load(a[k]), load(b[k]));                                               \
            return;                                                                                \
        }                                                                                          \
        const in_t *restrict c = in[2], *restrict d = in[3];                                       \
        if (n == 4) {                                                                              \
            for (uint64_t k = 0; k < count; k++)                                                   \
                acc[k] = op(op(load(a[k]), load(b[k])), op(load(c[k]), load(d[k])));               \
            return;                                                                                \
        }                                                                                          \
        const in_t *restrict e = in[4], *restrict f = in[5];                                       \
        const in_t *restrict g = in[6], *restrict h = in[7];                                       \
        for (uint64_t k = 0; k < count; k++)                                                       \
            acc[k] = op(op(op(load(a[k]), load(b[k])), op(load(c[k]), load(d[k]))),                \
                        op(op(load(e[k]), load(f[k])), op(load(g[k]), load(h[k]))));               \
    }

#define MERGE(name, acc_t, op)                                                                     \
    HPI_KERNEL static void name(void *out, const void *in, uint64_t count) {                       \
        acc_t *restrict acc = out;                                                                 \
        const acc_t *restrict more = in;                                                           \
        for (uint64_t k = 0; k < count; k++)                                                       \
            acc[k] = op(acc[k], more[k]);                                                          \
    }

#define ALL_LEAVES(name, acc_t, sum_name)                                                          \
    LEAVES(leaves_sum_##name, any_##name, acc_t, load_##name, sum_##sum_name)                      \
    LEAVES(leaves_max_##name, any_##name, acc_t, load_##name, max_##sum_name)                      \
    LEAVES(leaves_min_##name, any_##name, acc_t, load_##name, min_##sum_name)
ALL_LEAVES(fp64, double, fp64)
ALL_LEAVES(fp32, float, fp32)
ALL_LEAVES(fp16, float, fp32)
ALL_LEAVES(bf16, float, fp32)
ALL_LEAVES(int64, uint64_t, int64)
ALL_LEAVES(int32, uint32_t, int32)
ALL_LEAVES(int8, uint8_t, int8)
ALL_LEAVES(uint8, uint8_t, uint8)

#define ALL_MERGES(name, acc_t)                                                                    \
    MERGE(merge_sum_##name, acc_t, sum_##name)                                                     \
    MERGE(merge_max_##name, acc_t, max_##name)                                                     \
    MERGE(merge_min_##name, acc_t, min_##name)
ALL_MERGES(fp64, double)
ALL_MERGES(fp32, float)
ALL_MERGES(int64, uint64_t)
ALL_MERGES(int32, uint32_t)
ALL_MERGES(int8, uint8_t)
ALL_MERGES(uint8, uint8_t)

HPI_KERNEL static void divide_fp64(void *out, uint64_t divisor, uint64_t count) {
    double *acc = out;
    const double by = (double)divisor;
    for (uint64_t k = 0; k < count; k++)
        acc[k] /= by;
}

HPI_KERNEL static void divide_fp32(void *out, uint64_t divisor, uint64_t count) {
    float *acc = out;
    const float by = (float)divisor;
    for (uint64_t k = 0; k < count; k++)
        acc[k] /= by;
}

#define NARROW(name, narrowed)                                                                     \
    HPI_KERNEL static void narrow_##name(const void *in, void *out, uint64_t count) {              \
        const float *restrict acc = in;                                                            \
        uint16_t *restrict to = out;                                                               \
        for (uint64_t k = 0; k < count; k++)                                                       \
            to[k] = narrowed(acc[k]);                                                              \
    }
NARROW(fp16, hpi_fp32_to_fp16)
NARROW(bf16, hpi_fp32_to_bf16)

/* ---- the table ---- */

#define OPS(kind, type)                                                                            \
    { kind##_sum_##type, kind##_max_##type, kind##_min_##type }
static const hpi_kernel kernels[] = {
    [HP_FP64] = {OPS(leaves, fp64), OPS(merge, fp64), divide_fp64, NULL},
    [HP_FP32] = {OPS(leaves, fp32), OPS(merge, fp32), divide_fp32, NULL},
    [HP_FP16] = {OPS(leaves, fp16), OPS(merge, fp32), divide_fp32, narrow_fp16},
    [HP_BF16] = {OPS(leaves, bf16), OPS(merge, fp32), divide_fp32, narrow_bf16},
    [HP_INT64] = {OPS(leaves, int64), OPS(merge, int64), NULL, NULL},
    [HP_INT32] = {OPS(leaves, int32), OPS(merge, int32), NULL, NULL},
    [HP_INT8] = {OPS(leaves, int8), OPS(merge, int8), NULL, NULL},
    [HP_UINT8] = {OPS(leaves, uint8), OPS(merge, uint8), NULL, NULL},
};

const hpi_kernel *hpi_kernel_of(hp_dtype dtype) {
    return (size_t)dtype < sizeof kernels / sizeof *kernels ? &kernels[dtype] : NULL;
}

/* ---- the tree ---- */

static int combine_of(hp_reduce op) {
    return op == HP_MAX ? 1 : op == HP_MIN ? 2 : 0;
}

static void tree(const hpi_reduction *r, const void *const *in, int n, unsigned char *acc,
                 uint64_t count) {
    if (n <= HPI_LEAVES && hpi_is_power_of_two((uint64_t)n)) {
        r->kernel->leaves[combine_of(r->op)](in, n, acc, count);
        return;
    }
    int left = 1;
    while (2 * left < n)
        left *= 2;
    unsigned char *more = acc + HPI_CHUNK_BYTES;
    tree(r, in, left, acc, count);
    tree(r, in + left, n - left, more, count);
    r->kernel->merge[combine_of(r->op)](acc, more, count);
}

/* A level for every halving, and one for the narrowed result. */
uint64_t hpi_scratch_bytes(int n) {
    uint64_t levels = 2;
    for (; n > 1; n /= 2)
        levels++;
    return levels * HPI_CHUNK_BYTES;
}

uint64_t hpi_chunk_elements(const hpi_reduction *r) {
    return HPI_CHUNK_BYTES / hp_dtype_size(hpi_sum_dtype(r->dtype));
}

const void *hpi_reduce_chunk(const hpi_reduction *r, const void *const *in, uint64_t count) {
    unsigned char *acc = r->scratch;
    tree(r, in, r->n, acc, count);
    if (r->op == HP_AVG && r->n > 1)
        r->kernel->divide(acc, (uint64_t)r->n, count);
    if (r->out_dtype == hpi_sum_dtype(r->dtype))
        return acc;
    hpi_kernel_of(r->out_dtype)->narrow(acc, acc + HPI_CHUNK_BYTES, count);
    return acc + HPI_CHUNK_BYTES;
}

void hpi_reduce_into(const hpi_reduction *r, const void *const *in, void *const *out, int n_out,
                     uint64_t count, bool is_streaming) {
    const uint64_t step = hpi_chunk_elements(r), in_size = hp_dtype_size(r->dtype),
                   out_size = hp_dtype_size(r->out_dtype);
    const void *chunk[HPI_MOST_INPUTS];
    (void)is_streaming;
    for (uint64_t at = 0; at < count; at += step) {
        const uint64_t n = hpi_min(step, count - at);
        for (int i = 0; i < r->n; i++)
            chunk[i] = (const unsigned char *)in[i] + at * in_size;
        const void *result = hpi_reduce_chunk(r, chunk, n);
        for (int k = 0; k < n_out; k++)
            memcpy((unsigned char *)out[k] + at * out_size, result, n * out_size);
    }
}
