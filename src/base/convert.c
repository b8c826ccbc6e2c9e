/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - between fp64, fp32 and bf16, each value rounded once to nearest even.
 *
 * One loop per pair of dtypes. They assume operands that do not overlap; in place, a piece at a
 * time goes through a small buffer, from the end when elements grow, so that nothing is overwritten
 * before it was read.
 */
#include "base.h"

typedef double any_fp64 __attribute__((aligned(1), may_alias));
typedef float any_fp32 __attribute__((aligned(1), may_alias));
typedef uint16_t any_bf16 __attribute__((aligned(1), may_alias));

static float fp64_to_fp32(double d) {
    return (float)d;
}
static double fp32_to_fp64(float f) {
    return (double)f;
}
static double bf16_to_fp64(uint16_t h) {
    return (double)hpi_bf16_to_fp32(h);
}

static uint16_t fp64_to_bf16(double d) {
    return hpi_fp32_to_bf16(hpi_fp64_to_fp32_odd(d));
}

#define LOOP(name, in_t, out_t, function)                                                          \
    static void name(const void *in, void *out, uint64_t count) {                                  \
        const in_t *from = in;                                                                     \
        out_t *to = out;                                                                           \
        for (uint64_t k = 0; k < count; k++)                                                       \
            to[k] = function(from[k]);                                                             \
    }
LOOP(loop_64_32, any_fp64, any_fp32, fp64_to_fp32)
LOOP(loop_64_16, any_fp64, any_bf16, fp64_to_bf16)
LOOP(loop_32_64, any_fp32, any_fp64, fp32_to_fp64)
LOOP(loop_32_16, any_fp32, any_bf16, hpi_fp32_to_bf16)
LOOP(loop_16_64, any_bf16, any_fp64, bf16_to_fp64)
LOOP(loop_16_32, any_bf16, any_fp32, hpi_bf16_to_fp32)

typedef void convert_loop(const void *in, void *out, uint64_t count);

static convert_loop *loop_of(hp_dtype in, hp_dtype out) {
    static convert_loop *const loops[][4] = {
        [HP_FP64] = {[HP_FP32] = loop_64_32, [HP_BF16] = loop_64_16},
        [HP_FP32] = {[HP_FP64] = loop_32_64, [HP_BF16] = loop_32_16},
        [HP_BF16] = {[HP_FP64] = loop_16_64, [HP_FP32] = loop_16_32},
    };
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
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "expected fp64, fp32 or bf16, given %s to %s",
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
