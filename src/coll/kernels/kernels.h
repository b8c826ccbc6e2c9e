/* SPDX-License-Identifier: Apache-2.0
 *
 * coll/kernels.h - the tree sum of n inputs, a cache-sized chunk at a time.
 */
#ifndef HPI_KERNELS_H
#define HPI_KERNELS_H

#include "../../base/base.h"

enum { HPI_LEAVES = 8 };         /* inputs that are added in registers, at most */
enum { HPI_MOST_INPUTS = 1024 }; /* ranks of a node */
enum { HPI_N_COMBINE = 3 };      /* sum (avg too), max, min */

/* A row per dtype of contributions. Inputs may lie at any address, accumulators are aligned. */
typedef struct hpi_kernel {
    /* acc = the tree over in[0..n), n being 1, 2, 4 or 8 */
    void (*leaves[HPI_N_COMBINE])(const void *const *in, int n, void *acc, uint64_t count);
    /* acc = acc op more, both of the sum type */
    void (*merge[HPI_N_COMBINE])(void *acc, const void *more, uint64_t count);
    void (*divide)(void *acc, uint64_t divisor, uint64_t count); /* NULL for integers */
    void (*narrow)(const void *acc, void *out, uint64_t count); /* NULL: sum type and dtype agree */
} hpi_kernel;

/* NULL for a value outside the enum. */
const hpi_kernel *hpi_kernel_of(hp_dtype dtype);

enum { HPI_CHUNK_BYTES = 8192 }; /* of accumulators; a level of the tree holds one chunk */

/* One reduction, the same for all its chunks. */
typedef struct hpi_reduction {
    const hpi_kernel *kernel;
    hp_dtype dtype, out_dtype;
    hp_reduce op;
    int n;
    /* hpi_scratch_bytes(n), 64-byte aligned; or, when n is a power of two up to HPI_LEAVES and
     * nothing is narrowed, where the result is wanted, apart from the inputs. */
    unsigned char *scratch;
} hpi_reduction;

uint64_t hpi_scratch_bytes(int n);
/* Elements of a chunk. */
uint64_t hpi_chunk_elements(const hpi_reduction *reduction);
/* Reduce in[i][0..count), at most a chunk; returns the result, in out_dtype, inside the scratch. */
const void *hpi_reduce_chunk(const hpi_reduction *reduction, const void *const *in, uint64_t count);

/* Reduce in[i][0..count), any count, and store the result, in out_dtype, to each of out[0..n_out):
 * out[k] may be an input, or lies apart from all of them. is_streaming: past the caches, for
 * outputs that are far larger than they are. Errors: none. */
void hpi_reduce_into(const hpi_reduction *reduction, const void *const *in, void *const *out,
                     int n_out, uint64_t count, bool is_streaming);

#endif
