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
 * Two ranks do without a ring: a rank fills the piece that it was the last to read, in its own ring
 * or in its peer's, and the peer then that one. Its lines are in the nearest cache of the one who
 * stores there, few lines go to and fro, and both know where they lie (swap.pml).
 *
 * Otherwise lines that a reader holds must be taken back from it when they are filled again: on
 * AMD's Zen one after the other, 7 ns each while both cores hang on one third-level cache, 28 ns
 * when they do not, which a hypervisor may change at any time. With more ranks, then: where each
 * rank has a core the ring is as large as two second-level caches, however small the pieces: the
 * lines that its owner fills next have left its readers' second-level caches by then. That is all
 * it takes from near. From afar a third-level cache keeps them; stores past the caches do not ask
 * for them, and their readers fetch them from memory five times as fast as they would be taken
 * back. So the time that stores take is looked at now and then. Where ranks share cores, they share
 * caches; and where the heap is limited, it is the caller's: the ring is small there. It is taken
 * by the first call that needs it, by this rank alone.
 *
 * Two ranks exchange 128 KiB, on 2 cores of an EPYC 9004 that are near each other: 10.9 us through
 * a ring of 2 MiB, 5.4 through pieces that go to and fro; 64 KiB that bounce between far ones: 17
 * to 28 us through that ring, 4.7 to and fro. Source: the cells of Intel MPI, in which a receiver
 * sends its next message.
 */
#include "message/mailbox.h"

/* A tick costs a switch to every rank where they share cores, so pieces grow with the ranks. */
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
    s->ring.base = hpi_outbox_memory(s->ring.box);
    s->ring.is_across[0] = s->ring.is_across[1] = true; /* so the first pieces are this rank's */
    s->distance.begin = s->ring.base;
    s->distance.is_unasked = run->n == 2;
    return HP_OK;
}

void hpi_ring_close(hpi_coll_state *s) {
    if (s->ring.box)
        hpi_outbox_leave(s->group, s->ring.box);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Cells take turns, since their owner reads them too; what was carried is read by its reader alone,
 * and the fewer lines go to and fro, the more stay in the nearest caches. */
static unsigned next_pair(const hpi_ring *ring, bool is_carried) {
    return is_carried && ring->was_carried ? ring->pair : 1 - ring->pair;
}

static unsigned char *piece_of(const hpi_ring *ring, unsigned pair, bool is_across) {
    return (is_across ? ring->peers_base : ring->base) + pair * (ring->bytes / 2);
}

void hpi_ring_took(hpi_run *run, bool is_carried) {
    hpi_ring *ring = &run->state->ring;
    if (run->n > 2)
        return;
    ring->pair = next_pair(ring, is_carried);
    ring->was_carried = is_carried;
    ring->is_across[ring->pair] = !ring->is_across[ring->pair];
}

uint64_t hpi_ring_told(const hpi_run *run, const unsigned char *piece) {
    const unsigned char *told = run->n == 2 ? run->state->ring.base : piece;
    return (uint64_t)(uintptr_t)told - (uintptr_t)run->state->heaps[run->rank];
}

unsigned char *hpi_ring_find(hpi_run *run, int peer, uint64_t told) {
    hpi_ring *ring = &run->state->ring;
    unsigned char *piece = run->state->heaps[peer] + told;
    if (run->n > 2)
        return piece;
    ring->peers_base = piece;
    return piece_of(ring, ring->pair, !ring->is_across[ring->pair]);
}

unsigned char *hpi_ring_take(hpi_run *run, uint64_t bytes, bool is_carried) {
    hpi_ring *ring = &run->state->ring;
    if (run->n == 2) {
        const unsigned pair = next_pair(ring, is_carried);
        return piece_of(ring, pair, !ring->is_across[pair]);
    }
    const uint64_t begin = ring->end + bytes <= ring->bytes ? ring->end : 0;
    ring->end = begin + hpi_align_up(bytes, 64);
    return ring->base + begin;
}

/* ---- filling --------------------------------------------------------------------------------- */

enum { LINE = 64, PAGE = 4096, LEAST_PAST_BYTES = 512 };
enum { LEAST_SAMPLE_BYTES = 2 << 10, SAMPLE_BYTES = 16 << 10, FILLS_PER_SAMPLE = 32 };
/* For a line. Between them it stays as it was found: a large ring hides a part of what far lines
 * cost. */
enum { FAR_NS = 14, NEAR_NS = 6 };

/* A long one counts for several: it would be the dearer. */
static bool is_sample_due(hpi_distance *d, uint64_t bytes) {
    const uint64_t n = 1 + bytes / SAMPLE_BYTES;
    const bool is_due = d->fills_to_sample < n || !hpi_is_sure(d);
    d->fills_to_sample = is_due ? FILLS_PER_SAMPLE : d->fills_to_sample - n;
    return is_due;
}

/* Of a piece, the bytes that go through the caches and are timed. A line that was stored past them
 * is its reader's alone, and comes back fast: slow to store are those alone that were stored
 * through the caches before. So while peers seem afar, the begin of the ring always is. */
static uint64_t sample_of(hpi_distance *d, const void *to, uint64_t bytes) {
    if (d->is_unasked)
        return 0;
    if (hpi_is_afar(d) && d->begin)
        return to == d->begin ? hpi_min(bytes, LEAST_SAMPLE_BYTES) : 0;
    return is_sample_due(d, bytes) && bytes >= LEAST_SAMPLE_BYTES ? hpi_min(bytes, SAMPLE_BYTES)
                                                                  : 0;
}

static void judge(hpi_distance *d, const void *to, uint64_t bytes, uint64_t ns) {
    const bool says_something = !hpi_is_afar(d) || !d->begin || d->is_begin_cached;
    if (to == d->begin)
        d->is_begin_cached = bytes >= LEAST_SAMPLE_BYTES;
    if (bytes >= LEAST_SAMPLE_BYTES && says_something)
        hpi_note_sample(d, ns > bytes / LINE * (hpi_is_afar(d) ? NEAR_NS : FAR_NS));
}

/* What takes time is to take the lines from their readers: the source is in the nearest cache. */
static void fill_timed(hpi_distance *d, void *to, const void *from, uint64_t bytes) {
    const volatile unsigned char *line = from;
    for (uint64_t at = 0; at < bytes; at += LINE)
        (void)line[at];
    const uint64_t began_ns = hpi_now_ns();
    memcpy(to, from, bytes);
    judge(d, to, bytes, hpi_now_ns() - began_ns);
}

/* A caller has mostly written the end of its input last, and has that in the nearest cache: so
 * pieces are copied page by page from their end, which takes 5 to 12% less. */
static uint64_t last_page(uint64_t bytes) {
    return bytes > 0 ? (bytes - 1) % PAGE + 1 : 0;
}

static void copy_from_end(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    for (uint64_t n; (n = last_page(bytes)) > 0;) {
        bytes -= n;
        memcpy(to + bytes, from + bytes, n);
    }
}

void hpi_ring_fill(hpi_distance *d, void *to, const void *from, uint64_t bytes) {
    unsigned char *t = to;
    const unsigned char *f = from;
    if (bytes == 0) /* and no source */
        return;
    const uint64_t timed = sample_of(d, to, bytes);
    if (timed > 0)
        fill_timed(d, t, f, timed);
    if (hpi_is_afar(d) && !d->is_unasked && bytes - timed >= LEAST_PAST_BYTES)
        hpi_copy_past(t + timed, f + timed, bytes - timed);
    else
        copy_from_end(t + timed, f + timed, bytes - timed);
}

/* What is loaded once is stored twice. */
static void copy_twice(unsigned char *to, unsigned char *own, const unsigned char *from,
                       uint64_t bytes) {
    const uint64_t rest = bytes % sizeof(int64_t);
    const hpi_reduction alone = {.kernel = hpi_kernel_of(HP_INT64),
                                 .dtype = HP_INT64,
                                 .out_dtype = HP_INT64,
                                 .op = HP_SUM,
                                 .n = 1};
    bytes -= rest;
    memcpy(to + bytes, from + bytes, rest);
    memcpy(own + bytes, from + bytes, rest);
    for (uint64_t n; (n = last_page(bytes)) > 0;) {
        bytes -= n;
        hpi_reduce_into(&alone, (const void *const[]){from + bytes},
                        (void *const[]){to + bytes, own + bytes}, 2, n / sizeof(int64_t), false);
    }
}

bool hpi_ring_fill_twice(hpi_distance *d, void *to, void *own, const void *from, uint64_t bytes) {
    enum { LEAST = 8 << 10 };
    if (bytes < LEAST || (hpi_is_afar(d) && !d->is_unasked)) {
        hpi_ring_fill(d, to, from, bytes);
        return false;
    }
    const uint64_t timed = sample_of(d, to, bytes);
    if (timed > 0) {
        fill_timed(d, to, from, timed);
        memcpy(own, from, timed);
    }
    copy_twice((unsigned char *)to + timed, (unsigned char *)own + timed,
               (const unsigned char *)from + timed, bytes - timed);
    return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* From two places at once, so that two pages are fetched ahead of it: half again as fast for a few
 * pages. From memory one is better, and for less than a page memcpy. */
void hpi_ring_read(void *out, const void *in, uint64_t bytes) {
    enum { STEP = 256, LEAST = 4096 };
    unsigned char *to = out;
    const unsigned char *from = in;
    const uint64_t half = bytes < LEAST ? 0 : bytes / 2 / STEP * STEP;
    for (uint64_t at = 0; at < half; at += STEP) {
        memcpy(to + at, from + at, STEP);
        memcpy(to + half + at, from + half + at, STEP);
    }
    memcpy(to + 2 * half, from + 2 * half, bytes - 2 * half);
}

/* A line that its reader has stored to is the reader's alone, and comes back to its owner, who
 * never reads it, as any line does: for 2 ns instead of 7, from afar for 4 instead of 28. Where
 * ranks have a core each the ring is large, which costs less; pockets are not. */
void hpi_ring_keep(const hpi_run *run, const void *piece, uint64_t bytes) {
    const uintptr_t end = (uintptr_t)piece + bytes;
    if (run->n == 2)
        return;
    const bool is_in_pocket = run->in_bytes - run->carried_own_bytes <= HPI_POCKET_BYTES;
    if (run->is_small || (!is_in_pocket && hpi_world_can_spin(hp_group_world(run->group))))
        return;
    for (uintptr_t at = hpi_align_up((uintptr_t)piece, LINE); at + sizeof(uint64_t) <= end;
         at += LINE)
        atomic_store_explicit((_Atomic uint64_t *)at, 0, memory_order_relaxed);
}
