/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - reductions that read every peer's input where it lies.
 *
 *     rank            0      1      2      3
 *     inputs         [abcd] [efgh] [ijkl] [mnop]
 *     scatter_reduce  aeim   bfjn   cgko   dhlp      each reads its own column
 *     push           [all]  [all]  [all]  [all]      each stores its column into every output
 *
 * Sums of one output are made where they belong, others in a chunk of first-level cache, from which
 * they are stored. In place works, because nobody but the owner touches a slice anywhere, and it
 * reads a chunk before it stores it. The order of additions is the tree over ranks, see kernels.c;
 * it depends on nothing else.
 */
#include "../inside.h"

enum { PAGE = 4096 };

/* The next chunk's pages, so that their addresses are known by then: see copy.c. */
static void look_ahead(const unsigned char *next, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += PAGE)
        __builtin_prefetch(next + at);
}

/* May sums be made in [out, out + bytes)? Not where an input lies, nor where they do not fit. */
static bool is_apart(const hpi_run *run, const unsigned char *out, uint64_t out_bytes,
                     uint64_t in_offset, uint64_t in_bytes) {
    if (run->n > HPI_LEAVES || !hpi_is_power_of_two((uint64_t)run->n) ||
        run->c.out_dtype != hpi_sum_dtype(run->c.dtype) || (uintptr_t)out % run->out_size)
        return false;
    for (int i = 0; i < run->n; i++) {
        const unsigned char *in = run->state->in[i] + in_offset;
        if (in < out + out_bytes && out < in + in_bytes)
            return false;
    }
    return true;
}

void hpi_reduce_span(const hpi_run *run, uint64_t in_offset, unsigned char *const *out, int n_out,
                     uint64_t out_offset, uint64_t count) {
    hpi_coll_state *s = run->state;
    hpi_reduction r = {.kernel = hpi_kernel_of(run->c.dtype),
                       .dtype = run->c.dtype,
                       .out_dtype = run->c.out_dtype,
                       .op = run->c.op,
                       .n = run->n,
                       .scratch = s->scratch};
    const uint64_t step = hpi_chunk_elements(&r);
    const bool is_direct = n_out == 1 && is_apart(run, out[0] + out_offset, count * run->out_size,
                                                  in_offset, count * run->in_size);
    for (uint64_t at = 0; at < count; at += step) {
        const uint64_t chunk = hpi_min(step, count - at);
        const uint64_t next = hpi_min(step, count - at - chunk) * run->in_size;
        for (int i = 0; i < run->n; i++)
            s->chunk[i] = s->in[i] + in_offset + at * run->in_size;
        for (int i = 0; i < run->n; i++)
            look_ahead((const unsigned char *)s->chunk[i] + chunk * run->in_size, next);
        if (is_direct)
            r.scratch = out[0] + out_offset + at * run->out_size;
        const void *result = hpi_reduce_chunk(&r, s->chunk, chunk);
        for (int k = 0; k < n_out && !is_direct;
             k++) { /* our own first: the others start elsewhere */
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
