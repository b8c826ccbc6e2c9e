/* SPDX-License-Identifier: Apache-2.0
 *
 * wait/beater.h - the thread of a node's first rank that speaks with those of the other nodes.
 *
 * heartbeat.c makes its rows and its links before it starts, and takes them away when it has
 * stopped; in between they are the thread's alone.
 */
#ifndef HPI_BEATER_H
#define HPI_BEATER_H

#include "news.h"

#include <poll.h>

/* Another node. */
typedef struct hpi_neighbour {
    hpi_link link;
    bool is_over;       /* what came of it is settled */
    uint64_t *told;     /* [n_local] of our ranks' words */
    uint64_t n_told;    /* hpi_beater.n_changes when it had been told all */
    uint64_t n_notices; /* of our node's ring that it has been told, or need not be */
} hpi_neighbour;

struct hpi_beater {
    hp_world *world;
    pthread_t thread;
    bool has_thread;
    int wake_fd;
    _Atomic bool is_closing;
    _Atomic uint64_t n_rounds; /* done */
    uint64_t *ours;            /* [n_local] words of this node's ranks */
    uint64_t n_changes;        /* of them */
    uint64_t *n_read;          /* [n_local] notices taken from each */
    uint64_t *left_ns;         /* [n_ranks] when it was heard of one that it left; 0: it was not */
    int n_leaving;             /* of whom that is not published yet */
    hpi_neighbour *nodes;      /* [n_nodes] */
    struct pollfd *polls;      /* [n_nodes], wake_fd, the pidfds' epoll */
    uint64_t next_look_ns;
};

/* Errors: SYSTEM. */
hp_status hpi_beater_start(hpi_beater *beater);
/* Stay for the ranks of this node that have not ended, 2 s at most, and part. */
void hpi_beater_stop(hpi_beater *beater);

#endif
