/* SPDX-License-Identifier: Apache-2.0
 *
 * symm/heap.h - which bytes of a segment are taken: a list of free extents, first fit.
 *
 * Only offsets are handled here, the memory itself is never touched, so the list lies in ordinary
 * memory of the owning rank and no peer can damage it. Not locked: the caller holds the lock.
 */
#ifndef HPI_HEAP_H
#define HPI_HEAP_H

#include "../base/base.h"

enum { HPI_HEAP_UNIT = 64 }; /* two blocks never share a cache line */

typedef struct hpi_extent {
    uint64_t offset, bytes;
} hpi_extent;

typedef struct hpi_heap {
    hpi_extent *free; /* [n_free], by offset, never adjacent */
    uint32_t n_free, capacity;
    uint64_t n_live, size_bytes, used_bytes, peak_bytes;
} hpi_heap;

hp_status hpi_heap_init(hpi_heap *heap, uint64_t size_bytes);
void hpi_heap_fini(hpi_heap *heap);
/* The lowest place that fits. Errors: LIMIT saying what is free, MEMORY. */
hp_status hpi_heap_take(hpi_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *out_offset);
/* Give back what was taken with the same `bytes`. Cannot fail. */
void hpi_heap_give(hpi_heap *heap, uint64_t offset, uint64_t bytes);
/* What a block of `bytes` occupies. */
uint64_t hpi_heap_room(uint64_t bytes);

#endif
