/* SPDX-License-Identifier: Apache-2.0
 *
 * world/inside.h - the inside of room `world`: what a world and a group are made of.
 *
 * A world is the mapped segments of its ranks plus what it takes to learn that a rank has died.
 * How the segments came together (one hub of threads, or processes that passed descriptors to each
 * other) matters to bootstrap.c and hub.c alone.
 */
#ifndef HPI_INSIDE_H
#define HPI_INSIDE_H

#include "control.h"

/* ---- segments ----------------------------------------------------------------------------- */

#define HPI_SEGMENT_NONE ((hpi_segment){.fd = -1})

/* A new memfd with room for heap_bytes, sealed against resizing, control block in place. */
hp_status hpi_segment_create(uint64_t heap_bytes, int world_rank, hpi_segment *out_segment);
/* The same in a memfd that a launcher made; it may have served an earlier world. Takes fd over,
 * also when it fails. */
hp_status hpi_segment_adopt(int fd, uint64_t heap_bytes, int world_rank, hpi_segment *out_segment);
/* Map what a peer passed. Keeps no descriptor. */
hp_status hpi_segment_map(int fd, int world_rank, hpi_segment *out_segment);
hp_status hpi_segment_commit(const hpi_segment *segment, uint64_t offset, uint64_t bytes);
/* Give the heap's memory back to the system; it reads as zeros again. */
hp_status hpi_segment_clear(const hpi_segment *segment);
void hpi_segment_close(hpi_segment *segment);
/* A memfd of `bytes` that cannot be resized, committed whole. */
hp_status hpi_memfd_create(const char *name, uint64_t bytes, int *out_fd);
hp_status hpi_fd_commit(int fd, uint64_t begin, uint64_t end);

/* huge.c: mappings whose 2 MiB pieces can become huge pages. MAP_FAILED with errno. */
#define HPI_HUGE_BYTES (UINT64_C(2) << 20)
#define HPI_HUGE_STEP_BYTES (UINT64_C(64) << 20)
void *hpi_map_shared(int fd, uint64_t bytes);
/* The pages of a shared mapping once more, at another address. */
void *hpi_map_again(void *memory, uint64_t bytes);
/* Ask for huge pages for [begin, end) of a mapping, committed from the 2 MiB boundary before
 * `begin` on. Its content stays, whoever uses it meanwhile. */
void hpi_make_huge(unsigned char *base, uint64_t begin, uint64_t end);
/* Does this machine do that? Tries it once. */
bool hpi_can_make_huge(void);

static inline hpi_control *hpi_segment_control(const hpi_segment *segment) {
    return (hpi_control *)(void *)segment->base;
}
static inline hpi_directory *hpi_segment_directory(const hpi_segment *segment) {
    return (hpi_directory *)(void *)(segment->base + HPI_DIRECTORY_OFFSET);
}
static inline hpi_line *hpi_segment_lines(const hpi_segment *segment, uint32_t slot) {
    return (hpi_line *)(void *)(segment->base + HPI_LINES_OFFSET + slot * HPI_SLOT_BYTES);
}
static inline uint64_t hpi_pockets_offset(uint32_t slot) {
    return HPI_POCKETS_OFFSET + slot * UINT64_C(2) * HPI_POCKET_BYTES;
}
static inline hpi_said *hpi_segment_ring(const hpi_segment *segment, uint32_t slot) {
    return (hpi_said *)(void *)((char *)hpi_segment_lines(segment, slot) + HPI_RING_OFFSET);
}

/* ---- limits ------------------------------------------------------------------------------- */

typedef struct hpi_memory {
    uint64_t total_bytes, available_bytes; /* of the machine */
    uint64_t cgroup_bytes;                 /* what the tightest cgroup above us still allows */
    uint64_t file_bytes;                   /* RLIMIT_FSIZE */
    uint64_t address_bytes;                /* RLIMIT_AS */
    char cgroup[160];                      /* its file, "" when no cgroup limits us */
} hpi_memory;
/* `root` stands before /proc and /sys: "" but in tests. */
void hpi_memory_read(const char *root, hpi_memory *out_memory);
/* Is there room for `bytes` now? `what` says what for. Errors: LIMIT with all the numbers. */
hp_status hpi_memory_check(const hpi_memory *memory, uint64_t bytes, const char *what);
/* The heap that each of n_local ranks reserves: the option, or (0) what the machine has. */
hp_status hpi_heap_of(const hpi_memory *memory, uint64_t heap_size, int n_local,
                      uint64_t *out_bytes);
hp_status hpi_heap_bytes(const hpi_options *options, int n_local, uint64_t *out_bytes);
/* Is there room for the heaps that the option promises to all ranks? Errors: LIMIT. */
hp_status hpi_heap_check(const hpi_options *options, int n_local);

/* ---- world -------------------------------------------------------------------------------- */

/* True for the first thread that comes. */
static inline bool hpi_attach(hpi_attachment *a, void *state, void (*destroy)(void *state)) {
    void *none = NULL;
    const bool is_first = atomic_compare_exchange_strong_explicit(
        &a->state, &none, state, memory_order_release, memory_order_relaxed);
    if (is_first)
        a->destroy = destroy;
    return is_first;
}

static inline hpi_control *hpi_world_control(const hp_world *world, int world_rank) {
    return hpi_segment_control(&world->segments[world_rank]);
}
/* Where a thread that waits for that rank of the world counts among the sleepers; -1: for none. A
 * byte that runs over, with 256 threads, costs a slice. */
static inline uint64_t hpi_sleeper_for(int awaited) {
    return awaited < 0 ? UINT64_C(0x0101010101010101) : UINT64_C(1) << 8 * (awaited & 7);
}
/* Is there one whom a store wakes that was made, sequentially consistent, for who waits for
 * `awaited`? */
static inline bool hpi_world_sleeps(const hp_world *world, int world_rank, int awaited) {
    return atomic_load_explicit(&hpi_world_control(world, world_rank)->sleepers,
                                memory_order_seq_cst) &
           0xff * hpi_sleeper_for(awaited);
}
/* Is this a child of the process that created the world? */
static inline bool hpi_world_is_forked(const hp_world *world) {
    return !world->fork_page[0];
}
/* Declare this rank dead: peers that wait for it get HP_ERR_PEER, its own calls HP_ERR_FAILED. */
void hpi_world_abandon(hp_world *world);
/* What a rank is doing, as hpi_control_describe; of one of another node, which host that is. */
void hpi_world_describe(const hp_world *world, int world_rank, char *out_text, size_t size);
/* What this rank does when no thread waits; shown in reports. */
void hpi_world_doing(hp_world *world, const char *text);

/* ---- cores.c ---- */

/* Say which cores this rank may run on, before it arrives. */
void hpi_cores_say(hp_world *world);
/* When all have arrived: is there a way to give each rank a core of its own? */
bool hpi_cores_suffice(const hp_world *world);

/* ---- liveness.c --------------------------------------------------------------------------- */

hp_status hpi_liveness_open(hp_world *world);
void hpi_liveness_close(hp_world *world);
/* Report ends of the process behind pidfd (which it now owns) as the end of that rank. */
hp_status hpi_liveness_watch(hp_world *world, int world_rank, int pidfd);
/* The launcher's socket: it hangs up when the launcher ends. */
hp_status hpi_liveness_watch_launcher(hp_world *world, int fd);
/* Look for processes that ended. A system call; waits make it once a slice. */
void hpi_liveness_poll(hp_world *world);
bool hpi_liveness_is_dead(const hp_world *world, int world_rank);
/* A rank that gives up because of another's end says so, before it ends itself ... */
void hpi_liveness_blame(hp_world *world, int world_rank);
/* ... which leads from a dead rank to the one that it died of. */
int hpi_liveness_origin(hp_world *world, int world_rank);
bool hpi_liveness_has_left(const hp_world *world, int world_rank);

/* ---- heartbeat.c, news.c: what nodes tell each other ---------------------------------------- */

/* The first rank of a node keeps a connection to that of each other node. Collective over the job;
 * nothing to do where there is one node. Errors: TIMEOUT, PEER, SYSTEM naming the host. */
hp_status hpi_heartbeat_open(hp_world *world);
void hpi_heartbeat_close(hp_world *world);
/* Take in what other nodes have told of their ranks. */
void hpi_news_read(hp_world *world);
/* What happened to a group that spans nodes, with this thread's record. */
typedef enum hpi_group_end {
    HPI_GROUP_FAILED,
    HPI_GROUP_CANCELLED,
    HPI_GROUP_DESTROYED
} hpi_group_end;
void hpi_news_tell(const hp_group *group, hpi_group_end end);
/* What another node has told of this group's failure. HP_OK: nothing. */
hp_status hpi_news_of(const hp_group *group, const char *operation);
/* Has that member told long enough ago that it destroyed the group? Its last messages come by other
 * ways than this, and later. */
bool hpi_news_has_destroyed(const hp_group *group, int rank);
/* "on host b", and what is known against it: of a rank of another node. */
void hpi_news_describe(const hp_world *world, int world_rank, char *out_text, size_t size);
/* This thread's record is of a wait for that rank that timed out: was the link slow? */
void hpi_news_explain(const hp_world *world, int world_rank);

/* ---- process.c ------------------------------------------------------------------------------ */

/* Of the process behind it; -1 unknown. */
int hpi_pidfd_pid(int pidfd);

/* ---- share.c: passing descriptors between processes of a node ------------------------------- */

enum { HPI_TOKEN_BYTES = 24 };
/* A socket that only holders of `out_token` (random) are heard on. */
hp_status hpi_share_open(hp_world *world, unsigned char *out_token);
void hpi_share_close(hp_world *world);
/* The token of another rank, before the first send to it. */
void hpi_share_peer(hp_world *world, int world_rank, const unsigned char *token);
/* A number that tells this rank's sends apart; 0 among threads. */
uint64_t hpi_share_key(hp_world *world);
/* Show a rank that this rank's user is behind its socket's name. */
hp_status hpi_share_greet(hp_world *world, int to);
/* The same where its socket is known to be open, if that can be reached from here. */
hp_status hpi_share_try(hp_world *world, int to, bool *out_reaches);
/* Waits for the other's greeting first. */
hp_status hpi_share_send(hp_world *world, int to, uint64_t key, int fd);
/* What rank `from` sent under `key`; what others sent meanwhile is kept for its own receive. Gives
 * up when `group` (NULL: none) fails for another member. */
hp_status hpi_share_receive(hp_world *world, int from, uint64_t key, const hp_group *group,
                            int *out_fd);
/* Tell every rank whose token is known that this one gives up while the ranks start, because of
 * `culprit`; -1: of itself. */
void hpi_share_refuse(hp_world *world, int culprit);
/* The process that a rank's first message came from, as a pidfd that is the caller's; -1: unknown.
 */
int hpi_share_pidfd(hp_world *world, int from);

/* ---- directory.c: which slot of lines a group has ------------------------------------------ */

/* All on this node. `of`: a number of the larger group that this is the inner group of; 0: none. */
hp_status hpi_directory_join(hp_world *world, const int *world_ranks, int n_ranks, uint64_t of,
                             uint32_t *out_slot, uint64_t *out_base);
void hpi_directory_leave(hp_world *world, uint32_t slot);
/* Leave a group that this rank has joined and cannot take part in, because of `status`. */
void hpi_directory_refuse(hp_world *world, uint32_t slot, hp_status status);
/* The same of a group that this rank never created, though others of it wait there: MISMATCH. */
void hpi_directory_disown(hp_world *world, uint32_t slot);
/* The member that has refused, -1: none. */
int hpi_directory_refused(const hp_world *world, uint32_t slot, hp_status *out_status);
bool hpi_directory_has_joined(const hp_world *world, uint32_t slot, int world_rank);

/* ---- nodes.c --------------------------------------------------------------------------------- */

/* Say which ranks share memory with this one: first_of[i] is the first rank of rank i's node. NULL:
 * all do. */
hp_status hpi_world_place(hp_world *world, const int *first_of);
void hpi_world_unplace(hp_world *world);
/* Members with equal keys are on one node. */
hp_status hpi_nodes_make(const int *keys, int n_ranks, int rank, hpi_nodes **out_nodes);
void hpi_nodes_free(hpi_nodes *nodes);

/* ---- spanning.c: groups that span nodes ----------------------------------------------------- */

bool hpi_ranks_span(const hp_world *world, const int *world_ranks, int n_ranks);
/* Give a new group its nodes, its inner group, its tags. is_carried: each member is a node. */
hp_status hpi_spanning_open(hp_group *group, bool is_carried);
void hpi_spanning_close(hp_group *group);
/* The group of those that share memory, of a larger group which tells it from others of the same
 * ranks. */
hp_status hpi_group_create_inner(const hp_group *of, const int *world_ranks, int n_ranks,
                                 hp_group **out_inner);
hp_status hpi_spanning_exchange(hp_group *group, const char *operation, const uint64_t *words,
                                int n_words, uint64_t *out_words);
void hpi_lists_free(hp_world *world);

/* ---- groups ------------------------------------------------------------------------------- */

/* ---- failure.c ---- */

/* The member that it failed for first, else one that was told of that; -1: none. Then what it says:
 * its status, whose fault it was and why. `waited`: what this rank was doing. */
int hpi_group_find_failed(const hp_group *group);
hp_status hpi_group_told(const hp_group *group, int rank, const char *waited);
void hpi_group_say_destroyed(hp_group *group);
bool hpi_group_has_destroyed(const hp_group *group, int rank);

/* ---- chain.c ---- */

bool hpi_rank_is_stopped(const hp_world *world, int world_rank);
/* From the rank that has been waited for since begin_ns (in a group, or NULL) to the one that it
 * waits for itself, and so on: the last, who waits for nobody. `first` itself where they wait in a
 * ring. */
int hpi_chain_end(const hp_world *world, const hp_group *group, int first, uint64_t begin_ns);

/* ---- crossed.c ---- */

/* MISMATCH when the awaited rank waits for us in another call, or in a group that we are not in. */
typedef enum hpi_certainty {
    HPI_MAY_ACT, /* other threads of this process may yet create the group that is missing */
    HPI_IS_LONE, /* there are none */
    HPI_IS_LATE  /* the deadline has come: this wait fails now */
} hpi_certainty;
hp_status hpi_crossed_check(const hpi_reason *reason, hpi_certainty certainty);

/* "[0..3]", "[0..12 by 4]" or "[0,3,1,...]" behind a prefix. */
void hpi_name_ranks(const char *prefix, const int *ranks, int n_ranks, char *out_name, size_t size);

/* ---- where ranks and segments come from: who.c, hub.c, bootstrap.c ------------------------- */

typedef enum hpi_origin {
    HPI_ALONE,
    HPI_FROM_HUB,
    HPI_FROM_STORE,       /* the caller's */
    HPI_FROM_LAUNCHER,    /* hp_launch, hprun */
    HPI_FROM_ENVIRONMENT, /* torchrun's names */
    HPI_FROM_TRANSPORT    /* mpirun, srun */
} hpi_origin;

typedef struct hpi_identity {
    hpi_origin origin;
    int rank, n_ranks;
    int layout_version, store_fd, segment_fd; /* from a launcher */
} hpi_identity;
/* In a job of mpirun rank and n_ranks are for the transport to say: -1, or what they must be. */
hp_status hpi_who_are_we(const hp_world_config *config, const hpi_options *options,
                         hpi_identity *out_identity);

int hpi_hub_size(const hp_hub *hub);
hpi_control *hpi_hub_control(hp_hub *hub, int rank);
/* Take over the hub's mappings; they stay the hub's. */
hp_status hpi_hub_join(hp_world *world, hp_hub *hub);
/* Before the ranks join: those of each `ranks_per_node` share memory, and messages between threads
 * carry what goes between these nodes. For tests. */
hp_status hpi_hub_split(hp_hub *hub, int ranks_per_node);

/* Ranks that are processes: map every rank's segment and watch over its process. */
hp_status hpi_bootstrap(hp_world *world, const hpi_identity *identity);
/* The same where the ranks meet over the transport, and find out who shares memory. */
hp_status hpi_bootstrap_across(hp_world *world);
void hpi_bootstrap_close(hp_world *world);

#endif
