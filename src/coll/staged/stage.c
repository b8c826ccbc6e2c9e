/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.c - ordinary memory, which peers cannot see, goes through cells that they can.
 *
 * A cell is a piece of a rank's ring (ring.c), so any count passes in chunks. A *tick* is: fill the
 * own cell of that tick, say on the CHUNK line where it lies and post the tick, wait for every
 * peer's, read from the peers' cells. Filling the cell of tick t + 1 is safe without another wait:
 * every peer has posted t, and it posts t only after it has read for t - 1; and where t lies, t + 1
 * does not (of two ranks, neither rank's). So every tick waits for every peer, also where only one
 * of them has data. Two words say where cells lie, by turns: a peer that is one tick ahead has not
 * touched this one's.
 */
#include "../inside.h"

unsigned char *hpi_cell_of(const hpi_run *run, int rank) {
    const hpi_coll_state *s = run->state;
    return s->cells[rank];
}

/* The word of a tick, on the line of `rank`. */
static _Atomic uint64_t *place_word(const hpi_run *run, int rank) {
    return &hpi_group_line(run->group, rank, HPI_LINE_CHUNK)->words[run->state->tick & 1];
}

unsigned char *hpi_tick_begin(hpi_run *run, uint64_t bytes) {
    hpi_coll_state *s = run->state;
    s->tick++;
    s->cells[run->rank] = hpi_ring_take(run, bytes, false);
    hpi_ring_took(run, false);
    atomic_store_explicit(place_word(run, run->rank), hpi_ring_told(run, s->cells[run->rank]),
                          memory_order_relaxed); /* published with the tick */
    return s->cells[run->rank];
}

void hpi_tick_post(hpi_run *run) {
    hpi_line_post(run->group, HPI_LINE_CHUNK, run->state->tick);
}

hp_status hpi_tick_hear(const hpi_run *run, int peer) {
    return hpi_line_wait(run->group, peer, HPI_LINE_CHUNK, run->state->tick, run->name);
}

hp_status hpi_tick_wait(hpi_run *run, int peer) {
    if (peer == run->rank)
        return HP_OK;
    HP_TRY(hpi_tick_hear(run, peer));
    run->state->cells[peer] =
        hpi_ring_find(run, peer, atomic_load_explicit(place_word(run, peer), memory_order_relaxed));
    return HP_OK;
}

hp_status hpi_tick_wait_all(hpi_run *run) {
    HP_TRY(hpi_wait_beside(run->group, HPI_LINE_CHUNK, run->state->tick, run->name));
    for (int k = 1; k < run->n; k++)
        HP_TRY(hpi_tick_wait(run, (run->rank + k) % run->n));
    return HP_OK;
}

void hpi_tick_say(hpi_run *run, uint64_t word) {
    run->state->tick++;
    atomic_store_explicit(place_word(run, run->rank), word,
                          memory_order_relaxed); /* published with the tick */
    hpi_tick_post(run);
}

hp_status hpi_tick_tell(hpi_run *run, uint64_t word) {
    hpi_tick_say(run, word);
    HP_TRY(hpi_wait_beside(run->group, HPI_LINE_CHUNK, run->state->tick, run->name));
    for (int k = 1; k < run->n; k++)
        HP_TRY(hpi_tick_hear(run, (run->rank + k) % run->n));
    return HP_OK;
}

uint64_t hpi_tick_told(const hpi_run *run, int rank) {
    return atomic_load_explicit(place_word(run, rank), memory_order_relaxed);
}

/* Parts may be of different lengths: every rank takes as many ticks as the longest one needs. */
hp_status hpi_gather_staged(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    const unsigned char *in = run->c.in;
    const uint64_t longest = hpi_part_longest(run) * run->in_size, room = run->state->cell_bytes;
    const uint64_t own_bytes = run->in_bytes;
    for (uint64_t at = 0; at < longest; at += room) {
        const uint64_t own_end = hpi_min(at + room, own_bytes);
        unsigned char *cell = hpi_tick_begin(run, hpi_min(room, longest - at));
        if (at < own_end)
            hpi_ring_fill(&run->state->distance, cell, in + at, own_end - at);
        hpi_tick_post(run);
        if (at < own_end && !run->is_in_place)
            hpi_part_scatter(run, run->rank, in + at, at, own_end);
        for (int k = 1; k < run->n; k++) {
            const int peer = (run->rank + k) % run->n;
            const uint64_t bytes = hpi_part_total(run, peer) * run->in_size;
            HP_TRY(hpi_tick_wait(run, peer));
            hpi_part_scatter(run, peer, hpi_cell_of(run, peer), at, hpi_min(at + room, bytes));
        }
    }
    return HP_OK;
}

hp_status hpi_broadcast_staged(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    unsigned char *data = run->c.out;
    const bool is_root = run->rank == run->c.root;
    uint64_t end;
    for (uint64_t at = 0; at < run->in_bytes; at = end) {
        end = hpi_min(at + run->state->cell_bytes, run->in_bytes);
        unsigned char *cell = hpi_tick_begin(run, end - at);
        if (is_root)
            hpi_ring_fill(&run->state->distance, cell, data + at, end - at);
        hpi_tick_post(run);
        HP_TRY(hpi_tick_wait_all(run));
        if (!is_root)
            hpi_copy(data + at, hpi_cell_of(run, run->c.root), end - at);
    }
    return HP_OK;
}

/* ---- reductions ---- */

static void reduce(const hpi_run *run, void *const *out, int n_out, uint64_t count) {
    const hpi_reduction r = hpi_reduction_of(run);
    hpi_reduce_into(&r, run->state->chunk, out, n_out, count, false);
}

/* Bytes [at, end) of this rank's part of its own input: where they lie, unless they are cut there.
 */
static const void *own_piece(const hpi_run *run, uint64_t at, uint64_t end, unsigned char *cell) {
    uint64_t offset;
    if (hpi_part_piece(run, run->rank, at, end, &offset) == end - at)
        return (const unsigned char *)run->c.in + offset;
    hpi_part_collect(run, run->rank, cell, at, end);
    return cell;
}

/* Bytes [at, end) of rank i's part. */
static void fill_part(const hpi_run *run, int i, unsigned char *cell, uint64_t at, uint64_t end) {
    uint64_t offset;
    for (uint64_t done = at, bytes; done < end; done += bytes) {
        bytes = hpi_part_piece(run, i, done, end, &offset);
        hpi_ring_fill(&run->state->distance, cell + (done - at),
                      (const unsigned char *)run->c.in + offset, bytes);
    }
}

/* A cell holds a piece of every other rank's part, side by side. */
hp_status hpi_scatter_reduce_staged(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    hpi_coll_state *s = run->state;
    const uint64_t longest = hpi_part_longest(run) * run->in_size;
    const uint64_t own_bytes = hpi_part_total(run, run->rank) * run->in_size;
    const uint64_t n = (uint64_t)run->n;
    const uint64_t room = hpi_min(s->cell_bytes / n / 64 * 64, hpi_align_up(longest, 64));
    for (uint64_t at = 0; at < longest; at += room) {
        const uint64_t own_end = hpi_min(at + room, own_bytes);
        unsigned char *cell = hpi_tick_begin(run, room * n);
        void *out = (unsigned char *)run->c.out + at / run->in_size * run->out_size;
        for (int k = 1; k < run->n; k++) {
            const int i = (run->rank + k) % run->n;
            fill_part(run, i, cell + hpi_cell_index(run, run->rank, i) * room, at,
                      hpi_min(at + room, hpi_part_total(run, i) * run->in_size));
        }
        hpi_tick_post(run);
        HP_TRY(hpi_tick_wait_all(run));
        for (int i = 0; i < run->n; i++)
            s->chunk[i] = hpi_cell_of(run, i) + hpi_cell_index(run, i, run->rank) * room;
        if (at >= own_end)
            continue;
        s->chunk[run->rank] = own_piece(run, at, own_end, cell + (n - 1) * room);
        reduce(run, &out, 1, (own_end - at) / run->in_size);
    }
    return HP_OK;
}

/* An all-reduce passes in chunks. The cell of a tick holds a chunk's inputs, and behind them this
 * rank's sums of the chunk before it: so there is one tick more than chunks. */
typedef struct chunk {
    uint64_t first, count; /* elements of the vector */
} chunk;

static chunk chunk_at(const hpi_run *run, uint64_t index) {
    const uint64_t step = hpi_reduce_staged_step(run);
    const uint64_t first = hpi_min(index * step, run->c.count);
    return (chunk){first, hpi_min(step, run->c.count - first)};
}

static uint64_t sums_at(const hpi_run *run) {
    const uint64_t longest = hpi_min(run->c.count, hpi_reduce_staged_step(run));
    return hpi_align_up(longest * hpi_max(run->in_size, run->out_size), 64);
}

/* Where the slice that begins there is in a cell: of two ranks, of which each gives one, alike. */
static uint64_t slice_at(const hpi_run *run, uint64_t begin) {
    return run->n == 2 ? 0 : begin * run->in_size;
}

static void give_inputs(const hpi_run *run, chunk c, unsigned char *cell) {
    const unsigned char *in = (const unsigned char *)run->c.in + c.first * run->in_size;
    for (int k = 1; k < run->n; k++) {
        uint64_t begin, end;
        hpi_slice(run, c.count, (run->rank + k) % run->n, &begin, &end);
        hpi_ring_fill(&run->state->distance, cell + slice_at(run, begin), in + begin * run->in_size,
                      (end - begin) * run->in_size);
    }
}

/* Of the inputs that lie in `cells`: to the own output and to the others. */
static void sum_own(const hpi_run *run, chunk c, const void *const *cells, unsigned char *sums) {
    uint64_t begin, end;
    hpi_slice(run, c.count, run->rank, &begin, &end);
    for (int i = 0; i < run->n; i++)
        run->state->chunk[i] = (const unsigned char *)cells[i] + slice_at(run, begin);
    run->state->chunk[run->rank] =
        (const unsigned char *)run->c.in + (c.first + begin) * run->in_size;
    void *const out[] = {(unsigned char *)run->c.out + (c.first + begin) * run->out_size, sums};
    if (begin < end)
        reduce(run, out, 2, end - begin);
}

static hp_status take_sums(hpi_run *run, chunk c) {
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        uint64_t begin, end;
        HP_TRY(hpi_tick_wait(run, peer));
        hpi_slice(run, c.count, peer, &begin, &end);
        hpi_copy((unsigned char *)run->c.out + (c.first + begin) * run->out_size,
                 hpi_cell_of(run, peer) + sums_at(run), (end - begin) * run->out_size);
    }
    return HP_OK;
}

uint64_t hpi_reduce_staged_step(const hpi_run *run) {
    return run->state->cell_bytes / 2 / hpi_max(run->in_size, run->out_size);
}

hp_status hpi_reduce_staged(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    hpi_coll_state *s = run->state;
    const uint64_t n_chunks = hpi_ceil_div(run->c.count, hpi_reduce_staged_step(run));
    for (uint64_t t = 0; t <= n_chunks; t++) {
        for (int i = 0; i < run->n; i++)
            s->in[i] = hpi_cell_of(run, i); /* of the tick before */
        unsigned char *cell = hpi_tick_begin(run, 2 * sums_at(run));
        if (t < n_chunks)
            give_inputs(run, chunk_at(run, t), cell);
        if (t > 0)
            sum_own(run, chunk_at(run, t - 1), (const void *const *)s->in, cell + sums_at(run));
        hpi_tick_post(run);
        if (t > 0)
            HP_TRY(take_sums(run, chunk_at(run, t - 1)));
        else
            HP_TRY(hpi_tick_wait_all(run));
    }
    return HP_OK;
}
