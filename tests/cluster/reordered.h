/* SPDX-License-Identifier: Apache-2.0
 *
 * reordered.h - a network that delivers in another order, around a real transport.
 *
 * What is promised is the order of one pair and tag, and nothing else. So sends are held back, and
 * go out in random order but for that promise: code that takes another tag's message, or another
 * rank's, for a sign that an earlier one has come, fails over this one. (FIELD-CASES S20)
 */
#ifndef REORDERED_H
#define REORDERED_H

#include "base/base.h"
#include "transport/transport.h"

enum { N_HELD = 16 };

typedef struct held {
    hpi_transfer face; /* first: what is handed out */
    bool is_free, is_out;
    uint64_t turn; /* among the posts */
    const void *data;
    hpi_transfer *inner;
} held;

typedef struct reordered {
    hpi_transport *inner;
    uint64_t random, n_posts;
    held sends[N_HELD];
} reordered;

static inline bool is_next_of_its_tag(const reordered *r, const held *h) {
    for (int i = 0; i < N_HELD; i++) {
        const held *other = &r->sends[i];
        if (!other->is_free && !other->is_out && other->face.peer == h->face.peer &&
            other->face.tag == h->face.tag && other->turn < h->turn)
            return false;
    }
    return true;
}

/* Let one of those out that may go, whichever it is. */
static inline hp_status let_one_out(reordered *r) {
    const int first = (int)(hpi_random_next(&r->random) % N_HELD);
    for (int k = 0; k < N_HELD; k++) {
        held *h = &r->sends[(first + k) % N_HELD];
        if (h->is_free || h->is_out || !is_next_of_its_tag(r, h))
            continue;
        h->is_out = true;
        return r->inner->post_send(r->inner, h->face.peer, h->face.tag, h->data, h->face.bytes,
                                   &h->inner);
    }
    return HP_OK;
}

/* A full house lets one out before it takes one in. */
static inline held *place_for(reordered *r) {
    for (int i = 0; i < N_HELD; i++)
        if (r->sends[i].is_free)
            return &r->sends[i];
    return NULL;
}

static inline hp_status reordered_post_send(hpi_transport *t, int to, uint64_t tag,
                                            const void *data, uint64_t bytes, hpi_transfer **out) {
    reordered *r = t->self;
    held *h = place_for(r);
    if (!h)
        return HPI_FAIL(HP_ERR_LIMIT, "expected at most %d sends under way", N_HELD);
    *h = (held){.face = {.peer = to, .is_send = true, .tag = tag, .bytes = bytes},
                .turn = r->n_posts++,
                .data = data};
    *out = &h->face;
    return HP_OK;
}

static inline hp_status reordered_post_recv(hpi_transport *t, int from, uint64_t tag, void *out,
                                            uint64_t bytes, hpi_transfer **out_transfer) {
    reordered *r = t->self;
    return r->inner->post_recv(r->inner, from, tag, out, bytes, out_transfer);
}

static inline bool is_held(const reordered *r, const hpi_transfer *transfer) {
    return (const held *)transfer >= r->sends && (const held *)transfer < r->sends + N_HELD;
}

/* Each test lets one send out, now and then. */
static inline hp_status reordered_test(hpi_transport *t, hpi_transfer *transfer) {
    reordered *r = t->self;
    if (hpi_random_next(&r->random) % 3 == 0)
        HP_TRY(let_one_out(r));
    if (!is_held(r, transfer))
        return r->inner->test(r->inner, transfer);
    held *h = (held *)transfer;
    if (!h->is_out)
        return HP_IN_PROGRESS;
    const hp_status status = r->inner->test(r->inner, h->inner);
    h->is_free = status != HP_IN_PROGRESS;
    return status;
}

static inline hp_status reordered_cancel(hpi_transport *t, hpi_transfer *transfer) {
    reordered *r = t->self;
    if (!is_held(r, transfer))
        return r->inner->cancel(r->inner, transfer);
    held *h = (held *)transfer;
    h->is_free = true;
    return h->is_out ? r->inner->cancel(r->inner, h->inner) : HP_OK;
}

static inline hpi_transport reorder(reordered *r, hpi_transport *inner, uint64_t seed) {
    *r = (reordered){.inner = inner, .random = seed};
    for (int i = 0; i < N_HELD; i++)
        r->sends[i].is_free = true;
    hpi_transport t = *inner;
    t.name = "reordered";
    t.self = r;
    t.post_send = reordered_post_send;
    t.post_recv = reordered_post_recv;
    t.test = reordered_test;
    t.cancel = reordered_cancel;
    t.close = NULL; /* the inner one is closed by whoever opened it */
    return t;
}

#endif
