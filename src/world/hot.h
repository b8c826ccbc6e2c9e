/* SPDX-License-Identifier: Apache-2.0
 *
 * world/hot.h - what every call asks of its world and its group, inline: part of the door.
 *
 * A small collective takes as long as two cores need to exchange a line, some 40 ns; a function in
 * another file that is called for one load takes 2. The structs stand here for these functions
 * alone: other rooms touch no field of them. What goes wrong is told by functions that are called.
 */
#ifndef HPI_HOT_H
#define HPI_HOT_H

#define HPI_LIKELY(condition) __builtin_expect(!!(condition), 1)
/* A public function of another file once more, for the compiler to put into its callers. */
#define HPI_AGAIN extern inline __attribute__((gnu_inline))

typedef struct hpi_segment {
    int fd; /* memfd; -1 when only the mapping is kept */
    unsigned char *base;
    uint64_t bytes; /* of the whole mapping */
} hpi_segment;

typedef struct hpi_attachment {
    _Atomic(void *) state;        /* whole when it is there: release, acquire */
    void (*destroy)(void *state); /* looked at when no call runs any more */
} hpi_attachment;

typedef struct hpi_share hpi_share;         /* share.c: passing descriptors between processes */
typedef struct hpi_lists hpi_lists;         /* spanning.c: which lists of members had groups */
typedef struct hpi_heartbeat hpi_heartbeat; /* heartbeat.c: what nodes tell each other */

struct hp_world {
    int rank, n_ranks;
    int n_local, n_nodes; /* nodes are numbered in the order of their first ranks */
    int *local;           /* [n_local] the ranks of this node, rising */
    int *node_of;         /* [n_ranks] */
    int *place_of;        /* [n_ranks] among the ranks of its node */
    hpi_options options;
    hpi_journal *journal; /* NULL until the rank is known */
    hp_hub *hub;          /* of thread ranks; NULL for processes */
    bool owns_hub;        /* a world of one has a hub for itself */
    bool can_spin;        /* each local rank has a core: the same on all of them */
    uint64_t generation;
    hpi_segment *segments; /* [n_ranks]; HPI_SEGMENT_NONE of ranks of other nodes */
    _Atomic bool *is_gone; /* [n_ranks] its process has ended */
    _Atomic bool is_launcher_gone;
    int epoll_fd;                 /* pidfds of the peers, the launcher's socket; -1 for threads */
    int *pidfds;                  /* [n_ranks] */
    volatile char *fork_page;     /* reads 0 in a child process */
    const _Atomic uint64_t *life; /* of this rank's control block ... */
    uint64_t life_if_dead;        /* ... and what it reads when this rank was given up */
    hp_store store;
    hpi_share *share;
    hpi_transport *transport; /* NULL: none was opened */
    hpi_lists *lists;
    hpi_heartbeat *heartbeat; /* of a node's first rank, where there are several nodes */
    hp_group *group;
    hpi_attachment attached[HPI_N_SLOTS];
};

enum { HPI_GROUP_NAME_BYTES = 32 };
enum { HPI_FAILED_NO, HPI_FAILED_WRITING, HPI_FAILED_YES /* error holds the record */ };
struct hp_group {
    hp_world *world;
    char name[HPI_GROUP_NAME_BYTES];
    int rank, size;
    int *world_ranks;        /* [size] */
    hpi_nodes *nodes;        /* NULL: all members share memory */
    hp_group *inner;         /* where they do not: those of this node, with lines of their own */
    uint64_t tag, check;     /* ... and by what messages of this group are known */
    hpi_line **lines;        /* [size], HPI_N_LINES each, and the ring behind them */
    unsigned char **pockets; /* [size] */
    uint32_t slot;
    uint64_t base;
    uint64_t n_exchanges;
    uint64_t n_fused; /* fused products that this rank has come to */
    _Atomic bool is_busy;
    _Atomic(const char *) call; /* the last that entered, a literal */
    _Atomic int failed;         /* HPI_FAILED_NO ... */
    hp_error error;
    _Atomic uint64_t timeout_ms; /* of its waits; 0: the option's */
    hpi_attachment attached[HPI_N_SLOTS];
};

/* ---- a world ------------------------------------------------------------------------------ */

/* Why this process takes no part any more, for hpi_world_usable. */
hp_status hpi_world_tell_unusable(const hp_world *world);

/* HP_ERR_FORKED in a child process, HP_ERR_FAILED after a fatal error, else HP_OK. */
static inline hp_status hpi_world_usable(const hp_world *world) {
    return HPI_LIKELY(world->fork_page[0] &&
                      atomic_load_explicit(world->life, memory_order_acquire) !=
                          world->life_if_dead)
               ? HP_OK
               : hpi_world_tell_unusable(world);
}

/* Where this rank tells of its calls; NULL: of no world. */
static inline hpi_journal *hpi_world_journal(const hp_world *world) {
    return world ? world->journal : NULL;
}
static inline const hpi_options *hpi_world_options(const hp_world *world) {
    return &world->options;
}
static inline void *hpi_world_attached(const hp_world *world, int slot) {
    return atomic_load_explicit(&world->attached[slot].state, memory_order_acquire);
}
/* Has each local rank a core of its own? The same answer on every rank, whatever cores each may
 * use: what ranks must choose alike may hang on it. */
static inline bool hpi_world_can_spin(const hp_world *world) {
    return world->can_spin;
}
HPI_AGAIN int hp_world_rank(const hp_world *world) {
    return world->rank;
}

/* ---- a group ------------------------------------------------------------------------------ */

HPI_AGAIN int hp_group_rank(const hp_group *group) {
    return group->rank;
}
HPI_AGAIN int hp_group_size(const hp_group *group) {
    return group->size;
}
HPI_AGAIN hp_world *hp_group_world(const hp_group *group) {
    return group->world;
}
HPI_AGAIN int hp_group_world_rank(const hp_group *group, int rank) {
    return rank >= 0 && rank < group->size ? group->world_ranks[rank] : -1;
}
/* Id of the group in reports and error texts: "world", "shard[0..3]" ... */
static inline const char *hpi_group_name(const hp_group *group) {
    return group->name;
}
/* The longest wait for another rank in calls of the group; NULL: in other calls. */
static inline uint64_t hpi_timeout_ms(const hp_world *world, const hp_group *group) {
    const uint64_t own_ms =
        group ? atomic_load_explicit(&group->timeout_ms, memory_order_relaxed) : 0;
    return own_ms ? own_ms : world->options.signal_timeout_ms;
}
/* NULL: all members share memory, and nothing asks for the transport. */
static inline const hpi_nodes *hpi_group_nodes(const hp_group *group) {
    return group->nodes;
}
/* The members on this rank's node, in the order of the group, as a group that shares memory. */
static inline hp_group *hpi_group_inner(hp_group *group) {
    return group->nodes ? group->inner : group;
}
/* A number that is the same on every member, and another one for almost every other group. */
static inline uint64_t hpi_group_check_number(const hp_group *group) {
    return group->check;
}
static inline void *hpi_group_attached(const hp_group *group, int slot) {
    return atomic_load_explicit(&group->attached[slot].state, memory_order_acquire);
}

/* What hpi_group_check and hpi_group_enter are about to return. */
hp_status hpi_group_tell_failed(const hp_group *group);
hp_status hpi_group_tell_busy(const hp_group *group, const char *call);

/* The failed group's record as this thread's, else HP_OK. */
static inline hp_status hpi_group_check(const hp_group *group) {
    return HPI_LIKELY(atomic_load_explicit(&group->failed, memory_order_acquire) != HPI_FAILED_YES)
               ? HP_OK
               : hpi_group_tell_failed(group);
}

/* One thread at a time: BUSY for a second one. */
static inline hp_status hpi_group_enter(hp_group *group, const char *call) {
    bool is_busy = false;
    HP_TRY(hpi_world_usable(group->world));
    HP_TRY(hpi_group_check(group));
    if (!HPI_LIKELY(atomic_compare_exchange_strong_explicit(
            &group->is_busy, &is_busy, true, memory_order_acquire, memory_order_relaxed)))
        return hpi_group_tell_busy(group, call);
    atomic_store_explicit(&group->call, call, memory_order_relaxed);
    return HP_OK;
}
static inline void hpi_group_leave(hp_group *group) {
    atomic_store_explicit(&group->is_busy, false, memory_order_release);
}

/* ---- its lines ---------------------------------------------------------------------------- */

/* The line of group rank `rank` on a channel: own lines are written, others are read. */
static inline hpi_line *hpi_group_line(const hp_group *group, int rank, int channel) {
    return &group->lines[rank][channel];
}

/* Where `rank`'s pocket of an even or odd number is seen here; 64-byte aligned. */
static inline unsigned char *hpi_group_pocket(const hp_group *group, int rank, uint64_t number) {
    return group->pockets[rank] + (number & 1) * HPI_POCKET_BYTES;
}

/* Has `rank` posted seq? (acquire) */
static inline bool hpi_line_reached(const hp_group *group, int rank, int channel, uint64_t seq) {
    const hpi_line *line = hpi_group_line(group, rank, channel);
    const uint64_t value = atomic_load_explicit(&line->value, memory_order_acquire);
    return !seq || (int64_t)(value - (group->base + seq)) >= 0; /* as HPI_REACHED compares */
}

/* The furthest number that `rank` has posted on a channel. (acquire) */
static inline uint64_t hpi_line_seq(const hp_group *group, int rank, int channel) {
    const hpi_line *line = hpi_group_line(group, rank, channel);
    const uint64_t seq = atomic_load_explicit(&line->value, memory_order_acquire) - group->base;
    return (int64_t)seq > 0 ? seq : 0; /* an earlier group may have left it below the base */
}

/* Publish where hardly anybody waits: nobody is woken, so a sleeper finds it at the end of its
 * slice. */
static inline void hpi_line_put(hp_group *group, int channel, uint64_t seq) {
    atomic_store_explicit(&hpi_group_line(group, group->rank, channel)->value, group->base + seq,
                          memory_order_release); /* acquired by hpi_line_reached */
}

/* Where number k lies in the ring: k's bits turned round, so that processors that see one entry
 * read do not fetch the next one, which its owner is about to write. */
static inline uint64_t hpi_said_place(uint64_t seq) {
    static const uint8_t places[HPI_N_SAID] = {
        0,  32, 16, 48, 8,  40, 24, 56, 4,  36, 20, 52, 12, 44, 28, 60, 2,  34, 18, 50, 10, 42,
        26, 58, 6,  38, 22, 54, 14, 46, 30, 62, 1,  33, 17, 49, 9,  41, 25, 57, 5,  37, 21, 53,
        13, 45, 29, 61, 3,  35, 19, 51, 11, 43, 27, 59, 7,  39, 23, 55, 15, 47, 31, 63};
    return places[seq % HPI_N_SAID];
}

/* The entry in which `rank` says number seq; own ones are written. */
static inline hpi_said *hpi_group_said(const hp_group *group, int rank, uint64_t seq) {
    return (hpi_said *)(void *)hpi_group_line(group, rank, HPI_N_LINES) + hpi_said_place(seq);
}

static inline bool hpi_said_is_there(const hp_group *group, int rank, uint64_t seq) { /* acquire */
    return atomic_load_explicit(&hpi_group_said(group, rank, seq)->value, memory_order_acquire) ==
           group->base + seq;
}

#endif
