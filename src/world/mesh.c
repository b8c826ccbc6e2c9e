/* SPDX-License-Identifier: Apache-2.0
 *
 * mesh.c - a row-major mesh over the world, one group per dimension.
 *
 * The ranks agree on the sizes first, over the world's set-up lines, so that a mesh that differs
 * between ranks is an error that names them instead of groups that never meet.
 */
#include "inside.h"

#include <stdio.h>

enum { MAX_MESH_DIMS = 8, SIZES_TEXT_BYTES = 96 };

struct hp_mesh {
    hp_world *world;
    int n_dims;
    int sizes[MAX_MESH_DIMS], coordinates[MAX_MESH_DIMS], strides[MAX_MESH_DIMS];
    hp_group *groups[MAX_MESH_DIMS];
};

static void sizes_text(const uint64_t *sizes, int n_dims, char *text, size_t size) {
    size_t length = 0;
    *text = '\0';
    for (int i = 0; i < n_dims && length + 1 < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%llu", i ? "x" : "",
                                   (unsigned long long)sizes[i]);
}

static hp_status check_sizes(const hp_world *world, const int *sizes, int n_dims) {
    uint64_t words[MAX_MESH_DIMS], product = 1;
    char text[SIZES_TEXT_BYTES];
    for (int i = 0; i < n_dims; i++) {
        if (sizes[i] < 1)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected mesh sizes of at least 1, given %d in "
                            "dimension %d",
                            sizes[i], i);
        words[i] = (uint64_t)sizes[i];
        if (!hpi_multiply(product, words[i], &product))
            product = UINT64_MAX / (uint64_t)INT32_MAX; /* too large, and stays so */
    }
    sizes_text(words, n_dims, text, sizeof text);
    if (product != (uint64_t)world->n_ranks)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected mesh sizes that multiply to the world's %d ranks, "
                        "given %s",
                        world->n_ranks, text);
    return HP_OK;
}

/* word 0: n_dims, then the sizes */
static hp_status compare_sizes(const hp_world *world, const uint64_t *all, int n_words) {
    const uint64_t *mine = all + world->rank * n_words;
    for (int i = 0; i < world->n_ranks; i++) {
        const uint64_t *theirs = all + i * n_words;
        char a[SIZES_TEXT_BYTES], b[SIZES_TEXT_BYTES];
        if (!memcmp(mine, theirs, (size_t)n_words * sizeof *mine))
            continue;
        sizes_text(mine + 1, (int)mine[0], a, sizeof a);
        sizes_text(theirs + 1, (int)hpi_min(theirs[0], MAX_MESH_DIMS), b, sizeof b);
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, i,
                             "expected one mesh, rank %d gives %s and rank %d "
                             "gives %s",
                             world->rank, a, i, b);
    }
    return HP_OK;
}

static hp_status agree_sizes(hp_world *world, const hp_mesh *mesh) {
    enum { N_WORDS = 1 + MAX_MESH_DIMS };
    uint64_t words[N_WORDS] = {(uint64_t)mesh->n_dims};
    for (int i = 0; i < mesh->n_dims; i++)
        words[1 + i] = (uint64_t)mesh->sizes[i];
    uint64_t *all = hpi_alloc((size_t)world->n_ranks, sizeof words);
    if (!all)
        return HP_ERR_MEMORY;
    hp_status status = hpi_group_enter(world->group, "hp_mesh_create");
    if (!status) {
        status = hpi_group_exchange(world->group, "mesh_create", words, N_WORDS, all);
        hpi_group_leave(world->group);
    }
    if (!status)
        status = compare_sizes(world, all, N_WORDS);
    hpi_free(all);
    return status;
}

static void find_place(hp_mesh *mesh) {
    int stride = 1;
    for (int i = mesh->n_dims - 1; i >= 0; i--) {
        mesh->strides[i] = stride;
        mesh->coordinates[i] = mesh->world->rank / stride % mesh->sizes[i];
        stride *= mesh->sizes[i];
    }
}

/* The ranks that differ from this one in coordinate `dim` alone. */
static hp_status create_dim(hp_mesh *mesh, int dim) {
    char prefix[16], name[HPI_GROUP_NAME_BYTES];
    const int n = mesh->sizes[dim];
    const int first = mesh->world->rank - mesh->coordinates[dim] * mesh->strides[dim];
    int *ranks = hpi_alloc((size_t)n, sizeof *ranks);
    if (!ranks)
        return HP_ERR_MEMORY;
    for (int i = 0; i < n; i++)
        ranks[i] = first + i * mesh->strides[dim];
    const hp_status status = hp_group_create(mesh->world, ranks, n, &mesh->groups[dim]);
    if (!status) {
        snprintf(prefix, sizeof prefix, "dim%d", dim);
        hpi_name_ranks(prefix, ranks, n, name, sizeof name);
        hpi_group_set_name(mesh->groups[dim], name);
    }
    hpi_free(ranks);
    return status;
}

hp_status hp_mesh_create(hp_world *world, const int *sizes, int n_dims, hp_mesh **out_mesh) {
    if (!world || !sizes || !out_mesh || n_dims < 1 || n_dims > MAX_MESH_DIMS)
        return HPI_FAIL(
            HP_ERR_ARGUMENT,
            "expected a world, 1 to %d sizes and a place for the mesh, given %p, %p, %d "
            "sizes, %p",
            MAX_MESH_DIMS, (void *)world, (const void *)sizes, n_dims, (void *)out_mesh);
    HP_TRY(hpi_world_usable(world));
    HP_TRY(check_sizes(world, sizes, n_dims));
    hp_mesh *mesh = hpi_alloc(1, sizeof *mesh);
    if (!mesh)
        return HP_ERR_MEMORY;
    mesh->world = world;
    mesh->n_dims = n_dims;
    memcpy(mesh->sizes, sizes, (size_t)n_dims * sizeof *sizes);
    find_place(mesh);
    hp_status status = agree_sizes(world, mesh);
    for (int i = 0; i < n_dims && !status; i++)
        status = create_dim(mesh, i);
    if (status)
        hp_mesh_destroy(mesh);
    else
        *out_mesh = mesh;
    return status;
}

void hp_mesh_destroy(hp_mesh *mesh) {
    if (!mesh)
        return;
    for (int i = mesh->n_dims - 1; i >= 0; i--)
        hp_group_destroy(mesh->groups[i]);
    hpi_free(mesh);
}

int hp_mesh_n_dims(const hp_mesh *mesh) {
    return mesh->n_dims;
}
hp_world *hp_mesh_world(const hp_mesh *mesh) {
    return mesh->world;
}
int hp_mesh_size(const hp_mesh *mesh, int dim) {
    return dim >= 0 && dim < mesh->n_dims ? mesh->sizes[dim] : -1;
}
int hp_mesh_coordinate(const hp_mesh *mesh, int dim) {
    return dim >= 0 && dim < mesh->n_dims ? mesh->coordinates[dim] : -1;
}
hp_group *hp_mesh_group(const hp_mesh *mesh, int dim) {
    return dim >= 0 && dim < mesh->n_dims ? mesh->groups[dim] : NULL;
}
