/* SPDX-License-Identifier: Apache-2.0
 *
 * hub.c - ranks that are threads of one process.
 *
 * The hub owns one segment per rank, mapped once: every thread sees the same addresses, so the
 * sanitizers and a debugger see all that goes on. From there on thread ranks and process ranks run
 * the same code. A world that was started by nobody is a hub of one.
 */
#include "../inside.h"

struct hp_hub {
    int n_ranks;
    int ranks_per_node;
    hpi_threads *threads;   /* what carries messages between nodes; NULL: there is one node */
    hpi_segment *segments;  /* [n_ranks] */
    const char *thresholds; /* the option, for all */
};

static hp_status hub_fill(hp_hub *hub, int n_ranks) {
    hpi_options options;
    uint64_t heap_bytes;
    HP_TRY(hpi_options_load(&options));
    hub->thresholds = options.thresholds;
    HP_TRY(hpi_heap_check(&options, n_ranks));
    HP_TRY(hpi_heap_bytes(&options, n_ranks, &heap_bytes));
    hub->segments = hpi_alloc((size_t)n_ranks, sizeof *hub->segments);
    if (!hub->segments)
        return HP_ERR_MEMORY;
    for (; hub->n_ranks < n_ranks; hub->n_ranks++)
        HP_TRY(hpi_segment_create(heap_bytes, hub->n_ranks, &hub->segments[hub->n_ranks]));
    return HP_OK;
}

hp_status hp_hub_create(int n_ranks, hp_hub **out_hub) {
    if (n_ranks < 1 || n_ranks > HPI_MAX_LOCAL || !out_hub)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected 1 to %d ranks and a place for the hub, given %d",
                        HPI_MAX_LOCAL, n_ranks);
    hp_hub *hub = hpi_alloc(1, sizeof *hub);
    if (!hub)
        return HP_ERR_MEMORY;
    const hp_status status = hub_fill(hub, n_ranks);
    if (status)
        hp_hub_destroy(hub);
    else
        *out_hub = hub;
    return status;
}

void hp_hub_destroy(hp_hub *hub) {
    if (!hub)
        return;
    for (int i = 0; i < hub->n_ranks; i++)
        hpi_segment_close(&hub->segments[i]);
    hpi_threads_destroy(hub->threads);
    hpi_free(hub->segments);
    hpi_free(hub);
}

hp_status hpi_hub_split(hp_hub *hub, int ranks_per_node) {
    hub->ranks_per_node = ranks_per_node;
    return hpi_threads_create(hub->n_ranks, ranks_per_node, &hub->threads);
}

hpi_control *hpi_hub_control(hp_hub *hub, int rank) {
    return hpi_segment_control(&hub->segments[rank]);
}

int hpi_hub_size(const hp_hub *hub) {
    return hub->n_ranks;
}

static hp_status join_node(hp_world *world, hp_hub *hub) {
    int *first_of = hpi_alloc((size_t)hub->n_ranks, sizeof *first_of);
    if (!first_of)
        return HP_ERR_MEMORY;
    for (int i = 0; i < hub->n_ranks; i++)
        first_of[i] = i / hub->ranks_per_node * hub->ranks_per_node;
    const hp_status status = hpi_world_place(world, first_of);
    hpi_free(first_of);
    return status ? status : hpi_threads_open(hub->threads, world->rank, &world->transport);
}

hp_status hpi_hub_join(hp_world *world, hp_hub *hub) {
    world->hub = hub;
    world->options.thresholds = hub->thresholds;
    if (hub->threads)
        HP_TRY(join_node(world, hub));
    world->segments = hpi_alloc((size_t)hub->n_ranks, sizeof *world->segments);
    if (!world->segments)
        return HP_ERR_MEMORY;
    for (int i = 0; i < hub->n_ranks; i++)
        world->segments[i] = hpi_world_is_local(world, i) ? hub->segments[i] : HPI_SEGMENT_NONE;
    return HP_OK;
}
