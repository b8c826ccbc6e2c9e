/* SPDX-License-Identifier: Apache-2.0
 *
 * symm/table.h - the live blocks of a rank, found by key or by address without a lock.
 *
 * Readers (stream threads, put and get from any thread) search an immutable snapshot; a writer
 * builds the next one and publishes it. A read-write lock would do as well, but a reader must never
 * wait for a set-up call that is itself waiting for memory. Writers hold the state's lock.
 */
#ifndef HPI_TABLE_H
#define HPI_TABLE_H

#include "../world/world.h"

/* One allocation as this rank sees it. Immutable once published, but for is_dead. */
typedef struct hpi_block {
    uint64_t key;        /* the handle's id, equal on all members */
    uint64_t bytes;      /* of one member's block, as asked for */
    uint64_t offset;     /* of this rank's block in its segment; 0 when spanning */
    unsigned char *base; /* this rank's block */
    hp_group *group;     /* that it was allocated over */
    void *map;           /* the mapping of a spanning block, else NULL */
    int n_members;
    int *members;       /* [n_members], world ranks by group rank */
    unsigned char **at; /* [world size], blocks as seen here, by world rank; NULL: no member */
    _Atomic uint32_t is_dead;
    struct hpi_block *next_purged;
} hpi_block;

typedef struct hpi_snapshot {
    struct hpi_snapshot *next_retired;
    hpi_block *purged; /* blocks that the next snapshot left out */
    uint32_t n;
    hpi_block **by_key, **by_base; /* [n] each, sorted */
} hpi_snapshot;

typedef struct hpi_table {
    _Atomic(hpi_snapshot *) now; /* NULL: empty */
    _Atomic uint64_t n_readers;
    hpi_snapshot *retired; /* writers only */
} hpi_table;

/* Between enter and leave no snapshot and no block is freed. Threads: any. */
const hpi_snapshot *hpi_table_enter(hpi_table *table);
void hpi_table_leave(hpi_table *table);
/* NULL: no live block has this key; no live block of this rank holds all of the range. */
const hpi_block *hpi_snapshot_by_key(const hpi_snapshot *snapshot, uint64_t key);
const hpi_block *hpi_snapshot_by_address(const hpi_snapshot *snapshot, const void *pointer,
                                         uint64_t bytes);

/* Takes the block over. Errors: MEMORY. */
hp_status hpi_table_insert(hpi_table *table, hpi_block *block);
/* Every later search misses it; its memory goes with a later insert. Cannot fail. */
void hpi_block_kill(hpi_block *block);
void hpi_table_fini(hpi_table *table);

hpi_block *hpi_block_make(const hp_group *group);
void hpi_block_free(hpi_block *block);

#endif
