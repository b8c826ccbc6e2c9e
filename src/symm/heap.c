/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c - first fit over a sorted list of free extents that are merged as they come back.
 *
 * Two free extents always have a taken block between them, so there is at most one more of them
 * than of taken blocks, and another one while a block that comes back is not merged yet. Room for
 * both is made when the block is taken; giving back cannot fail.
 * A list of n extents costs O(n) to search; a training job has tens. Source: Knuth, TAOCP 1, 2.5.
 */
#include "heap.h"

uint64_t hpi_heap_room(uint64_t bytes) {
    return hpi_align_up(hpi_max(bytes, 1), HPI_HEAP_UNIT);
}

static hp_status list_reserve(hpi_heap *heap, uint64_t n) {
    if (n <= heap->capacity)
        return HP_OK;
    const uint64_t capacity = hpi_max(2 * n, 16);
    hpi_extent *grown = hpi_alloc(capacity, sizeof *grown);
    if (!grown)
        return HP_ERR_MEMORY;
    if (heap->n_free)
        memcpy(grown, heap->free, heap->n_free * sizeof *grown);
    hpi_free(heap->free);
    heap->free = grown;
    heap->capacity = (uint32_t)capacity;
    return HP_OK;
}

static void list_insert(hpi_heap *heap, uint32_t at, hpi_extent extent) {
    memmove(&heap->free[at + 1], &heap->free[at], (heap->n_free - at) * sizeof *heap->free);
    heap->free[at] = extent;
    heap->n_free++;
}

static void list_remove(hpi_heap *heap, uint32_t at) {
    heap->n_free--;
    memmove(&heap->free[at], &heap->free[at + 1], (heap->n_free - at) * sizeof *heap->free);
}

hp_status hpi_heap_init(hpi_heap *heap, uint64_t size_bytes) {
    *heap = (hpi_heap){.size_bytes = size_bytes / HPI_HEAP_UNIT * HPI_HEAP_UNIT};
    HP_TRY(list_reserve(heap, 1));
    if (heap->size_bytes)
        list_insert(heap, 0, (hpi_extent){0, heap->size_bytes});
    return HP_OK;
}

void hpi_heap_fini(hpi_heap *heap) {
    hpi_free(heap->free);
}

/* Where a block would begin in an extent; false when it does not fit. */
static bool extent_fits(hpi_extent e, uint64_t room, uint64_t alignment, uint64_t *out_offset) {
    const uint64_t skipped = (alignment - e.offset % alignment) % alignment;
    *out_offset = e.offset + skipped;
    return skipped <= e.bytes && room <= e.bytes - skipped;
}

/* Cut [offset, offset + room) out of extent `at`, leaving up to two pieces. */
static void extent_cut(hpi_heap *heap, uint32_t at, uint64_t offset, uint64_t room) {
    const hpi_extent e = heap->free[at];
    const hpi_extent before = {e.offset, offset - e.offset};
    const hpi_extent after = {offset + room, e.bytes - before.bytes - room};
    list_remove(heap, at);
    if (after.bytes)
        list_insert(heap, at, after);
    if (before.bytes)
        list_insert(heap, at, before);
}

static uint64_t largest_free(const hpi_heap *heap) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < heap->n_free; i++)
        largest = hpi_max(largest, heap->free[i].bytes);
    return largest;
}

hp_status hpi_heap_take(hpi_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *out_offset) {
    HP_TRY(list_reserve(heap, (heap->n_live + 1) + 2)); /* see above */
    alignment = hpi_max(alignment, HPI_HEAP_UNIT);
    uint64_t offset;
    /* Checked before hpi_heap_room, which would wrap near 2^64. */
    for (uint32_t i = 0; bytes <= heap->size_bytes && i < heap->n_free; i++) {
        if (!extent_fits(heap->free[i], hpi_heap_room(bytes), alignment, &offset))
            continue;
        extent_cut(heap, i, offset, hpi_heap_room(bytes));
        heap->n_live++;
        heap->used_bytes += hpi_heap_room(bytes);
        heap->peak_bytes = hpi_max(heap->peak_bytes, heap->used_bytes);
        *out_offset = offset;
        return HP_OK;
    }
    return HPI_FAIL(HP_ERR_LIMIT,
                    "expected room for %llu bytes of symmetric memory, of the %llu reserved "
                    "(SYMMETRIC_MEMORY_HEAP_SIZE) %llu are free, %llu in one piece",
                    (unsigned long long)bytes, (unsigned long long)heap->size_bytes,
                    (unsigned long long)(heap->size_bytes - heap->used_bytes),
                    (unsigned long long)largest_free(heap));
}

/* The first free extent that begins after `offset`. */
static uint32_t list_after(const hpi_heap *heap, uint64_t offset) {
    uint32_t low = 0, high = heap->n_free;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (heap->free[middle].offset > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void hpi_heap_give(hpi_heap *heap, uint64_t offset, uint64_t bytes) {
    const uint32_t at = list_after(heap, offset);
    list_insert(heap, at, (hpi_extent){offset, hpi_heap_room(bytes)});
    heap->n_live--;
    heap->used_bytes -= hpi_heap_room(bytes);

    hpi_extent *e = heap->free;
    if (at + 1 < heap->n_free && e[at].offset + e[at].bytes == e[at + 1].offset) {
        e[at].bytes += e[at + 1].bytes;
        list_remove(heap, at + 1);
    }
    if (at > 0 && e[at - 1].offset + e[at - 1].bytes == e[at].offset) {
        e[at - 1].bytes += e[at].bytes;
        list_remove(heap, at);
    }
}
