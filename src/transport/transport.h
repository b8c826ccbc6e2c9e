/* SPDX-License-Identifier: Apache-2.0
 *
 * transport/transport.h - the door of room `transport`: bytes between ranks that share no memory.
 *
 * A transport is a table of five functions that a plug-in fills. It moves bytes and never sums.
 * Nothing in it blocks: a transfer is posted, then tested until it is done; who waits brings his
 * own deadline, and his own look at who is still alive. Messages of one pair and one tag arrive in
 * the order of their posts; messages of different tags never meet, however many are under way.
 * Ranks are those of the job. Source of the shape: UCX's tagged API, libfabric's fi_tagged.
 */
#ifndef HPI_TRANSPORT_H
#define HPI_TRANSPORT_H

#include <hyperparallel/base.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One message under way. It belongs to the transport, which keeps more about it behind this. */
typedef struct hpi_transfer {
    int32_t peer;
    bool is_send;
    uint64_t tag, bytes;
} hpi_transfer;

enum { HPI_HOST_NAME_BYTES = 64, HPI_TRANSPORT_ABOUT_BYTES = 128 };

/* What was posted goes on while nobody tests it: who posted may wait for another rank meanwhile.
 * Threads: any function from any thread, but close. */
typedef struct hpi_transport {
    size_t size; /* sizeof(hpi_transport) */
    const char *name;
    void *self;
    int rank, n_ranks;
    _Atomic bool is_lost;           /* set by its user: a call on it failed, closing meets nobody */
    char host[HPI_HOST_NAME_BYTES]; /* that this rank is on */
    char about[HPI_TRANSPORT_ABOUT_BYTES]; /* for people: which library, which version */
    char (*hosts)[HPI_HOST_NAME_BYTES];    /* [n_ranks], hpi_transport_open's; NULL until all met */

    /* Send `bytes` to rank `to`, or receive as many from rank `from`. The memory is the transport's
     * until the transfer is done. No allocation when no more are under way than ever before.
     * Errors: MEMORY; PEER when the way to that rank is known to be broken. */
    hp_status (*post_send)(struct hpi_transport *t, int to, uint64_t tag, const void *data,
                           uint64_t bytes, hpi_transfer **out_transfer);
    hp_status (*post_recv)(struct hpi_transport *t, int from, uint64_t tag, void *out_data,
                           uint64_t bytes, hpi_transfer **out_transfer);
    /* HP_IN_PROGRESS, or the transfer is over and given back: HP_OK; else PEER, naming the rank and
     * what the network says, or MISMATCH when the message has another size than its receive. */
    hp_status (*test)(struct hpi_transport *t, hpi_transfer *transfer);
    /* Give a transfer up and back. HP_OK: its memory is free. HP_IN_PROGRESS: the network is in the
     * middle of it, and uses the memory until the message is through or the transport is closed; of
     * a receive that is so only where the rest has not come in some 50 ms. A message whose receive
     * was given up before it came is there for the next receive of its tag.
     */
    hp_status (*cancel)(struct hpi_transport *t, hpi_transfer *transfer);
    /* Collective where all went well; where it is lost, or transfers are under way, local. */
    void (*close)(struct hpi_transport *t);
} hpi_transport;

/* ---- what a plug-in is given ---------------------------------------------------------------- */

typedef struct hpi_transport_host {
    size_t size;           /* sizeof(hpi_transport_host) */
    size_t transport_size; /* sizeof(hpi_transport), what out_transport has room for */
    const char *version;   /* of the library; a plug-in of another one refuses */
    hp_status (*fail)(hp_status status, int world_rank, const char *call, const char *file,
                      int line, const char *format, ...) __attribute__((format(printf, 6, 7)));
    void *(*alloc)(size_t count, size_t size); /* zeroed; NULL with the record written */
    void (*free)(void *memory);
} hpi_transport_host;

typedef struct hpi_transport_wish {
    bool one_thread;     /* the network is to see calls of one thread alone */
    uint64_t timeout_ms; /* for what opening and closing wait for */
} hpi_transport_wish;

/* Fill out_transport, all of it. Errors: STATE, SYSTEM, VERSION, MEMORY, TIMEOUT. Both tables are
 * copied. */
typedef hp_status hpi_transport_plugin_open(const hpi_transport_host *host,
                                            const hpi_transport_wish *wish,
                                            hpi_transport *out_transport);
#define HPI_TRANSPORT_PLUGIN_OPEN "hp_transport_plugin_open"

/* ---- opening -------------------------------------------------------------------------------- */

struct hpi_options;

/* Who started this process as a rank of an MPI job, for people ("mpirun of Open MPI"); NULL: nobody
 * did. */
const char *hpi_transport_launcher(void);
/* Do the options name a transport? Or do they leave the choice, and there is a launcher that one
 * fits? */
bool hpi_transport_is_named(const struct hpi_options *options);
bool hpi_transport_fits(const struct hpi_options *options);
/* The transport that the options name, or that fits the launcher; then every rank has met every
 * other and knows its host. rank, n_ranks: what they must be, -1: what the network says. Collective
 * over the job. Errors: UNSUPPORTED when there is none, with where it was looked for; VERSION or
 * MISMATCH when ranks differ; TIMEOUT naming who did not come; those of the plug-in. */
hp_status hpi_transport_open(const struct hpi_options *options, int rank, int n_ranks,
                             hpi_transport **out_transport);
/* The host that a rank is on, as it says itself. */
const char *hpi_transport_host_of(const hpi_transport *t, int rank);
void hpi_transport_close(hpi_transport *t);

/* ---- between threads of one process, for tests of several nodes --------------------------------
 */

typedef struct hpi_threads hpi_threads;
/* Rank r is on host "node(r / ranks_per_node)". Errors: MEMORY, SYSTEM. */
hp_status hpi_threads_create(int n_ranks, int ranks_per_node, hpi_threads **out_threads);
/* After all of its transports were closed. */
void hpi_threads_destroy(hpi_threads *threads);
/* Local; to be closed by hpi_transport_close, which is local too. Errors: MEMORY. */
hp_status hpi_threads_open(hpi_threads *threads, int rank, hpi_transport **out_transport);
/* What is sent from here on arrives in another order, but for each pair's and tag's own. Before the
 * first post. */
void hpi_threads_disorder(hpi_transport *t, uint64_t seed);

/* ---- waiting -------------------------------------------------------------------------------- */

/* How a wait is made, and what can end it. */
typedef struct hpi_patience {
    const char *operation; /* a literal, for reports */
    uint64_t timeout_ms;
    bool may_spin; /* this thread has a core to itself */
    /* Asked every few ms: HP_OK to go on, or why the wait is hopeless. NULL: nobody is asked. */
    hp_status (*look)(void *context);
    void *context;
} hpi_patience;

/* Wait until the transfer is over; when that fails it has been given up. Errors: those of test and
 * look; TIMEOUT naming operation, rank and host. */
hp_status hpi_transport_wait(hpi_transport *t, hpi_transfer *transfer,
                             const hpi_patience *patience);
/* Tags with this bit are the room's own. */
#define HPI_TAG_OWN (UINT64_C(1) << 63)
/* Every rank gives `bytes`, and gets those of all, in order of rank. For set-up: through rank 0,
 * which can say who did not come. One at a time. Collective over the job. Errors: as of wait. */
hp_status hpi_transport_gather(hpi_transport *t, const void *mine, size_t bytes, void *out_all,
                               const hpi_patience *patience);

#endif
