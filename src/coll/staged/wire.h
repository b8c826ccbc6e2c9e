/* SPDX-License-Identifier: Apache-2.0
 *
 * staged/wire.h - elements as they travel: fp16, bf16, or fp8 in blocks with a scale.
 *
 * Encoded elements are a row of blocks of 128, the last one possibly shorter. A block of fp16 or
 * bf16 is its elements; one of fp8 is its scale, a power of two as an fp32, and a byte for each
 * element. So a run of elements that begins at a multiple of 128 can be encoded, found and summed
 * by itself, and what it becomes does not depend on how it was cut.
 */
#ifndef HPI_WIRE_H
#define HPI_WIRE_H

#include "../kernels/kernels.h"
#include <hyperparallel/coll.h>

/* Bytes of `count` encoded elements. A wire is never DEFAULT or FULL here and below. */
uint64_t hpi_wire_bytes(hp_wire wire, uint64_t count);
/* in: [count] of fp32, fp16 or bf16, each rounded once, to nearest even. */
void hpi_wire_encode(hp_wire wire, hp_dtype dtype, const void *in, uint64_t count, void *out);
/* The same and widened again: what each element is when it has travelled. out: [count] of fp32. */
void hpi_wire_round(hp_wire wire, hp_dtype dtype, const void *in, uint64_t count, void *out);
/* The kernels whose inputs are encoded elements; they are widened, and summed in fp32. */
hpi_kernel hpi_wire_kernel(hp_wire wire);

#endif
