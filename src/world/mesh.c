/* SPDX-License-Identifier: Apache-2.0
 *
 * mesh.c - a row-major mesh over the world, one group per dimension.
 *
 * The ranks agree on the sizes first, over the world's set-up lines, so that a mesh that differs
 * between ranks is an error that names them instead of groups that never meet. A virtual mesh is
 * sizes and a place alone.
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

/* Their product too, at most INT32_MAX + 1: too large, and stays so. */
static hp_status multiply_sizes(const int *sizes, int n_dims, uint64_t *out_product) {
    uint64_t product = 1;
    for (int i = 0; i < n_dims; i++) {
        if (sizes[i] < 1)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected mesh sizes of at least 1, given %d in "
                            "dimension %d",
                            sizes[i], i);
        product = hpi_min(product * (uint64_t)sizes[i], (uint64_t)INT32_MAX + 1);
    }
    *out_product = product;
    return HP_OK;
}

static hp_status check_sizes(const hp_world *world, const int *sizes, int n_dims) {
    uint64_t words[MAX_MESH_DIMS], product = 1;
    char text[SIZES_TEXT_BYTES];
    HP_TRY(multiply_sizes(sizes, n_dims, &product));
    for (int i = 0; i < n_dims; i++)
        words[i] = (uint64_t)sizes[i];
    sizes_text(words, n_dims, text, sizeof text);
    if (product != (uint64_t)world->n_ranks)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected mesh sizes that multiply to the world's %d ranks, "
                        "given %s",
                        world->n_ranks, text);
    return HP_OK;
}

enum { WORD_STATUS, WORD_N_DIMS, WORD_SIZES, N_WORDS = WORD_SIZES + MAX_MESH_DIMS };

static hp_status compare_sizes(const hp_world *world, const uint64_t *all) {
    const uint64_t *mine = all + world->rank * N_WORDS;
    for (int i = 0; i < world->n_ranks; i++) {
        const uint64_t *theirs = all + i * N_WORDS;
        const hp_status status = (hp_status)(int64_t)theirs[WORD_STATUS];
        char a[SIZES_TEXT_BYTES], b[SIZES_TEXT_BYTES];
        sizes_text(mine + WORD_SIZES, (int)mine[WORD_N_DIMS], a, sizeof a);
        sizes_text(theirs + WORD_SIZES, (int)hpi_min(theirs[WORD_N_DIMS], MAX_MESH_DIMS), b,
                   sizeof b);
        if (strcmp(a, b) != 0)
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, i,
                                 "expected one mesh, rank %d gives %s and rank %d gives %s",
                                 world->rank, a, i, b);
        if (status)
            return HPI_FAIL_RANK(status, i, "rank %d could not take part in a mesh of %s: %s", i, b,
                                 hp_status_text(status));
    }
    return HP_OK;
}

/* `own` says, with its record, whether this rank can take part; one that cannot still tells the
 * others. */
static hp_status agree_sizes(hp_world *world, const int *sizes, int n_dims, hp_status own) {
    uint64_t words[N_WORDS] = {(uint64_t)(int64_t)own, (uint64_t)n_dims};
    hp_error record;
    hp_last_error_get(&record);
    for (int i = 0; i < n_dims; i++)
        words[WORD_SIZES + i] = (uint64_t)sizes[i];
    uint64_t *all = own ? NULL : hpi_alloc((size_t)world->n_ranks, sizeof words);
    if (!own && !all) {
        own = HP_ERR_MEMORY;
        words[WORD_STATUS] = (uint64_t)(int64_t)own;
        hp_last_error_get(&record);
    }
    hp_status status = hpi_group_enter(world->group, "hp_mesh_create");
    if (!status) {
        status = hpi_group_exchange(world->group, "mesh_create", words, N_WORDS, all);
        hpi_group_leave(world->group);
    }
    if (!status)
        status = own ? hpi_error_set(&record) : compare_sizes(world, all);
    hpi_free(all);
    return status;
}

static void find_place(hp_mesh *mesh, int rank) {
    int stride = 1;
    for (int i = mesh->n_dims - 1; i >= 0; i--) {
        mesh->strides[i] = stride;
        mesh->coordinates[i] = rank / stride % mesh->sizes[i];
        stride *= mesh->sizes[i];
    }
}

/* The ranks that differ from this one in coordinate `dim` alone; `ranks` has room for them. */
static hp_status create_dim(hp_mesh *mesh, int dim, int *ranks) {
    char prefix[16], name[HPI_GROUP_NAME_BYTES];
    const int n = mesh->sizes[dim];
    const int first = mesh->world->rank - mesh->coordinates[dim] * mesh->strides[dim];
    for (int i = 0; i < n; i++)
        ranks[i] = first + i * mesh->strides[dim];
    const hp_status status = hp_group_create(mesh->world, ranks, n, &mesh->groups[dim]);
    if (!status) {
        snprintf(prefix, sizeof prefix, "dim%d", dim);
        hpi_name_ranks(prefix, ranks, n, name, sizeof name);
        hpi_group_set_name(mesh->groups[dim], name);
    }
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
    hp_status status = check_sizes(world, sizes, n_dims);
    hp_mesh *mesh = status ? NULL : hpi_alloc(1, sizeof *mesh);
    int *ranks = mesh ? hpi_alloc((size_t)world->n_ranks, sizeof *ranks) : NULL;
    if (!ranks) { /* tells the others */
        hpi_free(mesh);
        return agree_sizes(world, sizes, n_dims, status ? status : HP_ERR_MEMORY);
    }
    mesh->world = world;
    mesh->n_dims = n_dims;
    memcpy(mesh->sizes, sizes, (size_t)n_dims * sizeof *sizes);
    find_place(mesh, world->rank);
    status = agree_sizes(world, sizes, n_dims, HP_OK);
    for (int i = 0; i < n_dims && !status; i++)
        status = create_dim(mesh, i, ranks);
    hpi_free(ranks);
    if (status)
        hp_mesh_destroy(mesh);
    else
        *out_mesh = mesh;
    return status;
}

hp_status hp_mesh_create_virtual(const int *sizes, int n_dims, int rank, hp_mesh **out_mesh) {
    uint64_t n_ranks = 0;
    if (!sizes || !out_mesh || n_dims < 1 || n_dims > MAX_MESH_DIMS)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected 1 to %d sizes and a place for the mesh, given %p, %d sizes, %p",
                        MAX_MESH_DIMS, (const void *)sizes, n_dims, (void *)out_mesh);
    HP_TRY(multiply_sizes(sizes, n_dims, &n_ranks));
    if (n_ranks > INT32_MAX || rank < 0 || (uint64_t)rank >= n_ranks)
        return HPI_FAIL(
            HP_ERR_ARGUMENT, "expected at most %d ranks and one of them, given %llu%s and rank %d",
            INT32_MAX, (unsigned long long)n_ranks, n_ranks > INT32_MAX ? " or more" : "", rank);
    hp_mesh *mesh = hpi_alloc(1, sizeof *mesh);
    if (!mesh)
        return HP_ERR_MEMORY;
    mesh->n_dims = n_dims;
    memcpy(mesh->sizes, sizes, (size_t)n_dims * sizeof *sizes);
    find_place(mesh, rank);
    *out_mesh = mesh;
    return HP_OK;
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
