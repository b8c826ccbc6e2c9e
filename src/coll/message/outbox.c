/* SPDX-License-Identifier: Apache-2.0
 *
 * outbox.c - the memory of messages: taken by the sender alone, given back when nobody reads it.
 *
 * No call here is collective, so nobody's first message can wait for somebody's other call. A rank
 * that destroys its group leaves its outbox behind: messages in it can still be received. Cells
 * and rings go when all of them was read; the slots, which a receiver may look at as long as it is
 * in the group, go when every member has left. Both are looked at whenever an outbox is made or
 * left.
 */
#include "mailbox.h"

/* Of the own segment; 0 bytes: none. */
typedef struct block {
    uint64_t offset, bytes;
} block;

struct hpi_outbox {
    hpi_outbox *next;
    hpi_term term;
    int n;           /* of slots */
    uint64_t offset; /* of the slots, or of what else was taken */
    uint64_t bytes;
    unsigned char *memory; /* the same, as seen here */
    hpi_slot *slots;
    block *cells, *flows; /* [n] each, of the ways */
    int n_flows;
};

/* Hangs on a world: what destroyed groups have left behind. */
typedef struct remains {
    hp_world *world;
    pthread_mutex_t lock;
    hpi_outbox *first;
} remains;

enum { CELLS_BYTES = HPI_N_CELLS * sizeof(hpi_cell) };

static uint64_t slots_bytes(int n) {
    return (uint64_t)n * sizeof(hpi_slot);
}

/* ---- what is left behind ----------------------------------------------------------------------
 */

static void outbox_free(hpi_outbox *o) {
    hpi_free(o->cells);
    hpi_free(o);
}

static bool is_read(const hpi_slot *slot) {
    return atomic_load_explicit(&slot->taken, memory_order_acquire) >=
           atomic_load_explicit(&slot->posted, memory_order_relaxed);
}

static void give_back(hp_world *world, block *b) {
    if (b->bytes)
        hpi_symm_give(world, b->offset, b->bytes);
    b->bytes = 0;
}

/* Give back what nobody reads any more; true: that was all of it. */
static bool outbox_clear(hp_world *world, hpi_outbox *o) {
    const bool is_over = hpi_term_is_over(world, o->term);
    for (int i = 0; i < o->n; i++)
        if (is_over || is_read(&o->slots[i])) {
            give_back(world, &o->cells[i]);
            give_back(world, &o->flows[i]);
        }
    if (is_over)
        hpi_symm_give(world, o->offset, o->bytes);
    return is_over;
}

/* Locked. */
static void sweep(remains *r) {
    hpi_outbox **at = &r->first;
    while (*at) {
        hpi_outbox *o = *at;
        if (outbox_clear(r->world, o)) {
            *at = o->next;
            outbox_free(o);
        } else {
            at = &o->next;
        }
    }
}

/* With the world its memory goes, wherever it was taken. */
static void remains_destroy(void *memory) {
    remains *r = memory;
    while (r && r->first) {
        hpi_outbox *o = r->first;
        r->first = o->next;
        outbox_free(o);
    }
    if (r)
        pthread_mutex_destroy(&r->lock);
    hpi_free(r);
}

static hp_status remains_get(hp_world *world, remains **out_remains) {
    if (!hpi_world_attached(world, HPI_SLOT_MAIL)) {
        remains *r = hpi_alloc(1, sizeof *r);
        if (!r)
            return HP_ERR_MEMORY;
        r->world = world;
        pthread_mutex_init(&r->lock, NULL); /* does not fail on Linux */
        if (!hpi_world_attach(world, HPI_SLOT_MAIL, r, remains_destroy))
            remains_destroy(r); /* another thread's first message was faster */
    }
    *out_remains = hpi_world_attached(world, HPI_SLOT_MAIL);
    return HP_OK;
}

/* ---- what a rank takes for its readers --------------------------------------------------------
 */

static unsigned char *segment_of(const hp_group *group, int rank) {
    uint64_t bytes;
    return hpi_world_segment(hp_group_world(group), hp_group_world_rank(group, rank), &bytes);
}

static hp_status sweep_remains(hp_world *world) {
    remains *r;
    HP_TRY(remains_get(world, &r));
    pthread_mutex_lock(&r->lock);
    sweep(r);
    pthread_mutex_unlock(&r->lock);
    return HP_OK;
}

hp_status hpi_outbox_take(hp_group *group, uint64_t bytes, hpi_outbox **out_outbox) {
    HP_TRY(sweep_remains(hp_group_world(group)));
    hpi_outbox *o = hpi_alloc(1, sizeof *o);
    if (!o)
        return HP_ERR_MEMORY;
    o->term = hpi_group_term(group);
    o->bytes = bytes;
    const hp_status status = hpi_symm_take(hp_group_world(group), bytes, &o->offset);
    if (status < 0) {
        outbox_free(o);
        return status;
    }
    o->memory = segment_of(group, hp_group_rank(group)) + o->offset;
    memset(o->memory, 0, bytes); /* its pages are there from now on */
    *out_outbox = o;
    return HP_OK;
}

unsigned char *hpi_outbox_memory(const hpi_outbox *outbox) {
    return outbox->memory;
}

uint64_t hpi_outbox_offset(const hpi_outbox *outbox) {
    return outbox->offset;
}

void hpi_outbox_leave(hp_group *group, hpi_outbox *outbox) {
    remains *r = hpi_world_attached(hp_group_world(group), HPI_SLOT_MAIL); /* the take made it */
    pthread_mutex_lock(&r->lock);
    outbox->next = r->first;
    r->first = outbox;
    sweep(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the mailbox of a group -------------------------------------------------------------------
 */

static void mailbox_destroy(void *memory) {
    hpi_mailbox *m = memory;
    if (!m)
        return;
    for (int i = 0; m->to && i < m->n; i++)
        hpi_free(m->to[i].flow);
    for (int i = 0; m->pieces && i < m->n; i++)
        if (m->pieces[i].box)
            hpi_outbox_leave(m->group, m->pieces[i].box);
    if (m->outbox)
        hpi_outbox_leave(m->group, m->outbox);
    pthread_mutex_destroy(&m->lock);
    hpi_free(m->pieces);
    hpi_free(m->to);
    hpi_free(m->from);
    hpi_free(m);
}

static hp_status mailbox_create(hp_group *group, hpi_mailbox **out_mailbox) {
    const size_t n = (size_t)hp_group_size(group);
    hpi_mailbox *m = hpi_alloc(1, sizeof *m);
    if (!m)
        return HP_ERR_MEMORY;
    m->group = group;
    m->n = (int)n;
    pthread_mutex_init(&m->lock, NULL); /* does not fail on Linux */
    m->to = hpi_alloc(n, sizeof *m->to);
    m->from = hpi_alloc(n, sizeof *m->from);
    m->pieces = hpi_alloc(n, sizeof *m->pieces);
    if (!m->to || !m->from || !m->pieces) {
        mailbox_destroy(m);
        return HP_ERR_MEMORY;
    }
    *out_mailbox = m;
    return HP_OK;
}

hp_status hpi_mailbox_get(hp_group *group, hpi_mailbox **out_mailbox) {
    hpi_mailbox *fresh;
    if (!hpi_group_attached(group, HPI_SLOT_MAIL)) {
        HP_TRY(mailbox_create(group, &fresh));
        if (!hpi_group_attach(group, HPI_SLOT_MAIL, fresh, mailbox_destroy))
            mailbox_destroy(fresh); /* another thread's first message was faster */
    }
    *out_mailbox = hpi_group_attached(group, HPI_SLOT_MAIL);
    return HP_OK;
}

/* ---- opening ways -----------------------------------------------------------------------------
 */

static hp_status outbox_create(hpi_mailbox *m, hpi_outbox **out_outbox) {
    const int n = hp_group_size(m->group);
    block *blocks = hpi_alloc(2 * (size_t)n, sizeof *blocks);
    hpi_outbox *o = NULL;
    const hp_status status = blocks ? hpi_outbox_take(m->group, slots_bytes(n), &o) : HP_ERR_MEMORY;
    if (status < 0) {
        hpi_free(blocks);
        return status;
    }
    o->n = n;
    o->cells = blocks;
    o->flows = blocks + n;
    o->slots = (hpi_slot *)(void *)o->memory;
    *out_outbox = o;
    return HP_OK;
}

/* Locked. Make the outbox and say where it lies. */
static hp_status outbox_open(hpi_mailbox *m) {
    if (m->outbox)
        return HP_OK;
    HP_TRY(outbox_create(m, &m->outbox));
    hpi_line *line = hpi_group_line(m->group, hp_group_rank(m->group), HPI_LINE_MAIL);
    atomic_store_explicit(&line->words[0], m->outbox->offset, memory_order_relaxed);
    hpi_line_post(m->group, HPI_LINE_MAIL, 1); /* acquired in hpi_way_open_from */
    return HP_OK;
}

/* Locked. */
static hp_status block_take(hpi_mailbox *m, block *b, uint64_t bytes, void **out_memory) {
    HP_TRY(hpi_symm_take(hp_group_world(m->group), bytes, &b->offset));
    b->bytes = bytes;
    *out_memory = segment_of(m->group, hp_group_rank(m->group)) + b->offset;
    return HP_OK;
}

/* Locked. The cells' place is acquired with the first of them, by `posted`. */
static hp_status cells_open(hpi_mailbox *m, int rank) {
    hpi_outbox *o = m->outbox;
    void *cells;
    HP_TRY(block_take(m, &o->cells[rank], CELLS_BYTES, &cells));
    atomic_store_explicit(&o->slots[rank].cells, o->cells[rank].offset, memory_order_relaxed);
    m->to[rank].slot = &o->slots[rank];
    m->to[rank].cells = cells;
    return HP_OK;
}

hp_status hpi_way_open_to(hpi_mailbox *m, int rank) {
    if (m->to[rank].cells)
        return HP_OK;
    pthread_mutex_lock(&m->lock);
    hp_status status = outbox_open(m);
    if (status == HP_OK)
        status = cells_open(m, rank);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* Locked. */
static hpi_flow *flow_create(hpi_mailbox *m, int rank) {
    hpi_outbox *o = m->outbox;
    block *b = &o->flows[rank];
    const bool can_spin = hpi_world_can_spin(hp_group_world(m->group));
    const uint64_t bytes = can_spin ? HPI_FLOW_BYTES : HPI_FLOW_CROWDED_BYTES;
    void *memory;
    hpi_flow *flow = hpi_alloc(1, sizeof *flow);
    if (!flow || block_take(m, b, bytes, &memory) < 0) {
        hpi_free(flow);
        return NULL;
    }
    memset(memory, 0, bytes); /* its pages are there from now on */
    *flow = (hpi_flow){.bytes = memory, .offset = b->offset, .size = bytes};
    o->n_flows++;
    return flow;
}

void hpi_flow_open(hpi_mailbox *m, int rank) {
    hpi_way *way = &m->to[rank];
    if (way->flow || way->has_no_flow)
        return;
    pthread_mutex_lock(&m->lock);
    if (m->outbox->n_flows < HPI_N_FLOWS)
        way->flow = flow_create(m, rank);
    pthread_mutex_unlock(&m->lock);
    way->has_no_flow = !way->flow;
    way->distance.begin = way->flow ? way->flow->bytes : NULL;
}

uint64_t hpi_piece_bytes(const hp_group *group) {
    return hpi_world_can_spin(hp_group_world(group)) ? HPI_PIECE_BYTES : HPI_FLOW_CROWDED_BYTES;
}

/* The receiver may send in it as long as it is in the group. */
void hpi_piece_open(hpi_mailbox *m, int rank) {
    hpi_pieces *p = &m->pieces[rank];
    if (p->box || p->is_refused)
        return;
    pthread_mutex_lock(&m->lock);
    p->is_refused = m->n_pieces == HPI_N_FLOWS ||
                    hpi_outbox_take(m->group, hpi_piece_bytes(m->group), &p->box) < 0;
    if (!p->is_refused) {
        m->n_pieces++;
        p->own.at = hpi_outbox_offset(p->box);
        atomic_store_explicit(&p->own.n_came, 1, memory_order_relaxed); /* for this thread */
    }
    pthread_mutex_unlock(&m->lock);
}

hp_status hpi_way_open_from(hpi_mailbox *m, int rank) {
    hpi_way *way = &m->from[rank];
    if (way->cells)
        return HP_OK;
    unsigned char *segment = segment_of(m->group, rank);
    if (!way->slot) {
        HP_TRY(hpi_line_wait(m->group, rank, HPI_LINE_MAIL, 1, "recv"));
        const hpi_line *line = hpi_group_line(m->group, rank, HPI_LINE_MAIL);
        hpi_slot *slots =
            (hpi_slot *)(void *)(segment +
                                 atomic_load_explicit(&line->words[0], memory_order_relaxed));
        way->slot = &slots[hp_group_rank(m->group)];
    }
    const hpi_reason reason = {.operation = "recv", .group = m->group, .rank = rank, .seq = 1};
    HP_TRY(hpi_world_wait(hp_group_world(m->group), &way->slot->posted, HP_GE, 1, &reason));
    way->segment = segment;
    way->cells = (hpi_cell *)(void *)(segment + atomic_load_explicit(&way->slot->cells,
                                                                     memory_order_relaxed));
    return HP_OK;
}
