/* SPDX-License-Identifier: Apache-2.0
 *
 * message/mailbox.h - what send and receive share: where the messages of a group lie.
 *
 *     outbox of rank r   [slot for member 0 | slot for member 1 | ...], in r's own segment
 *     a slot             how far r has written for that member, and how far the member has read
 *     the cells          HPI_N_CELLS of them for one member, there from the first message on
 *     a piece            of memory that goes to and fro, there from the first message of more than
 *                        HPI_SHORT_BYTES on: who has it sends in it, and the receiver has it then
 *     a ring             of bytes for one member, for what is sent by who has no piece
 *
 * A slot has lines that only the sender writes and lines that only the receiver writes. Both
 * numbers count cells since the beginning and only rise; cell k lies at k % HPI_N_CELLS. A cell
 * carries its own number, so a short message reaches its receiver with one line of 64 bytes.
 *
 * Two members have two pieces, one in the segment of each. Who answers does so in the piece that
 * the message came in, whose lines are in its cache; who sends again before an answer has come goes
 * on in the ring. So nobody waits for a piece. (piece.pml)
 *
 * The ring of bytes is larger than a second-level cache: what the sender writes has left the
 * receiver's by then. A line that still lies there must be taken back, 7 ns each on AMD's Zen:
 * through a ring of 128 KiB 64 KiB take three times as long.
 */
#ifndef HPI_MAILBOX_H
#define HPI_MAILBOX_H

#include "../inside.h"

#include <pthread.h>

enum {
    HPI_N_CELLS = 64,
    HPI_CELL_BYTES = 2048,
    HPI_HEAD_BYTES = 32,       /* a message up to that long lies in the line of its number */
    HPI_SHORT_BYTES = 256,     /* up to that long, a message lies in its cell */
    HPI_BUFFERED_BYTES = 8192, /* up to that long, no receiver is waited for */
    HPI_FLOW_BYTES = 2 << 20,  /* of a ring where each rank has a core ... */
    HPI_FLOW_CROWDED_BYTES = 256 << 10, /* ... and where it has not */
    HPI_MOST_RUN_BYTES = 32 << 10,      /* of a ring that one cell names */
    HPI_PIECE_BYTES = 1 << 20,          /* of one that goes to and fro, where each has a core */
    HPI_N_FLOWS = 8,            /* so many members have rings and pieces; others get cells alone */
    HPI_PLACED_BYTES = 1 << 20, /* from there symmetric memory is read where it lies, ... */
    HPI_ACROSS_BYTES = 8 << 20  /* ... and ordinary memory, and what lies far */
};
#define HPI_REFUSED UINT64_MAX /* in `taken`: the receiver wants something else */

typedef struct hpi_slot {
    _Alignas(
        128) _Atomic uint64_t posted; /* the sender's: cells written; for itself, but the first */
    _Atomic uint64_t cells;           /* the sender's: where they lie in the segment */
    _Atomic uint64_t helped;          /* the sender's: what it has written of shared cells up to */
    _Alignas(
        128) _Atomic uint64_t taken; /* the receiver's: cells read, or HPI_REFUSED; said late */
    _Atomic uint64_t is_unreadable;  /* the receiver's: what is far must be copied */
    /* what was refused, written before `taken` */
    _Atomic uint64_t message, sent_count, sent_dtype, wanted_count, wanted_dtype;
    /* the receiver's: the shared cell that it has come to, or HPI_REFUSED; and where it wants it */
    _Atomic uint64_t came_to, key, offset;
    _Alignas(128) _Atomic uint64_t claimed; /* of both: pieces of the shared cell */
} hpi_slot;
_Static_assert(sizeof(hpi_slot) == 384, "shared between processes");

/* A message of `count` elements begins a cell; what does not fit goes on in the next ones. */
typedef enum hpi_cell_kind {
    HPI_CELL_DATA,   /* in `head` or `data` */
    HPI_CELL_RUN,    /* in the ring of bytes */
    HPI_CELL_PAST,   /* the same, stored past the caches */
    HPI_CELL_LENT,   /* in the sender's piece, which the receiver has from the last cell on */
    HPI_CELL_BACK,   /* in the receiver's, which it has again */
    HPI_CELL_PLACED, /* in symmetric memory, at `place` */
    HPI_CELL_SHARED, /* the same, and the sender copies a part of it if the receiver says where to
                      */
    HPI_CELL_FAR     /* in the sender's process, at an address */
} hpi_cell_kind;
typedef struct hpi_cell {
    _Alignas(64) _Atomic uint64_t number; /* 1 + the cells before it */
    uint64_t count;
    uint32_t dtype, kind;
    uint64_t spare;
    union {
        unsigned char head[HPI_HEAD_BYTES];
        struct {
            uint64_t at, bytes; /* in the segment of the sender, or of whose piece it is */
        } run;
        hpi_place place;
        struct {
            uint64_t address;
            int64_t pid;
        } far;
    };
    unsigned char data[HPI_CELL_BYTES];
} hpi_cell;
_Static_assert(sizeof(hpi_cell) == 64 + HPI_CELL_BYTES, "shared between processes");

/* The ring of bytes to one member, as its sender sees it. Positions count bytes since the beginning
 * and only rise; position p lies at p % size. Cell k holds none from position ends[k] on, and when
 * it was taken all before is free. */
typedef struct hpi_flow {
    unsigned char *bytes;
    uint64_t offset, size; /* where it lies in the segment */
    uint64_t position;     /* where the next run begins */
    uint64_t ends[2 * HPI_N_CELLS];
} hpi_flow;

/* A piece that goes to and fro between this rank and one member: it is here when it has come more
 * often than it was sent. The thread that sends counts one, the thread that receives the other. */
typedef struct hpi_piece_of_two {
    uint64_t at; /* in the segment of whose it is; the peer's is known once it has come */
    uint64_t n_sent;
    _Atomic uint64_t n_came;
} hpi_piece_of_two;
typedef struct hpi_pieces {
    hpi_outbox *box; /* of the own one; NULL: it has not been asked for */
    bool is_refused; /* there was no memory for it */
    hpi_piece_of_two own, peers;
} hpi_pieces;

/* Messages to or from one member. Used by one thread at a time. */
typedef struct hpi_way {
    atomic_bool is_busy;
    bool has_no_flow;             /* a sender has asked for a ring and got none */
    hpi_slot *slot;               /* as seen here; NULL before the first message */
    hpi_cell *cells;              /* NULL before the first message */
    hpi_flow *flow;               /* a sender's; NULL before the first message that is not short */
    const unsigned char *segment; /* a receiver's: that of the sender */
    uint64_t count, size;         /* of the last message: what was checked */
    hp_dtype dtype;
    uint64_t n_cells, n_messages;
    uint64_t n_taken; /* cells that the receiver is known to have read, or has said that it has */
    uint64_t n_unsaid_bytes; /* of runs in cells that a receiver has read since */
    uint64_t looked_ns;      /* when a sender that waits for nobody last looked at its partner */
    hpi_distance distance;   /* a sender's: of its receiver */
} hpi_way;

/* Hangs on a group; made by the first send or receive. */
typedef struct hpi_mailbox {
    hp_group *group;
    pthread_mutex_t lock; /* of `outbox`, while ways are opened */
    hpi_outbox *outbox;   /* NULL before the first send */
    int n;
    hpi_way *to, *from; /* [n] each */
    hpi_pieces *pieces; /* [n] */
    int n_pieces;       /* taken; locked */
} hpi_mailbox;

hp_status hpi_mailbox_get(hp_group *group, hpi_mailbox **out_mailbox);
/* Make slot and cells of a way usable. Sending takes memory of this rank and waits for nobody;
 * receiving waits until the other has sent its first message. */
hp_status hpi_way_open_to(hpi_mailbox *m, int rank);
hp_status hpi_way_open_from(hpi_mailbox *m, int rank);
/* Give the way a ring of bytes, if it has none and there is room for one. */
void hpi_flow_open(hpi_mailbox *m, int rank);
/* The same of a piece, which this rank then has. */
void hpi_piece_open(hpi_mailbox *m, int rank);
uint64_t hpi_piece_bytes(const hp_group *group);

/* ---- mailbox.c ---- */

/* Does the receiver read a message that lies there itself? What is sent otherwise is copied. */
hp_status hpi_mailbox_is_read(hp_group *group, const void *data, uint64_t bytes, int to,
                              bool *out_is_read);

#endif
