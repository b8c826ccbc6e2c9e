/* SPDX-License-Identifier: Apache-2.0
 *
 * symm/symm.h - the door of room `symm`: from a plain pointer to the peers' copies of it.
 */
#ifndef HPI_SYMM_H
#define HPI_SYMM_H

#include "../world/world.h"
#include <hyperparallel/symm.h>

/* Make what the look-ups below need. A thread calls it once before its first look-up, unless it
 * holds a handle; until then everything is ordinary memory. Errors: MEMORY, FORKED, FAILED. */
hp_status hpi_symm_begin(hp_world *world);

/* Is [pointer, pointer + bytes) inside a live allocation that all members of `group` hold? Then
 * out_peers[i], i in [0, group size), is the same place in group rank i's block as seen from here,
 * provided that every member passes the same place; else false. No lock, no allocation. */
bool hpi_symm_peers(hp_group *group, const void *pointer, uint64_t bytes,
                    unsigned char **out_peers);

/* The allocation around a pointer and the offset in it, so that ranks can tell each other where
 * their operand lies: {key, offset}, key 0 when the memory is ordinary. The key is equal on all
 * members of the allocation. */
typedef struct hpi_place {
    uint64_t key, offset;
} hpi_place;
hpi_place hpi_symm_place(hp_world *world, const void *pointer, uint64_t bytes);
/* The other way: where `place` of world rank `world_rank` is seen here; NULL when it is not shared
 * with us. Any thread. */
void *hpi_symm_at(hp_world *world, hpi_place place, int world_rank);

/* hp_symm_alloc for a caller that holds `group` (hpi_group_enter), as a collective does. */
hp_status hpi_symm_alloc_inside(hp_group *group, uint64_t bytes, uint64_t alignment,
                                hp_symm *out_memory);
/* hp_symm_free without the others: the caller knows that no member reaches for this rank's block
 * any more. All-zero handle: nothing. */
void hpi_symm_drop(hp_symm memory);

/* Memory of this rank that it takes without the others, zeroed and aligned to 128: it lies at
 * out_offset of the rank's segment (hpi_world_segment), and whom to tell is the caller's business.
 * give takes the same bytes and cannot fail; nobody may reach for it any more. Threads: any.
 * Errors: LIMIT, MEMORY. */
hp_status hpi_symm_take(hp_world *world, uint64_t bytes, uint64_t *out_offset);
void hpi_symm_give(hp_world *world, uint64_t offset, uint64_t bytes);

/* Freed blocks are filled with 0xdb from now on, so that a use after free shows. For tests. */
hp_status hpi_symm_poison(hp_world *world, bool is_on);

#endif
