/* SPDX-License-Identifier: Apache-2.0
 *
 * letters.c - send and receive in a group that spans nodes.
 *
 * To a member of this node a message goes by the mailbox of the inner group. To another it is a
 * head, which says what it holds, and its data; the receiver awaits both and believes the head. The
 * network buffers what it likes, which is what a sender may count on: nothing.
 */
#include "across.h"

typedef struct letter_head {
    uint64_t group, number; /* its check number; of the message on this way */
    uint64_t count, dtype;
} letter_head;
_Static_assert(sizeof(letter_head) == 32, "sent between hosts");

/* Messages to, or from, one member. */
typedef struct way {
    atomic_bool is_busy;
    uint64_t n_messages;
} way;

typedef struct letters {
    way *to, *from; /* [size of the group] */
} letters;

/* One message. */
typedef struct letter {
    hp_group *group;
    way *way;
    const hpi_coll *c;
    const char *name;
    uint64_t bytes;
} letter;

/* ---- state ---- */

static void letters_destroy(void *memory) {
    letters *l = memory;
    if (!l)
        return;
    hpi_free(l->to);
    hpi_free(l->from);
    hpi_free(l);
}

static hp_status letters_get(hp_group *group, letters **out_letters) {
    const size_t n = (size_t)hp_group_size(group);
    *out_letters = hpi_group_attached(group, HPI_SLOT_MAIL);
    if (*out_letters)
        return HP_OK;
    letters *fresh = hpi_alloc(1, sizeof *fresh);
    if (!fresh)
        return HP_ERR_MEMORY;
    fresh->to = hpi_alloc(n, sizeof *fresh->to);
    fresh->from = hpi_alloc(n, sizeof *fresh->from);
    if (!fresh->to || !fresh->from) {
        letters_destroy(fresh);
        return HP_ERR_MEMORY;
    }
    if (!hpi_group_attach(group, HPI_SLOT_MAIL, fresh, letters_destroy))
        letters_destroy(fresh); /* another thread's first message was faster */
    *out_letters = hpi_group_attached(group, HPI_SLOT_MAIL);
    return HP_OK;
}

/* ---- between nodes ---- */

static letter_head head_of(const letter *l) {
    return (letter_head){hpi_group_check_number(l->group), l->way->n_messages, l->c->count,
                         (uint64_t)l->c->dtype};
}

/* Until both are over; after a failure the other one is given up. */
static hp_status wait_both(const letter *l, hpi_transfer *first, hpi_transfer *second) {
    hp_status status =
        first ? hpi_remote_wait(l->group, first, l->way->n_messages, l->name) : HP_OK;
    if (second && status == HP_OK)
        status = hpi_remote_wait(l->group, second, l->way->n_messages, l->name);
    else if (second)
        hpi_remote_cancel(l->group, second);
    return status;
}

static hp_status send(const letter *l) {
    const letter_head head = head_of(l);
    const int to = l->c->root;
    hpi_transfer *first, *second = NULL;
    HP_TRY(hpi_remote_send(l->group, to, HPI_TAG_LETTER, &head, sizeof head, &first));
    const hp_status status =
        l->bytes ? hpi_remote_send(l->group, to, HPI_TAG_LETTER_DATA, l->c->in, l->bytes, &second)
                 : HP_OK;
    const hp_status sent = wait_both(l, first, second);
    return status < 0 ? status : sent;
}

static hp_status check_head(const letter *l, const letter_head *head) {
    const int from = l->c->root, to = hp_group_rank(l->group);
    if (head->group == hpi_group_check_number(l->group) && head->number == l->way->n_messages &&
        head->count == l->c->count && head->dtype == (uint64_t)l->c->dtype)
        return HP_OK;
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, hp_group_world_rank(l->group, from),
                         "expected equal counts and dtypes in message %llu of %s from rank %d "
                         "(world %d) to rank %d (world %d): sent are %llu %s, to be received are "
                         "%llu %s",
                         (unsigned long long)head->number, hpi_group_name(l->group), from,
                         hp_group_world_rank(l->group, from), to, hp_group_world_rank(l->group, to),
                         (unsigned long long)head->count, hp_dtype_name((hp_dtype)head->dtype),
                         (unsigned long long)l->c->count, hp_dtype_name(l->c->dtype));
}

static hp_status receive(const letter *l) {
    letter_head head;
    const int from = l->c->root;
    hpi_transfer *first, *second = NULL;
    HP_TRY(hpi_remote_receive(l->group, from, HPI_TAG_LETTER, &head, sizeof head, &first));
    hp_status status = l->bytes ? hpi_remote_receive(l->group, from, HPI_TAG_LETTER_DATA, l->c->out,
                                                     l->bytes, &second)
                                : HP_OK;
    const hp_status heard = wait_both(l, first, NULL);
    status = status < 0 ? status : heard;
    if (status == HP_OK)
        status = check_head(l, &head);
    if (status == HP_OK)
        return wait_both(l, second, NULL);
    if (second)
        hpi_remote_cancel(l->group, second);
    return status;
}

/* With no other thread on the way. */
static hp_status run_alone(const letter *l, hp_collective what) {
    const bool is_send = what == HP_SEND;
    const hpi_probe probe =
        hpi_probe_begin(hpi_collective_event(what), hpi_world_journal(hp_group_world(l->group)),
                        hpi_group_name(l->group), 0, l->bytes);
    l->way->n_messages++;
    return hpi_probe_end(&probe, is_send ? send(l) : receive(l));
}

static hp_status run_remote(hp_group *group, hp_collective what, const hpi_coll *c) {
    letters *all;
    HP_TRY(letters_get(group, &all));
    way *w = what == HP_SEND ? &all->to[c->root] : &all->from[c->root];
    const letter l = {group, w, c, hpi_collective_name(what), c->count * hp_dtype_size(c->dtype)};
    if (atomic_exchange_explicit(&w->is_busy, true, memory_order_acquire))
        return HPI_FAIL(HP_ERR_BUSY,
                        "%s: expected one thread at a time with rank %d of %s, rank %d has another "
                        "one inside",
                        l.name, c->root, hpi_group_name(group), hp_group_rank(group));
    const hp_status status = run_alone(&l, what);
    atomic_store_explicit(&w->is_busy, false, memory_order_release); /* acquired above */
    return status;
}

/* ---- the door ---- */

static hp_status run_inside(hp_group *group, hp_collective what, const hpi_coll *c) {
    hpi_coll inner = *c;
    inner.root = hpi_group_nodes(group)->place_of[c->root];
    return hpi_mailbox_run(hpi_group_inner(group), what, &inner);
}

hp_status hpi_across_letter(hp_group *group, hp_collective what, const hpi_coll *c) {
    const hpi_nodes *nodes = hpi_group_nodes(group);
    HP_TRY(hpi_mailbox_check(group, what, c));
    HP_TRY(hpi_group_check(group));
    const hp_status status = nodes->node_of[c->root] == nodes->mine ? run_inside(group, what, c)
                                                                    : run_remote(group, what, c);
    if (status < 0 && status != HP_ERR_BUSY)
        hpi_group_fail(group);
    return status;
}
