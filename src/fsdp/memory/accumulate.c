/* SPDX-License-Identifier: Apache-2.0
 *
 * accumulate.c - the loops of accumulate.h, one per dtype.
 */
#include "accumulate.h"

HPI_KERNEL static void add_fp64(double *restrict to, const double *restrict from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        to[i] += from[i];
}

HPI_KERNEL static void add_fp32(float *restrict to, const float *restrict from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        to[i] += from[i];
}

HPI_KERNEL static void accumulate_bf16(float *restrict sum, const uint16_t *restrict grad,
                                       uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        sum[i] += hpi_bf16_to_fp32(grad[i]);
}

HPI_KERNEL static void fold_bf16(uint16_t *restrict grad, const float *restrict sum, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        grad[i] = hpi_fp32_to_bf16(sum[i] + hpi_bf16_to_fp32(grad[i]));
}

HPI_KERNEL static void accumulate_fp16(float *restrict sum, const uint16_t *restrict grad,
                                       uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        sum[i] += hpi_fp16_to_fp32(grad[i]);
}

HPI_KERNEL static void fold_fp16(uint16_t *restrict grad, const float *restrict sum, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        grad[i] = hpi_fp32_to_fp16(sum[i] + hpi_fp16_to_fp32(grad[i]));
}

void hpi_accumulate(void *sum, const void *grad, hp_dtype dtype, uint64_t n) {
    if (dtype == HP_FP64)
        add_fp64(sum, grad, n);
    else if (dtype == HP_FP32)
        add_fp32(sum, grad, n);
    else if (dtype == HP_FP16)
        accumulate_fp16(sum, grad, n);
    else
        accumulate_bf16(sum, grad, n);
}

void hpi_fold(void *grad, const void *sum, hp_dtype dtype, uint64_t n) {
    if (dtype == HP_FP64)
        add_fp64(grad, sum, n);
    else if (dtype == HP_FP32)
        add_fp32(grad, sum, n);
    else if (dtype == HP_FP16)
        fold_fp16(grad, sum, n);
    else
        fold_bf16(grad, sum, n);
}
