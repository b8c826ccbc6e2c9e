/* SPDX-License-Identifier: Apache-2.0
 *
 * coll.h - collectives over a group.
 *
 * Every member makes the same call, with the same count, dtype and op, in the same order; ranks
 * that disagree get HP_ERR_MISMATCH saying how. Counts are elements, of any size including 0.
 * Buffers may lie in symmetric memory (read and written where they are) or in ordinary memory
 * (staged), at any address; input and output are apart, or in place as each call says (ARGUMENT
 * otherwise). On return outputs are valid and every buffer may be used again. A group's calls come
 * from one thread at a time (BUSY otherwise). After a failure that is not about the arguments the
 * group stays failed.
 *
 * The bit contract: the sum over a group is the balanced binary tree over the group's ranks,
 * ((r0+r1)+(r2+r3))+..., in fp32 (fp64 for fp64; integers wrap), whatever the chunking, memory or
 * algorithm, and the same bits on every rank. For n ranks the tree is: sum(b, e) = sum(b, m) +
 * sum(m, e), m - b the largest power of two below e - b. Results are rounded to the dtype once,
 * after the last addition and, for avg, one division. A NaN in any contribution gives a NaN in
 * sum, avg, max and min. max(-0, +0) is +0, min is -0.
 *
 * Dtypes so far: fp64, fp32, bf16, int64 for reductions; any for moves. avg of integers: ARGUMENT.
 */
#ifndef HYPERPARALLEL_COLL_H
#define HYPERPARALLEL_COLL_H

#include <hyperparallel/base.h>
#include <hyperparallel/world.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* out[i * count + k] = in of rank i [k]. in: [count], out: [size * count]. in may be this rank's
 * place in out. Steps 2, bytes read per rank (n - 1) * count. */
HP_MUST_CHECK hp_status hp_all_gather(hp_group *group, const void *in, void *out, uint64_t count,
                                      hp_dtype dtype);

/* out[k] = op over ranks of in[rank * count + k]. in: [size * count], out: [count]; out may be this
 * rank's place in in. Reads n * count, writes count per rank. */
HP_MUST_CHECK hp_status hp_reduce_scatter(hp_group *group, const void *in, void *out,
                                          uint64_t count, hp_dtype dtype, hp_reduce op);

/* out[k] = op over ranks of in[k]. in, out: [count]; in == out is in place. */
HP_MUST_CHECK hp_status hp_all_reduce(hp_group *group, const void *in, void *out, uint64_t count,
                                      hp_dtype dtype, hp_reduce op);

/* data of rank root, on every rank. data: [count]. */
HP_MUST_CHECK hp_status hp_broadcast(hp_group *group, void *data, uint64_t count, hp_dtype dtype,
                                     int root);

/* Returns when every member has entered. */
HP_MUST_CHECK hp_status hp_barrier(hp_group *group);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
