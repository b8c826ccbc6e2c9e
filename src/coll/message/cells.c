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
 * nobody. Whoever has a piece that goes to and fro (mailbox.h) puts the runs of a message there.
 *
 * Source: MPICH's and Intel MPI's cells, of which a receiver keeps one for its answer; the ring of
 * bytes of LMAX Disruptor and io_uring: positions that only rise, one writer each.
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

/* ---- a piece that goes to and fro ---- */

static unsigned char *in_segment_of(const hpi_letter *l, int world_rank, uint64_t at) {
    uint64_t bytes;
    unsigned char *segment = hpi_world_segment(hpi_letter_world(l), world_rank, &bytes);
    return segment + at;
}
static unsigned char *in_own(const hpi_letter *l, uint64_t at) {
    return in_segment_of(l, hp_world_rank(hpi_letter_world(l)), at);
}

static bool take_piece(hpi_piece_of_two *piece) {
    if (atomic_load_explicit(&piece->n_came, memory_order_acquire) == piece->n_sent)
        return false;
    piece->n_sent++;
    return true;
}

/* The peer's first: its message came last. Its lines are those that this rank has read. */
static bool find_piece(const hpi_letter *l, hpi_cell_kind *out_kind, uint64_t *out_at) {
    hpi_pieces *p = &l->mailbox->pieces[l->peer];
    if (take_piece(&p->peers)) {
        *out_kind = HPI_CELL_BACK;
        *out_at = p->peers.at;
        return true;
    }
    hpi_piece_open(l->mailbox, l->peer);
    *out_kind = HPI_CELL_LENT;
    *out_at = p->own.at;
    return take_piece(&p->own);
}

static hp_status send_piece(const hpi_letter *l, hpi_cell_kind kind, uint64_t place) {
    unsigned char *to =
        kind == HPI_CELL_BACK ? in_segment_of(l, hpi_letter_peer(l), place) : in_own(l, place);
    const unsigned char *data = l->c->in;
    const uint64_t most = run_bytes(l->bytes);
    for (uint64_t at = 0; at < l->bytes; at += most) {
        hpi_cell *cell;
        const uint64_t bytes = hpi_min(l->bytes - at, most);
        HP_TRY(hpi_next_free_cell(l, &cell));
        memcpy(to + at, data + at, bytes);
        cell->run.at = place + at;
        cell->run.bytes = bytes;
        post(l, kind, cell, at + bytes == l->bytes);
    }
    tell(l);
    return HP_OK;
}

/* A message that came in a piece was read: an answer may go there. Where the own piece is, the
 * thread that sends knows, and may be looking. */
static void get_piece(const hpi_letter *l, hpi_cell_kind kind, uint64_t at) {
    hpi_pieces *p = &l->mailbox->pieces[l->peer];
    hpi_piece_of_two *piece = kind == HPI_CELL_LENT ? &p->peers : &p->own;
    if (kind == HPI_CELL_LENT)
        p->peers.at = at;
    const uint64_t n = atomic_load_explicit(&piece->n_came, memory_order_relaxed) + 1;
    atomic_store_explicit(&piece->n_came, n, memory_order_release); /* acquired by take_piece */
}

/* ---- which of them ---- */

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
    hpi_cell_kind kind;
    uint64_t place;
    if (l->bytes > HPI_SHORT_BYTES) {
        if (l->bytes <= hpi_piece_bytes(l->group) && find_piece(l, &kind, &place))
            return send_piece(l, kind, place);
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

/* What lies in the nearest caches of the sender comes fastest from one place, what does not from
 * two at once. */
static bool comes_from_one_place(const hpi_letter *l, hpi_cell_kind kind) {
    enum { MOST_BYTES = 256 << 10 };
    const bool goes_to_and_fro = kind == HPI_CELL_LENT || kind == HPI_CELL_BACK;
    return kind == HPI_CELL_PAST || (goes_to_and_fro && l->bytes <= MOST_BYTES);
}

static uint64_t receive_run(const hpi_letter *l, const hpi_cell *cell, unsigned char *to) {
    const unsigned char *from =
        cell->kind == HPI_CELL_BACK ? in_own(l, cell->run.at) : l->way->segment + cell->run.at;
    const uint64_t bytes = cell->run.bytes;
    if (comes_from_one_place(l, (hpi_cell_kind)cell->kind))
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
    uint64_t at = 0, piece_at = 0;
    hpi_cell_kind kind;
    do {
        if (!cell)
            HP_TRY(hpi_next_full_cell(l, &cell));
        kind = (hpi_cell_kind)cell->kind;
        piece_at = cell->run.at - at;
        at += cell->kind != HPI_CELL_DATA ? receive_run(l, cell, data + at)
                                          : receive_cell(l, cell, data + at, l->bytes - at);
        cell = NULL;
    } while (at < l->bytes);
    if (kind == HPI_CELL_LENT || kind == HPI_CELL_BACK)
        get_piece(l, kind, piece_at);
    return HP_OK;
}
