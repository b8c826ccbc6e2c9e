/* SPDX-License-Identifier: Apache-2.0
 *
 * world/world.h - the door of room `world`: shared segments, lines, waiting and waking.
 *
 * Each rank owns one shared segment, mapped by every rank of its node: world keeps the first pages
 * (control block and signal lines), the rest is handed out whole, and what lies there is another
 * room's business. A *line* is a cache line that one member of a group writes and the others read;
 * its value only ever rises, so nobody zeroes it and nobody waits for equality.
 *
 * Waiting: with a core for each rank, spin; else yield, and spin a moment for who is on another
 * core. Then sleep on a futex of the waiter's own control block, in slices of at most 100 ms, with
 * the peers' liveness looked at in each. A signaller stores, then looks (sequentially consistent)
 * at the target's sleeper count, and only if it is not zero wakes.
 */
#ifndef HPI_WORLD_H
#define HPI_WORLD_H

#include "../base/base.h"
#include "../trace/trace.h"
#include "../transport/transport.h"
#include <hyperparallel/world.h>
#include <stdatomic.h>

/* ---- shared memory ---------------------------------------------------------------------- */

/* The part of a local rank's segment that world leaves to others: its mapping here and its size
 * (a reservation: nothing is committed). NULL when that rank is not on this node. */
void *hpi_world_segment(const hp_world *world, int world_rank, uint64_t *out_bytes);
/* Commit [offset, offset + bytes) of this rank's own segment (fallocate in steps); no fault or
 * SIGBUS afterwards. Errors: LIMIT with the numbers of the machine. Idempotent. */
hp_status hpi_world_commit(hp_world *world, uint64_t offset, uint64_t bytes);
/* Check what the ranks of this node are about to take together (`bytes` of all of them) against
 * MemAvailable, the cgroup limits above us (v1 and v2) and RLIMIT_FSIZE. Errors: LIMIT. */
hp_status hpi_world_check_memory(hp_world *world, uint64_t bytes, const char *what);
/* One mapping that all members of a group share (a memfd made by group rank 0, passed on; plain
 * memory when the ranks are threads). Collective over the group. Errors: LIMIT, SYSTEM, PEER. */
hp_status hpi_group_map(hp_group *group, uint64_t bytes, void **out_memory);
void hpi_group_unmap(hp_group *group, void *memory, uint64_t bytes);
/* The same bytes once more, at another address, where this process can only read them; the same
 * address when the ranks are threads (a second mapping would hide races from ThreadSanitizer).
 * Local. Errors: LIMIT. */
hp_status hpi_group_view(const hp_group *group, void *memory, uint64_t bytes, void **out_view);
void hpi_group_drop_view(const hp_group *group, void *view, uint64_t bytes);

bool hpi_world_is_threads(const hp_world *world);
bool hpi_world_is_local(const hp_world *world, int world_rank);
/* The host that a rank is on, as it says itself; for people. */
const char *hpi_world_host(const hp_world *world, int world_rank);

enum { HPI_MAX_LOCAL = 1024 };      /* ranks of a node */
enum { HPI_MAX_RANKS = 16 * 1024 }; /* ... of a job */

/* ---- state of the rooms above ------------------------------------------------------------ */

enum {
    HPI_SLOT_SYMM = 0,
    HPI_SLOT_COLL = 1,
    HPI_SLOT_MAIL = 2,
    HPI_SLOT_FUSED = 3,
    HPI_N_SLOTS = 4
};
/* Hang a room's state on the world or on a group; destroyed with it, before its memory goes.
 * Two threads may come at once: false for the second, whose state is not taken. */
bool hpi_world_attach(hp_world *world, int slot, void *state, void (*destroy)(void *state));
bool hpi_group_attach(hp_group *group, int slot, void *state, void (*destroy)(void *state));

/* A group as long as any of its members is in it: what a rank has left behind for the others when
 * it destroyed the group may go when the term is over. Any thread. */
typedef struct hpi_term {
    uint64_t serial;
    uint32_t slot;
} hpi_term;
hpi_term hpi_group_term(const hp_group *group);
bool hpi_term_is_over(const hp_world *world, hpi_term term);

/* ---- lines ------------------------------------------------------------------------------- */

/* Channels of a group. Each (group, channel, rank) is one line that nothing else touches. */
enum {
    HPI_LINE_ENTER = 0,   /* fsdp: where this rank stands, of a group for that alone */
    HPI_LINE_READ = 1,    /* coll: "I have finished reading for collective k" */
    HPI_LINE_CHUNK = 2,   /* coll: progress inside a collective */
    HPI_LINE_SETUP = 3,   /* world, symm: small exchanges of set-up calls */
    HPI_LINE_MAIL = 4,    /* coll: where this rank's outbox lies */
    HPI_LINE_STATE = 5,   /* world: "this group has failed here", "I have destroyed it" */
    HPI_LINE_CAST = 6,    /* coll: how far the cells of broadcasts are written, or read */
    HPI_LINE_BARRIER = 7, /* coll: the last barrier that was entered, roomy */
    HPI_N_LINES = 8,
    HPI_LINE_SAID = HPI_N_LINES, /* in a reason: an entry of the ring below */
    HPI_LINE_FUSED               /* in a reason: what a fused product waits for, group->n_fused */
};
/* 128 bytes: the value, and words that are published with it. Words are relaxed atomics. */
typedef struct hpi_line {
    _Alignas(128) _Atomic uint64_t value;
    _Atomic uint64_t words[15];
} hpi_line;
_Static_assert(sizeof(hpi_line) == 128, "lines are shared between processes");

/* Beside its lines a member has a ring of entries, each of which carries its own number: what the
 * member says as number k lies in entry k % HPI_N_SAID, and reaches who waits for it with one line
 * of 64 bytes. Who writes sees to it that nobody needs k - HPI_N_SAID any more. */
enum { HPI_N_SAID = 64, HPI_SAID_WORDS = 7 };
typedef struct hpi_said {
    _Alignas(64) _Atomic uint64_t value; /* base + k */
    _Atomic uint64_t words[HPI_SAID_WORDS];
} hpi_said;
_Static_assert(sizeof(hpi_said) == 64, "entries are shared between processes");

enum { HPI_EXCHANGE_WORDS = 13 };

/* Publish: own line's value becomes base + seq (release), and members that sleep for it are woken.
 * seq counts from 1 and only rises; `base` is hidden here, so a line can be used by one group after
 * another. */
void hpi_line_post(hp_group *group, int channel, uint64_t seq);
/* Beside the lines each member has two pockets; the owner writes, the others read what a line or an
 * entry has published. */
enum { HPI_POCKET_BYTES = 4 * 1024 };
/* Commit this rank's own, before the first use. Local. Errors: LIMIT. */
hp_status hpi_group_open_pockets(hp_group *group);
/* Wait until it has. `operation` is a literal, shown in reports. Errors: TIMEOUT, PEER, FAILED,
 * all naming operation, sequence number, group, local and world rank. */
hp_status hpi_line_wait(hp_group *group, int rank, int channel, uint64_t seq,
                        const char *operation);
/* Publish the own entry: its value becomes base + seq (release), sleepers are woken. */
void hpi_said_post(hp_group *group, uint64_t seq);
/* The same, waking nobody: who sleeps on it sees it with its next slice. */
void hpi_said_put(hp_group *group, uint64_t seq);
/* Wait until `rank` has said seq; errors as of hpi_line_wait. */
hp_status hpi_said_wait(hp_group *group, int rank, uint64_t seq, const char *operation);
/* All ranks of the group exchange n_words (at most HPI_EXCHANGE_WORDS) words over HPI_LINE_SETUP;
 * out_words is [size][n_words]; NULL: the words are said and nobody's are read, as a rank does that
 * has no memory for them and says so in its own. Ranks whose `operation` differs (in its first 15
 * bytes) get MISMATCH; a failed exchange fails the group. Collective; for set-up calls. */
hp_status hpi_group_exchange(hp_group *group, const char *operation, const uint64_t *words,
                             int n_words, uint64_t *out_words);
/* Is `rank` of the group still there, and has no member failed? For who works on without waiting.
 * A system call. Errors: PEER naming it, or the group's failure. */
hp_status hpi_group_look(const hp_group *group, int rank, const char *operation);
/* Has another member said that the group has failed? A load for each member, no system call. For
 * who has read a peer's memory: what it read may be new where that peer has given up waiting for
 * it. Errors: what the member said, named. */
hp_status hpi_group_listen(const hp_group *group, const char *operation);
void hpi_group_set_name(hp_group *group, const char *name);
/* A failed group stays failed: every later call gets the same record back. The other members are
 * told: their waits in it end with the same status (PEER for FAILED), naming whose fault it was. */
void hpi_group_fail(hp_group *group);
/* The same by choice: the others get FAILED with this thread's record, naming its rank, and the
 * end of no rank is read into it. */
void hpi_group_cancel(hp_group *group);

/* ---- groups that span nodes ---------------------------------------------------------------- */

/* Where the members of a group are. Nodes are numbered in the order of their first members. In a
 * group that is to be carried by the transport inside a node, too, each member is its own node. */
typedef struct hpi_nodes {
    int n, mine;   /* nodes; this rank's */
    int *node_of;  /* [size] */
    int *place_of; /* [size] among the members of its node, from 0 */
    int *begin;    /* [n + 1] where those of a node begin in: */
    int *members;  /* [size] ranks of the group, node by node, rising */
} hpi_nodes;
static inline int hpi_node_size(const hpi_nodes *nodes, int node) {
    return nodes->begin[node + 1] - nodes->begin[node];
}
/* The member of `node` that speaks with place `place` of another node, whatever their sizes. */
static inline int hpi_node_partner(const hpi_nodes *nodes, int node, int place) {
    return nodes->members[nodes->begin[node] + place % hpi_node_size(nodes, node)];
}

/* Messages between members of a group that spans nodes, any two but a rank and itself. They arrive
 * in the order of their posts for each pair and tag. The memory is the transport's until the
 * transfer has been waited for. Errors: those of the transport. */
enum { HPI_REMOTE_TAG_BITS = 14, HPI_REMOTE_SETUP = (1 << HPI_REMOTE_TAG_BITS) - 1 };
hp_status hpi_remote_send(hp_group *group, int rank, uint32_t tag, const void *data, uint64_t bytes,
                          hpi_transfer **out_transfer);
hp_status hpi_remote_receive(hp_group *group, int rank, uint32_t tag, void *out_data,
                             uint64_t bytes, hpi_transfer **out_transfer);
/* Has it come? HP_IN_PROGRESS: no. */
hp_status hpi_remote_test(hp_group *group, hpi_transfer *transfer);
/* Until it is over; when that fails it has been given up. Errors: TIMEOUT, PEER, what the group has
 * failed with elsewhere, MISMATCH of sizes; all naming operation, sequence number, rank and host.
 */
hp_status hpi_remote_wait(hp_group *group, hpi_transfer *transfer, uint64_t seq,
                          const char *operation);
/* Give up one that nobody waits for any more, after a failure. */
void hpi_remote_cancel(hp_group *group, hpi_transfer *transfer);
/* ---- waiting for any word ---------------------------------------------------------------- */

typedef struct hpi_reason {
    const char *operation; /* a literal */
    const hp_group *group; /* NULL: none */
    int rank;              /* in the group, who is waited for; -1: unknown */
    uint64_t seq;
    uint64_t timeout_ms; /* 0: SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS */
    int line;            /* 1 + the channel of that rank's line; 0: another word */
} hpi_reason;

/* Wait until `*word how value` (acquire). The word may lie in any memory that the writer can reach;
 * the writer calls hpi_world_wake afterwards. */
hp_status hpi_world_wait(hp_world *world, const _Atomic uint64_t *word, hp_compare how,
                         uint64_t value, const hpi_reason *reason);
/* Beyond hp_compare: the word has come to `value` or past it, counting on through 2^64. */
enum { HPI_REACHED = 6 };
bool hpi_compare(uint64_t word, hp_compare how, uint64_t value);
/* After a sequentially consistent store that `world_rank` may be waiting for. */
void hpi_world_wake(hp_world *world, int world_rank);
/* The same of a store that it waits for only where its reason names rank `awaited` of the world, or
 * none. */
void hpi_world_wake_for(hp_world *world, int world_rank, int awaited);
/* Where ranks share cores: do this rank and that one, as far as they have said? Then this one waits
 * for it first, by giving way; for who is elsewhere it may spin a moment. */
bool hpi_world_is_beside(const hp_world *world, int world_rank);
/* Does the calling thread spin, before it waits, for a moment? */
bool hpi_thread_spins(const hp_world *world);
/* The calling thread must not spin (stream threads share the core with compute). */
void hpi_thread_never_spins(void);

#include "hot.h"

#endif
