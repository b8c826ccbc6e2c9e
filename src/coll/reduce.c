/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - reductions that read every peer's input where it lies.
 *
 *     rank            0      1      2      3
 *     inputs         [abcd] [efgh] [ijkl] [mnop]
 *     scatter_reduce  aeim   bfjn   cgko   dhlp      each reads its own column
 *     push           [all]  [all]  [all]  [all]      each stores its column into every output
 *
 * The sums of a chunk stay in the first-level caches until they are stored. In place works, because
 * nobody but the owner touches a slice anywhere, and it reads a chunk before it stores it. The
 * order of additions is the tree over ranks, see kernels.c; it depends on nothing else.
 */
#include "inside.h"

void hpi_reduce_span(const hpi_run *run, uint64_t in_offset, unsigned char *const *out, int n_out,
                     uint64_t out_offset, uint64_t count) {
    hpi_coll_state *s = run->state;
    const hpi_reduction r = {.kernel = hpi_kernel_of(run->c.dtype),
                             .dtype = run->c.dtype,
                             .out_dtype = run->c.out_dtype,
                             .op = run->c.op,
                             .n = run->n,
                             .scratch = s->scratch};
    const uint64_t step = hpi_chunk_elements(&r);
    for (uint64_t at = 0; at < count; at += step) {
        const uint64_t chunk = hpi_min(step, count - at);
        for (int i = 0; i < run->n; i++)
            s->chunk[i] = s->in[i] + in_offset + at * run->in_size;
        const void *result = hpi_reduce_chunk(&r, s->chunk, chunk);
        for (int k = 0; k < n_out; k++) { /* our own first: the others start elsewhere */
            unsigned char *to = out[(run->rank + k) % n_out];
            memcpy(to + out_offset + at * run->out_size, result, chunk * run->out_size);
        }
    }
}

void hpi_slice(const hpi_run *run, uint64_t count, int rank, uint64_t *out_begin,
               uint64_t *out_end) {
    const uint64_t line = 64 / run->in_size;
    const uint64_t share = hpi_align_up(hpi_ceil_div(count, (uint64_t)run->n), line);
    *out_begin = hpi_min((uint64_t)rank * share, count);
    *out_end = hpi_min(*out_begin + share, count);
}

hp_status hpi_scatter_reduce(hpi_run *run) {
    const uint64_t row = (uint64_t)run->n * run->c.count; /* one block of equal parts */
    unsigned char *out = run->c.out;
    uint64_t begin, count;
    hpi_part_elements(run, run->rank, &begin, &count);
    for (uint64_t b = 0; b < run->c.blocks; b++)
        hpi_reduce_span(run, (b * row + begin) * run->in_size, &out, 1, b * count * run->out_size,
                        count);
    return HP_OK;
}

/* Everybody sums everything: the inputs are small and already here. */
hp_status hpi_reduce_each(hpi_run *run) {
    unsigned char *out = run->c.out;
    hpi_reduce_span(run, 0, &out, 1, 0, run->c.count);
    return HP_OK;
}

hp_status hpi_reduce_push(hpi_run *run) {
    uint64_t begin, end;
    hpi_slice(run, run->c.count, run->rank, &begin, &end);
    hpi_reduce_span(run, begin * run->in_size, run->state->out, run->n, begin * run->out_size,
                    end - begin);
    return HP_OK;
}
