/* SPDX-License-Identifier: Apache-2.0
 *
 * whole.c - long messages, which are read where they lie, and copied once.
 *
 *     sender     post where they lie, help to copy, wait until that was done
 *     receiver   say where they go, copy                                       each some pieces
 *
 * In symmetric memory that the receiver holds too it reads them; where it receives into such memory
 * as well and each has a core, the sender copies as many pieces as the receiver: both claim the
 * next one from a counter, so that whoever is held up does less. In ordinary memory the receiver
 * reads them across processes (process_vm_readv), if the kernel lets it; the first time that it
 * does not, the receiver says so, and the sender copies.
 */
#include "letter.h"

#include <sys/uio.h>
#include <unistd.h>

static bool is_unreadable(const hpi_letter *l) {
    return l->way->slot && atomic_load_explicit(&l->way->slot->is_unreadable, memory_order_relaxed);
}

/* From afar a ring that is filled past the caches is faster up to there. A message now and then
 * goes through the ring, or it would not be known. */
static uint64_t least_bytes(const hpi_letter *l) {
    enum { MESSAGES_PER_SAMPLE = 32 };
    if (!hpi_world_can_spin(hpi_letter_world(l)))
        return HPI_PLACED_BYTES;
    const bool is_sample = l->way->n_messages % MESSAGES_PER_SAMPLE == 0;
    return is_sample || hpi_is_afar(&l->way->distance) ? HPI_ACROSS_BYTES : HPI_PLACED_BYTES;
}

hpi_cell_kind hpi_letter_kind(const hpi_letter *l, hpi_place *out_place) {
    hp_world *world = hpi_letter_world(l);
    *out_place = (hpi_place){0, 0};
    if (l->bytes < least_bytes(l))
        return HPI_CELL_DATA;
    *out_place = hpi_symm_place(world, l->c->in, l->bytes);
    if (out_place->key && hpi_symm_at(world, *out_place, hpi_letter_peer(l)))
        return hpi_world_can_spin(world) ? HPI_CELL_SHARED : HPI_CELL_PLACED;
    return l->bytes < HPI_ACROSS_BYTES || is_unreadable(l) ? HPI_CELL_DATA : HPI_CELL_FAR;
}

/* ---- a message that both copy -----------------------------------------------------------------
 */

/* The counter costs a line's way to the other and back. */
static uint64_t piece_bytes(uint64_t bytes) {
    return hpi_align_up(hpi_min(hpi_max(bytes / 32, 64 << 10), 1 << 20), 4096);
}

/* The next piece that nobody copies yet; false: there is none. */
static bool claim(const hpi_letter *l, uint64_t *out_at, uint64_t *out_bytes) {
    const uint64_t most = piece_bytes(l->bytes);
    const uint64_t n = atomic_fetch_add_explicit(&l->way->slot->claimed, 1, memory_order_relaxed);
    *out_at = n * most;
    if (*out_at >= l->bytes)
        return false;
    *out_bytes = hpi_min(l->bytes - *out_at, most);
    return true;
}

/* Nothing, where the receiver does not say where to, or has refused, which is found next. */
static void help(const hpi_letter *l) {
    hpi_slot *slot = l->way->slot;
    uint64_t at, bytes;
    const uint64_t came_to = atomic_load_explicit(&slot->came_to, memory_order_acquire);
    const hpi_place place = {atomic_load_explicit(&slot->key, memory_order_relaxed),
                             atomic_load_explicit(&slot->offset, memory_order_relaxed)};
    unsigned char *to = came_to != HPI_REFUSED && place.key
                            ? hpi_symm_at(hpi_letter_world(l), place, hpi_letter_peer(l))
                            : NULL;
    while (to && claim(l, &at, &bytes))
        hpi_copy(to + at, (const unsigned char *)l->c->in + at, bytes);
}

static hp_status send_shared(const hpi_letter *l) {
    hpi_slot *slot = l->way->slot;
    HP_TRY(hpi_letter_await(l, &slot->came_to, l->way->n_cells));
    help(l);
    /* acquired by await_help */
    atomic_store_explicit(&slot->helped, l->way->n_cells, memory_order_seq_cst);
    hpi_letter_wake(l);
    return hpi_letter_await_taken(l, l->way->n_cells);
}

/* Where the receiver wants it, if the sender can help. */
static hpi_place wanted_place(const hpi_letter *l) {
    hp_world *world = hpi_letter_world(l);
    const hpi_place none = {0, 0};
    const hpi_place place = hpi_symm_place(world, l->c->out, l->bytes);
    return place.key && hpi_symm_at(world, place, hpi_letter_peer(l)) ? place : none;
}

static void come(const hpi_letter *l, hpi_place place) {
    hpi_slot *slot = l->way->slot;
    atomic_store_explicit(&slot->key, place.key, memory_order_relaxed);
    atomic_store_explicit(&slot->offset, place.offset, memory_order_relaxed);
    /* acquired by send_shared */
    atomic_store_explicit(&slot->came_to, l->way->n_cells + 1, memory_order_seq_cst);
    hpi_letter_wake(l);
}

/* A receiver that gives up wants nothing more. */
static hp_status await_help(const hpi_letter *l) {
    const uint64_t none_left = UINT64_C(1) << 32;
    hpi_slot *slot = l->way->slot;
    const hp_status status = hpi_letter_await(l, &slot->helped, l->way->n_cells + 1);
    if (status < 0)
        atomic_fetch_add_explicit(&slot->claimed, none_left, memory_order_relaxed);
    return status;
}

static void receive_shared(const hpi_letter *l, const unsigned char *data) {
    uint64_t at, bytes;
    while (claim(l, &at, &bytes))
        hpi_copy((unsigned char *)l->c->out + at, data + at, bytes);
}

/* ---- the sender -------------------------------------------------------------------------------
 */

/* From where it lies, or, when the receiver has said that it cannot, through cells. */
static hp_status send_far(const hpi_letter *l) {
    HP_TRY(hpi_letter_await_taken(l, l->way->n_cells));
    return is_unreadable(l) ? hpi_send_copied(l) : HP_OK;
}

hp_status hpi_send_whole(const hpi_letter *l, hpi_cell_kind kind, hpi_place place) {
    hpi_cell *cell;
    HP_TRY(hpi_next_free_cell(l, &cell));
    if (kind == HPI_CELL_FAR) {
        cell->far.address = (uintptr_t)l->c->in;
        cell->far.pid = getpid();
    } else {
        cell->place = place;
        atomic_store_explicit(&l->way->slot->claimed, 0, memory_order_relaxed);
    }
    hpi_cell_post(l, kind, cell);
    if (kind == HPI_CELL_FAR)
        return send_far(l);
    return kind == HPI_CELL_SHARED ? send_shared(l) : hpi_letter_await_taken(l, l->way->n_cells);
}

/* ---- the receiver -----------------------------------------------------------------------------
 */

/* What was copied from the sender's memory. A sender that gave up, which it says first, may have
 * written there meanwhile. Until the take it has not left in order. */
static hp_status take_copied(const hpi_letter *l) {
    HP_TRY(hpi_group_listen(l->group, l->name));
    hpi_cell_take(l);
    return HP_OK;
}

static hp_status receive_placed(const hpi_letter *l, const hpi_cell *cell) {
    const void *data = hpi_symm_at(hpi_letter_world(l), cell->place, hpi_letter_peer(l));
    if (!data)
        return HPI_FAIL_RANK(HP_ERR_HANDLE, hpi_letter_peer(l),
                             "recv: expected rank %d (world %d) of %s to send from live memory, it "
                             "was freed meanwhile",
                             l->peer, hpi_letter_peer(l), hpi_group_name(l->group));
    if (cell->kind == HPI_CELL_SHARED) {
        const hpi_place place = wanted_place(l);
        come(l, place);
        receive_shared(l, data);
        if (place.key)
            HP_TRY(await_help(l));
    } else {
        hpi_copy(l->c->out, data, l->bytes);
    }
    return take_copied(l);
}

static bool read_far(const hpi_letter *l, const hpi_cell *cell) {
    enum { MOST_BYTES = 1 << 26 }; /* of a piece: the kernel takes 2 GiB a call */
    const unsigned char *from = (const unsigned char *)(uintptr_t)cell->far.address;
    unsigned char *to = l->c->out;
    if (hpi_world_is_threads(hpi_letter_world(l))) {
        hpi_copy(to, from, l->bytes);
        return true;
    }
    for (uint64_t at = 0; at < l->bytes;) {
        const size_t piece = hpi_min(l->bytes - at, MOST_BYTES);
        const struct iovec here = {to + at, piece}, there = {(void *)(uintptr_t)(from + at), piece};
        const ssize_t got = process_vm_readv((pid_t)cell->far.pid, &here, 1, &there, 1, 0);
        if (got <= 0)
            return false;
        at += (uint64_t)got;
    }
    return true;
}

/* Where the sender has died its memory cannot be read either: that is found by looking at it. */
static hp_status receive_far(const hpi_letter *l, const hpi_cell *cell) {
    if (read_far(l, cell))
        return take_copied(l);
    HP_TRY(hpi_group_look(l->group, l->peer, l->name));
    /* published by the take */
    atomic_store_explicit(&l->way->slot->is_unreadable, 1, memory_order_relaxed);
    hpi_cell_take(l);
    return hpi_receive_copied(l, NULL);
}

hp_status hpi_receive_whole(const hpi_letter *l, hpi_cell *cell) {
    return cell->kind == HPI_CELL_FAR ? receive_far(l, cell) : receive_placed(l, cell);
}
