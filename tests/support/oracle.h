/* SPDX-License-Identifier: Apache-2.0
 *
 * oracle.h - what a reduction must give, in plain serial loops, and data to try it on.
 *
 * Written from the words of coll.h alone: it shares no code with src/coll. One element at a time,
 * one function call per node of the tree.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <hyperparallel/coll.h>
#include <stdbool.h>

/* out[k] = op over in[0..n)[k], k in [0, count): the tree, in the sum type of dtype, divided by n
 * for avg, rounded once to out_dtype (dtype or its sum type). */
void oracle_reduce(hp_dtype dtype, hp_dtype out_dtype, hp_reduce op, const void *const *in, int n,
                   void *out, uint64_t count);

/* The same bits, a NaN being equal to any NaN? Else *out_first is the first element that differs.
 */
bool oracle_same(hp_dtype dtype, const void *a, const void *b, uint64_t count, uint64_t *out_first);

/* Seeded data for any dtype; floats hold, now and then, NaN, infinities, -0, denormals and the
 * largest number, integers their extremes. */
void oracle_fill(hp_dtype dtype, void *data, uint64_t count, uint64_t seed);

/* bf16 to fp32 and back, to nearest even, by comparing distances. */
float oracle_from_bf16(uint16_t h);
uint16_t oracle_to_bf16(float f);

/* The nearest number of a binary format with n_bits bits behind the point and this exponent bias,
 * ties to even, by division; as if exponents had no upper end. Infinities and NaN stay. */
double oracle_round(double x, int n_bits, int bias);
/* fp16 to fp32 and back, by ldexp and oracle_round. */
float oracle_from_fp16(uint16_t h);
uint16_t oracle_to_fp16(float f);

/* out[k] = in[k] as it arrives over a wire (not DEFAULT): rounded once; fp8 by blocks of 128 from
 * in[0] on, each with the least power of two that lets its largest finite number fit. */
void oracle_wire(hp_wire wire, hp_dtype dtype, const void *in, float *out, uint64_t count);

#endif
