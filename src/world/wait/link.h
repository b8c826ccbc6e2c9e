/* SPDX-License-Identifier: Apache-2.0
 *
 * wait/link.h - one connection between the first ranks of two nodes, and when it has ended.
 *
 * All that goes over it is frames of one size. A *beat* every 100 ms carries a time stamp and the
 * last one that came, so each side knows the round trip. The other host is gone when its connection
 * is closed without a good-bye, fails, or when for 800 ms neither a frame has come nor its kernel
 * has acknowledged one of ours; a stopped process, whose kernel does, is a silent rank and no dead
 * host. Nothing here waits, allocates or knows of ranks. One thread.
 */
#ifndef HPI_LINK_H
#define HPI_LINK_H

#include "../../base/base.h"

enum {
    HPI_BEAT_MS = 100,
    HPI_SILENCE_MS = 800,
    HPI_SLOW_FACTOR = 100, /* a link this much slower than it was is told of ... */
    HPI_SLOW_LEAST_MS = 20 /* ... when a round trip takes longer than this, too */
};

enum { HPI_TOLD_WORDS = 26 };

/* What a rank tells of a group. */
typedef struct hpi_told {
    uint64_t tag, check;
    int32_t end, status, culprit, teller;
    char text[HPI_TOLD_WORDS * 8];
} hpi_told;

enum {
    HPI_FRAME_BEAT = 1,
    HPI_FRAME_HELLO,   /* first, from who connects: the token of who listens */
    HPI_FRAME_WELCOME, /* the answer: the token of who connects */
    HPI_FRAME_RANK,    /* what has become of a rank */
    HPI_FRAME_NOTICE,  /* what has become of a group */
    HPI_FRAME_BYE,     /* left in order */
    HPI_FRAME_KINDS
};

/* Integers are the host's; one of another byte order finds no magic number. */
typedef struct hpi_frame {
    uint32_t magic, kind;
    union {
        struct {
            uint64_t stamp_ns;          /* the sender's clock */
            uint64_t echo_ns, since_ns; /* the last stamp that it got, and how long ago */
        } beat;
        struct {
            unsigned char token[16];
            int32_t from, to; /* nodes */
        } hello;
        struct {
            uint64_t word; /* as in hpi_news */
            int32_t rank;
        } rank;
        hpi_told notice;
    } is;
} hpi_frame;
_Static_assert(sizeof(hpi_frame) == 248, "sent between hosts");

/* Why a link has ended. */
typedef enum hpi_link_end {
    HPI_LINK_UP,
    HPI_LINK_BYE, /* in order */
    HPI_LINK_CLOSED,
    HPI_LINK_SILENT,  /* detail: for how many ms */
    HPI_LINK_FAILED,  /* detail: errno */
    HPI_LINK_GARBLED, /* what came is no frame */
    HPI_LINK_ENDS
} hpi_link_end;

typedef struct hpi_link {
    int fd;
    hpi_link_end end;
    int detail;
    uint64_t heard_ns;           /* when something came last, or would have, had we run */
    uint64_t beat_ns;            /* when our last beat went out; 0: none has */
    uint64_t stamp_ns, stamp_at; /* of the last beat that came, and when; 0: none has */
    uint64_t trip_ns, best_ns;   /* round trips: smoothed, and the least that this has been */
    uint32_t n_trips;
    bool is_late, is_slow; /* this thread has just been kept from running; see hpi_link_slowness */
    uint32_t in_bytes, out_bytes; /* of the frames below: come so far, still to go */
    hpi_frame in, out;
} hpi_link;

/* Take over a connected socket. Errors: SYSTEM; the socket is closed then. */
hp_status hpi_link_open(int fd, uint64_t now_ns, hpi_link *out_link);
void hpi_link_close(hpi_link *link);
/* The next frame that is no beat. false: none is there, or the link has ended. */
bool hpi_link_read(hpi_link *link, uint64_t now_ns, hpi_frame *out_frame);
/* What came makes no sense above: that ends the link. */
void hpi_link_spoil(hpi_link *link);
/* Send a frame, whole or later the rest of it. false: the one before is not out yet. */
bool hpi_link_write(hpi_link *link, hpi_frame *frame);
/* Send what is left of the last frame. Is all out? */
bool hpi_link_flush(hpi_link *link);
/* Send a beat where one is due. */
void hpi_link_beat(hpi_link *link, uint64_t now_ns);
/* This thread runs again, `late_ns` after it wanted to: that was no silence, and no round trip. */
void hpi_link_wake(hpi_link *link, uint64_t now_ns, uint64_t late_ns);
/* Has it been silent for too long? After all that had come was read. */
void hpi_link_judge(hpi_link *link, uint64_t now_ns);
/* How many times slower than it was, where that is to be told of; else 0. */
uint32_t hpi_link_slowness(hpi_link *link);
/* "it has been silent for 800 ms", "it closed its connection" ... */
void hpi_link_why(hpi_link_end end, int detail, char *out_text, size_t size);

#endif
