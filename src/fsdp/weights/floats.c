/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/floats.c - fp16 added to the dtypes that hpi_convert takes.
 *
 * fp16 goes through fp32, which holds each of its values. From fp64 that would round twice, so the
 * step to fp32 is "to odd" there: see hpi_fp64_to_fp32_odd.
 */
#include "floats.h"
#include "../../base/base.h"

static inline float fp16_to_fp32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000U) << 16, rest = h & 0x7fffU;
    const uint32_t small = hpi_bits_of_fp32((float)(int32_t)rest * 0x1p-24F);
    const uint32_t usual = (rest << 13) + (rest < 0x7c00U ? 112U << 23 : 224U << 23);
    return hpi_fp32_of_bits(sign | (rest < 0x400U ? small : usual));
}

static inline uint16_t fp32_to_fp16(float f) {
    const uint32_t sign = hpi_bits_of_fp32(f) >> 16 & 0x8000U,
                   rest = hpi_bits_of_fp32(f) & 0x7fffffffU;
    /* Beside 0.5 the last bit is worth 2^-24, as in the smallest numbers of fp16. */
    const uint32_t small = hpi_bits_of_fp32(hpi_fp32_of_bits(rest) + 0.5F) - hpi_bits_of_fp32(0.5F);
    const uint32_t usual = (rest - (112U << 23) + 0xfffU + (rest >> 13 & 1U)) >> 13;
    const uint32_t nan = 0x7e00U | (rest >> 13 & 0x3ffU);
    const uint32_t finite = rest < 113U << 23 ? small : usual;
    /* From 65520 on, half a step above the largest, it is infinite. */
    const uint32_t large = rest > 0x7f800000U ? nan : 0x7c00U;
    return (uint16_t)(sign | (rest < 0x477ff000U ? finite : large));
}

/* Between fp16 and fp32, and the odd step; what does not stand here is room base's. */
HPI_KERNEL static void widen(const uint16_t *in, float *out, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = fp16_to_fp32(in[i]);
}

HPI_KERNEL static void narrow(const float *in, uint16_t *out, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = fp32_to_fp16(in[i]);
}

static void narrow_odd(const double *in, float *out, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = hpi_fp64_to_fp32_odd(in[i]);
}

enum { BLOCK = 512 };

static hp_status from_fp16(const uint16_t *in, void *out, hp_dtype dtype, uint64_t count) {
    float block[BLOCK];
    if (dtype == HP_FP32) {
        widen(in, out, count);
        return HP_OK;
    }
    for (uint64_t done = 0; done < count; done += hpi_min(BLOCK, count - done)) {
        const uint64_t n = hpi_min(BLOCK, count - done);
        widen(in + done, block, n);
        HP_TRY(hpi_convert(block, HP_FP32, (unsigned char *)out + done * hp_dtype_size(dtype),
                           dtype, n));
    }
    return HP_OK;
}

static hp_status to_fp16(const void *in, hp_dtype dtype, uint16_t *out, uint64_t count) {
    float block[BLOCK];
    if (dtype == HP_FP32) {
        narrow(in, out, count);
        return HP_OK;
    }
    for (uint64_t done = 0; done < count; done += hpi_min(BLOCK, count - done)) {
        const uint64_t n = hpi_min(BLOCK, count - done);
        const unsigned char *from = (const unsigned char *)in + done * hp_dtype_size(dtype);
        if (dtype == HP_FP64)
            narrow_odd((const double *)(const void *)from, block, n);
        else
            HP_TRY(hpi_convert(from, dtype, block, HP_FP32, n));
        narrow(block, out + done, n);
    }
    return HP_OK;
}

hp_status hpi_floats_convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                             uint64_t count) {
    if (in_dtype == out_dtype || (in_dtype != HP_FP16 && out_dtype != HP_FP16))
        return hpi_convert(in, in_dtype, out, out_dtype, count);
    return in_dtype == HP_FP16 ? from_fp16(in, out, out_dtype, count)
                               : to_fp16(in, in_dtype, out, count);
}
