/* SPDX-License-Identifier: Apache-2.0
 *
 * carried.c - sums of inputs that have come with the meeting, in words or in pockets.
 *
 * Every rank has all of every input, so each sums what it returns, and nobody waits once more.
 * What came in words lies in rows as wide as a vector, zero behind the end: it is summed whole, and
 * the result's elements are taken from that, which costs less than minding the end. The order of
 * additions is the tree over ranks, see kernels.c.
 */
#include "../inside.h"

/* Of a row of the narrowest elements, in the widest sum type that these have. */
enum { RESULT_BYTES = 2 * HPI_ROW_BYTES };

static void sum(const hpi_run *run, void *out, uint64_t count) {
    const hpi_reduction r = hpi_reduction_of(run);
    hpi_reduce_into(&r, (const void *const *)run->state->in, &out, 1, count, false);
}

static void sum_rows(const hpi_run *run, unsigned char *result) {
    run->state->in[run->rank] = (const unsigned char *)run->state->small[run->rank];
    sum(run, result, HPI_ROW_BYTES / run->in_size);
}

hp_status hpi_reduce_words(hpi_run *run) {
    _Alignas(64) unsigned char result[RESULT_BYTES];
    sum_rows(run, result);
    memcpy(run->c.out, result, run->out_bytes);
    return HP_OK;
}

hp_status hpi_scatter_reduce_words(hpi_run *run) {
    _Alignas(64) unsigned char result[RESULT_BYTES];
    const uint64_t part = run->c.count * run->out_size; /* of a block, and so its row */
    unsigned char *out = run->c.out;
    sum_rows(run, result);
    for (uint64_t b = 0; b < run->c.blocks; b++)
        memcpy(out + b * part, result + (b * (uint64_t)run->n + (uint64_t)run->rank) * part, part);
    return HP_OK;
}

hp_status hpi_reduce_pockets(hpi_run *run) {
    sum(run, run->c.out, run->c.count);
    return HP_OK;
}
