/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c - a transport between threads of one process, which are the ranks of a split hub.
 *
 * Each rank has an end: what is sent to it and not awaited yet, and what it awaits and has not been
 * sent, both in order. A post looks for its partner there, and whoever comes second copies. What is
 * true of a network is true here: a small message is copied away at once, and one that is not waits
 * for its receive, so a program that counts on more than that does not end. A sender may ask for
 * disorder: then its messages leave at random, in order for each tag alone.
 *
 * All of an end is guarded by its lock, also while bytes are copied.
 */
#include "transport.h"

#include "../base/base.h"

#include <pthread.h>
#include <stdio.h>

enum { COPIED_BYTES = 4096 }; /* up to that long a message waits for nobody */

typedef struct post {
    hpi_transfer face; /* first: what is handed out */
    struct post *next;
    int from;
    bool is_waiting;  /* for its partner, in a list */
    bool is_held;     /* a send that has not left */
    bool is_wanted;   /* somebody will test it, or give it up */
    uint64_t n_bytes; /* of a receive that is over: of what came */
    const void *in;   /* of a send; `copy` where it was copied */
    void *out;        /* of a receive */
    unsigned char copy[COPIED_BYTES];
} post;

typedef struct list {
    post *first, **last; /* where the next one is hung */
} list;

typedef struct end {
    pthread_mutex_t lock;
    list sends, receives;
    post *unused;
    uint64_t random;
} end;

struct hpi_threads {
    int n_ranks, ranks_per_node;
    end ends[];
};

/* One rank's view. */
typedef struct port {
    hpi_threads *threads;
    int rank;
    bool is_disorderly;
} port;

/* ---- lists ---- */

static void list_empty(list *l) {
    *l = (list){NULL, &l->first};
}

static void list_add(list *l, post *p) {
    p->next = NULL;
    p->is_waiting = true;
    *l->last = p;
    l->last = &p->next;
}

/* Take out the one that `at` points to. */
static void list_remove(list *l, post **at) {
    post *p = *at;
    if (!p) /* it is in no list */
        return;
    *at = p->next;
    p->is_waiting = false;
    if (l->last == &p->next)
        l->last = at;
}

static post **find_post(list *l, const post *p) {
    post **at = &l->first;
    while (*at && *at != p)
        at = &(*at)->next;
    return at;
}

/* The first of a pair's and a tag's; it alone may leave or be met. */
static post **find_first(list *l, int from, uint64_t tag) {
    post **at = &l->first;
    while (*at && ((*at)->from != from || (*at)->face.tag != tag))
        at = &(*at)->next;
    return at;
}

static post *take(end *e) {
    post *p = e->unused;
    if (p)
        e->unused = p->next;
    return p ? p : hpi_alloc(1, sizeof *p);
}

static void give_back_if_over(end *e, post *p) {
    if (p->is_waiting || p->is_wanted)
        return;
    p->next = e->unused;
    e->unused = p;
}

/* ---- meeting ---- */

/* Of another size than it was awaited with, a message is lost. */
static void hand_over(end *e, post *send, post *receive) {
    receive->n_bytes = send->face.bytes;
    if (send->face.bytes == receive->face.bytes && send->face.bytes)
        memcpy(receive->out, send->in, send->face.bytes);
    give_back_if_over(e, send);
}

/* A send has left, or a receive was posted: do the first ones of this pair and tag meet? */
static void meet(end *e, int from, uint64_t tag) {
    post **send = find_first(&e->sends, from, tag);
    post **receive = find_first(&e->receives, from, tag);
    if (!*send || (*send)->is_held || !*receive)
        return;
    post *s = *send, *r = *receive;
    list_remove(&e->sends, send);
    list_remove(&e->receives, receive);
    hand_over(e, s, r);
}

/* One of those that are held leaves, whichever it is, but for the order of its tag. One that has
 * left and waits is the first of its tag, or behind others that have left. */
static void let_one_out(end *e) {
    int n_may = 0;
    post *chosen = NULL;
    for (post *p = e->sends.first; p; p = p->next) {
        post *first = e->sends.first;
        while (first != p &&
               (first->from != p->from || first->face.tag != p->face.tag || !first->is_held))
            first = first->next;
        if (p->is_held && first == p && hpi_random_next(&e->random) % (uint64_t)++n_may == 0)
            chosen = p;
    }
    if (!chosen)
        return;
    chosen->is_held = false;
    meet(e, chosen->from, chosen->face.tag);
}

/* ---- the table ---- */

static end *end_of(const hpi_transport *t, int rank) {
    return &((port *)t->self)->threads->ends[rank];
}

/* Whose end a transfer is at: its receiver's. */
static end *end_of_transfer(const hpi_transport *t, const hpi_transfer *transfer) {
    return end_of(t, transfer->is_send ? transfer->peer : t->rank);
}

static hp_status check_peer(const hpi_transport *t, int peer) {
    return peer >= 0 && peer < t->n_ranks
               ? HP_OK
               : HPI_FAIL(HP_ERR_ARGUMENT, "expected a rank from 0 to %d, given %d", t->n_ranks - 1,
                          peer);
}

static hp_status post_send(hpi_transport *t, int to, uint64_t tag, const void *data, uint64_t bytes,
                           hpi_transfer **out_transfer) {
    HP_TRY(check_peer(t, to));
    end *e = end_of(t, to);
    pthread_mutex_lock(&e->lock);
    post *p = take(e);
    if (p) {
        p->face = (hpi_transfer){.peer = to, .is_send = true, .tag = tag, .bytes = bytes};
        p->from = t->rank;
        p->is_held = ((port *)t->self)->is_disorderly;
        p->is_wanted = true;
        p->in = data;
        if (bytes <= COPIED_BYTES) {
            if (bytes)
                memcpy(p->copy, data, bytes);
            p->in = p->copy;
        }
        list_add(&e->sends, p);
        meet(e, t->rank, tag);
        *out_transfer = &p->face;
    }
    pthread_mutex_unlock(&e->lock);
    return p ? HP_OK : HP_ERR_MEMORY;
}

static hp_status post_recv(hpi_transport *t, int from, uint64_t tag, void *out_data, uint64_t bytes,
                           hpi_transfer **out_transfer) {
    HP_TRY(check_peer(t, from));
    end *e = end_of(t, t->rank);
    pthread_mutex_lock(&e->lock);
    post *p = take(e);
    if (p) {
        p->face = (hpi_transfer){.peer = from, .tag = tag, .bytes = bytes};
        p->from = from;
        p->is_held = false;
        p->is_wanted = true;
        p->out = out_data;
        list_add(&e->receives, p);
        meet(e, from, tag);
        *out_transfer = &p->face;
    }
    pthread_mutex_unlock(&e->lock);
    return p ? HP_OK : HP_ERR_MEMORY;
}

/* A send that was copied is over at once. */
static bool is_under_way(const post *p) {
    return p->is_waiting && (!p->face.is_send || p->in != p->copy);
}

static hp_status fail_size(const hpi_transport *t, int peer, uint64_t expected, uint64_t came) {
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, peer,
                         "expected a message of %llu bytes from rank %d to rank %d, it sends %llu",
                         (unsigned long long)expected, peer, t->rank, (unsigned long long)came);
}

static hp_status test(hpi_transport *t, hpi_transfer *transfer) {
    post *p = (post *)transfer;
    end *e = end_of_transfer(t, transfer);
    pthread_mutex_lock(&e->lock);
    if (is_under_way(p))
        let_one_out(e);
    const bool is_over = !is_under_way(p);
    const hpi_transfer face = p->face;
    const uint64_t came = face.is_send ? face.bytes : p->n_bytes;
    if (is_over) {
        p->is_wanted = false;
        give_back_if_over(e, p);
    }
    pthread_mutex_unlock(&e->lock);
    if (!is_over)
        return HP_IN_PROGRESS;
    return came == face.bytes ? HP_OK : fail_size(t, face.peer, face.bytes, came);
}

/* What was copied away is there for its receive all the same. */
static void drop(end *e, post *p) {
    list *l = p->face.is_send ? &e->sends : &e->receives;
    if (is_under_way(p))
        list_remove(l, find_post(l, p));
    p->is_wanted = false;
    give_back_if_over(e, p);
}

static hp_status cancel(hpi_transport *t, hpi_transfer *transfer) {
    end *e = end_of_transfer(t, transfer);
    pthread_mutex_lock(&e->lock);
    drop(e, (post *)transfer);
    pthread_mutex_unlock(&e->lock);
    return HP_OK;
}

/* This rank's memory goes: nobody reads or writes it any more. */
static void leave_end(end *e, int rank, bool is_own) {
    post *next;
    for (post *p = e->sends.first; p; p = next) {
        next = p->next;
        if (p->from == rank && is_under_way(p))
            drop(e, p);
    }
    for (post *p = is_own ? e->receives.first : NULL; p; p = next) {
        next = p->next;
        drop(e, p);
    }
}

static void close_port(hpi_transport *t) {
    for (int i = 0; i < t->n_ranks; i++) {
        end *e = end_of(t, i);
        pthread_mutex_lock(&e->lock);
        leave_end(e, t->rank, i == t->rank);
        pthread_mutex_unlock(&e->lock);
    }
    hpi_free(t->self);
}

/* ---- opening ---- */

hp_status hpi_threads_create(int n_ranks, int ranks_per_node, hpi_threads **out_threads) {
    hpi_threads *threads = hpi_alloc(1, sizeof *threads + (size_t)n_ranks * sizeof *threads->ends);
    if (!threads)
        return HP_ERR_MEMORY;
    threads->ranks_per_node = ranks_per_node;
    for (; threads->n_ranks < n_ranks; threads->n_ranks++) {
        end *e = &threads->ends[threads->n_ranks];
        list_empty(&e->sends);
        list_empty(&e->receives);
        if (pthread_mutex_init(&e->lock, NULL)) {
            hpi_threads_destroy(threads);
            return HPI_FAIL(HP_ERR_SYSTEM, "expected a lock");
        }
    }
    *out_threads = threads;
    return HP_OK;
}

static void free_posts(post *p) {
    while (p) {
        post *next = p->next;
        hpi_free(p);
        p = next;
    }
}

void hpi_threads_destroy(hpi_threads *threads) {
    if (!threads)
        return;
    for (int i = 0; i < threads->n_ranks; i++) {
        end *e = &threads->ends[i];
        free_posts(e->sends.first);
        free_posts(e->receives.first);
        free_posts(e->unused);
        pthread_mutex_destroy(&e->lock);
    }
    hpi_free(threads);
}

static void name_host(const hpi_threads *threads, int rank, char *out_host) {
    snprintf(out_host, HPI_HOST_NAME_BYTES, "node%d", rank / threads->ranks_per_node);
}

hp_status hpi_threads_open(hpi_threads *threads, int rank, hpi_transport **out_transport) {
    const int n = threads->n_ranks;
    hpi_transport *t = hpi_alloc(1, sizeof *t);
    port *p = hpi_alloc(1, sizeof *p);
    char(*hosts)[HPI_HOST_NAME_BYTES] = hpi_alloc((size_t)n, sizeof *hosts);
    if (!t || !p || !hosts) {
        hpi_free(hosts);
        hpi_free(p);
        hpi_free(t);
        return HP_ERR_MEMORY;
    }
    *p = (port){.threads = threads, .rank = rank};
    *t = (hpi_transport){.size = sizeof *t,
                         .name = "threads",
                         .self = p,
                         .rank = rank,
                         .n_ranks = n,
                         .about = "threads of one process",
                         .hosts = hosts,
                         .post_send = post_send,
                         .post_recv = post_recv,
                         .test = test,
                         .cancel = cancel,
                         .close = close_port};
    for (int i = 0; i < n; i++)
        name_host(threads, i, hosts[i]);
    name_host(threads, rank, t->host);
    *out_transport = t;
    return HP_OK;
}

void hpi_threads_disorder(hpi_transport *t, uint64_t seed) {
    end *e = end_of(t, t->rank);
    ((port *)t->self)->is_disorderly = true;
    pthread_mutex_lock(&e->lock);
    e->random = seed;
    pthread_mutex_unlock(&e->lock);
}
