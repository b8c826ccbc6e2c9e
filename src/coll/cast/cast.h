/* SPDX-License-Identifier: Apache-2.0
 *
 * cast/cast.h - broadcasts for which nobody meets: what the state of a group keeps for them.
 */
#ifndef HPI_CAST_H
#define HPI_CAST_H

#include "../meet/words.h"
#include "../message/mailbox.h"

/* A root's cells are a ring of bytes in its own segment, as large as two second-level caches, as
 * that of ring.c and for the same reason: one of 512 KiB is 1.4 to 2 times slower from 64 KiB. */
enum { HPI_CAST_BYTES = 2 << 20, HPI_CAST_LINE = 64 };

/* Positions count lines of HPI_CAST_LINE bytes that all broadcasts through cells have taken so far:
 * they are the same on every rank, whoever was the root. Position p lies at p % the ring. */
typedef struct hpi_cast {
    hpi_outbox *box;       /* this rank's ring; NULL before it was a root */
    unsigned char *cells;  /* the same, as seen here */
    hpi_distance distance; /* of its readers */
    uint64_t position;     /* where the next piece begins */
    uint64_t said;         /* the position that this rank has posted on its CAST line */
    uint64_t free_to;      /* pieces up to here fit: all have read what lay there */
} hpi_cast;

#endif
