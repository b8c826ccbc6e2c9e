/* SPDX-License-Identifier: Apache-2.0
 *
 * wait/news.h - what ranks of a node know of other nodes, in shared memory, and who keeps it.
 *
 * Each rank has a *news* in its segment. In its own it writes notices of its groups, which the
 * first rank of its node takes to the other nodes; in that one's news all ranks of the node read
 * what has become of each rank of the job, and the last notices of anybody. Every part has one
 * writer: a rank's threads take a lock for theirs. What is of an earlier world has another epoch.
 */
#ifndef HPI_NEWS_H
#define HPI_NEWS_H

#include "../inside.h"
#include "link.h"

#include <pthread.h>

enum { HPI_N_OWN_NOTICES = 32, HPI_N_NOTICES = 256 };

/* An entry of a ring of notices. The fields are those of hpi_told. */
typedef struct hpi_notice {
    _Alignas(64) _Atomic uint64_t number; /* 1 + its number; 0: being written */
    _Atomic uint64_t tag, check, since_ns, end_status, culprit_teller;
    _Atomic uint64_t text[HPI_TOLD_WORDS];
} hpi_notice;

typedef struct hpi_news {
    _Alignas(128) _Atomic uint64_t epoch; /* 0: nothing here is to be believed */
    _Atomic uint64_t n_changes;           /* of `ranks`: rises after each */
    _Atomic uint64_t n_own, n_notices;    /* that were ever written to the rings below */
    _Alignas(128) hpi_notice own[HPI_N_OWN_NOTICES];
    hpi_notice notices[HPI_N_NOTICES];
    _Atomic uint64_t ranks[HPI_MAX_RANKS]; /* words as below */
} hpi_news;
_Static_assert(sizeof(hpi_notice) == 256, "shared between processes");
_Static_assert(offsetof(hpi_news, own) == 128, "shared between processes");
_Static_assert(offsetof(hpi_news, ranks) == 128 + 288 * 256, "shared between processes");
_Static_assert(HPI_NEWS_OFFSET + sizeof(hpi_news) <= HPI_LINES_OFFSET, "news and lines overlap");

/* What has become of a rank, as one word: its life (HPI_LIFE_ALIVE, LEFT or DEAD), how the link to
 * its host ended, if that is why, how many times slower that link is (of a node's first rank), and
 * 1 + the rank that it blamed. 0: it is well. */
typedef struct hpi_fate {
    unsigned life;
    hpi_link_end end;
    int detail;
    uint32_t slowness;
    int blamed; /* -1: nobody */
} hpi_fate;

static inline uint64_t hpi_fate_word(const hpi_fate *f) {
    return (uint64_t)f->life | (uint64_t)f->end << 4 | (uint64_t)(f->detail & 0xffff) << 8 |
           (uint64_t)(f->slowness & 0xffff) << 24 | (uint64_t)(f->blamed + 1) << 40;
}
static inline hpi_fate hpi_fate_of(uint64_t word) {
    return (hpi_fate){.life = word & 0xf,
                      .end = (hpi_link_end)(word >> 4 & 0xf),
                      .detail = (int)(word >> 8 & 0xffff),
                      .slowness = (uint32_t)(word >> 24 & 0xffff),
                      .blamed = (int)(word >> 40 & 0xffffff) - 1};
}

typedef struct hpi_beater hpi_beater; /* beater.h: the thread of a node's first rank */

/* Of every rank of a job on several nodes. */
struct hpi_heartbeat {
    hpi_news *own, *node;               /* this rank's, and its node's first rank's */
    uint64_t epoch;                     /* of this world; the node's */
    int *leaders;                       /* [n_nodes] their first ranks */
    char (*hosts)[HPI_HOST_NAME_BYTES]; /* [n_nodes]; the transport may be closed before this */
    pthread_mutex_t lock;               /* who writes to own->own */
    _Atomic uint64_t n_seen;            /* changes that hpi_news_read has taken in */
    _Atomic uint32_t *is_slow;          /* [n_nodes] this rank's log has been told */
    hpi_beater *beater;                 /* NULL: of another rank than the first */
};

static inline hpi_news *hpi_segment_news(const hpi_segment *segment) {
    return (hpi_news *)(void *)(segment->base + HPI_NEWS_OFFSET);
}
/* On another node? */
static inline bool hpi_rank_is_elsewhere(const hp_world *world, int world_rank) {
    return world->n_nodes > 1 && world->node_of[world_rank] != world->node_of[world->rank];
}

static inline const char *hpi_host_of(const hp_world *world, int world_rank) {
    return world->heartbeat->hosts[world->node_of[world_rank]];
}

/* ---- news.c ---- */

/* This rank's part of the segment, and for the node's first rank the whole; empty. */
hp_status hpi_news_open(hp_world *world, hpi_heartbeat *heartbeat);
/* What has become of a rank of another node. */
hpi_fate hpi_news_fate(const hp_world *world, int world_rank);

void hpi_notice_write(hpi_notice *ring, size_t n_ring, _Atomic uint64_t *n_written,
                      const hpi_told *told);
/* Number `number` of a ring, where it is still there. */
bool hpi_notice_read(const hpi_notice *ring, size_t n_ring, uint64_t number, hpi_told *out_told,
                     uint64_t *out_since_ns);
/* The same for the node's first rank: tell all ranks of the node. */
void hpi_news_publish(hp_world *world, const hpi_told *told);
void hpi_news_set_fate(hp_world *world, int world_rank, const hpi_fate *fate);
void hpi_news_wake(hp_world *world);

/* ---- beater.c ---- */

/* Have the thread look now; `and_wait`: until it has told the other nodes, 20 ms at most. */
void hpi_heartbeat_hurry(const hp_world *world, bool and_wait);

#endif
