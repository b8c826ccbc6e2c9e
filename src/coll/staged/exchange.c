/* SPDX-License-Identifier: Apache-2.0
 *
 * staged/exchange.c - all-to-all through cells: ordinary memory, in place, and from afar.
 *
 * In place an output lies where peers still read: a piece of every part is in the cell before the
 * same piece of the output is written. Ticks: see stage.c.
 */
#include "../inside.h"

/* Bytes [at, at + room) of a piece, as far as it goes. */
static uint64_t bytes_at(hpi_piece p, uint64_t at, uint64_t room) {
    return p.bytes > at ? hpi_min(p.bytes - at, room) : 0;
}

/* Where nothing is copied an operand may be NULL. */
static void copy(void *to, const void *from, uint64_t bytes) {
    if (bytes)
        hpi_copy(to, from, bytes);
}

/* A cell holds a piece of the part for every rank, side by side. */
static void fill_cell(const hpi_run *run, unsigned char *cell, uint64_t at, uint64_t room) {
    for (int j = 0; j < run->n; j++) {
        const hpi_piece from = hpi_sent_to(run, j);
        if (j != run->rank)
            hpi_ring_fill(&run->state->distance, cell + hpi_cell_index(run, run->rank, j) * room,
                          (const unsigned char *)run->c.in + from.begin + at,
                          bytes_at(from, at, room));
    }
}

hp_status hpi_exchange_staged(hpi_run *run) {
    HP_TRY(hpi_ring_open(run));
    const uint64_t longest =
        (run->what == HP_ALL_TO_ALL_V ? run->longest : run->c.count) * run->in_size;
    const uint64_t n = (uint64_t)run->n;
    const uint64_t room = hpi_min(run->state->cell_bytes / n / 64 * 64, hpi_align_up(longest, 64));
    hpi_exchange_own(run);
    for (uint64_t at = 0; at < longest; at += room) {
        fill_cell(run, hpi_tick_begin(run, room * n), at, room);
        hpi_tick_post(run);
        for (int k = 1; k < run->n; k++) {
            const int peer = (run->rank + run->n - k) % run->n;
            const hpi_piece to = hpi_got_of(run, peer);
            HP_TRY(hpi_tick_wait(run, peer));
            copy((unsigned char *)run->c.out + to.begin + at,
                 hpi_cell_of(run, peer) + hpi_cell_index(run, peer, run->rank) * room,
                 bytes_at(to, at, room));
        }
    }
    return HP_OK;
}
