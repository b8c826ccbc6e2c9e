/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - between fp64, fp32, fp16 and bf16, each value rounded once to nearest even.
 *
 * One loop per pair of dtypes. They assume operands that do not overlap; in place, a piece at a
 * time goes through a small buffer, from the end when elements grow, so that nothing is overwritten
 * before it was read.
 */
#include "base.h"

typedef double any_fp64 __attribute__((aligned(1), may_alias));
typedef float any_fp32 __attribute__((aligned(1), may_alias));
typedef uint16_t any_fp16 __attribute__((aligned(1), may_alias));
typedef uint16_t any_bf16 __attribute__((aligned(1), may_alias));

static float fp64_to_fp32(double d) {
    return (float)d;
}
static uint16_t fp64_to_fp16(double d) {
    return hpi_fp32_to_fp16(hpi_fp64_to_fp32_odd(d));
}
static uint16_t fp64_to_bf16(double d) {
    return hpi_fp32_to_bf16(hpi_fp64_to_fp32_odd(d));
}
static double fp32_to_fp64(float f) {
    return (double)f;
}
static double fp16_to_fp64(uint16_t h) {
    return (double)hpi_fp16_to_fp32(h);
}
static double bf16_to_fp64(uint16_t h) {
    return (double)hpi_bf16_to_fp32(h);
}
/* Through fp32, which holds both. */
static uint16_t fp16_to_bf16(uint16_t h) {
    return hpi_fp32_to_bf16(hpi_fp16_to_fp32(h));
}
static uint16_t bf16_to_fp16(uint16_t h) {
    return hpi_fp32_to_fp16(hpi_bf16_to_fp32(h));
}

#define LOOP(in_name, out_name, function)                                                          \
    HPI_KERNEL static void loop_##in_name##_##out_name(const void *in, void *out,                  \
                                                       uint64_t count) {                           \
        const any_##in_name *restrict from = in;                                                   \
        any_##out_name *restrict to = out;                                                         \
        for (uint64_t k = 0; k < count; k++)                                                       \
            to[k] = function(from[k]);                                                             \
    }
LOOP(fp64, fp32, fp64_to_fp32)
LOOP(fp64, fp16, fp64_to_fp16)
LOOP(fp64, bf16, fp64_to_bf16)
LOOP(fp32, fp64, fp32_to_fp64)
LOOP(fp32, fp16, hpi_fp32_to_fp16)
LOOP(fp32, bf16, hpi_fp32_to_bf16)
LOOP(fp16, fp64, fp16_to_fp64)
LOOP(fp16, fp32, hpi_fp16_to_fp32)
LOOP(fp16, bf16, fp16_to_bf16)
LOOP(bf16, fp64, bf16_to_fp64)
LOOP(bf16, fp32, hpi_bf16_to_fp32)
LOOP(bf16, fp16, bf16_to_fp16)

typedef void convert_loop(const void *in, void *out, uint64_t count);

/* NULL: a type to itself, or not built. */
static convert_loop *loop_of(hp_dtype in, hp_dtype out) {
    static convert_loop *const loops[4][4] = {
        [HP_FP64] = {NULL, loop_fp64_fp32, loop_fp64_fp16, loop_fp64_bf16},
        [HP_FP32] = {loop_fp32_fp64, NULL, loop_fp32_fp16, loop_fp32_bf16},
        [HP_FP16] = {loop_fp16_fp64, loop_fp16_fp32, NULL, loop_fp16_bf16},
        [HP_BF16] = {loop_bf16_fp64, loop_bf16_fp32, loop_bf16_fp16, NULL},
    };
    _Static_assert(HP_FP64 == 0 && HP_FP32 == 1 && HP_FP16 == 2 && HP_BF16 == 3, "rows, columns");
    return (unsigned)in < 4 && (unsigned)out < 4 ? loops[in][out] : NULL;
}

enum { PIECE = 512 };

static void convert_in_place(convert_loop *loop, unsigned char *data, uint64_t in_size,
                             uint64_t out_size, uint64_t count) {
    uint64_t piece[PIECE];
    for (uint64_t done = 0; done < count; done += hpi_min(PIECE, count - done)) {
        const uint64_t n = hpi_min(PIECE, count - done);
        const uint64_t first = out_size > in_size ? count - done - n : done;
        loop(data + first * in_size, piece, n);
        memcpy(data + first * out_size, piece, n * out_size);
    }
}

hp_status hpi_convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                      uint64_t count) {
    const uint64_t in_size = hp_dtype_size(in_dtype), out_size = hp_dtype_size(out_dtype);
    convert_loop *loop = loop_of(in_dtype, out_dtype);
    if (in_dtype != out_dtype && !loop)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "expected fp64, fp32, fp16 or bf16, given %s to %s",
                        hp_dtype_name(in_dtype), hp_dtype_name(out_dtype));
    if (!loop && in != out)
        memmove(out, in, count * in_size);
    else if (loop && in == out)
        convert_in_place(loop, out, in_size, out_size, count);
    else if (loop)
        loop(in, out, count);
    return HP_OK;
}

static hp_status check_operands(const void *in, uint64_t in_bytes, const void *out,
                                uint64_t out_bytes) {
    const uintptr_t from = (uintptr_t)in, to = (uintptr_t)out;
    const bool is_apart = from < to ? to - from >= in_bytes : from - to >= out_bytes;
    if (!in || !out)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected elements and a place for them, given NULL");
    if (in != out && !is_apart)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected in and out to be the same or apart, given %llu and %llu bytes "
                        "that overlap",
                        (unsigned long long)in_bytes, (unsigned long long)out_bytes);
    return HP_OK;
}

hp_status hp_convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                     uint64_t count) {
    const uint64_t in_size = hp_dtype_size(in_dtype), out_size = hp_dtype_size(out_dtype);
    uint64_t in_bytes, out_bytes;
    if (!in_size || !out_size)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected two of hp_dtype, given %d and %d", (int)in_dtype,
                        (int)out_dtype);
    if (!hpi_multiply(count, in_size, &in_bytes) || !hpi_multiply(count, out_size, &out_bytes))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected elements that fit in memory, given %llu",
                        (unsigned long long)count);
    if (count)
        HP_TRY(check_operands(in, in_bytes, out, out_bytes));
    return hpi_convert(in, in_dtype, out, out_dtype, count);
}
