/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - transfers and requests, taken once and used again, and the queues that they stand in.
 *
 * The pool grows when more is under way than ever before, and never shrinks. A transfer stands in
 * one queue at most.
 */
#include "inside.h"

/* ---- queues --------------------------------------------------------------------------------- */

void wire_queue_init(queue *q) {
    q->first = NULL;
    q->end = &q->first;
}

void wire_queue_add(queue *q, transfer *t) {
    t->next = NULL;
    *q->end = t;
    q->end = &t->next;
}

static transfer *take_at(queue *q, transfer **at) {
    transfer *taken = *at;
    *at = taken->next;
    if (q->end == &taken->next)
        q->end = at;
    return taken;
}

transfer *wire_queue_first(queue *q) {
    return take_at(q, &q->first);
}

transfer *wire_queue_take(queue *q, uint64_t tag) {
    for (transfer **at = &q->first; *at; at = &(*at)->next)
        if ((*at)->face.tag == tag)
            return take_at(q, at);
    return NULL;
}

bool wire_queue_drop(queue *q, const transfer *t) {
    for (transfer **at = &q->first; *at; at = &(*at)->next)
        if (*at == t) {
            (void)take_at(q, at);
            return true;
        }
    return false;
}

/* ---- the pool ------------------------------------------------------------------------------- */

/* One of the arrays beside each other gets longer, and keeps what it holds. */
static bool grow_array(const wire *w, void *array, size_t size, size_t capacity) {
    void *old, *longer = w->host.alloc(capacity, size);
    memcpy(&old, array, sizeof old);
    if (!longer)
        return false;
    if (old)
        memcpy(longer, old, (size_t)w->capacity * size);
    w->host.free(old);
    memcpy(array, &longer, sizeof longer);
    return true;
}

/* A transfer has two requests at most. */
static bool grow_requests(wire *w) {
    const size_t capacity = (size_t)(w->n_blocks + 1) * POOL_STEP * 2;
    const bool has_grown = grow_array(w, &w->requests, sizeof *w->requests, capacity) &&
                           grow_array(w, &w->uses, sizeof *w->uses, capacity) &&
                           grow_array(w, &w->done, sizeof *w->done, capacity) &&
                           grow_array(w, &w->indices, sizeof *w->indices, capacity) &&
                           grow_array(w, &w->statuses, sizeof *w->statuses, capacity);
    if (has_grown)
        w->capacity = (int)capacity;
    return has_grown;
}

bool wire_grow(wire *w) {
    void **blocks = w->host.alloc((size_t)w->n_blocks + 1, sizeof *blocks);
    transfer *block = blocks ? w->host.alloc(POOL_STEP, sizeof *block) : NULL;
    if (!block || !grow_requests(w)) {
        w->host.free(block);
        w->host.free(blocks);
        return false;
    }
    if (w->n_blocks)
        memcpy(blocks, w->blocks, (size_t)w->n_blocks * sizeof *blocks);
    w->host.free(w->blocks);
    w->blocks = blocks;
    w->blocks[w->n_blocks++] = block;
    for (int i = 0; i < POOL_STEP; i++) {
        block[i].next = w->pool;
        w->pool = &block[i];
    }
    return true;
}

transfer *wire_take(wire *w) {
    if (!w->pool && !wire_grow(w))
        return NULL;
    transfer *t = w->pool;
    w->pool = t->next;
    t->n_moved = 0;
    t->n_requests = 0;
    t->is_given_up = false;
    t->status = HP_OK;
    t->data = NULL;
    atomic_store_explicit(&t->state, UNDER_WAY, memory_order_relaxed);
    return t;
}

void wire_give_back(wire *w, transfer *t) {
    t->next = w->pool;
    w->pool = t;
}
