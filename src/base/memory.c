/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - ordinary memory, counted, and able to fail on request.
 */
#include "base.h"

#include <stdatomic.h>
#include <stdlib.h>

static _Atomic uint64_t alloc_count; /* statistics and a test hook, no state of any world */
static _Atomic uint64_t fail_at;

uint64_t hpi_alloc_count(void) {
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

void hpi_alloc_fail_after(uint64_t n) {
    atomic_store_explicit(&fail_at, n ? hpi_alloc_count() + n : 0, memory_order_relaxed);
}

static bool may_allocate(void) {
    const uint64_t mine = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
    return mine != atomic_load_explicit(&fail_at, memory_order_relaxed);
}

void *hpi_alloc(size_t count, size_t size) {
    void *memory = may_allocate() ? calloc(count ? count : 1, size ? size : 1) : NULL;
    if (!memory)
        (void)HPI_FAIL(HP_ERR_MEMORY, "expected room for %zu x %zu bytes, the system gave none",
                       count, size);
    return memory;
}

void *hpi_alloc_aligned(size_t alignment, size_t bytes) {
    const size_t rounded = (size_t)hpi_align_up(bytes ? bytes : 1, alignment);
    void *memory = may_allocate() ? aligned_alloc(alignment, rounded) : NULL;
    if (!memory) {
        (void)HPI_FAIL(HP_ERR_MEMORY, "expected room for %zu bytes, the system gave none", bytes);
        return NULL;
    }
    memset(memory, 0, rounded);
    return memory;
}

void hpi_free(void *memory) {
    free(memory);
}

char *hpi_strdup(const char *text) {
    const size_t n = strlen(text) + 1;
    char *copy = hpi_alloc(n, 1);
    return copy ? memcpy(copy, text, n) : NULL;
}
