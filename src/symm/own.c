/* SPDX-License-Identifier: Apache-2.0
 *
 * own.c - a place in this rank's own heap: making it usable, and taking one without the others.
 *
 * Committed memory cannot fault any more; what was used before comes zeroed, like fresh memory. A
 * place that is taken alone has no handle and no row in the table: its owner tells the peers where
 * in the segment it lies.
 */
#include "state.h"

enum {
    OWN_ALIGNMENT = 128,      /* two cache lines: what the prefetcher fetches at once */
    HUGE_ALIGNMENT = 2 << 20, /* so that a ring of that size lies in one huge page */
};

uint64_t hpi_symm_fresh_bytes(const hpi_symm_state *s, uint64_t offset, uint64_t bytes) {
    const uint64_t end = offset + hpi_heap_room(bytes);
    return end > s->committed_bytes ? end - s->committed_bytes : 0;
}

hp_status hpi_symm_commit(hpi_symm_state *s, uint64_t offset, uint64_t bytes) {
    const uint64_t end = offset + hpi_heap_room(bytes);
    pthread_mutex_lock(&s->lock);
    const uint64_t committed = s->committed_bytes;
    hp_status status = HP_OK;
    if (end > committed)
        status = hpi_world_commit(s->world, committed, end - committed);
    if (status == HP_OK)
        s->committed_bytes = hpi_max(committed, end);
    pthread_mutex_unlock(&s->lock);
    if (status == HP_OK && offset < committed)
        memset(s->segment + offset, 0, hpi_min(end, committed) - offset);
    return status;
}

hp_status hpi_symm_take(hp_world *world, uint64_t bytes, uint64_t *out_offset) {
    hpi_symm_state *s;
    uint64_t offset, fresh_bytes = 0;
    HP_TRY(hpi_symm_state_get(world, &s));
    pthread_mutex_lock(&s->lock);
    hp_status status = HP_ERR_LIMIT;
    if (bytes >= HUGE_ALIGNMENT)
        status = hpi_heap_take(&s->heap, bytes, HUGE_ALIGNMENT, &offset);
    if (status == HP_ERR_LIMIT)
        status = hpi_heap_take(&s->heap, bytes, OWN_ALIGNMENT, &offset);
    if (status == HP_OK)
        fresh_bytes = hpi_symm_fresh_bytes(s, offset, bytes);
    pthread_mutex_unlock(&s->lock);
    HP_TRY(status);
    if (fresh_bytes)
        status = hpi_world_check_memory(world, fresh_bytes, "messages");
    if (status == HP_OK)
        status = hpi_symm_commit(s, offset, bytes);
    pthread_mutex_lock(&s->lock);
    if (status < 0)
        hpi_heap_give(&s->heap, offset, bytes);
    else
        s->own_bytes += hpi_heap_room(bytes);
    s->peak_bytes = hpi_max(s->peak_bytes, s->heap.used_bytes + s->spanning_bytes);
    pthread_mutex_unlock(&s->lock);
    if (status == HP_OK)
        *out_offset = offset;
    return status;
}

void hpi_symm_give(hp_world *world, uint64_t offset, uint64_t bytes) {
    hpi_symm_state *s = hpi_symm_state_find(world);
    pthread_mutex_lock(&s->lock);
    if (s->is_poisoning)
        memset(s->segment + offset, 0xdb, bytes);
    hpi_heap_give(&s->heap, offset, bytes);
    s->own_bytes -= hpi_heap_room(bytes);
    pthread_mutex_unlock(&s->lock);
}
