/* SPDX-License-Identifier: Apache-2.0
 *
 * world/start/store.h - the key-value stores that ranks start up over.
 *
 * One protocol over any stream socket: a head, then a key, then a value. A client has one request
 * under way; a get whose key is not there yet is parked at the server. The launcher serves it over
 * a socket pair per rank, rank 0 over TCP where the environment comes from torchrun. Values are
 * small and a key is forgotten once every rank has read it.
 */
#ifndef HPI_STORE_H
#define HPI_STORE_H

#include "../../base/base.h"
#include <hyperparallel/world.h>

enum { HPI_STORE_KEY_BYTES = 128, HPI_STORE_VALUE_BYTES = 4096, HPI_STORE_PROTOCOL = 1 };
#define HPI_STORE_MAGIC UINT64_C(0x31726f7453504848) /* "HHPStor1" */

typedef enum hpi_store_op {
    HPI_STORE_GREET = 1, /* value: hpi_store_greeting */
    HPI_STORE_SET = 2,
    HPI_STORE_GET = 3,
    HPI_STORE_REPLY = 4, /* to each of the above; value: of the key */
    HPI_STORE_BYE = 5    /* this client is done; no reply */
} hpi_store_op;

typedef struct hpi_store_head {
    uint64_t magic;
    uint32_t op, id;
    int32_t status; /* of a reply */
    int32_t rank;   /* of a reply: whose fault it was; -1 nobody's */
    uint32_t key_bytes, value_bytes;
} hpi_store_head;
_Static_assert(sizeof(hpi_store_head) == 32, "sent between processes");

typedef struct hpi_store_greeting {
    uint32_t protocol;
    int32_t rank;
    uint64_t job; /* same for all ranks of one start of one job */
} hpi_store_greeting;

/* ---- store_client.c ------------------------------------------------------------------------ */

/* A store that speaks over `fd`, which it does not own. `where` goes into error texts; `host` is
 * the rank that it lives in, whose fault its end is; -1: a launcher. Its close tells a rank that
 * the end of the connection will be in order; a launcher's connection stays, for the next world. */
hp_status hpi_store_client(int fd, const char *where, int host, hp_store *out_store);
/* Say so now: of a client that has waited in vain and whose end is not what others should hear of.
 */
void hpi_store_bye(const hp_store *store);
hp_status hpi_store_greet(const hp_store *store, const hpi_store_greeting *greeting,
                          uint64_t timeout_ms);

/* ---- store_server.c ------------------------------------------------------------------------ */

typedef struct hpi_store_server hpi_store_server;
hp_status hpi_store_server_create(int n_ranks, hpi_store_server **out_server);
void hpi_store_server_destroy(hpi_store_server *server);
/* A new connection, owned from now on. Rank -1: unknown until it greets with this job's key. */
hp_status hpi_store_server_add(hpi_store_server *server, int fd, int rank);
void hpi_store_server_expect(hpi_store_server *server, uint64_t job);
/* Slots of connections: 0 to count - 1; the descriptor is -1 once it is closed. */
int hpi_store_server_count(const hpi_store_server *server);
int hpi_store_server_fd(const hpi_store_server *server, int index);
/* Read what has come on a connection and answer it. */
void hpi_store_server_read(hpi_store_server *server, int index);
/* Has every rank that is connected said BYE? */
bool hpi_store_server_is_done(const hpi_store_server *server);

/* ---- store_tcp.c --------------------------------------------------------------------------- */

/* The store of a job whose environment has torchrun's names; rank 0 serves it. close returns when
 * every rank is done with it. */
hp_status hpi_store_tcp(const hpi_options *options, int rank, int n_ranks, hp_store *out_store);

#endif
