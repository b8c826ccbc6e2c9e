/* SPDX-License-Identifier: Apache-2.0
 *
 * symm/table.h - the live blocks of a rank, found by key or by address without a lock.
 *
 * Readers (stream threads, put and get from any thread) search a snapshot and write nothing, since
 * a locked instruction costs as much as a short put. A writer fills another snapshot, publishes it
 * and makes the old one void: a reader that ends in a void one looks again. So it never waits for a
 * set-up call that is itself waiting for memory. Snapshots and blocks are used again, and freed
 * with the table alone, so a reader that is late reads what is old or torn, never what is not
 * there; therefore all that readers read is atomic. Writers hold the state's lock. Source: Boehm,
 * Can Seqlocks Get Along With Programming Language Memory Models?, 2012: loads that acquire.
 */
#ifndef HPI_TABLE_H
#define HPI_TABLE_H

#include "../world/world.h"

/* For what a reader may read while it is filled anew: from the first word that is new on it sees
 * that the snapshot is void. */
#define HPI_READ(object) atomic_load_explicit(&(object), memory_order_acquire)
#define HPI_FILL(object, value) atomic_store_explicit(&(object), (value), memory_order_release)

/* One allocation as this rank sees it. Filled once before it is published, but for is_dead. */
typedef struct hpi_block {
    _Atomic uint64_t key;          /* the handle's id, equal on all members */
    _Atomic uint64_t bytes;        /* of one member's block, as asked for */
    _Atomic(unsigned char *) base; /* this rank's block */
    _Atomic(hp_group *) group;     /* that it was allocated over */
    _Atomic uint32_t n_members;    /* <= world size */
    _Atomic uint32_t is_dead;      /* no search finds it any more */
    _Atomic int *members;          /* [world size], the first n_members are world ranks */
    uint64_t offset;               /* writers: of this rank's block in its segment, or 0 */
    void *map;                     /* writers: the mapping of a spanning block, else NULL */
    struct hpi_block *next;        /* writers: of those that are free */
    _Atomic(unsigned char *) at[]; /* [world size], blocks as seen here; NULL: no member */
} hpi_block;

/* `name` is the block's key, or its base. */
typedef struct hpi_entry {
    _Atomic uint64_t name;
    _Atomic(hpi_block *) block;
} hpi_entry;

typedef struct hpi_snapshot {
    _Atomic uint64_t version; /* odd: void */
    _Atomic uint32_t n;
    uint32_t capacity;
    hpi_entry *by_key, *by_base;  /* [capacity] each, n of them sorted by name */
    struct hpi_snapshot *next;    /* writers: of those that are too small */
    uint64_t mask;                /* of slots: a power of two, less one; more than half are empty */
    _Atomic(hpi_block *) slots[]; /* a block lies in the first free one from that of its key on */
} hpi_snapshot;

typedef struct hpi_table {
    _Atomic(hpi_snapshot *) now; /* NULL: empty */
    hpi_snapshot *spare;         /* void, like all but `now`; NULL: none */
    hpi_snapshot *small;         /* what has become too small */
    hpi_block *free;
} hpi_table;

/* What was found, and read in a block, between look and hold counts if it holds; else do it again:
 *     do look = hpi_table_look(table), ... while (!hpi_look_holds(look)); Threads: any. */
typedef struct hpi_look {
    const hpi_snapshot *snapshot;
    uint64_t version;
} hpi_look;

static inline hpi_look hpi_table_look(const hpi_table *table) {
    const hpi_snapshot *s = HPI_READ(table->now);
    return (hpi_look){s, s ? HPI_READ(s->version) : 0};
}
static inline bool hpi_look_holds(hpi_look look) {
    return !look.snapshot ||
           (look.version % 2 == 0 &&
            atomic_load_explicit(&look.snapshot->version, memory_order_relaxed) == look.version);
}
/* Keys of one rank count up from a multiple of 2^40, see alloc.c. */
static inline uint64_t hpi_slot_of(uint64_t key) {
    return key + (key >> 40);
}
/* NULL: no live block has this key; no live block of this rank holds all of the range. */
static inline const hpi_block *hpi_look_by_key(hpi_look look, uint64_t key) {
    const hpi_snapshot *s = look.snapshot;
    for (uint64_t i = 0; s && i <= s->mask; i++) {
        const hpi_block *b = HPI_READ(s->slots[(hpi_slot_of(key) + i) & s->mask]);
        if (!b || HPI_READ(b->key) == key)
            return b && !HPI_READ(b->is_dead) ? b : NULL;
    }
    return NULL;
}
const hpi_block *hpi_look_by_address(hpi_look look, const void *pointer, uint64_t bytes);

/* A block for a member of `group`: names and places are the caller's to fill. Given back, or NULL,
 * to free while nobody has seen it. Errors: NULL where there is no memory. */
hpi_block *hpi_block_make(hpi_table *table, hp_group *group);
void hpi_block_free(hpi_table *table, hpi_block *block);
/* Takes the block over. Errors: MEMORY. */
hp_status hpi_table_insert(hpi_table *table, hpi_block *block);
/* Every later search misses it; it is used again after a later insert. Cannot fail. */
void hpi_block_kill(hpi_block *block);
void hpi_table_fini(hpi_table *table);

#endif
