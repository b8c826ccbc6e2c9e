/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/memory/accumulate.h - adding up full gradients of one rank, in fp32 (fp64 for fp64).
 *
 * The sum of K gradients is ((g0 + g1) + g2) + ..., and only the last one, which the ranks reduce,
 * is rounded to the gradients' dtype. An element depends on nothing but its own K values, so the
 * bits are the same whatever the vector width. Source: SPEC A8.
 */
#ifndef HPI_ACCUMULATE_H
#define HPI_ACCUMULATE_H

#include "../../base/base.h"

/* sum += grad. dtype: of grad: fp64, fp32, bf16 or fp16; sum is in its sum dtype. */
void hpi_accumulate(void *sum, const void *grad, hp_dtype dtype, uint64_t n);
/* grad = sum + grad, rounded once to dtype. */
void hpi_fold(void *grad, const void *sum, hp_dtype dtype, uint64_t n);

#endif
