/* SPDX-License-Identifier: Apache-2.0
 *
 * flat_memory.h - many collectives one after the other, in memory that does not grow.
 *
 * Included by the quick and by the full test, which differ in how many.
 */
#ifndef FLAT_MEMORY_H
#define FLAT_MEMORY_H

#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <stdio.h>
#include <stdlib.h>

/* A line of /proc/self/status in KiB; -1 when there is none. */
static inline long flat_memory_kib(const char *name) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            kib = atol(line + strlen(name));
    if (file)
        fclose(file);
    return kib;
}

/* Half barriers, half broadcasts whose value is checked. */
static inline void flat_memory_calls(hp_world *world, uint64_t first, uint64_t n) {
    hp_group *group = hp_world_group(world);
    for (uint64_t i = first; i < first + n; i++) {
        const int root = (int)(i % (uint64_t)hp_world_size(world));
        int64_t value = hp_world_rank(world) == root ? (int64_t)i : -1;
        if (i % 2) {
            RANK_OK(hp_barrier(group));
        } else {
            RANK_OK(hp_broadcast(group, &value, 1, HP_INT64, root));
            RANK_CHECK(value == (int64_t)i);
        }
    }
}

/* A sanitizer's own stacks and shadows come page by page. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FLAT_MEMORY_LITTLE_KIB = 16384 };
#else
enum { FLAT_MEMORY_LITTLE_KIB = 256 };
#endif

/* argument: how many. What the first hundredth takes, and a little, is all there may be. */
static inline void flat_memory_body(hp_world *world, void *argument) {
    const uint64_t n = *(const uint64_t *)argument, n_warm = n / 100;
    flat_memory_calls(world, 0, n_warm);
    const long before_kib = flat_memory_kib("VmRSS:"), size_kib = flat_memory_kib("VmSize:");
    RANK_CHECK(before_kib > 0 && size_kib > 0);
    flat_memory_calls(world, n_warm, n - n_warm);
    RANK_CHECK(flat_memory_kib("VmRSS:") <= before_kib + FLAT_MEMORY_LITTLE_KIB);
    RANK_CHECK(flat_memory_kib("VmSize:") <= size_kib + FLAT_MEMORY_LITTLE_KIB);
}

#endif
