/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/loops.h - the reductions of one instruction set: the including file gets `kernels`, a row
 * for each dtype.
 *
 * One loop, reduce_range, is made into all of them: it reads a block of every input, adds it up in
 * registers by the tree, divides, narrows, and stores it to every output. So each byte is read and
 * written once, and an output may be an input. What differs between them is a `shape` of functions
 * that are known when it is compiled and disappear in it.
 */
#ifndef HPI_LOOPS_H
#define HPI_LOOPS_H

#include "lanes.h"

/* What waits in registers: one vector, or two that are loaded and stored as one. */
typedef struct acc {
    vec v, w;
} acc;

typedef acc load_of(const unsigned char *from, uint32_t least); /* see rounded.h; others: 0 */
typedef vec combine_of(vec a, vec b);
typedef vec divide_of(vec v, double divisor, double reciprocal);
typedef void store_of(unsigned char *to, acc a, bool streams);

typedef struct shape {
    load_of *load; /* elements as their sum type */
    combine_of *combine;
    divide_of *divide; /* NULL for integers */
    store_of *store;   /* narrowed */
    bool has_two;
    uint64_t lanes, in_size, out_size; /* lanes of an acc */
} shape;

/* ---- dividing ---- */

/* Both are the quotient rounded once: where the reciprocal is a number, they agree in every bit. */
INLINE vec divide_fp32(vec v, double divisor, double reciprocal) {
    return reciprocal != 0 ? (vec)((fp32s)v * (float)reciprocal) : (vec)((fp32s)v / (float)divisor);
}
INLINE vec divide_fp64(vec v, double divisor, double reciprocal) {
    return reciprocal != 0 ? (vec)((fp64s)v * reciprocal) : (vec)((fp64s)v / divisor);
}

/* ---- loading and storing ---- */

INLINE acc load_whole(const unsigned char *from, uint32_t least) {
    (void)least;
    return (acc){.v = load(from)};
}
INLINE acc load_fp16(const unsigned char *from, uint32_t least) {
    (void)least;
    return (acc){.v = widen_fp16(load_half(from))};
}
INLINE acc load_bf16(const unsigned char *from, uint32_t least) {
    (void)least;
    return (acc){.v = (vec)(widen(load_half(from)) << 16)};
}
/* A vector of bf16 lies in two of fp32, its even elements and its odd ones: no lane moves. */
INLINE acc load_bf16_pairs(const unsigned char *from, uint32_t least) {
    (void)least;
    const u32s both = (u32s)load(from);
    return (acc){.v = (vec)(both << 16), .w = (vec)(both & 0xffff0000U)};
}

INLINE void store_whole(unsigned char *to, acc a, bool streams) {
    store(to, a.v, streams);
}
INLINE void store_fp16(unsigned char *to, acc a, bool streams) {
    store_half(to, narrow_fp16(a.v), streams);
}
INLINE void store_bf16(unsigned char *to, acc a, bool streams) {
    store_half(to, narrow(round_to_bf16(a.v) >> 16), streams);
}
INLINE void store_bf16_pairs(unsigned char *to, acc a, bool streams) {
    const u32s odd = round_to_bf16(a.w) & 0xffff0000U;
    store(to, (vec)(round_to_bf16(a.v) >> 16 | odd), streams);
}

/* ---- the loop ---- */

INLINE acc combine(shape s, acc a, acc b) {
    acc c = {.v = s.combine(a.v, b.v)};
    if (s.has_two)
        c.w = s.combine(a.w, b.w);
    return c;
}

INLINE acc divide(shape s, acc a, const hpi_pass *pass) {
    acc c = {.v = s.divide(a.v, pass->divisor, pass->reciprocal)};
    if (s.has_two)
        c.w = s.divide(a.w, pass->divisor, pass->reciprocal);
    return c;
}

/* sum(b, e) = sum(b, m) + sum(m, e): what lies at `at` of in[0..n), n being 1, 2, 4 or 8. */
INLINE acc pair_at(shape s, const unsigned char *const *in, const uint32_t *least, uint64_t at) {
    return combine(s, s.load(in[0] + at, least[0]), s.load(in[1] + at, least[1]));
}
INLINE acc four_at(shape s, const unsigned char *const *in, const uint32_t *least, uint64_t at) {
    return combine(s, pair_at(s, in, least, at), pair_at(s, in + 2, least + 2, at));
}
INLINE acc tree_at(shape s, const unsigned char *const *in, const uint32_t *least, int n,
                   uint64_t at) {
    if (n == 1)
        return s.load(in[0] + at, least[0]);
    if (n == 2)
        return pair_at(s, in, least, at);
    return n == 4 ? four_at(s, in, least, at)
                  : combine(s, four_at(s, in, least, at), four_at(s, in + 4, least + 4, at));
}

enum { MOST_ACCS = 4 };

static const uint32_t none[HPI_LEAVES] = {0}; /* no dtype asks for it */

/* n_accs times the lanes of each input, in_at and out_at bytes behind its begin. n_known is n where
 * the code is made for it, and 0 where any order of combining will do. */
INLINE void reduce_block(shape s, const hpi_pass *pass, const unsigned char *const *in,
                         const uint32_t *least, int n_known, uint64_t in_at, void *const *out,
                         uint64_t out_at, int n_accs) {
    const uint64_t in_step = s.lanes * s.in_size, out_step = s.lanes * s.out_size;
    acc a[MOST_ACCS];
#pragma GCC unroll 4
    for (int i = 0; i < n_accs; i++)
        a[i] = tree_at(s, in, least, n_known ? n_known : 1, in_at + (uint64_t)i * in_step);
    for (int k = 1; !n_known && k < pass->n; k++)
#pragma GCC unroll 4
        for (int i = 0; i < n_accs; i++)
            a[i] = combine(s, a[i], s.load(in[k] + in_at + (uint64_t)i * in_step, least[k]));
    if (s.divide && pass->divisor != 1) {
#pragma GCC unroll 4
        for (int i = 0; i < n_accs; i++)
            a[i] = divide(s, a[i], pass);
    }
    for (int k = 0; k < pass->n_out; k++) {
        unsigned char *to = (unsigned char *)out[k] + out_at;
#pragma GCC unroll 4
        for (int i = 0; i < n_accs; i++)
            s.store(to + (uint64_t)i * out_step, a[i], pass->is_streaming);
    }
}

/* Less than a vector goes through a copy of one. */
typedef struct part {
    unsigned char row[HPI_LEAVES][VECTOR], result[VECTOR];
    const unsigned char *in[HPI_LEAVES];
    void *out;
} part;

static void part_load(part *p, const hpi_pass *pass, const unsigned char *const *in, uint64_t at,
                      uint64_t bytes) {
    p->out = p->result;
    for (int i = 0; i < pass->n; i++) {
        memset(p->row[i], 0, VECTOR);
        copy_part(p->row[i], in[i] + at, bytes);
        p->in[i] = p->row[i];
    }
}

static void part_store(const part *p, const hpi_pass *pass, void *const *out, uint64_t at,
                       uint64_t bytes) {
    for (int k = 0; k < pass->n_out; k++)
        copy_part((unsigned char *)out[k] + at, p->result, bytes);
}

/* What is left for single vectors, the last one perhaps not whole. */
INLINE void reduce_rest(shape s, const hpi_pass *pass, const unsigned char *const *in, int n_known,
                        void *const *out, uint64_t at, uint64_t end) {
    part p;
    hpi_pass one = *pass;
    for (uint64_t left = end - at; left > 0; left = end - at) {
        const bool is_part = left < s.lanes;
        const uint64_t in_at = at * s.in_size, out_at = at * s.out_size;
        if (is_part) {
            part_load(&p, pass, in, in_at, left * s.in_size);
            one.n_out = 1;
            one.is_streaming = false;
        }
        reduce_block(s, &one, is_part ? p.in : in, none, n_known, is_part ? 0 : in_at,
                     is_part ? &p.out : out, is_part ? 0 : out_at, 1);
        if (is_part)
            part_store(&p, pass, out, out_at, left * s.out_size);
        at += is_part ? left : s.lanes;
    }
}

INLINE void reduce_range(shape s, const hpi_pass *given, const void *const *inputs, int n_known,
                         void *const *out, uint64_t begin, uint64_t end) {
    if (end - begin == s.lanes) { /* a small call: a vector is all there is */
        reduce_block(s, given, (const unsigned char *const *)inputs, none, n_known,
                     begin * s.in_size, out, begin * s.out_size, 1);
        return;
    }
    const hpi_pass pass = *given; /* ours: no store can change it, nor the array */
    const int n_accs = n_known > 2 || s.has_two ? 2 : MOST_ACCS;
    const uint64_t step = (uint64_t)n_accs * s.lanes;
    const unsigned char *in[HPI_LEAVES];
    uint64_t at = begin;
    for (int i = 0; i < (n_known ? n_known : pass.n); i++)
        in[i] = inputs[i];
    for (; end - at >= step; at += step)
        reduce_block(s, &pass, in, none, n_known, at * s.in_size, out, at * s.out_size, n_accs);
    if (at < end)
        reduce_rest(s, given, (const unsigned char *const *)inputs, n_known, out, at, end);
}

/* ---- all of them ---- */

#define LOOP_TARGET /* instructions beyond those of the file */
#define SUM(in_name, out_name, shape_of)                                                           \
    LOOP_TARGET static void sum_##in_name##_##out_name(const hpi_pass *pass,                       \
                                                       const void *const *in, void *const *out,    \
                                                       uint64_t begin, uint64_t end) {             \
        const shape s = shape_of;                                                                  \
        if (pass->n == 1)                                                                          \
            reduce_range(s, pass, in, 1, out, begin, end);                                         \
        else if (pass->n == 2)                                                                     \
            reduce_range(s, pass, in, 2, out, begin, end);                                         \
        else if (pass->n == 4)                                                                     \
            reduce_range(s, pass, in, 4, out, begin, end);                                         \
        else                                                                                       \
            reduce_range(s, pass, in, 8, out, begin, end);                                         \
    }
/* Neither divided nor, but for the payload of a NaN, dependent on the order. */
#define PICK(op, in_name, out_name, shape_of)                                                      \
    static void op##_##in_name##_##out_name(const hpi_pass *pass, const void *const *in,           \
                                            void *const *out, uint64_t begin, uint64_t end) {      \
        const shape s = shape_of;                                                                  \
        reduce_range(s, pass, in, 0, out, begin, end);                                             \
    }
#define OPS(in_name, out_name, SHAPE)                                                              \
    SUM(in_name, out_name, SHAPE(sum))                                                             \
    PICK(max, in_name, out_name, SHAPE(max))                                                       \
    PICK(min, in_name, out_name, SHAPE(min))

/* load, combine, divide, store, has_two, lanes, in_size, out_size */
#define FP64(op)                                                                                   \
    { load_whole, op##_fp64, divide_fp64, store_whole, false, VECTOR / 8, 8, 8 }
#define FP32(op)                                                                                   \
    { load_whole, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 4, 4 }
#define INT64(op)                                                                                  \
    { load_whole, op##_int64, NULL, store_whole, false, VECTOR / 8, 8, 8 }
#define INT32(op)                                                                                  \
    { load_whole, op##_int32, NULL, store_whole, false, VECTOR / 4, 4, 4 }
#define INT8(op)                                                                                   \
    { load_whole, op##_int8, NULL, store_whole, false, VECTOR, 1, 1 }
#define UINT8(op)                                                                                  \
    { load_whole, op##_uint8, NULL, store_whole, false, VECTOR, 1, 1 }
#define FP16(op)                                                                                   \
    { load_fp16, op##_fp32, divide_fp32, store_fp16, false, VECTOR / 4, 2, 2 }
#define FP16_TO_FP32(op)                                                                           \
    { load_fp16, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 2, 4 }
#define FP32_TO_FP16(op)                                                                           \
    { load_whole, op##_fp32, divide_fp32, store_fp16, false, VECTOR / 4, 4, 2 }
#define BF16(op)                                                                                   \
    { load_bf16_pairs, op##_fp32, divide_fp32, store_bf16_pairs, true, VECTOR / 2, 2, 2 }
#define BF16_TO_FP32(op)                                                                           \
    { load_bf16, op##_fp32, divide_fp32, store_whole, false, VECTOR / 4, 2, 4 }
#define FP32_TO_BF16(op)                                                                           \
    { load_whole, op##_fp32, divide_fp32, store_bf16, false, VECTOR / 4, 4, 2 }

OPS(fp64, fp64, FP64)
OPS(fp32, fp32, FP32)
OPS(int64, int64, INT64)
OPS(int32, int32, INT32)
OPS(int8, int8, INT8)
OPS(uint8, uint8, UINT8)
OPS(fp16, fp16, FP16)
OPS(fp16, fp32, FP16_TO_FP32)
OPS(fp32, fp16, FP32_TO_FP16)
OPS(bf16, bf16, BF16)
OPS(bf16, fp32, BF16_TO_FP32)
OPS(fp32, bf16, FP32_TO_BF16)

/* From in_name to out_name, by sum, max and min. */
#define ROW(in_name, out_name)                                                                     \
    { sum_##in_name##_##out_name, max_##in_name##_##out_name, min_##in_name##_##out_name }
#define WHOLE_ROW(name)                                                                            \
    {                                                                                              \
        .to_sum = ROW(name, name), .to_own = ROW(name, name), .merge = ROW(name, name),            \
        .merge_to_own = ROW(name, name)                                                            \
    }
#define NARROW_ROW(name)                                                                           \
    {                                                                                              \
        .to_sum = ROW(name, fp32), .to_own = ROW(name, name), .merge = ROW(fp32, fp32),            \
        .merge_to_own = ROW(fp32, name)                                                            \
    }

/* The table, with this row for bf16. */
#define KERNELS(...)                                                                               \
    {                                                                                              \
        [HP_FP64] = WHOLE_ROW(fp64), [HP_FP32] = WHOLE_ROW(fp32), [HP_FP16] = NARROW_ROW(fp16),    \
        [HP_BF16] = __VA_ARGS__, [HP_INT64] = WHOLE_ROW(int64), [HP_INT32] = WHOLE_ROW(int32),     \
        [HP_INT8] = WHOLE_ROW(int8), [HP_UINT8] = WHOLE_ROW(uint8),                                \
    }

static const hpi_kernel kernels[HPI_N_DTYPES] = KERNELS(NARROW_ROW(bf16));

#endif
