/* SPDX-License-Identifier: Apache-2.0
 *
 * moves.c - handing messages to MPI, and taking them from it.
 *
 * Posts stand in one queue until they are handed to MPI, in order. Each peer has two queues:
 * receives for which no message has come, and messages that nobody has asked for; one receive of a
 * packet is open for each peer of whom something is awaited, so what nobody awaits stays in MPI.
 * All MPI requests stand side by side, and one MPI_Testsome moves and tests them all.
 */
#include "inside.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- how a transfer ends -------------------------------------------------------------------- */

/* The release pairs with the acquire of wire_test. */
static void end(wire *w, transfer *t, int state) {
    w->host.free(t->lost);
    t->lost = NULL;
    if (t->is_given_up)
        wire_give_back(w, t);
    else
        atomic_store_explicit(&t->state, state, memory_order_release);
}

static void end_with(wire *w, transfer *t, hp_status status, const char *why) {
    t->status = status;
    snprintf(t->why, sizeof t->why, "%s", why);
    end(w, t, FAILED);
}

/* A failed transfer is over when its last request is. */
static void note_failure(wire *w, transfer *t, const char *why) {
    w->has_failed = true;
    t->status = HP_ERR_PEER;
    snprintf(t->why, sizeof t->why, "%s", why);
}

static void end_request(wire *w, transfer *t) {
    if (--t->n_requests == 0)
        end(w, t, t->status < 0 ? FAILED : DONE);
}

static void mpi_text(int error, char *out) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        length = 0;
    for (int i = 0; i < length; i++)
        text[i] = text[i] == '\n' ? ' ' : text[i];
    snprintf(out, WHY_BYTES, "MPI says: %.*s", length ? length : 16,
             length ? text : "an unknown error");
}

/* Nothing comes from this peer any more. */
static void fail_peer(wire *w, lane *p, const char *why) {
    w->has_failed = p->has_failed = true;
    snprintf(p->why, sizeof p->why, "%s", why);
    while (p->waiting.first)
        end_with(w, wire_queue_first(&p->waiting), HP_ERR_PEER, why);
}

/* ---- handing to MPI ------------------------------------------------------------------------- */

/* `error` is what MPI said to the call that filled requests[n_requests]. */
static bool add_request(wire *w, int error, request_role role, int peer, transfer *t) {
    char why[WHY_BYTES];
    if (error == MPI_SUCCESS) {
        w->uses[w->n_requests++] = (use){role, peer, t};
        return true;
    }
    mpi_text(error, why);
    fail_peer(w, &w->lanes[peer], why);
    note_failure(w, t, why);
    return false;
}

static MPI_Request *next_request(wire *w) {
    return &w->requests[w->n_requests];
}

static int payload_tag(const wire *w, const transfer *t) {
    return FIRST_PAYLOAD_TAG + (int)(t->packet.header.number % (uint64_t)w->n_tags);
}

/* The next piece of a payload, which counts among the transfer's requests already. */
static bool move_piece(wire *w, transfer *t) {
    const uint64_t left = t->face.bytes - t->n_moved;
    const int bytes = (int)(left < PIECE_BYTES ? left : PIECE_BYTES);
    const int peer = t->face.peer, tag = payload_tag(w, t);
    char *at = t->lost ? t->lost : t->data + t->n_moved;
    int error;
    if (!t->face.is_send)
        error = MPI_Irecv(at, bytes, MPI_BYTE, peer, tag, w->comm, next_request(w));
    else if (w->n_tags < ENOUGH_TAGS)
        error = MPI_Issend(at, bytes, MPI_BYTE, peer, tag, w->comm, next_request(w));
    else
        error = MPI_Isend(at, bytes, MPI_BYTE, peer, tag, w->comm, next_request(w));
    return add_request(w, error, t->face.is_send ? PAYLOAD_OUT : PAYLOAD_IN, peer, t);
}

/* A tag comes round again: is every payload that may have it done? */
static bool has_tag(const wire *w, const transfer *t) {
    const lane *p = &w->lanes[t->face.peer];
    return !has_payload(t) || p->n_payloads_open == 0 ||
           p->n_payloads_sent % (uint64_t)w->n_tags != 0;
}

static void start_payload(wire *w, transfer *t) {
    lane *p = &w->lanes[t->face.peer];
    t->n_requests++;
    p->n_payloads_open++;
    if (!move_piece(w, t)) {
        p->n_payloads_open--;
        end_request(w, t);
    }
}

static void start_send(wire *w, transfer *t) {
    lane *p = &w->lanes[t->face.peer];
    if (p->has_failed) {
        end_with(w, t, HP_ERR_PEER, p->why);
        return;
    }
    const int bytes = (int)(has_payload(t) ? sizeof(header) : sizeof(header) + t->face.bytes);
    t->n_requests = 2; /* the packet, and that this function is at it */
    if (has_payload(t))
        t->packet.header.number = p->n_payloads_sent++;
    if (!add_request(w,
                     MPI_Isend(&t->packet, bytes, MPI_BYTE, t->face.peer, PACKET_TAG, w->comm,
                               next_request(w)),
                     PACKET_OUT, t->face.peer, t))
        end_request(w, t);
    else if (has_payload(t))
        start_payload(w, t);
    end_request(w, t);
}

/* Open the receive of a peer's next packet. Without memory for it the packet stays in MPI. */
static void listen_to(wire *w, int from) {
    lane *p = &w->lanes[from];
    if (p->inbox || p->has_failed || !p->waiting.first)
        return;
    transfer *t = wire_take(w);
    w->is_deaf |= !t;
    if (!t)
        return;
    t->face.peer = from;
    t->n_requests = 1;
    p->inbox = t;
    if (!add_request(w,
                     MPI_Irecv(&t->packet, PACKET_BYTES, MPI_BYTE, from, PACKET_TAG, w->comm,
                               next_request(w)),
                     PACKET_IN, from, t)) {
        p->inbox = NULL;
        wire_give_back(w, t);
    }
}

/* A payload that its receive has no room for is taken all the same, or its sender would wait for
 * ever: piece after piece into the same memory. Where there is none, that is what happens. */
static void lose_payload(wire *w, transfer *message) {
    const uint64_t bytes = message->packet.header.bytes;
    message->face.is_send = false;
    message->face.bytes = bytes;
    message->lost = w->host.alloc(1, bytes < PIECE_BYTES ? bytes : PIECE_BYTES);
    message->is_given_up = true; /* nobody asks for it */
    message->n_requests = 1;
    if (!message->lost || !move_piece(w, message))
        end_request(w, message);
}

static void refuse(wire *w, transfer *t, transfer *message) {
    char why[WHY_BYTES];
    snprintf(why, sizeof why, "expected a message of %" PRIu64 " bytes, it sends %" PRIu64,
             t->face.bytes, message->packet.header.bytes);
    end_with(w, t, HP_ERR_MISMATCH, why);
    if (message->packet.header.bytes > INLINE_BYTES)
        lose_payload(w, message);
    else
        wire_give_back(w, message);
}

/* A message has met its receive. */
static void deliver(wire *w, transfer *t, transfer *message) {
    if (message->packet.header.bytes != t->face.bytes) {
        refuse(w, t, message);
        return;
    }
    t->packet.header = message->packet.header;
    if (!has_payload(t)) {
        if (t->face.bytes)
            memcpy(t->data, message->packet.bytes, t->face.bytes);
        end(w, t, DONE);
    } else {
        t->n_requests = 1;
        if (!move_piece(w, t))
            end_request(w, t);
    }
    wire_give_back(w, message);
}

static void start_receive(wire *w, transfer *t) {
    lane *p = &w->lanes[t->face.peer];
    transfer *message = wire_queue_take(&p->arrived, t->face.tag);
    if (message)
        deliver(w, t, message);
    else if (p->has_failed)
        end_with(w, t, HP_ERR_PEER, p->why);
    else {
        wire_queue_add(&p->waiting, t);
        listen_to(w, t->face.peer);
    }
}

/* A send that has no tag yet holds up the later ones: their order is kept. */
void wire_start(wire *w) {
    while (w->posted.first && (!w->posted.first->face.is_send || has_tag(w, w->posted.first))) {
        transfer *t = wire_queue_first(&w->posted);
        if (t->face.is_send)
            start_send(w, t);
        else
            start_receive(w, t);
    }
}

/* ---- taking from MPI ------------------------------------------------------------------------ */

static void take_packet(wire *w, int from) {
    lane *p = &w->lanes[from];
    transfer *message = p->inbox;
    p->inbox = NULL;
    message->face.tag = message->packet.header.tag;
    transfer *t = wire_queue_take(&p->waiting, message->face.tag);
    if (t)
        deliver(w, t, message);
    else
        wire_queue_add(&p->arrived, message);
    listen_to(w, from);
}

static void take_piece(wire *w, transfer *t, request_role role) {
    const uint64_t left = t->face.bytes - t->n_moved;
    t->n_moved += left < PIECE_BYTES ? left : PIECE_BYTES;
    if (t->n_moved < t->face.bytes && move_piece(w, t))
        return;
    if (role == PAYLOAD_OUT)
        w->lanes[t->face.peer].n_payloads_open--;
    end_request(w, t);
}

static void take_error(wire *w, const use *u, int error) {
    char why[WHY_BYTES];
    lane *p = &w->lanes[u->peer];
    mpi_text(error, why);
    fail_peer(w, p, why);
    if (u->role == PACKET_IN) {
        p->inbox = NULL;
        wire_give_back(w, u->transfer);
        return;
    }
    if (u->role == PAYLOAD_OUT)
        p->n_payloads_open--;
    note_failure(w, u->transfer, why);
    end_request(w, u->transfer);
}

static void take_done(wire *w, const use *u, int error) {
    if (error != MPI_SUCCESS)
        take_error(w, u, error);
    else if (u->role == PACKET_OUT)
        end_request(w, u->transfer);
    else if (u->role == PACKET_IN)
        take_packet(w, u->peer);
    else
        take_piece(w, u->transfer, u->role);
}

/* Requests that are done have become MPI_REQUEST_NULL. */
static void close_ranks(wire *w) {
    int n = 0;
    for (int i = 0; i < w->n_requests; i++)
        if (w->requests[i] != MPI_REQUEST_NULL) {
            w->requests[n] = w->requests[i];
            w->uses[n++] = w->uses[i];
        }
    w->n_requests = n;
}

static void test_all(wire *w) {
    int n_done = 0;
    if (w->n_requests == 0)
        return;
    const int result = MPI_Testsome(w->n_requests, w->requests, &n_done, w->indices, w->statuses);
    if (n_done == MPI_UNDEFINED || n_done <= 0)
        return;
    for (int i = 0; i < n_done; i++)
        w->done[i] = w->uses[w->indices[i]];
    close_ranks(w);
    for (int i = 0; i < n_done; i++) { /* which may make the arrays longer */
        const use u = w->done[i];
        take_done(w, &u, result == MPI_ERR_IN_STATUS ? w->statuses[i].MPI_ERROR : MPI_SUCCESS);
    }
}

static void listen_again(wire *w) {
    w->is_deaf = false;
    for (int i = 0; i < w->n_ranks; i++)
        listen_to(w, i);
}

void wire_move(wire *w) {
    if (w->is_deaf)
        listen_again(w);
    wire_start(w);
    test_all(w);
    wire_start(w);
}
