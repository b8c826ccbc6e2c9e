/* SPDX-License-Identifier: Apache-2.0
 *
 * symm/state.h - what room `symm` hangs on a world: this rank's heap and the table of its blocks.
 */
#ifndef HPI_SYMM_STATE_H
#define HPI_SYMM_STATE_H

#include "heap.h"
#include "symm.h"
#include "table.h"

#include <pthread.h>

typedef struct hpi_symm_state {
    hp_world *world;
    unsigned char *segment; /* this rank's own */
    pthread_mutex_t lock;   /* of everything below; the table's readers do without */
    hpi_heap heap;
    hpi_table table;
    uint64_t n_keys;          /* keys this rank has given out as first of a group */
    uint64_t committed_bytes; /* [0, committed) of the segment cannot fault any more */
    uint64_t spanning_bytes;  /* this rank's part of all spanning blocks */
    uint64_t own_bytes;       /* of the heap, what this rank took without the others */
    uint64_t peak_bytes, n_allocations;
    bool is_poisoning;
} hpi_symm_state;

/* Made at the first call on a world. Errors: HANDLE (no world), FORKED, FAILED, MEMORY. */
hp_status hpi_symm_state_get(hp_world *world, hpi_symm_state **out_state);
/* Bytes of a place in the heap that were never committed. Locked. */
uint64_t hpi_symm_fresh_bytes(const hpi_symm_state *s, uint64_t offset, uint64_t bytes);
/* Make a place usable: commit what is fresh, zero what was used before. Takes the lock. */
hp_status hpi_symm_commit(hpi_symm_state *s, uint64_t offset, uint64_t bytes);
/* NULL when nothing was ever allocated. */
static inline hpi_symm_state *hpi_symm_state_find(const hp_world *world) {
    return hpi_world_attached(world, HPI_SLOT_SYMM);
}

#endif
