/* SPDX-License-Identifier: Apache-2.0
 *
 * symm/symm.h - the door of room `symm`: from a plain pointer to the peers' copies of it.
 */
#ifndef HPI_SYMM_H
#define HPI_SYMM_H

#include "../world/world.h"
#include <hyperparallel/symm.h>

/* Is [pointer, pointer + bytes) inside a live allocation that all members of `group` hold? Then
 * out_peers[i], i in [0, group size), is the same place in group rank i's block as seen from here,
 * provided that every member passes the same place; else false. No lock, no allocation. */
bool hpi_symm_peers(hp_group *group, const void *pointer, uint64_t bytes, unsigned char **out_peers);

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

#endif
