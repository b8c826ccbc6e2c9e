/* SPDX-License-Identifier: Apache-2.0
 *
 * mailbox.c - send and receive: the doors, what is checked, and what a receiver may refuse.
 *
 *     short, medium     the sender copies into cells, a piece or a ring, the receiver out of them
 *     long              the receiver reads the data where they lie (see cells.c, whole.c)
 *
 * What fits into the cells and the ring is buffered: its sender waits for nobody; the rest goes on
 * while the receiver reads. Ways are independent of each other and of the group's collectives, so
 * that a rank can send and receive at once. A receiver that wants another count or dtype writes so
 * into its line instead of a number, which is an answer to whatever the sender waits for.
 */
#include "letter.h"

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

hp_status hpi_letter_refused(const hpi_letter *l, int source, int target) {
    const hpi_slot *slot = l->way->slot;
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, hpi_letter_peer(l),
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

static hp_status refuse(const hpi_letter *l, const hpi_cell *cell) {
    hpi_slot *slot = l->way->slot;
    store(&slot->message, l->way->n_messages);
    store(&slot->sent_count, cell->count);
    store(&slot->sent_dtype, cell->dtype);
    store(&slot->wanted_count, l->c->count);
    store(&slot->wanted_dtype, l->c->dtype);
    /* acquired by hpi_letter_await_taken, and before it by send_shared */
    atomic_store_explicit(&slot->came_to, HPI_REFUSED, memory_order_seq_cst);
    atomic_store_explicit(&slot->taken, HPI_REFUSED, memory_order_seq_cst);
    hpi_world_wake(hpi_letter_world(l), hpi_letter_peer(l));
    return hpi_letter_refused(l, l->peer, hp_group_rank(l->group));
}

/* ---- one message ------------------------------------------------------------------------------
 */

/* Who finds a free cell waits for nobody, and would go on writing to a partner that has died. The
 * clock costs as much as a short message. */
static hp_status look_at_partner(const hpi_letter *l) {
    enum { MESSAGES_PER_LOOK = 16 };
    if (l->way->n_messages % MESSAGES_PER_LOOK)
        return HP_OK;
    const uint64_t now_ns = hpi_now_ns(), pause_ns = UINT64_C(50000000);
    if (now_ns - l->way->looked_ns < pause_ns)
        return HP_OK;
    l->way->looked_ns = now_ns;
    return hpi_group_look(l->group, l->peer, l->name);
}

static hp_status send(const hpi_letter *l) {
    hpi_place place;
    HP_TRY(look_at_partner(l));
    if (l->bytes <= HPI_CELL_BYTES)
        return hpi_send_copied(l);
    const hpi_cell_kind kind = hpi_letter_kind(l, &place);
    return kind == HPI_CELL_DATA ? hpi_send_copied(l) : hpi_send_whole(l, kind, place);
}

static hp_status receive(const hpi_letter *l) {
    hpi_cell *cell;
    HP_TRY(hpi_next_full_cell(l, &cell));
    if (cell->count != l->c->count || cell->dtype != (uint32_t)l->c->dtype)
        return refuse(l, cell);
    return cell->kind < HPI_CELL_PLACED ? hpi_receive_copied(l, cell) : hpi_receive_whole(l, cell);
}

/* ---- the doors --------------------------------------------------------------------------------
 */

static hp_status way_enter(const hpi_letter *l) {
    if (atomic_exchange_explicit(&l->way->is_busy, true, memory_order_acquire))
        return HPI_FAIL(HP_ERR_BUSY,
                        "%s: expected one thread at a time with rank %d of %s, rank %d has another "
                        "one inside",
                        l->name, l->peer, hpi_group_name(l->group), hp_group_rank(l->group));
    return HP_OK;
}

static void way_leave(const hpi_letter *l) {
    atomic_store_explicit(&l->way->is_busy, false,
                          memory_order_release); /* acquired by way_enter */
}

static hp_status deliver(const hpi_letter *l, bool is_send) {
    l->way->n_messages++;
    if (!l->way->cells)
        HP_TRY(is_send ? hpi_way_open_to(l->mailbox, l->peer)
                       : hpi_way_open_from(l->mailbox, l->peer));
    return is_send ? send(l) : receive(l);
}

/* A message like the one before, of as many elements of a dtype, need not be checked again. */
static bool is_known(const hpi_letter *l, const void *data) {
    return data && l->way->count == l->c->count && l->way->dtype == l->c->dtype;
}

static hp_status check_in(hpi_letter *l, hp_collective what, const void *data) {
    if (!is_known(l, data)) {
        HP_TRY(hpi_mailbox_check(l->group, what, l->c));
        l->way->count = l->c->count;
        l->way->dtype = l->c->dtype;
        l->way->size = hp_dtype_size(l->c->dtype);
    }
    l->bytes = l->c->count * l->way->size;
    return HP_OK;
}

/* With no other thread on the way. */
static hp_status run_alone(hpi_letter *l, hp_collective what) {
    const bool is_send = what == HP_SEND;
    HP_TRY(check_in(l, what, is_send ? l->c->in : l->c->out));
    const hpi_probe probe = hpi_probe_begin(is_send ? HPI_EVENT_send : HPI_EVENT_recv,
                                            hpi_world_journal(hpi_letter_world(l)),
                                            hpi_group_name(l->group), 0, l->bytes);
    const hp_status status = deliver(l, is_send);
    if (status < 0)
        hpi_group_fail(l->group); /* the partner, which may wait for this message, learns of it */
    return hpi_probe_end(&probe, status);
}

hp_status hpi_mailbox_run(hp_group *group, hp_collective what, const hpi_coll *c) {
    if (group && !HPI_LIKELY(!hpi_group_nodes(group)))
        return hpi_across_letter(group, what, c);
    hpi_mailbox *m = group ? hpi_group_attached(group, HPI_SLOT_MAIL) : NULL;
    if (!m || (unsigned)c->root >= (unsigned)m->n) {
        HP_TRY(hpi_mailbox_check(group, what, c));
        HP_TRY(hpi_group_check(group));
        const hp_status status = hpi_mailbox_get(group, &m);
        if (status < 0) {
            hpi_group_fail(group);
            return status;
        }
    }
    HP_TRY(hpi_world_usable(hp_group_world(group)));
    HP_TRY(hpi_group_check(group));
    hpi_letter l = {.group = group,
                    .mailbox = m,
                    .way = what == HP_SEND ? &m->to[c->root] : &m->from[c->root],
                    .c = c,
                    .name = what == HP_SEND ? "send" : "recv",
                    .peer = c->root};
    HP_TRY(way_enter(&l));
    const hp_status status = run_alone(&l, what);
    way_leave(&l);
    return status;
}

hp_status hpi_mailbox_is_read(hp_group *group, const void *data, uint64_t bytes, int to,
                              bool *out_is_read) {
    const hpi_coll c = {.in = data};
    hpi_mailbox *m;
    HP_TRY(hpi_mailbox_get(group, &m));
    const hpi_letter l = {.group = group, .way = &m->to[to], .c = &c, .peer = to, .bytes = bytes};
    hpi_place place;
    *out_is_read = hpi_letter_kind(&l, &place) != HPI_CELL_DATA;
    return HP_OK;
}
