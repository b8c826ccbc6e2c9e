/* SPDX-License-Identifier: Apache-2.0
 *
 * symm.h - symmetric memory: memory of one rank that every rank of its node reads and writes.
 *
 * An allocation is collective over a group; each member gets its own block of the same size. Data
 * moves by put and get or by plain loads and stores through hp_symm_pointer, with no rendezvous and
 * no intermediate copy; signals order it: what was put before a signal is visible to whoever has
 * waited for that signal (release / acquire).
 *
 * Offsets and sizes are bytes. Ranks in a call are numbers in `group`; group NULL means the group
 * that the memory was allocated over. A rank that is not on this node is refused by name.
 */
#ifndef HYPERPARALLEL_SYMM_H
#define HYPERPARALLEL_SYMM_H

#include <hyperparallel/base.h>
#include <hyperparallel/stream.h>
#include <hyperparallel/world.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* A handle, passed by value. The id is never used again in its world: a stale, foreign or freed
 * handle is HP_ERR_HANDLE in every call, as long as that world lives. All-zero is no memory. */
typedef struct hp_symm {
    hp_world *world;
    uint64_t id;
} hp_symm;

typedef enum hp_signal_op { HP_SIGNAL_SET = 0, HP_SIGNAL_ADD = 1 } hp_signal_op;

typedef struct hp_symm_stats {
    uint64_t allocated_bytes; /* of this rank, now */
    uint64_t peak_bytes;      /* the most there ever was */
    uint64_t free_bytes;      /* of the reservation */
    uint64_t n_allocations;   /* alive */
    uint64_t message_bytes;   /* of allocated_bytes: what collectives and messages have taken */
} hp_symm_stats;

/* Take `bytes` on every member of `group` (NULL: the world), zeroed, aligned to `alignment` (a
 * power of two up to 4096; 0: 64). Members may lie at different offsets; groups may allocate in any
 * order. Collective over the group. Owns: the caller. Where the group spans nodes there is a block
 * on every rank, and the calls below reach those of this node; of another: UNSUPPORTED, naming both
 * hosts.
 * Errors: MISMATCH naming ranks and sizes, LIMIT with the machine's numbers, ARGUMENT, PEER. */
HP_MUST_CHECK hp_status hp_symm_alloc(hp_world *world, hp_group *group, uint64_t bytes,
                                      uint64_t alignment, hp_symm *out_memory);

/* One flat range for a group: rank i owns bytes [i * bytes_per_rank, (i + 1) * bytes_per_rank) and
 * every member sees all of it (hp_symm_pointer of rank i points at its part; the parts are
 * adjacent). bytes_per_rank must be a multiple of 64. Collective. Errors: as of hp_symm_alloc;
 * UNSUPPORTED where the group spans nodes. */
HP_MUST_CHECK hp_status hp_symm_alloc_spanning(hp_world *world, hp_group *group,
                                               uint64_t bytes_per_rank, hp_symm *out_memory);

/* Give it back. Collective over the group it was allocated over, which is destroyed after it:
 * returns when every member has come. So no member is inside a call on it any more, if each has
 * finished those of its other threads and streams before. All-zero handle: HP_OK. */
HP_MUST_CHECK hp_status hp_symm_free(hp_symm memory);

/* Copy `bytes` from `source` (ordinary or symmetric) to offset `offset` of `rank`'s block. The
 * source may be reused on return. Zero bytes: checked, then nothing. Threads: any, on disjoint
 * ranges. Errors: HANDLE, ARGUMENT naming size and range. */
HP_MUST_CHECK hp_status hp_symm_put(hp_symm memory, uint64_t offset, const void *source,
                                    uint64_t bytes, int rank, hp_group *group);
/* Copy from `rank`'s block to `target`. */
HP_MUST_CHECK hp_status hp_symm_get(void *target, hp_symm memory, uint64_t offset, uint64_t bytes,
                                    int rank, hp_group *group);

/* Set, or add to, the 64-bit word at `offset` (a multiple of 8) of `rank`'s block, with release
 * order, and wake it. Threads: any. */
HP_MUST_CHECK hp_status hp_symm_signal(hp_symm memory, uint64_t offset, hp_signal_op op,
                                       uint64_t value, int rank, hp_group *group);
/* hp_symm_put, then hp_symm_signal on `signal` at `signal_offset` of the same rank. */
HP_MUST_CHECK hp_status hp_symm_put_signal(hp_symm memory, uint64_t offset, const void *source,
                                           uint64_t bytes, hp_symm signal, uint64_t signal_offset,
                                           hp_signal_op op, uint64_t value, int rank,
                                           hp_group *group);
/* Wait until this rank's own word at `offset` compares with `value`, acquire order. timeout_ms 0:
 * the option's. Errors: TIMEOUT naming who is stopped or has left, PEER (a member died, or all
 * others have left), HANDLE, ARGUMENT. */
HP_MUST_CHECK hp_status hp_symm_wait(hp_symm memory, uint64_t offset, hp_compare compare,
                                     uint64_t value, uint64_t timeout_ms);

/* The calls above in their full form: blocking, or put on a stream (then arguments are checked at
 * once, and `source` and `target` belong to the call until it has run). Fields that a call does not
 * name are not looked at. */
typedef enum hp_symm_what {
    HP_SYMM_PUT = 0,        /* memory offset source bytes rank group */
    HP_SYMM_GET = 1,        /* target memory offset bytes rank group */
    HP_SYMM_SIGNAL = 2,     /* signal signal_offset op value rank group */
    HP_SYMM_PUT_SIGNAL = 3, /* all of both */
    HP_SYMM_WAIT = 4        /* signal signal_offset compare value timeout_ms */
} hp_symm_what;
typedef struct hp_symm_call {
    size_t size; /* sizeof(hp_symm_call) */
    hp_symm_what what;
    hp_symm memory;
    uint64_t offset;
    const void *source;
    void *target;
    uint64_t bytes;
    hp_symm signal;
    uint64_t signal_offset;
    hp_signal_op op;
    hp_compare compare;
    uint64_t value;
    uint64_t timeout_ms;
    int rank;
    hp_group *group;
    hp_stream *stream; /* NULL: returns when it is done */
} hp_symm_call;
#define HP_SYMM_CALL_INIT                                                                          \
    {                                                                                              \
        sizeof(hp_symm_call), HP_SYMM_PUT, {0, 0}, 0, 0, 0, 0, {0, 0}, 0, HP_SIGNAL_SET, HP_EQ, 0, \
            0, 0, 0, 0                                                                             \
    }
HP_MUST_CHECK hp_status hp_symm_run(const hp_symm_call *call);

/* Where `rank`'s block lies in this process; valid until the free. */
HP_MUST_CHECK hp_status hp_symm_pointer(hp_symm memory, int rank, hp_group *group,
                                        void **out_pointer);
HP_MUST_CHECK hp_status hp_symm_stats_get(const hp_world *world, hp_symm_stats *out_stats);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
