/* SPDX-License-Identifier: Apache-2.0
 *
 * fused.h - matrix products that communicate: all-gather + matmul, matmul + reduce-scatter.
 *
 * What tensor parallelism with cut sequences computes. Rows (tokens) are cut over a group: rank i
 * has rows[i] of them, its block, and M is their sum; weights are cut too, and a rank multiplies
 * with its part of them. The gather need not happen: a rank multiplies its own block at once, and
 * the peers' where they lie, each as soon as that peer has come. A reduction goes tile by tile
 * through symmetric memory while later tiles are computed.
 *
 *     forward                    gradient of the rows          gradient of the weights
 *     hp_all_gather_matmul       hp_matmul_reduce_scatter      hp_all_gather_weight_grad
 *     hp_matmul_reduce_scatter   hp_all_gather_matmul          hp_all_gather_weight_grad
 *
 * Every member makes the same call in the same order; ranks that disagree get MISMATCH. Sums run in
 * fp32. Products of ranks are added as the bit contract of coll.h says, and rounded once. How a
 * product is cut depends on the shape alone: the same call gives the same bits. After a failure
 * that is not about the arguments the group stays failed, on every member.
 */
#ifndef HYPERPARALLEL_FUSED_H
#define HYPERPARALLEL_FUSED_H

#include <hyperparallel/coll.h>
#include <hyperparallel/matmul.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* One product. Matrices are row-major; r is this rank. A call looks at the fields it names. */
typedef struct hp_fused_args {
    size_t size; /* sizeof(hp_fused_args) */
    hp_group *group;
    hp_matmul *matmul;   /* this rank's engine; the ranks' need not be alike */
    const int64_t *rows; /* [size of the group], equal on all ranks, any of them 0; copied */
    int64_t n, k;
    hp_dtype dtype;     /* of a and b: fp32, bf16, fp16 */
    hp_dtype out_dtype; /* of c: dtype or fp32 */
    int transpose_b;    /* 1: b lies in memory as [n][k] */
    int transpose_c;    /* of a weight gradient, 1: c is [n][k] */
    int accumulate;     /* 1: add to c */
    const void *a, *b;
    void *c;               /* overlaps nothing else */
    int64_t lda, ldb, ldc; /* elements from a row in memory to the next one */
    void *gathered;        /* [M][k]: gets the gathered a as well; a may be its place in it. NULL:
                              not wanted */
    int64_t ld_gathered;
    hp_stream *stream; /* NULL: returns when it is done; else checked, then put on the stream */
} hp_fused_args;
#define HP_FUSED_ARGS_INIT                                                                         \
    { sizeof(hp_fused_args), 0, 0, 0, 0, 0, HP_FP32, HP_FP32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Errors of all three: VERSION (args not from HP_FUSED_ARGS_INIT), ARGUMENT, UNSUPPORTED (a group
 * that spans nodes, naming hosts), MISMATCH, TIMEOUT and PEER as of collectives, those of the
 * engine. Threads: one at a time per group (BUSY), beside no collective of it. What is given may be
 * used again on return. */

/* c [M][n] = gathered a [M][k] times b [k][n]. a: [rows[r]][k], in symmetric memory read where it
 * lies, else copied once, as small blocks are where ranks share cores; k is the same on all ranks,
 * n and b each rank's own. */
HP_MUST_CHECK hp_status hp_all_gather_matmul(const hp_fused_args *args);

/* c [rows[r]][n] = block r of the sum over ranks of a [M][k] times b [k][n]. n is the same on all
 * ranks, k each rank's own. Takes 8 MiB of this rank's symmetric memory for a group. */
HP_MUST_CHECK hp_status hp_matmul_reduce_scatter(const hp_fused_args *args);

/* c [k][n] = gathered a [M][k], transposed, times b [M][n]; transpose_c: c [n][k] is its transpose.
 * a: [rows[r]][k]; k is the same on all ranks. transpose_b is not looked at. */
HP_MUST_CHECK hp_status hp_all_gather_weight_grad(const hp_fused_args *args);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
