/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - between fp64, fp32, fp16 and bf16, each value rounded once to nearest even.
 *
 * One loop per pair of dtypes, a second one where there is an instruction for it: F16C has the
 * rounding and the NaN of floats.h. They assume operands that do not overlap; in place, a piece at
 * a time goes through a small buffer, from the end when elements grow, so that nothing is
 * overwritten before it was read.
 */
#include "convert.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

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

/* ---- with F16C ---- */

#ifdef __x86_64__
typedef any_fp32 any_odd;
LOOP(fp64, odd, hpi_fp64_to_fp32_odd)

#define F16C __attribute__((target("avx,f16c")))

F16C static void f16c_fp32_fp16(const void *in, void *out, uint64_t count) {
    const any_fp32 *from = in;
    __m128i *to = out;
    uint64_t k = 0;
    for (; k + 8 <= count; k += 8)
        _mm_storeu_si128(to++, _mm256_cvtps_ph(_mm256_loadu_ps((const float *)(from + k)),
                                               _MM_FROUND_TO_NEAREST_INT));
    loop_fp32_fp16(from + k, to, count - k);
}

F16C static void f16c_fp16_fp32(const void *in, void *out, uint64_t count) {
    const __m128i *from = in;
    any_fp32 *to = out;
    uint64_t k = 0;
    for (; k + 8 <= count; k += 8)
        _mm256_storeu_ps((float *)(to + k), _mm256_cvtph_ps(_mm_loadu_si128(from++)));
    loop_fp16_fp32(from, to + k, count - k);
}

enum { THROUGH = 1024 };

/* By way of fp32, which holds both, in first-level cache. */
#define F16C_THROUGH(in_name, out_name, in_t, out_t, first, second)                                \
    static void f16c_##in_name##_##out_name(const void *in, void *out, uint64_t count) {           \
        float wide[THROUGH];                                                                       \
        for (uint64_t at = 0; at < count; at += THROUGH) {                                         \
            const uint64_t n = hpi_min(THROUGH, count - at);                                       \
            first((const in_t *)in + at, wide, n);                                                 \
            second(wide, (out_t *)out + at, n);                                                    \
        }                                                                                          \
    }
F16C_THROUGH(fp16, bf16, any_fp16, any_bf16, f16c_fp16_fp32, loop_fp32_bf16)
F16C_THROUGH(bf16, fp16, any_bf16, any_fp16, loop_bf16_fp32, f16c_fp32_fp16)
F16C_THROUGH(fp16, fp64, any_fp16, any_fp64, f16c_fp16_fp32, loop_fp32_fp64)
F16C_THROUGH(fp64, fp16, any_fp64, any_fp16, loop_fp64_odd, f16c_fp32_fp16)

/* NULL: there is none, or the processor cannot (every one with AVX2 can). */
static hpi_convert_loop *f16c_loop_of(hp_dtype in, hp_dtype out) {
    static hpi_convert_loop *const loops[4][4] = {
        [HP_FP64] = {NULL, NULL, f16c_fp64_fp16, NULL},
        [HP_FP32] = {NULL, NULL, f16c_fp32_fp16, NULL},
        [HP_FP16] = {f16c_fp16_fp64, f16c_fp16_fp32, NULL, f16c_fp16_bf16},
        [HP_BF16] = {NULL, NULL, f16c_bf16_fp16, NULL},
    };
    return __builtin_cpu_supports("avx2") ? loops[in][out] : NULL;
}
#else
static hpi_convert_loop *f16c_loop_of(hp_dtype in, hp_dtype out) {
    (void)in;
    (void)out;
    return NULL;
}
#endif

/* ---- which loop ---- */

hpi_convert_loop *hpi_convert_loop_of(hp_dtype in, hp_dtype out, int version) {
    static hpi_convert_loop *const loops[4][4] = {
        [HP_FP64] = {NULL, loop_fp64_fp32, loop_fp64_fp16, loop_fp64_bf16},
        [HP_FP32] = {loop_fp32_fp64, NULL, loop_fp32_fp16, loop_fp32_bf16},
        [HP_FP16] = {loop_fp16_fp64, loop_fp16_fp32, NULL, loop_fp16_bf16},
        [HP_BF16] = {loop_bf16_fp64, loop_bf16_fp32, loop_bf16_fp16, NULL},
    };
    _Static_assert(HP_FP64 == 0 && HP_FP32 == 1 && HP_FP16 == 2 && HP_BF16 == 3, "rows, columns");
    if ((unsigned)in >= 4 || (unsigned)out >= 4)
        return NULL;
    hpi_convert_loop *const fast = f16c_loop_of(in, out);
    if (fast && version == 0)
        return fast;
    return version == (fast ? 1 : 0) ? loops[in][out] : NULL;
}

/* ---- any operands ---- */

enum { PIECE = 512 };

static void convert_in_place(hpi_convert_loop *loop, unsigned char *data, uint64_t in_size,
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
    hpi_convert_loop *loop = hpi_convert_loop_of(in_dtype, out_dtype, 0);
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
