/* SPDX-License-Identifier: Apache-2.0
 *
 * wait/meeting.h - how the first ranks of nodes come to have a connection each.
 *
 * Each listens on a port of all its addresses, and all know each other's cards. The lower node
 * calls the higher one, at one address after the other, and shows the token of the called; the
 * answer shows the token of the caller, who sends it back. Who shows no token is dropped. When all
 * have met nobody listens any more.
 */
#ifndef HPI_MEETING_H
#define HPI_MEETING_H

#include "../inside.h"
#include "link.h"

enum { HPI_TOKEN16_BYTES = 16, HPI_CARD_ADDRESSES = 6 };

/* Where a node's first rank is to be found. */
typedef struct hpi_card {
    uint64_t epoch;   /* a number of this world of its node; 0: of a rank that is not the first */
    uint64_t machine; /* the same on hosts that are one machine */
    unsigned char token[HPI_TOKEN16_BYTES];
    uint16_t port, n_addresses;
    uint32_t is_v6; /* a bit for each address */
    unsigned char addresses[HPI_CARD_ADDRESSES][16];
} hpi_card;
_Static_assert(sizeof(hpi_card) == 136, "sent between hosts");

typedef struct hpi_meeting {
    int listen_fd;
    int n_nodes, mine;
    const hpi_card **cards;         /* [n_nodes] */
    const int *leaders;             /* [n_nodes] */
    const hpi_transport *transport; /* that knows the names of hosts */
    uint64_t timeout_ms;
} hpi_meeting;

/* Listen, and say where. Errors: SYSTEM. */
hp_status hpi_meeting_open(int *out_listen_fd, hpi_card *out_card);
/* A link to the first rank of every other node. Errors: TIMEOUT naming the host and what was tried,
 * MEMORY; links that are there stay then. */
hp_status hpi_meeting_hold(const hpi_meeting *meeting, hpi_link *links);

#endif
