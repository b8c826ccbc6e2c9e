/* SPDX-License-Identifier: Apache-2.0
 *
 * nodes.c - which ranks share memory: of a world, and of a group.
 *
 * A node is a set of ranks that have found that they can share memory (start/across.c); no name of
 * a host and no variable of a launcher is believed. Nodes are numbered in the order of their first
 * ranks, members of a node keep their order: so every rank numbers alike.
 */
#include "inside.h"

/* ---- of a world ---------------------------------------------------------------------------- */

void hpi_world_unplace(hp_world *world) {
    hpi_free(world->node_of);
    hpi_free(world->place_of);
    hpi_free(world->local);
    world->node_of = world->place_of = world->local = NULL;
}

/* The ranks of each node are counted in `n_there`, by its first rank. */
static void place(hp_world *world, const int *first_of, int *n_there) {
    for (int i = 0; i < world->n_ranks; i++) {
        const int first = first_of ? first_of[i] : 0;
        world->node_of[i] = first == i ? world->n_nodes++ : world->node_of[first];
        world->place_of[i] = n_there[first]++;
    }
    for (int i = 0; i < world->n_ranks; i++)
        if (world->node_of[i] == world->node_of[world->rank])
            world->local[world->n_local++] = i;
}

hp_status hpi_world_place(hp_world *world, const int *first_of) {
    const size_t n = (size_t)world->n_ranks;
    hpi_world_unplace(world);
    world->n_nodes = world->n_local = 0;
    world->node_of = hpi_alloc(n, sizeof *world->node_of);
    world->place_of = hpi_alloc(n, sizeof *world->place_of);
    world->local = hpi_alloc(n, sizeof *world->local);
    int *n_there = hpi_alloc(n, sizeof *n_there);
    const bool has_room = world->node_of && world->place_of && world->local && n_there;
    if (has_room)
        place(world, first_of, n_there);
    hpi_free(n_there);
    return has_room ? HP_OK : HP_ERR_MEMORY;
}

/* ---- of a group ---------------------------------------------------------------------------- */

void hpi_nodes_free(hpi_nodes *nodes) {
    if (!nodes)
        return;
    hpi_free(nodes->node_of);
    hpi_free(nodes->place_of);
    hpi_free(nodes->begin);
    hpi_free(nodes->members);
    hpi_free(nodes);
}

static hpi_nodes *nodes_alloc(size_t n) {
    hpi_nodes *nodes = hpi_alloc(1, sizeof *nodes);
    if (!nodes)
        return NULL;
    nodes->node_of = hpi_alloc(n, sizeof *nodes->node_of);
    nodes->place_of = hpi_alloc(n, sizeof *nodes->place_of);
    nodes->begin = hpi_alloc(n + 1, sizeof *nodes->begin);
    nodes->members = hpi_alloc(n, sizeof *nodes->members);
    if (nodes->node_of && nodes->place_of && nodes->begin && nodes->members)
        return nodes;
    hpi_nodes_free(nodes);
    return NULL;
}

/* The number of member i's node: that of the first member on it, or a new one. */
static int number_of(const hpi_nodes *nodes, const int *keys, int i) {
    for (int k = 0; k < nodes->n; k++)
        if (keys[nodes->members[k]] == keys[i]) /* members holds each node's first, so far */
            return k;
    return nodes->n;
}

static void number_nodes(hpi_nodes *nodes, const int *keys, int n_ranks) {
    for (int i = 0; i < n_ranks; i++) {
        nodes->node_of[i] = number_of(nodes, keys, i);
        if (nodes->node_of[i] == nodes->n)
            nodes->members[nodes->n++] = i;
    }
}

static void list_members(hpi_nodes *nodes, int n_ranks) {
    int end = 0;
    for (int node = 0; node < nodes->n; node++) {
        nodes->begin[node] = end;
        for (int i = 0; i < n_ranks; i++) {
            if (nodes->node_of[i] != node)
                continue;
            nodes->place_of[i] = end - nodes->begin[node];
            nodes->members[end++] = i;
        }
    }
    nodes->begin[nodes->n] = end;
}

hp_status hpi_nodes_make(const int *keys, int n_ranks, int rank, hpi_nodes **out_nodes) {
    hpi_nodes *nodes = nodes_alloc((size_t)n_ranks);
    if (!nodes)
        return HP_ERR_MEMORY;
    number_nodes(nodes, keys, n_ranks);
    list_members(nodes, n_ranks);
    nodes->mine = nodes->node_of[rank];
    *out_nodes = nodes;
    return HP_OK;
}
