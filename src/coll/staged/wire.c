/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - reductions whose contributions travel in low precision.
 *
 *     rank            0        1        2        3
 *     inputs         [abcd]   [efgh]   [ijkl]   [mnop]
 *     cells          [a'..d'] [e'..h'] [i'..l'] [m'..p']    x': x rounded once
 *     scatter_reduce  a'e'i'm' b'f'j'n' c'g'k'o' d'h'l'p'   each widens and sums its own column
 *     reduce         [all]    [all]    [all]    [all]       each gives its column to all
 *
 * What holds: whatever the wire, the result is the fp32 tree sum of the rounded terms, exactly,
 * rounded once to the caller's dtype. The blocks of fp8 are counted from the start of a part (of
 * the vector, in an all-reduce), and every cut is at a multiple of a block, so the result does not
 * depend on cells, chunks or memory. A group of one rounds its one term too. Ticks: see stage.c.
 */
#include "wire.h"
#include "../inside.h"

/* ---- which wire ---- */

/* By the choices of the option, in the order in which its row of options.def names them. */
static hp_wire default_wire(const hp_world *world) {
    static const hp_wire wires[] = {HP_WIRE_FULL,     HP_WIRE_FP16,     HP_WIRE_BF16,
                                    HP_WIRE_FP8_E4M3, HP_WIRE_FP8_E5M2, HP_WIRE_FP8_E4M3};
    return wires[hpi_world_options(world)->low_precision];
}

hp_status hpi_wire_choose(hp_group *group, hp_dtype dtype, hp_wire asked, const char *call,
                          hp_wire *out_wire) {
    if ((unsigned)asked > HPI_LAST_WIRE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a wire from 0 to %d, given %d", call,
                        HPI_LAST_WIRE, (int)asked);
    hp_wire wire = asked;
    if (asked == HP_WIRE_DEFAULT)
        wire = dtype == HP_FP32 ? default_wire(hp_group_world(group)) : HP_WIRE_FULL;
    if (wire != HP_WIRE_FULL && dtype != HP_FP32 && dtype != HP_FP16 && dtype != HP_BF16)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected fp32, fp16 or bf16 for a wire of %s, given %s", call,
                        hpi_wire_name(wire), hp_dtype_name(dtype));
    const bool is_own =
        (wire == HP_WIRE_FP16 && dtype == HP_FP16) || (wire == HP_WIRE_BF16 && dtype == HP_BF16);
    *out_wire = is_own ? HP_WIRE_FULL : wire; /* rounding to the own dtype changes nothing */
    return HP_OK;
}

/* ---- sums of encoded elements ---- */

/* Where the results of a span go: to each of out[0..n_out), at `offset` bytes, as elements of the
 * caller's dtype or, encoded, of the wire's. */
typedef struct destination {
    unsigned char *const *out;
    int n_out;
    uint64_t offset;
    bool is_encoded;
} destination;

static void store(const hpi_run *run, const destination *d, uint64_t at, const void *results,
                  uint64_t count) {
    if (d->is_encoded) {
        hpi_wire_encode(run->wire, HP_FP32, results, count,
                        d->out[0] + d->offset + hpi_wire_bytes(run->wire, at));
        return;
    }
    for (int k = 0; k < d->n_out; k++) /* our own first: the others start elsewhere */
        memcpy(d->out[(run->rank + k) % d->n_out] + d->offset + at * run->out_size, results,
               count * run->out_size);
}

/* Reduce elements [first, first + count) of what lies encoded at state->in[0..n); `first` is a
 * multiple of the block. */
static void reduce_span(const hpi_run *run, int n, uint64_t first, uint64_t count,
                        const destination *d) {
    hpi_coll_state *s = run->state;
    const hpi_kernel kernel = hpi_wire_kernel(run->wire);
    const hpi_reduction r = {.kernel = &kernel,
                             .dtype = HP_FP32, /* of the widened terms */
                             .out_dtype = d->is_encoded ? HP_FP32 : run->c.out_dtype,
                             .op = run->c.op,
                             .n = n,
                             .scratch = s->scratch};
    const uint64_t step = hpi_chunk_elements(&r);
    for (uint64_t at = 0; at < count; at += step) {
        const uint64_t chunk = hpi_min(step, count - at);
        for (int i = 0; i < n; i++)
            s->chunk[i] = s->in[i] + hpi_wire_bytes(run->wire, first + at);
        store(run, d, at, hpi_reduce_chunk(&r, s->chunk, chunk), chunk);
    }
}

/* ---- parts, encoded ---- */

enum { PIECE = 8 * HPI_FP8_BLOCK };

/* Elements [begin, end) of rank `part`'s part, encoded. A part may lie in several blocks of the
 * tensor, so it comes in pieces. */
static void encode_part(const hpi_run *run, int part, uint64_t begin, uint64_t end,
                        unsigned char *out) {
    unsigned char piece[PIECE * sizeof(float)];
    for (uint64_t at = begin; at < end; at += PIECE) {
        const uint64_t n = hpi_min(PIECE, end - at);
        hpi_part_collect(run, part, piece, at * run->in_size, (at + n) * run->in_size);
        hpi_wire_encode(run->wire, run->c.dtype, piece, n,
                        out + hpi_wire_bytes(run->wire, at - begin));
    }
}

/* The most elements, a multiple of the block, that take at most `bytes`. */
static uint64_t elements_in(const hpi_run *run, uint64_t bytes) {
    return bytes / hpi_wire_bytes(run->wire, HPI_FP8_BLOCK) * HPI_FP8_BLOCK;
}

/* ---- a group of one ---- */

/* The result is the one term, rounded; and again, as a result, where it travels encoded. */
hp_status hpi_wire_alone(hpi_run *run) {
    unsigned char term[PIECE * sizeof(float)], result[PIECE * sizeof(float)];
    unsigned char *encoded = result, *out = run->c.out;
    const uint64_t total = hpi_part_total(run, 0);
    for (uint64_t at = 0; at < total; at += PIECE) {
        const uint64_t n = hpi_min(PIECE, total - at);
        encode_part(run, 0, at, at + n, term);
        run->state->in[0] = term;
        if (run->c.is_wire_result) {
            reduce_span(run, 1, 0, n, &(destination){&encoded, 1, 0, true});
            run->state->in[0] = result;
        }
        reduce_span(run, 1, 0, n, &(destination){&out, 1, at * run->out_size, false});
    }
    return HP_OK;
}

/* ---- reduce-scatter ---- */

/* A cell holds a piece of every rank's part, side by side. */
hp_status hpi_scatter_reduce_wire(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    hpi_coll_state *s = run->state;
    const uint64_t step = elements_in(run, s->cell_bytes / (uint64_t)run->n / 64 * 64);
    const uint64_t longest = hpi_part_longest(run);
    const uint64_t own = hpi_part_total(run, run->rank);
    unsigned char *out = run->c.out;
    for (uint64_t at = 0; at < longest; at += step) {
        const uint64_t most = hpi_min(step, longest - at);
        const uint64_t room = hpi_align_up(hpi_wire_bytes(run->wire, most), 64);
        unsigned char *cell = hpi_tick_begin(run, room * (uint64_t)run->n);
        for (int i = 0; i < run->n; i++)
            encode_part(run, i, at, hpi_min(at + step, hpi_part_total(run, i)),
                        cell + hpi_cell_index(run, run->rank, i) * room);
        hpi_tick_post(run);
        HP_TRY(hpi_tick_wait_all(run));
        for (int i = 0; i < run->n; i++)
            s->in[i] = hpi_cell_of(run, i) + hpi_cell_index(run, i, run->rank) * room;
        if (at < own)
            reduce_span(run, run->n, 0, hpi_min(step, own - at),
                        &(destination){&out, 1, at * run->out_size, false});
    }
    return HP_OK;
}

/* ---- all-reduce ---- */

/* The elements of a chunk of `count` that `rank` owns. */
static void slice(const hpi_run *run, uint64_t count, int rank, uint64_t *out_begin,
                  uint64_t *out_count) {
    uint64_t end;
    hpi_slice(run, count, rank, out_begin, &end);
    *out_count = end - *out_begin;
}

bool hpi_wire_pushes(const hpi_run *run) {
    return run->algorithm && run->algorithm->needs == HPI_NEEDS_WIRE &&
           run->what == HP_ALL_REDUCE && run->outputs_placed && !run->c.is_wire_result;
}

/* A peer's results, from its cell to `out`; what is encoded there is widened. */
static void take_results(hpi_run *run, int peer, unsigned char *out, uint64_t count) {
    const unsigned char *cell = hpi_cell_of(run, peer);
    if (!run->c.is_wire_result) {
        memcpy(out, cell, count * run->out_size);
        return;
    }
    run->state->in[0] = cell;
    reduce_span(run, 1, 0, count, &(destination){&out, 1, 0, false});
}

/* A chunk of `count` elements from `first` on: contributions, then the owners' results, which go
 * straight into every output or through cells. */
static hp_status reduce_chunk(hpi_run *run, uint64_t first, uint64_t count) {
    hpi_coll_state *s = run->state;
    uint64_t begin, length;

    hpi_wire_encode(run->wire, run->c.dtype,
                    (const unsigned char *)run->c.in + first * run->in_size, count,
                    hpi_tick_begin(run, hpi_wire_bytes(run->wire, count)));
    hpi_tick_post(run);
    HP_TRY(hpi_tick_wait_all(run));
    for (int i = 0; i < run->n; i++)
        s->in[i] = hpi_cell_of(run, i);
    slice(run, count, run->rank, &begin, &length);
    if (hpi_wire_pushes(run)) {
        reduce_span(run, run->n, begin, length,
                    &(destination){s->out, run->n, (first + begin) * run->out_size, false});
        return HP_OK;
    }

    const uint64_t bytes =
        run->c.is_wire_result ? hpi_wire_bytes(run->wire, length) : length * run->out_size;
    unsigned char *results = hpi_tick_begin(run, bytes);
    reduce_span(run, run->n, begin, length, &(destination){&results, 1, 0, run->c.is_wire_result});
    hpi_tick_post(run);
    for (int k = 0; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        HP_TRY(hpi_tick_wait(run, peer));
        slice(run, count, peer, &begin, &length);
        take_results(run, peer, (unsigned char *)run->c.out + (first + begin) * run->out_size,
                     length);
    }
    return HP_OK;
}

/* An owner's slice, which may be a block longer than a fair share, must fit as results too. */
uint64_t hpi_wire_step(const hpi_run *run) {
    const uint64_t cell_bytes = run->state->cell_bytes;
    const uint64_t results = cell_bytes / run->out_size / HPI_FP8_BLOCK * HPI_FP8_BLOCK;
    return hpi_min(elements_in(run, cell_bytes), (uint64_t)run->n * results);
}

hp_status hpi_reduce_wire(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    const uint64_t step = hpi_wire_step(run);
    for (uint64_t at = 0; at < run->c.count; at += step)
        HP_TRY(reduce_chunk(run, at, hpi_min(step, run->c.count - at)));
    return HP_OK;
}
