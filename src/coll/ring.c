/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.c - what a rank lets all others of its group read: a ring of bytes in its own segment.
 *
 * A piece is filled by this rank and read by the others, who are told where it lies with the number
 * that says so: of a meeting (meet/offer.c) or of a tick (staged/stage.c). Pieces follow each other
 * round the ring. The next one never touches the last, and a rank fills it after it has heard from
 * every peer in the last one's meeting or tick, where no peer was reading any piece before the last
 * any more: so nobody asks when a piece has been read.
 *
 * Where each rank has a core the ring is as large as two second-level caches, however small the
 * pieces: the lines that its owner fills next have left its readers' caches by then, and need not
 * be taken back from there, which costs more than both copies (AMD; see handback.c). Where ranks
 * share cores, they share caches; and where the heap is limited, it is the caller's. The ring is
 * taken by the first call that needs it, by this rank alone.
 */
#include "message/mailbox.h"

/* A tick costs a switch to every rank where they share cores, so that pieces grow with the ranks.
 */
enum { RANK_BYTES = 64 * 1024, MOST_BYTES = 512 * 1024, LEAST_PART_BYTES = 1024 };
enum { ROOMY_BYTES = 2 << 20 };
/* Where three of the longest fit, one that does not fit behind the last fits before it. */
enum { LEAST_PIECES = 3 };

void hpi_ring_size(hpi_coll_state *s, int n_ranks, bool is_roomy) {
    const uint64_t n = (uint64_t)n_ranks;
    s->cell_bytes = hpi_max(hpi_min(n * RANK_BYTES, MOST_BYTES), n * LEAST_PART_BYTES);
    s->ring.bytes = hpi_max(LEAST_PIECES * s->cell_bytes, is_roomy ? ROOMY_BYTES : 0);
}

uint64_t hpi_ring_most(const hpi_coll_state *s) {
    return s->ring.bytes / LEAST_PIECES;
}

hp_status hpi_ring_open(hpi_run *run) {
    hpi_coll_state *s = run->state;
    if (s->ring.box)
        return HP_OK;
    HP_TRY(hpi_outbox_take(run->group, s->ring.bytes, &s->ring.box));
    s->ring.base = s->heaps[run->rank] + hpi_outbox_offset(s->ring.box);
    memset(s->ring.base, 0, s->ring.bytes); /* its pages are there from now on */
    return HP_OK;
}

void hpi_ring_close(hpi_coll_state *s) {
    if (s->ring.box)
        hpi_outbox_leave(s->group, s->ring.box);
}

unsigned char *hpi_ring_take(hpi_run *run, uint64_t bytes) {
    hpi_ring *ring = &run->state->ring;
    const uint64_t begin = ring->end + bytes <= ring->bytes ? ring->end : 0;
    ring->end = begin + hpi_align_up(bytes, 64);
    return ring->base + begin;
}
