/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.c - ordinary memory, which peers cannot see, goes through cells that they can.
 *
 * Each rank has two cells of a fixed size, so any count passes in chunks. A *tick* is: fill the own
 * cell of that tick's parity, post the tick on the CHUNK line, wait for every peer's, read from the
 * peers' cells. Filling the cell of tick t + 1, which is the cell of t - 1, is safe without another
 * wait: every peer has posted t, and it posts t only after it has read for t - 1. So every tick
 * waits for every peer, also where only one of them has data.
 *
 * The cells are made by the first collective of a group that takes this path. All members take it
 * together, from the same words, so the collective allocation in it waits for nobody whom the
 * collective itself does not wait for (the deadlock of hidden set-up calls cannot happen).
 */
#include "../inside.h"

enum { CELL_BYTES = 128 * 1024, LEAST_PART_BYTES = 1024 };

hp_status hpi_stage_open(hpi_run *run) {
    hpi_coll_state *s = run->state;
    s->staged_seq = run->seq;
    if (s->cell_bytes)
        return HP_OK;
    const uint64_t bytes = hpi_max(CELL_BYTES, (uint64_t)run->n * LEAST_PART_BYTES);
    HP_TRY(hpi_symm_alloc_inside(run->group, 2 * bytes, 64, &s->staging));
    for (int i = 0; i < run->n; i++) {
        void *cell = NULL;
        HP_TRY(hp_symm_pointer(s->staging, i, run->group, &cell));
        s->cells[i] = cell;
    }
    s->cell_bytes = bytes;
    return HP_OK;
}

/* Local, like the end of a group. Where a peer may still be reading our cells, because the group
 * has failed, they stay taken until the world ends. */
void hpi_stage_close(hpi_coll_state *state) {
    bool is_read = state->cell_bytes > 0;
    for (int i = 0; is_read && i < hp_group_size(state->group); i++)
        if (i != hp_group_rank(state->group))
            is_read = hpi_line_reached(state->group, i, HPI_LINE_READ, state->staged_seq);
    if (is_read)
        hpi_symm_drop(state->staging);
}

unsigned char *hpi_cell_of(const hpi_run *run, int rank) {
    const hpi_coll_state *s = run->state;
    return s->cells[rank] + (s->tick & 1) * s->cell_bytes;
}

unsigned char *hpi_tick_begin(hpi_run *run) {
    run->state->tick++;
    return hpi_cell_of(run, run->rank);
}

void hpi_tick_post(hpi_run *run) {
    hpi_line_post(run->group, HPI_LINE_CHUNK, run->state->tick);
}

hp_status hpi_tick_wait(hpi_run *run, int peer) {
    if (peer == run->rank)
        return HP_OK;
    return hpi_line_wait(run->group, peer, HPI_LINE_CHUNK, run->state->tick, run->name);
}

hp_status hpi_tick_wait_all(hpi_run *run) {
    for (int k = 1; k < run->n; k++)
        HP_TRY(hpi_tick_wait(run, (run->rank + k) % run->n));
    return HP_OK;
}

/* Parts may be of different lengths: every rank takes as many ticks as the longest one needs. */
hp_status hpi_gather_staged(hpi_run *run) {
    HP_TRY(hpi_stage_open(run));
    const unsigned char *in = run->c.in;
    const uint64_t longest = hpi_part_longest(run) * run->in_size, room = run->state->cell_bytes;
    const uint64_t own_bytes = run->in_bytes;
    for (uint64_t at = 0; at < longest; at += room) {
        const uint64_t own_end = hpi_min(at + room, own_bytes);
        unsigned char *cell = hpi_tick_begin(run);
        if (at < own_end)
            memcpy(cell, in + at, own_end - at);
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
    HP_TRY(hpi_stage_open(run));
    unsigned char *data = run->c.out;
    const bool is_root = run->rank == run->c.root;
    uint64_t end;
    for (uint64_t at = 0; at < run->in_bytes; at = end) {
        end = hpi_min(at + run->state->cell_bytes, run->in_bytes);
        unsigned char *cell = hpi_tick_begin(run);
        if (is_root)
            memcpy(cell, data + at, end - at);
        hpi_tick_post(run);
        HP_TRY(hpi_tick_wait_all(run));
        if (!is_root)
            memcpy(data + at, hpi_cell_of(run, run->c.root), end - at);
    }
    return HP_OK;
}

/* A cell holds a piece of every rank's part, side by side. */
hp_status hpi_scatter_reduce_staged(hpi_run *run) {
    HP_TRY(hpi_stage_open(run));
    hpi_coll_state *s = run->state;
    const uint64_t longest = hpi_part_longest(run) * run->in_size;
    const uint64_t own_bytes = hpi_part_total(run, run->rank) * run->in_size;
    const uint64_t room = s->cell_bytes / (uint64_t)run->n / 64 * 64;
    unsigned char *out = run->c.out;
    for (uint64_t at = 0; at < longest; at += room) {
        unsigned char *cell = hpi_tick_begin(run);
        for (int i = 0; i < run->n; i++)
            hpi_part_collect(run, i, cell + (uint64_t)i * room, at,
                             hpi_min(at + room, hpi_part_total(run, i) * run->in_size));
        hpi_tick_post(run);
        HP_TRY(hpi_tick_wait_all(run));
        for (int i = 0; i < run->n; i++)
            s->in[i] = hpi_cell_of(run, i) + (uint64_t)run->rank * room;
        if (at < own_bytes)
            hpi_reduce_span(run, 0, &out, 1, at / run->in_size * run->out_size,
                            hpi_min(room, own_bytes - at) / run->in_size);
    }
    return HP_OK;
}

/* Two ticks for a chunk of `count` elements from `first` on: inputs, then the owners' results. */
static hp_status reduce_staged_chunk(hpi_run *run, uint64_t first, uint64_t count) {
    hpi_coll_state *s = run->state;
    unsigned char *out = (unsigned char *)run->c.out + first * run->out_size;
    uint64_t begin, end;

    memcpy(hpi_tick_begin(run), (const unsigned char *)run->c.in + first * run->in_size,
           count * run->in_size);
    hpi_tick_post(run);
    HP_TRY(hpi_tick_wait_all(run));
    for (int i = 0; i < run->n; i++)
        s->in[i] = hpi_cell_of(run, i);

    unsigned char *results = hpi_tick_begin(run);
    hpi_slice(run, count, run->rank, &begin, &end);
    hpi_reduce_span(run, begin * run->in_size, &results, 1, begin * run->out_size, end - begin);
    hpi_tick_post(run);
    for (int k = 0; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        HP_TRY(hpi_tick_wait(run, peer));
        hpi_slice(run, count, peer, &begin, &end);
        memcpy(out + begin * run->out_size, hpi_cell_of(run, peer) + begin * run->out_size,
               (end - begin) * run->out_size);
    }
    return HP_OK;
}

uint64_t hpi_reduce_staged_step(const hpi_run *run) {
    return run->state->cell_bytes / hpi_max(run->in_size, run->out_size);
}

hp_status hpi_reduce_staged(hpi_run *run) {
    HP_TRY(hpi_stage_open(run));
    const uint64_t step = hpi_reduce_staged_step(run);
    for (uint64_t at = 0; at < run->c.count; at += step)
        HP_TRY(reduce_staged_chunk(run, at, hpi_min(step, run->c.count - at)));
    return HP_OK;
}
