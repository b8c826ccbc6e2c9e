/* SPDX-License-Identifier: Apache-2.0
 *
 * message/mailbox.h - what send and receive share: where the messages of a group lie.
 *
 *     outbox of rank r   [slot for member 0 | slot for member 1 | ...], in r's own segment
 *     a slot             how far r has written for that member, and how far the member has read
 *     a ring             HPI_N_CELLS cells for one member, there from the first message on
 *
 * A slot has a line that only the sender writes and one that only the receiver writes. Both numbers
 * count cells since the beginning and only rise; cell k lies at k % HPI_N_CELLS of the ring. A cell
 * carries its own number, so a short message reaches its receiver with one line of 64 bytes.
 */
#ifndef HPI_MAILBOX_H
#define HPI_MAILBOX_H

#include "../inside.h"

#include <pthread.h>

enum {
    HPI_N_CELLS = 64,
    HPI_CELL_BYTES = 2048,
    HPI_HEAD_BYTES = 32,       /* a message up to that long lies in the line of its number */
    HPI_BUFFERED_BYTES = 8192, /* up to that long, no receiver is waited for */
    HPI_FAR_BYTES = 32768      /* from there ordinary memory is read across processes */
};
#define HPI_REFUSED UINT64_MAX /* in `taken`: the receiver wants something else */

typedef struct hpi_slot {
    _Alignas(
        128) _Atomic uint64_t posted; /* the sender's: cells written; for itself, but the first */
    _Atomic uint64_t ring;            /* the sender's: where it lies in the segment */
    _Alignas(
        128) _Atomic uint64_t taken; /* the receiver's: cells read, or HPI_REFUSED; said late */
    _Atomic uint64_t is_unreadable;  /* the receiver's: what is far must be copied */
    /* what was refused, written before `taken` */
    _Atomic uint64_t message, sent_count, sent_dtype, wanted_count, wanted_dtype;
} hpi_slot;
_Static_assert(sizeof(hpi_slot) == 256, "shared between processes");

/* A message of `count` elements begins a cell; what does not fit goes on in the next ones. */
typedef enum hpi_cell_kind {
    HPI_CELL_DATA,   /* in `head` or `data` */
    HPI_CELL_PLACED, /* in symmetric memory, at `place` */
    HPI_CELL_FAR     /* in the sender's process, at an address */
} hpi_cell_kind;
typedef struct hpi_cell {
    _Alignas(64) _Atomic uint64_t number; /* 1 + the cells before it */
    uint64_t count;
    uint32_t dtype, kind;
    uint64_t spare;
    union {
        unsigned char head[HPI_HEAD_BYTES];
        hpi_place place;
        struct {
            uint64_t address;
            int64_t pid;
        } far;
    };
    unsigned char data[HPI_CELL_BYTES];
} hpi_cell;
_Static_assert(sizeof(hpi_cell) == 64 + HPI_CELL_BYTES, "shared between processes");

/* Messages to or from one member. Used by one thread at a time. */
typedef struct hpi_way {
    atomic_bool is_busy;
    hpi_slot *slot;  /* as seen here; NULL before the first message */
    hpi_cell *cells; /* the ring; NULL before the first message */
    uint64_t n_cells, n_messages;
    uint64_t n_taken;   /* cells that the receiver is known to have read, or has said that it has */
    uint64_t looked_ns; /* when a sender that waits for nobody last looked at its partner */
} hpi_way;

/* Memory of this rank that its readers may need after it has left the group. */
/* Take `bytes`, zeroed, in the own segment; leave gives them back when the last member has left. */
hp_status hpi_outbox_take(hp_group *group, uint64_t bytes, hpi_outbox **out_outbox);
uint64_t hpi_outbox_offset(const hpi_outbox *outbox);
void hpi_outbox_leave(hp_group *group, hpi_outbox *outbox);

/* Hangs on a group; made by the first send or receive. */
typedef struct hpi_mailbox {
    hp_group *group;
    pthread_mutex_t lock; /* of `outbox`, while ways are opened */
    hpi_outbox *outbox;   /* NULL before the first send */
    hpi_way *to, *from;   /* [size] each */
} hpi_mailbox;

/* Does the receiver read a message that lies there itself? What is sent otherwise is copied. */
hp_status hpi_mailbox_is_read(hp_group *group, const void *data, uint64_t bytes, int to,
                              bool *out_is_read);
hp_status hpi_mailbox_get(hp_group *group, hpi_mailbox **out_mailbox);
/* Make slot and cells of a way usable. Sending takes memory of this rank and waits for nobody;
 * receiving waits until the other has sent its first message. */
hp_status hpi_way_open_to(hpi_mailbox *m, int rank);
hp_status hpi_way_open_from(hpi_mailbox *m, int rank);

#endif
