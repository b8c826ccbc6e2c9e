/* SPDX-License-Identifier: Apache-2.0
 *
 * inside.h - what the wire is made of, for pool.c, moves.c and wire.c.
 *
 * One lock guards everything but a transfer's state, which is published by its release store. What
 * is declared here is called with the lock held.
 */
#ifndef HP_MPI_INSIDE_H
#define HP_MPI_INSIDE_H

#include "wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

typedef struct header {
    uint64_t tag, bytes;
    uint64_t number; /* of the payload, counted for each pair */
} header;

enum { PACKET_BYTES = 4096, INLINE_BYTES = PACKET_BYTES - sizeof(header), WHY_BYTES = 160 };
enum { PACKET_TAG = 0, FIRST_PAYLOAD_TAG = WIRE_END_TAG + 1, POOL_STEP = 32 };
/* MPI counts in int: a payload goes in pieces, one after another. */
#define PIECE_BYTES (UINT64_C(1) << 30)
/* To take one payload for another, so many of a pair would have to lie unclaimed in an MPI, 64 GiB
 * of them; where MPI has fewer tags, a payload counts as under way until it is claimed. */
enum { ENOUGH_TAGS = 1 << 24 };

typedef struct packet {
    header header;
    unsigned char bytes[INLINE_BYTES];
} packet;
_Static_assert(sizeof(packet) == PACKET_BYTES, "sent between hosts");
_Static_assert((int)INLINE_BYTES == (int)WIRE_SMALL_BYTES, "the header takes the rest");

enum { UNDER_WAY, DONE, FAILED };

/* A message of ours, or one that has come and waits in `arrived`. */
typedef struct transfer {
    hpi_transfer face; /* first: what is handed out */
    struct transfer *next;
    char *data;
    void *lost;       /* memory of a payload that nobody wants, instead of data */
    uint64_t n_moved; /* bytes of payload that are done */
    int n_requests;   /* of MPI, under way */
    bool is_given_up; /* back to the pool when it is over */
    _Atomic int state;
    hp_status status; /* of a failed one, and why; whole before `state` says so */
    char why[WHY_BYTES];
    packet packet;
} transfer;

typedef struct queue {
    transfer *first, **end;
} queue;

typedef struct lane {
    queue waiting, arrived;
    transfer *inbox; /* where its next packet goes; NULL: it is not listened to */
    uint64_t n_payloads_sent;
    uint64_t n_payloads_open; /* sent and not done */
    bool has_failed;
    bool is_silent; /* a payload that was given up did not come to its end */
    char why[WHY_BYTES];
} lane;

/* What an MPI request is for. */
typedef enum request_role {
    PACKET_OUT,
    PAYLOAD_OUT,
    PACKET_IN,
    PAYLOAD_IN,
    PAYLOAD_LOST
} request_role;
typedef struct use {
    request_role role;
    int peer;
    transfer *transfer;
} use;

struct wire {
    hpi_transport_host host;
    MPI_Comm comm;
    int rank, n_ranks;
    int n_tags; /* of payloads */
    bool is_driven;
    bool has_failed;
    bool is_deaf; /* there was no memory to listen to a peer */
    pthread_mutex_t lock;
    lane *lanes;  /* [n_ranks] */
    queue posted; /* not yet handed to MPI */
    transfer *pool;
    void **blocks; /* what the pool was made of */
    int n_blocks;
    /* one entry each for each request under way; `done` and what follows are for Testsome */
    MPI_Request *requests;
    use *uses, *done;
    int *indices;
    MPI_Status *statuses;
    int n_requests, capacity;
};

/* ---- pool.c ---------------------------------------------------------------------------------- */

void wire_queue_init(queue *q);
void wire_queue_add(queue *q, transfer *t);
transfer *wire_queue_first(queue *q);
/* The first of that tag, or NULL. */
transfer *wire_queue_take(queue *q, uint64_t tag);
/* False: it was not there. */
bool wire_queue_drop(queue *q, const transfer *t);
bool wire_grow(wire *w);
/* NULL, with the record written, when there is no memory. */
transfer *wire_take(wire *w);
void wire_give_back(wire *w, transfer *t);

/* ---- moves.c --------------------------------------------------------------------------------- */

static inline bool has_payload(const transfer *t) {
    return t->face.bytes > INLINE_BYTES;
}
/* Hand to MPI what was posted. */
void wire_start(wire *w);
/* The same, and take from MPI what is done. */
void wire_move(wire *w);

#endif
