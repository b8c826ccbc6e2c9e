/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c - the beginning and end of a rank's symmetric memory, its statistics, the poison switch.
 */
#include "state.h"

static void state_free(hpi_symm_state *s) {
    hpi_table_fini(&s->table);
    hpi_heap_fini(&s->heap);
    pthread_mutex_destroy(&s->lock);
    hpi_free(s);
}

static void state_destroy(void *memory) {
    hpi_symm_state *s = memory;
    HPI_SAY(hpi_world_journal(s->world), HPI_LOG_INFO, "symm",
            "end: %llu bytes of symmetric memory at most, %llu now in %llu allocations",
            (unsigned long long)s->peak_bytes,
            (unsigned long long)(s->heap.used_bytes + s->spanning_bytes),
            (unsigned long long)s->n_allocations);
    state_free(s);
}

static hp_status state_create(hp_world *world, hpi_symm_state **out_state) {
    hpi_symm_state *s = hpi_alloc(1, sizeof *s);
    uint64_t bytes = 0;
    if (!s)
        return HP_ERR_MEMORY;
    s->world = world;
    s->segment = hpi_world_segment(world, hp_world_rank(world), &bytes);
    const int failed = pthread_mutex_init(&s->lock, NULL);
    if (failed || hpi_heap_init(&s->heap, bytes) < 0) {
        hpi_free(s);
        return failed ? HPI_FAIL(HP_ERR_SYSTEM, "pthread_mutex_init: %s", strerror(failed))
                      : HP_ERR_MEMORY;
    }
    *out_state = s;
    return HP_OK;
}

hp_status hpi_symm_state_get(hp_world *world, hpi_symm_state **out_state) {
    if (!world)
        return HPI_FAIL(HP_ERR_HANDLE, "expected a world, given NULL");
    HP_TRY(hpi_world_usable(world));
    hpi_symm_state *fresh;
    if (!hpi_symm_state_find(world)) {
        HP_TRY(state_create(world, &fresh));
        if (!hpi_world_attach(world, HPI_SLOT_SYMM, fresh, state_destroy))
            state_free(fresh); /* another thread's first call was faster */
    }
    *out_state = hpi_symm_state_find(world);
    return HP_OK;
}

hp_status hpi_symm_begin(hp_world *world) {
    hpi_symm_state *unused;
    return hpi_symm_state_get(world, &unused);
}

hp_status hp_symm_stats_get(const hp_world *world, hp_symm_stats *out_stats) {
    if (!world || !out_stats)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a world and a place for the result, given NULL");
    const hp_status usable = hpi_world_usable(world);
    if (usable == HP_ERR_FORKED) /* the lock may be held by a thread that is not there */
        return usable;
    hp_symm_stats stats = {0};
    hpi_symm_state *s = hpi_symm_state_find(world);
    if (s) {
        pthread_mutex_lock(&s->lock);
        stats = (hp_symm_stats){.allocated_bytes = s->heap.used_bytes + s->spanning_bytes,
                                .peak_bytes = s->peak_bytes,
                                .free_bytes = s->heap.size_bytes - s->heap.used_bytes,
                                .n_allocations = s->n_allocations,
                                .message_bytes = s->own_bytes};
        pthread_mutex_unlock(&s->lock);
    } else {
        (void)hpi_world_segment(world, hp_world_rank(world), &stats.free_bytes);
    }
    *out_stats = stats;
    return HP_OK;
}

hp_status hpi_symm_poison(hp_world *world, bool is_on) {
    hpi_symm_state *s;
    HP_TRY(hpi_symm_state_get(world, &s));
    pthread_mutex_lock(&s->lock);
    s->is_poisoning = is_on;
    pthread_mutex_unlock(&s->lock);
    return HP_OK;
}
