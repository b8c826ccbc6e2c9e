/* SPDX-License-Identifier: Apache-2.0
 *
 * cells.c - cells, and messages that are copied twice: into cells and out of them.
 *
 *     sender     wait for a free cell, fill it, its number = k
 *     receiver   wait for that number, copy, now and then taken = k
 *
 * A short message lies in its cell. A longer one goes in runs of the ring of bytes, each named by a
 * cell: copied out while the next is copied in. A cell is free when the one HPI_N_CELLS before it
 * was taken, a run when all cells whose runs lay there were. Whoever gets no ring (the heap is
 * full, or too many members have one) copies into cells alone. The sender of what fits waits for
 * nobody.
 *
 * Source: MPICH's and Intel MPI's cells; the ring of bytes of LMAX Disruptor and io_uring:
 * positions that only rise, one writer each.
 */
#include "letter.h"

/* ---- waiting ----------------------------------------------------------------------------------
 */

hp_status hpi_letter_await(const hpi_letter *l, const _Atomic uint64_t *word, uint64_t value) {
    const hpi_reason reason = {
        .operation = l->name, .group = l->group, .rank = l->peer, .seq = l->way->n_messages};
    return hpi_world_wait(hpi_letter_world(l), word, HP_GE, value, &reason);
}

void hpi_letter_wake(const hpi_letter *l) {
    hpi_world_wake(hpi_letter_world(l), hpi_letter_peer(l));
}

/* The same for all cells before, whose numbers wait for nothing: they, then the look at the
 * sleepers (wait.pml). */
static void tell(const hpi_letter *l) {
#if !defined(__SANITIZE_THREAD__) /* which knows no fences */
    atomic_thread_fence(memory_order_seq_cst);
#endif
    hpi_letter_wake(l);
}

hp_status hpi_letter_await_more(const hpi_letter *l, uint64_t n) {
    const _Atomic uint64_t *taken = &l->way->slot->taken;
    tell(l);
    HP_TRY(hpi_letter_await(l, taken, n));
    const uint64_t n_taken = atomic_load_explicit(taken, memory_order_acquire);
    if (n_taken == HPI_REFUSED) /* n_taken of the way stays: whoever looks again sees it again */
        return hpi_letter_refused(l, hp_group_rank(l->group), l->peer);
    l->way->n_taken = n_taken;
    return HP_OK;
}

/* ---- the sender -------------------------------------------------------------------------------
 */

hp_status hpi_next_free_cell(const hpi_letter *l, hpi_cell **out_cell) {
    const hpi_way *way = l->way;
    HP_TRY(
        hpi_letter_await_taken(l, way->n_cells < HPI_N_CELLS ? 0 : way->n_cells + 1 - HPI_N_CELLS));
    *out_cell = &way->cells[way->n_cells % HPI_N_CELLS];
    return HP_OK;
}

/* The receiver waits for the number; for `posted` before its first message alone. Whoever posts the
 * last cell wakes. Until then a store that waits for all before it would hold up the next cell; for
 * the last one it is what arrives first (512 bytes in 0.20 us instead of 0.22). The receiver spins
 * on the line of the number: who writes there early has to get it back for the number. */
static void post(const hpi_letter *l, hpi_cell_kind kind, hpi_cell *cell, bool is_last) {
    hpi_way *way = l->way;
    const uint64_t n = ++way->n_cells;
    cell->count = l->c->count;
    cell->dtype = l->c->dtype;
    cell->kind = kind;
    if (way->flow)
        way->flow->ends[n % (2 * HPI_N_CELLS)] = way->flow->position;
    /* all acquired: in hpi_way_open_from and hpi_next_full_cell */
    atomic_store_explicit(&way->slot->posted, n, memory_order_release);
    if (is_last)
        atomic_store_explicit(&cell->number, n, memory_order_seq_cst);
    else
        atomic_store_explicit(&cell->number, n, memory_order_release);
}

void hpi_cell_post(const hpi_letter *l, hpi_cell_kind kind, hpi_cell *cell) {
    post(l, kind, cell, true);
}

static void *data_of(hpi_cell *cell, uint64_t bytes) {
    return bytes <= HPI_HEAD_BYTES ? cell->head : cell->data;
}

/* Until the ring is free up to the position `end`. ends[n_cells] is where the last run ends, so
 * there is such a cell. */
static hp_status await_room(const hpi_letter *l, uint64_t end) {
    const hpi_way *way = l->way;
    const hpi_flow *flow = way->flow;
    uint64_t n = way->n_taken;
    while (flow->ends[n % (2 * HPI_N_CELLS)] + flow->size < end)
        n++;
    return hpi_letter_await_taken(l, n);
}

/* A run does not go over the end of the ring. Its lines are its own. */
static hp_status fill_run(const hpi_letter *l, hpi_cell *cell, const void *data, uint64_t bytes) {
    enum { LINE = 64 };
    hpi_flow *flow = l->way->flow;
    uint64_t begin = flow->position;
    if (begin % flow->size + bytes > flow->size)
        begin = hpi_align_up(begin, flow->size);
    const uint64_t end = begin + hpi_align_up(bytes, LINE);
    HP_TRY(await_room(l, end));
    hpi_ring_fill(&l->way->distance, flow->bytes + begin % flow->size, data, bytes);
    flow->position = end;
    cell->run.at = flow->offset + begin % flow->size;
    cell->run.bytes = bytes;
    return HP_OK;
}

/* Large enough that what every run costs is little, small enough that the receiver's copy of the
 * first and the sender's of the last, which nothing hides, are short. */
static uint64_t run_bytes(uint64_t bytes) {
    return bytes <= HPI_CELL_BYTES * 2 ? HPI_CELL_BYTES
                                       : hpi_min(hpi_max(bytes / 4, 8 << 10), HPI_MOST_RUN_BYTES);
}

static hp_status send_runs(const hpi_letter *l) {
    const unsigned char *data = l->c->in;
    const uint64_t most = run_bytes(l->bytes);
    for (uint64_t at = 0; at < l->bytes; at += most) {
        hpi_cell *cell;
        const uint64_t piece = hpi_min(l->bytes - at, most);
        HP_TRY(hpi_next_free_cell(l, &cell));
        HP_TRY(fill_run(l, cell, data + at, piece));
        const hpi_cell_kind kind = hpi_is_afar(&l->way->distance) ? HPI_CELL_PAST : HPI_CELL_RUN;
        post(l, kind, cell, at + piece == l->bytes);
    }
    tell(l);
    return HP_OK;
}

static hp_status send_cells(const hpi_letter *l) {
    const unsigned char *data = l->c->in;
    uint64_t at = 0;
    do {
        hpi_cell *cell;
        const uint64_t piece = hpi_min(l->bytes - at, HPI_CELL_BYTES);
        HP_TRY(hpi_next_free_cell(l, &cell));
        if (piece)
            memcpy(data_of(cell, l->bytes), data + at, piece);
        at += piece;
        post(l, HPI_CELL_DATA, cell, at == l->bytes);
    } while (at < l->bytes);
    if (at > HPI_CELL_BYTES)
        tell(l);
    else
        hpi_letter_wake(l);
    return HP_OK;
}

hp_status hpi_send_copied(const hpi_letter *l) {
    if (l->bytes > HPI_SHORT_BYTES) {
        hpi_flow_open(l->mailbox, l->peer);
        if (l->way->flow)
            return send_runs(l);
    }
    return send_cells(l);
}

/* ---- the receiver -----------------------------------------------------------------------------
 */

hp_status hpi_next_full_cell(const hpi_letter *l, hpi_cell **out_cell) {
    hpi_cell *cell = &l->way->cells[l->way->n_cells % HPI_N_CELLS];
    *out_cell = cell;
    if (atomic_load_explicit(&cell->number, memory_order_acquire) == l->way->n_cells + 1)
        return HP_OK;
    const hpi_reason reason = {
        .operation = l->name, .group = l->group, .rank = l->peer, .seq = l->way->n_messages};
    return hpi_world_wait(hpi_letter_world(l), &cell->number, HP_EQ, l->way->n_cells + 1, &reason);
}

/* A sender that waits for room can wait for the end of a step: it fills the rest meanwhile. */
static void take(const hpi_letter *l, uint64_t run_bytes, bool is_awaited) {
    enum { STEP = HPI_N_CELLS / 4, STEP_BYTES = HPI_FLOW_CROWDED_BYTES / 4 };
    /* what is not said, a run that waits for room, and an end of the ring that it skips */
    _Static_assert(STEP_BYTES + 3 * HPI_MOST_RUN_BYTES <= HPI_FLOW_CROWDED_BYTES,
                   "a sender waits for room that its receiver has not said");
    hpi_way *way = l->way;
    way->n_cells++;
    way->n_unsaid_bytes += run_bytes;
    if (!is_awaited && way->n_cells - way->n_taken < STEP && way->n_unsaid_bytes < STEP_BYTES)
        return;
    way->n_taken = way->n_cells;
    way->n_unsaid_bytes = 0;
    /* acquired by hpi_letter_await_taken */
    atomic_store_explicit(&way->slot->taken, way->n_cells, memory_order_seq_cst);
    hpi_letter_wake(l);
}

void hpi_cell_take(const hpi_letter *l) {
    take(l, 0, true);
}

static uint64_t receive_run(const hpi_letter *l, const hpi_cell *cell, unsigned char *to) {
    const unsigned char *from = l->way->segment + cell->run.at;
    const uint64_t bytes = cell->run.bytes;
    if (cell->kind == HPI_CELL_PAST)
        memcpy(to, from, bytes);
    else
        hpi_ring_read(to, from, bytes);
    take(l, bytes, false);
    return bytes;
}

static uint64_t receive_cell(const hpi_letter *l, hpi_cell *cell, unsigned char *to,
                             uint64_t left) {
    const uint64_t bytes = hpi_min(left, HPI_CELL_BYTES);
    if (bytes)
        memcpy(to, data_of(cell, l->bytes), bytes);
    take(l, 0, false);
    return bytes;
}

hp_status hpi_receive_copied(const hpi_letter *l, hpi_cell *cell) {
    unsigned char *data = l->c->out;
    uint64_t at = 0;
    do {
        if (!cell)
            HP_TRY(hpi_next_full_cell(l, &cell));
        at += cell->kind != HPI_CELL_DATA ? receive_run(l, cell, data + at)
                                          : receive_cell(l, cell, data + at, l->bytes - at);
        cell = NULL;
    } while (at < l->bytes);
    return HP_OK;
}
