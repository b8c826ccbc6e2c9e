/* SPDX-License-Identifier: Apache-2.0
 *
 * place.c - from a plain pointer to the peers' copies of it, for the collectives.
 *
 * Only this rank's own blocks are looked through: a pointer into a peer's block is ordinary memory
 * to a collective. Readers run beside set-up calls, see table.h.
 */
#include "state.h"

static bool held_by_all(const hpi_block *b, const hp_group *group) {
    for (int i = 0; i < hp_group_size(group); i++)
        if (!b->at[hp_group_world_rank(group, i)])
            return false;
    return true;
}

bool hpi_symm_peers(hp_group *group, const void *pointer, uint64_t bytes,
                    unsigned char **out_peers) {
    hpi_symm_state *s = hpi_symm_state_find(hp_group_world(group));
    if (!s)
        return false;
    const hpi_block *b = hpi_snapshot_by_address(hpi_table_enter(&s->table), pointer, bytes);
    const bool found = b && held_by_all(b, group);
    for (int i = 0; found && i < hp_group_size(group); i++)
        out_peers[i] =
            b->at[hp_group_world_rank(group, i)] + ((const unsigned char *)pointer - b->base);
    hpi_table_leave(&s->table);
    return found;
}

hpi_place hpi_symm_place(hp_world *world, const void *pointer, uint64_t bytes) {
    hpi_place place = {0, 0};
    hpi_symm_state *s = hpi_symm_state_find(world);
    if (!s)
        return place;
    const hpi_block *b = hpi_snapshot_by_address(hpi_table_enter(&s->table), pointer, bytes);
    if (b)
        place = (hpi_place){b->key, (uint64_t)((const unsigned char *)pointer - b->base)};
    hpi_table_leave(&s->table);
    return place;
}

void *hpi_symm_at(hp_world *world, hpi_place place, int world_rank) {
    hpi_symm_state *s = hpi_symm_state_find(world);
    if (!s)
        return NULL;
    const hpi_block *b = hpi_snapshot_by_key(hpi_table_enter(&s->table), place.key);
    unsigned char *base = b ? b->at[world_rank] : NULL;
    hpi_table_leave(&s->table);
    return base && place.offset <= b->bytes ? base + place.offset : NULL;
}
