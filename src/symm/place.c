/* SPDX-License-Identifier: Apache-2.0
 *
 * place.c - from a plain pointer to the peers' copies of it, for the collectives.
 *
 * Only this rank's own blocks are looked through: a pointer into a peer's block is ordinary memory
 * to a collective. Readers run beside set-up calls, see table.h.
 */
#include "state.h"

/* Where all members of `group` see the block, at `offset`; false: one of them does not hold it. */
static bool find_peers(const hpi_block *b, const hp_group *group, uint64_t offset,
                       unsigned char **out_peers) {
    for (int i = 0; i < hp_group_size(group); i++) {
        unsigned char *at = HPI_READ(b->at[hp_group_world_rank(group, i)]);
        if (!at)
            return false;
        out_peers[i] = at + offset;
    }
    return true;
}

static uint64_t offset_in(const hpi_block *b, const void *pointer) {
    return (uint64_t)((const unsigned char *)pointer - HPI_READ(b->base));
}

bool hpi_symm_peers(hp_group *group, const void *pointer, uint64_t bytes,
                    unsigned char **out_peers) {
    hpi_symm_state *s = hpi_symm_state_find(hp_group_world(group));
    hpi_look look;
    bool is_found;
    if (!s)
        return false;
    do {
        look = hpi_table_look(&s->table);
        const hpi_block *b = hpi_look_by_address(look, pointer, bytes);
        is_found = b && find_peers(b, group, offset_in(b, pointer), out_peers);
    } while (!hpi_look_holds(look));
    return is_found;
}

hpi_place hpi_symm_place(hp_world *world, const void *pointer, uint64_t bytes) {
    hpi_symm_state *s = hpi_symm_state_find(world);
    hpi_place place = {0, 0};
    hpi_look look;
    if (!s)
        return place;
    do {
        look = hpi_table_look(&s->table);
        const hpi_block *b = hpi_look_by_address(look, pointer, bytes);
        place = b ? (hpi_place){HPI_READ(b->key), offset_in(b, pointer)} : (hpi_place){0, 0};
    } while (!hpi_look_holds(look));
    return place;
}

void *hpi_symm_at(hp_world *world, hpi_place place, int world_rank) {
    hpi_symm_state *s = hpi_symm_state_find(world);
    unsigned char *base;
    hpi_look look;
    if (!s)
        return NULL;
    do {
        look = hpi_table_look(&s->table);
        const hpi_block *b = hpi_look_by_key(look, place.key);
        base = b && place.offset <= HPI_READ(b->bytes) ? HPI_READ(b->at[world_rank]) : NULL;
    } while (!hpi_look_holds(look));
    return base ? base + place.offset : NULL;
}
