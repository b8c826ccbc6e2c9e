/* SPDX-License-Identifier: Apache-2.0
 *
 * carried.c - inputs that have come with the meeting, in words or copied for all to read.
 *
 * Every rank has all of every input, so each takes or sums what it returns, and nobody waits once
 * more.
 * What came in words lies in rows as wide as a vector, zero behind the end: it is summed whole, and
 * the result's elements are taken from that, which costs less than minding the end. The order of
 * additions is the tree over ranks, see kernels.c.
 */
#include "../inside.h"

/* Of a row of the narrowest elements, in the widest sum type that these have. */
enum { RESULT_BYTES = 2 * HPI_ROW_BYTES };

static void sum(const hpi_run *run, const void *const *in, void *out, uint64_t count) {
    hpi_reduce_into(&run->reduction, in, &out, 1, count, false);
}

static void sum_rows(const hpi_run *run, unsigned char *result) {
    run->state->in[run->rank] = (const unsigned char *)run->state->small[run->rank];
    sum(run, (const void *const *)run->state->in, result, HPI_ROW_BYTES / run->in_size);
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

/* Of each peer's piece, what nobody else reads. */
static void keep(const hpi_run *run, uint64_t begin, uint64_t bytes) {
    for (int i = 0; i < run->n; i++)
        if (i != run->rank)
            hpi_ring_keep(run, run->state->in[i] + begin, bytes);
}

/* ... which of two ranks is all of it. */
static void keep_all(const hpi_run *run) {
    if (run->n == 2)
        keep(run, 0, run->in_bytes);
}

hp_status hpi_reduce_carried(hpi_run *run) {
    sum(run, (const void *const *)run->state->in, run->c.out, run->c.count);
    keep_all(run);
    return HP_OK;
}

hp_status hpi_scatter_reduce_carried(hpi_run *run) {
    const uint64_t part = run->c.count;
    const void **in = run->state->chunk;
    for (uint64_t b = 0; b < run->c.blocks; b++) {
        const uint64_t begin = (b * (uint64_t)run->n + (uint64_t)run->rank) * part;
        for (int i = 0; i < run->n; i++)
            in[i] = run->state->in[i] + begin * run->in_size;
        sum(run, in, (unsigned char *)run->c.out + b * part * run->out_size, part);
        keep(run, begin * run->in_size, part * run->in_size);
    }
    return HP_OK;
}

/* A part of rank i's input. In place our own is there already. */
static void take(const hpi_run *run, int i, void *to, const void *from, uint64_t bytes) {
    if (i != run->rank)
        hpi_ring_read(to, from, bytes);
    else if (to != from)
        memcpy(to, from, bytes);
}

hp_status hpi_gather_carried(hpi_run *run) {
    const uint64_t part = run->c.count * run->in_size;
    unsigned char *out = run->c.out;
    for (uint64_t b = 0; b < run->c.blocks; b++)
        for (int i = 0; i < run->n; i++, out += part)
            if (i != run->rank || !run->has_own)
                take(run, i, out, run->state->in[i] + b * part, part);
    keep_all(run);
    return HP_OK;
}

hp_status hpi_exchange_carried(hpi_run *run) {
    const uint64_t part = run->c.count * run->in_size, begin = (uint64_t)run->rank * part;
    for (int i = 0; i < run->n; i++)
        take(run, i, (unsigned char *)run->c.out + (uint64_t)i * part, run->state->in[i] + begin,
             part);
    keep(run, begin, part);
    return HP_OK;
}
