/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - the functions of the table, and how a wire begins and ends.
 *
 * Posting never waits for the network: where somebody else is inside MPI, it waits for that call
 * alone, and testing leaves the network to him.
 */
#include "inside.h"

#include <inttypes.h>
#include <signal.h>
#include <time.h>

enum { CANCEL_LOOK_NS = 100000, N_CANCEL_LOOKS = 300 }; /* some 50 ms */

#define FAIL(w, status, peer, ...)                                                                 \
    ((void)(w)->host.fail((status), (peer), __func__, __FILE__, __LINE__, __VA_ARGS__), (status))

/* Open MPI writes into connections of peers that have died, and the signal of that would end a
 * process which is about to learn who died: it is kept from whoever calls, and taken. */
static void hold_pipe(sigset_t *out_before) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, out_before);
}

static void release_pipe(const sigset_t *before) {
    sigset_t pipe;
    const struct timespec now = {0};
    if (sigismember(before, SIGPIPE))
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    (void)sigtimedwait(&pipe, NULL, &now);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void move_quietly(wire *w) {
    sigset_t before;
    hold_pipe(&before);
    wire_move(w);
    release_pipe(&before);
}

static void start_quietly(wire *w) {
    sigset_t before;
    hold_pipe(&before);
    wire_start(w);
    release_pipe(&before);
}

/* ---- the table's functions ------------------------------------------------------------------ */

static hp_status post(wire *w, const hpi_transfer *face, char *data, hpi_transfer **out_transfer) {
    pthread_mutex_lock(&w->lock);
    transfer *t = wire_take(w);
    if (t) {
        t->face = *face;
        t->data = data;
        t->packet.header = (header){.tag = face->tag, .bytes = face->bytes};
        if (face->is_send && face->bytes && !has_payload(t))
            memcpy(t->packet.bytes, data, face->bytes);
        wire_queue_add(&w->posted, t);
        if (!w->is_driven)
            start_quietly(w);
        *out_transfer = &t->face;
    }
    pthread_mutex_unlock(&w->lock);
    return t ? HP_OK : HP_ERR_MEMORY;
}

static hp_status check_peer(const wire *w, int peer) {
    if (peer >= 0 && peer < w->n_ranks)
        return HP_OK;
    return FAIL(w, HP_ERR_ARGUMENT, -1, "expected a rank in [0, %d), given %d", w->n_ranks, peer);
}

hp_status wire_send(wire *w, int to, uint64_t tag, const void *data, uint64_t bytes,
                    hpi_transfer **out_transfer) {
    const hpi_transfer face = {.peer = to, .is_send = true, .tag = tag, .bytes = bytes};
    const hp_status status = check_peer(w, to);
    /* MPI's sends take memory as const, but a transfer's is either way */
    return status ? status : post(w, &face, (char *)(uintptr_t)data, out_transfer);
}

hp_status wire_receive(wire *w, int from, uint64_t tag, void *out_data, uint64_t bytes,
                       hpi_transfer **out_transfer) {
    const hpi_transfer face = {.peer = from, .tag = tag, .bytes = bytes};
    const hp_status status = check_peer(w, from);
    return status ? status : post(w, &face, out_data, out_transfer);
}

/* Somebody else may be driving: then he does it for us too. */
static int look_at(wire *w, transfer *t) {
    int state = atomic_load_explicit(&t->state, memory_order_acquire);
    if (state != UNDER_WAY || w->is_driven || pthread_mutex_trylock(&w->lock))
        return state;
    move_quietly(w);
    pthread_mutex_unlock(&w->lock);
    return atomic_load_explicit(&t->state, memory_order_acquire);
}

static void end_test(wire *w, transfer *t) {
    pthread_mutex_lock(&w->lock);
    wire_give_back(w, t);
    pthread_mutex_unlock(&w->lock);
}

hp_status wire_test(wire *w, hpi_transfer *face) {
    transfer *t = (transfer *)face;
    const int state = look_at(w, t);
    if (state == UNDER_WAY)
        return HP_IN_PROGRESS;
    hp_status status = HP_OK;
    if (state == FAILED)
        status =
            FAIL(w, t->status, face->peer, "rank %d could not %s %" PRIu64 " bytes %s rank %d: %s",
                 w->rank, face->is_send ? "send" : "receive", face->bytes,
                 face->is_send ? "to" : "from", face->peer, t->why);
    end_test(w, t);
    return status;
}

static bool is_over(transfer *t) {
    return atomic_load_explicit(&t->state, memory_order_relaxed) != UNDER_WAY;
}

/* MPI writes a payload that is given up all the same, into memory that its owner is about to free.
 * It was sent together with its header, so it is through soon, where its sender lives: that is
 * waited for, but not again of a peer that it was waited for in vain. */
static bool await_payload(wire *w, transfer *t) {
    lane *p = &w->lanes[t->face.peer];
    const struct timespec pause = {.tv_nsec = CANCEL_LOOK_NS};
    for (int i = 0; i < N_CANCEL_LOOKS && !is_over(t) && !p->is_silent; i++) {
        pthread_mutex_unlock(&w->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&w->lock);
        if (!w->is_driven)
            move_quietly(w);
    }
    p->is_silent = !is_over(t);
    return is_over(t);
}

hp_status wire_cancel(wire *w, hpi_transfer *face) {
    transfer *t = (transfer *)face;
    hp_status status = HP_OK;
    pthread_mutex_lock(&w->lock);
    if (is_over(t) || wire_queue_drop(&w->posted, t) ||
        wire_queue_drop(&w->lanes[face->peer].waiting, t) ||
        (!face->is_send && await_payload(w, t)))
        wire_give_back(w, t);
    else {
        t->is_given_up = true;
        status = has_payload(t) ? HP_IN_PROGRESS : HP_OK;
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

bool wire_drive(wire *w) {
    if (w->is_driven)
        pthread_mutex_lock(&w->lock);
    else if (pthread_mutex_trylock(&w->lock))
        return true;
    move_quietly(w);
    const bool is_busy = w->n_requests > 0 || w->posted.first;
    pthread_mutex_unlock(&w->lock);
    return is_busy;
}

/* ---- life ----------------------------------------------------------------------------------- */

static hp_status read_comm(wire *w) {
    int *most = NULL, is_set = 0;
    MPI_Comm_rank(w->comm, &w->rank);
    MPI_Comm_size(w->comm, &w->n_ranks);
    MPI_Comm_get_attr(w->comm, MPI_TAG_UB, &most, &is_set);
    if (!is_set || *most < FIRST_PAYLOAD_TAG)
        return FAIL(w, HP_ERR_SYSTEM, -1, "expected MPI_TAG_UB of the communicator, it has none");
    w->n_tags = *most - FIRST_PAYLOAD_TAG + 1;
    return HP_OK;
}

hp_status wire_create(const hpi_transport_host *host, MPI_Comm comm, bool is_driven,
                      wire **out_wire) {
    wire *w = host->alloc(1, sizeof *w);
    if (!w)
        return HP_ERR_MEMORY;
    w->host = *host;
    w->comm = comm;
    w->is_driven = is_driven;
    pthread_mutex_init(&w->lock, NULL);
    wire_queue_init(&w->posted);
    hp_status status = read_comm(w);
    if (!status) {
        w->lanes = host->alloc((size_t)w->n_ranks, sizeof *w->lanes);
        status = w->lanes && wire_grow(w) ? HP_OK : HP_ERR_MEMORY;
    }
    for (int i = 0; !status && i < w->n_ranks; i++) {
        wire_queue_init(&w->lanes[i].waiting);
        wire_queue_init(&w->lanes[i].arrived);
    }
    if (status)
        wire_destroy(w, false);
    else
        *out_wire = w;
    return status;
}

bool wire_is_clean(wire *w) {
    pthread_mutex_lock(&w->lock);
    bool is_clean = !w->has_failed && !w->posted.first;
    for (int i = 0; i < w->n_requests; i++)
        is_clean &= w->uses[i].role == PACKET_IN;
    pthread_mutex_unlock(&w->lock);
    return is_clean;
}

/* Only receives of packets are left in a clean wire. */
static void stop_listening(wire *w) {
    for (int i = 0; i < w->n_requests; i++) {
        MPI_Cancel(&w->requests[i]);
        MPI_Wait(&w->requests[i], MPI_STATUS_IGNORE);
    }
}

/* MPI may still write where a lost wire's transfers lie: that memory stays. */
void wire_destroy(wire *w, bool is_lost) {
    if (!is_lost) {
        stop_listening(w);
        for (int i = 0; i < w->n_blocks; i++)
            w->host.free(w->blocks[i]);
    }
    void *const parts[] = {w->blocks, w->lanes,   w->requests, w->uses,
                           w->done,   w->indices, w->statuses};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        w->host.free(parts[i]);
    pthread_mutex_destroy(&w->lock);
    w->host.free(w);
}
