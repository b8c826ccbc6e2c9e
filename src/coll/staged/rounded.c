/* SPDX-License-Identifier: Apache-2.0
 *
 * rounded.c - low precision between ranks that see each other's operands.
 *
 *     rank            0      1      2      3
 *     inputs         [abcd] [efgh] [ijkl] [mnop]
 *     scatter_reduce  a'e'i'm' b'f'j'n' ...          x': x rounded once, by whoever reads it
 *     reduce         [all]  [all]  [all]  [all]      each stores its column into every output
 *
 * In shared memory a contribution that is encoded first is read and written once more than one that
 * is not, and the cells it travels in save nothing. So it does not travel. fp32 is rounded by the
 * kernels as they load it, in the algorithms of full precision. Another dtype, a result that
 * travels, and blocks of fp8 that are not where an operand's are go by strips: a reader rounds a
 * strip of each operand where it lies, into first-level cache, and sums the strips. The terms are
 * those of wire.c and their tree too, hence the bits; blocks are counted from the start of a part
 * (of the vector, in an all-reduce) there and here.
 */
#include "../inside.h"
#include "wire.h"

/* Of fp32, one behind the other in the first-level cache, where they do not meet in the same sets.
 */
enum { STRIP = 4 * HPI_FP8_BLOCK, STRIP_BYTES = 4 * STRIP + 64, PAGE = 4096 };

/* Elements [at, at + n) of the caller's input `i`, where they lie or copied together at `room`. */
typedef const void *find_function(const hpi_run *run, int i, uint64_t at, uint64_t n, void *room);

static hp_status open_strips(hpi_coll_state *s, int n) {
    if (!s->strips)
        s->strips = hpi_alloc_aligned(64, (uint64_t)n * STRIP_BYTES);
    return s->strips ? HP_OK : HP_ERR_MEMORY;
}

/* The sum of the strips, to every output. */
static void sum(const hpi_run *run, void *const *out, int n_out, uint64_t n, bool is_streaming) {
    hpi_coll_state *s = run->state;
    hpi_reduction r = {.kernel = hpi_kernel_of(HP_FP32),
                       .dtype = HP_FP32,
                       .out_dtype = HP_FP32,
                       .op = run->c.op,
                       .n = run->n,
                       .scratch = s->scratch};
    float rounded[STRIP];
    if (!run->c.is_wire_result && run->c.out_dtype == HP_FP32) {
        hpi_reduce_into(&r, s->chunk, out, n_out, n, is_streaming);
        return;
    }
    const void *result = hpi_reduce_chunk(&r, s->chunk, n);
    if (run->c.is_wire_result) {
        hpi_wire_round(run->wire, HP_FP32, result, n, rounded);
        result = rounded;
    }
    for (int k = 0; k < n_out; k++)
        (void)hpi_convert(result, HP_FP32, out[k], run->c.out_dtype, n); /* floats: cannot fail */
}

/* Elements [begin, end) of what `find` finds, the first of them to out[k] + out_offset. */
static void reduce(const hpi_run *run, find_function *find, uint64_t begin, uint64_t end,
                   unsigned char *const *out, int n_out, uint64_t out_offset) {
    const bool is_streaming = !run->is_in_place && hpi_passes_caches(run);
    hpi_coll_state *s = run->state;
    void *to[HPI_MOST_INPUTS];
    float room[STRIP];
    for (uint64_t at = begin, n; at < end; at += n) {
        n = hpi_min(STRIP, end - at);
        for (int k = 1; k <= run->n; k++) {
            const int i = (run->rank + k) % run->n;
            const unsigned char *from = find(run, i, at, n, room);
            unsigned char *strip = s->strips + (uint64_t)i * STRIP_BYTES;
            if (end - at > 3 * STRIP) /* its address is known by then: see copy.c */
                __builtin_prefetch(from + 2 * PAGE);
            hpi_wire_round(run->wire, run->c.dtype, from, n, strip);
            s->chunk[i] = strip;
        }
        for (int k = 0; k < n_out; k++) /* our own first: the others start elsewhere */
            to[k] = out[(run->rank + k) % n_out] + out_offset + (at - begin) * run->out_size;
        sum(run, to, n_out, n, is_streaming);
    }
}

/* Of this rank's part, which may be cut into blocks. */
static const void *find_in_part(const hpi_run *run, int i, uint64_t at, uint64_t n, void *room) {
    const uint64_t end = (at + n) * run->in_size;
    unsigned char *to = room;
    uint64_t offset;
    for (uint64_t done = at * run->in_size, bytes; done < end; done += bytes) {
        bytes = hpi_part_piece(run, run->rank, done, end, &offset);
        if (bytes == n * run->in_size)
            return run->state->in[i] + offset;
        memcpy(to + (done - at * run->in_size), run->state->in[i] + offset, bytes);
    }
    return room;
}

/* The blocks of a part that is cut begin anywhere in the operand. */
bool hpi_rounds_in_registers(const hpi_run *run) {
    const bool is_half = run->wire == HP_WIRE_FP16 || run->wire == HP_WIRE_BF16;
    return run->c.dtype == HP_FP32 && run->c.out_dtype == HP_FP32 && !run->c.is_wire_result &&
           (is_half || run->what == HP_ALL_REDUCE || run->c.blocks == 1);
}

hp_status hpi_scatter_reduce_rounded(hpi_run *run) {
    if (hpi_rounds_in_registers(run))
        return hpi_scatter_reduce(run);
    unsigned char *out = run->c.out;
    HP_TRY(open_strips(run->state, run->n));
    reduce(run, find_in_part, 0, hpi_part_total(run, run->rank), &out, 1, 0);
    return HP_OK;
}

static const void *find_in_vector(const hpi_run *run, int i, uint64_t at, uint64_t n, void *room) {
    (void)n;
    (void)room;
    return run->state->in[i] + at * run->in_size;
}

hp_status hpi_reduce_rounded(hpi_run *run) {
    if (hpi_rounds_in_registers(run))
        return hpi_reduce_push(run);
    uint64_t begin, end;
    hpi_slice(run, run->c.count, run->rank, &begin, &end);
    HP_TRY(open_strips(run->state, run->n));
    reduce(run, find_in_vector, begin, end, run->state->out, run->n, begin * run->out_size);
    return HP_OK;
}
