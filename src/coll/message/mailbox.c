/* SPDX-License-Identifier: Apache-2.0
 *
 * mailbox.c - send and receive: one writes cells, the other reads them, in order.
 *
 *     sender     wait for a free cell, fill it, posted = k          large and symmetric: post the
 *     receiver   wait for posted >= k, copy, taken = k              place, wait until it was copied
 *
 * A message of one cell is buffered, a longer one goes in pieces while the receiver reads, and one
 * that lies in symmetric memory which the receiver holds too is copied once, from where it lies.
 * Ways are independent of each other and of the group's collectives, so that a rank can send and
 * receive at once. A receiver that wants another count or dtype writes so into its line instead of
 * a number, which is an answer to whatever the sender waits for.
 */
#include "mailbox.h"

/* One message on its way through. */
typedef struct letter {
    hp_group *group;
    hpi_way *way;
    const hpi_coll *c;
    const char *name; /* a literal: "send" */
    int peer;
    uint64_t bytes;
} letter;

static hp_world *world_of(const letter *l) {
    return hp_group_world(l->group);
}

static int peer_world_rank(const letter *l) {
    return hp_group_world_rank(l->group, l->peer);
}

/* ---- check ------------------------------------------------------------------------------------
 */

hp_status hpi_mailbox_check(hp_group *group, hp_collective what, const hpi_coll *c) {
    const char *name = hpi_collective_name(what);
    if (!group)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a group, given NULL", name);
    HP_TRY(hpi_world_usable(hp_group_world(group)));
    if (c->root < 0 || c->root >= hp_group_size(group) || c->root == hp_group_rank(group))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected a rank from 0 to %d of %s other than this one (%d), given %d",
                        name, hp_group_size(group) - 1, hpi_group_name(group), hp_group_rank(group),
                        c->root);
    const uint64_t size = hp_dtype_size(c->dtype);
    if (size == 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a dtype, given %d", name, (int)c->dtype);
    uint64_t bytes;
    if (!hpi_multiply(c->count, size, &bytes) || bytes > INT64_MAX)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected less than 2^63 bytes, given %llu elements of %s", name,
                        (unsigned long long)c->count, hp_dtype_name(c->dtype));
    if (bytes && !(what == HP_SEND ? c->in : c->out))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected data of %llu elements, given NULL", name,
                        (unsigned long long)c->count);
    return HP_OK;
}

/* ---- disagreement -----------------------------------------------------------------------------
 */

static uint64_t load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}
static void store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}

/* The same text on both sides. */
static hp_status fail_refused(const letter *l, int source, int target) {
    const hpi_slot *slot = l->way->slot;
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, peer_world_rank(l),
                         "expected equal counts and dtypes in message %llu of %s from rank %d "
                         "(world %d) to rank %d (world %d): sent are %llu %s, to be received are "
                         "%llu %s",
                         (unsigned long long)load(&slot->message), hpi_group_name(l->group), source,
                         hp_group_world_rank(l->group, source), target,
                         hp_group_world_rank(l->group, target),
                         (unsigned long long)load(&slot->sent_count),
                         hp_dtype_name((hp_dtype)load(&slot->sent_dtype)),
                         (unsigned long long)load(&slot->wanted_count),
                         hp_dtype_name((hp_dtype)load(&slot->wanted_dtype)));
}

static hp_status refuse(const letter *l, const hpi_cell *cell) {
    hpi_slot *slot = l->way->slot;
    store(&slot->message, l->way->n_messages);
    store(&slot->sent_count, cell->count);
    store(&slot->sent_dtype, cell->dtype);
    store(&slot->wanted_count, l->c->count);
    store(&slot->wanted_dtype, l->c->dtype);
    atomic_store_explicit(&slot->taken, HPI_REFUSED,
                          memory_order_seq_cst); /* acquired by await_taken */
    hpi_world_wake(world_of(l), peer_world_rank(l));
    return fail_refused(l, l->peer, hp_group_rank(l->group));
}

/* ---- waiting ----------------------------------------------------------------------------------
 */

static hp_status await(const letter *l, const _Atomic uint64_t *word, uint64_t value) {
    const hpi_reason reason = {
        .operation = l->name, .group = l->group, .rank = l->peer, .seq = l->way->n_messages};
    return hpi_world_wait(world_of(l), word, HP_GE, value, &reason);
}

/* Until the receiver has read the first n cells. */
static hp_status await_taken(const letter *l, uint64_t n) {
    const _Atomic uint64_t *taken = &l->way->slot->taken;
    HP_TRY(await(l, taken, n));
    return atomic_load_explicit(taken, memory_order_acquire) == HPI_REFUSED
               ? fail_refused(l, hp_group_rank(l->group), l->peer)
               : HP_OK;
}

/* Who finds a free cell waits for nobody, and would go on writing to a partner that has died. */
static hp_status look_at_partner(const letter *l) {
    const uint64_t now_ns = hpi_now_ns(), pause_ns = UINT64_C(50000000);
    if (now_ns - l->way->looked_ns < pause_ns)
        return HP_OK;
    l->way->looked_ns = now_ns;
    return hpi_group_look(l->group, l->peer, l->name);
}

/* ---- send -------------------------------------------------------------------------------------
 */

static hp_status next_free_cell(const letter *l, hpi_cell **out_cell) {
    const hpi_way *way = l->way;
    HP_TRY(await_taken(l, way->n_cells < HPI_N_CELLS ? 0 : way->n_cells + 1 - HPI_N_CELLS));
    *out_cell = &way->cells[way->n_cells % HPI_N_CELLS];
    return HP_OK;
}

static void post(const letter *l) {
    l->way->n_cells++;
    /* acquired in receive */
    atomic_store_explicit(&l->way->slot->posted, l->way->n_cells, memory_order_seq_cst);
    hpi_world_wake(world_of(l), peer_world_rank(l));
}

/* Where the receiver can read the data of a message that is too long for a cell. */
static hpi_place place_of(const letter *l) {
    const hpi_place none = {0, 0};
    if (l->bytes <= HPI_CELL_BYTES)
        return none;
    const hpi_place place = hpi_symm_place(world_of(l), l->c->in, l->bytes);
    return place.key && hpi_symm_at(world_of(l), place, peer_world_rank(l)) ? place : none;
}

static hp_status send_placed(const letter *l, hpi_place place) {
    hpi_cell *cell;
    HP_TRY(next_free_cell(l, &cell));
    cell->count = l->c->count;
    cell->dtype = l->c->dtype;
    cell->is_placed = 1;
    cell->place = place;
    post(l);
    return await_taken(l, l->way->n_cells);
}

static hp_status send_copied(const letter *l) {
    const unsigned char *data = l->c->in;
    uint64_t at = 0;
    do {
        hpi_cell *cell;
        const uint64_t piece = hpi_min(l->bytes - at, HPI_CELL_BYTES);
        HP_TRY(next_free_cell(l, &cell));
        cell->count = l->c->count;
        cell->dtype = l->c->dtype;
        cell->is_placed = 0;
        if (piece)
            memcpy(cell->data, data + at, piece);
        post(l);
        at += piece;
    } while (at < l->bytes);
    return HP_OK;
}

static hp_status send(const letter *l) {
    const hpi_place place = place_of(l);
    HP_TRY(look_at_partner(l));
    return place.key ? send_placed(l, place) : send_copied(l);
}

/* ---- receive ----------------------------------------------------------------------------------
 */

static hp_status next_full_cell(const letter *l, const hpi_cell **out_cell) {
    HP_TRY(await(l, &l->way->slot->posted, l->way->n_cells + 1));
    *out_cell = &l->way->cells[l->way->n_cells % HPI_N_CELLS];
    return HP_OK;
}

static void take(const letter *l) {
    l->way->n_cells++;
    /* acquired by await_taken */
    atomic_store_explicit(&l->way->slot->taken, l->way->n_cells, memory_order_seq_cst);
    hpi_world_wake(world_of(l), peer_world_rank(l));
}

static hp_status receive_placed(const letter *l, const hpi_cell *cell) {
    const void *data = hpi_symm_at(world_of(l), cell->place, peer_world_rank(l));
    if (!data)
        return HPI_FAIL_RANK(HP_ERR_HANDLE, peer_world_rank(l),
                             "recv: expected rank %d (world %d) of %s to send from live memory, it "
                             "was freed meanwhile",
                             l->peer, peer_world_rank(l), hpi_group_name(l->group));
    memcpy(l->c->out, data, l->bytes);
    /* A sender that gave up, which it says first, may have written there meanwhile. Until the take
     * it has not left in order. */
    HP_TRY(hpi_group_look(l->group, l->peer, l->name));
    take(l);
    return HP_OK;
}

static hp_status receive(const letter *l) {
    unsigned char *data = l->c->out;
    const hpi_cell *cell;
    HP_TRY(next_full_cell(l, &cell));
    if (cell->count != l->c->count || cell->dtype != (uint32_t)l->c->dtype)
        return refuse(l, cell);
    if (cell->is_placed)
        return receive_placed(l, cell);
    for (uint64_t at = 0;;) {
        const uint64_t piece = hpi_min(l->bytes - at, HPI_CELL_BYTES);
        if (piece)
            memcpy(data + at, cell->data, piece);
        take(l);
        at += piece;
        if (at == l->bytes)
            return HP_OK;
        HP_TRY(next_full_cell(l, &cell));
    }
}

/* ---- the doors --------------------------------------------------------------------------------
 */

static hp_status way_enter(const letter *l) {
    if (atomic_exchange_explicit(&l->way->is_busy, true, memory_order_acquire))
        return HPI_FAIL(HP_ERR_BUSY,
                        "%s: expected one thread at a time with rank %d of %s, rank %d has another "
                        "one inside",
                        l->name, l->peer, hpi_group_name(l->group), hp_group_rank(l->group));
    return HP_OK;
}

static void way_leave(const letter *l) {
    atomic_store_explicit(&l->way->is_busy, false,
                          memory_order_release); /* acquired by way_enter */
}

static hp_status deliver(const letter *l, hpi_mailbox *m) {
    const bool is_send = l->way == &m->to[l->peer];
    l->way->n_messages++;
    HP_TRY(is_send ? hpi_way_open_to(m, l->peer) : hpi_way_open_from(m, l->peer));
    return is_send ? send(l) : receive(l);
}

/* The partner, which may be waiting for this message, learns of it at once. */
static hp_status fail_group(hp_group *group, hp_status status) {
    hpi_group_fail(group);
    return status;
}

static hp_status run(hp_group *group, hp_collective what, const hpi_coll *c) {
    hpi_mailbox *m;
    HP_TRY(hpi_group_check(group));
    hp_status status = hpi_mailbox_get(group, &m);
    if (status < 0)
        return fail_group(group, status);
    const letter l = {.group = group,
                      .way = what == HP_SEND ? &m->to[c->root] : &m->from[c->root],
                      .c = c,
                      .name = what == HP_SEND ? "send" : "recv",
                      .peer = c->root,
                      .bytes = c->count * hp_dtype_size(c->dtype)};
    HP_TRY(way_enter(&l));
    status = deliver(&l, m);
    if (status < 0)
        status = fail_group(group, status);
    way_leave(&l);
    return status;
}

hp_status hpi_mailbox_send(hp_group *group, const hpi_coll *c) {
    return run(group, HP_SEND, c);
}

hp_status hpi_mailbox_recv(hp_group *group, const hpi_coll *c) {
    return run(group, HP_RECV, c);
}
