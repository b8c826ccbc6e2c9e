/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/memory.c - what the steps of each rank hold over time: gathered parameters, full
 * gradients, packs. The spans `allocate` and `release` carry the bytes.
 *
 * What is held all the time (shards, optimizer state) is in no span. A verdict may name it as
 * steady_bytes; then it is added, so that the curve may be compared with the bound on all of it.
 */
#include "die.h"
#include "figures.h"

#include <stdlib.h>

/* A change of `bytes`, until it is summed up. */
static int compare_points(const void *left, const void *right) {
    const memory_point *a = left, *b = right;
    return (a->ns > b->ns) - (a->ns < b->ns);
}

static void add_stream(rank_memory *m, size_t *capacity, const run *r, const stream *s) {
    for (size_t i = 0; i < s->n; i++) {
        const span *one = &s->spans[i];
        const bool is_allocate = name_is(r, one->name, "allocate");
        if (!is_allocate && !name_is(r, one->name, "release"))
            continue;
        m->points = grow(m->points, m->n, capacity, sizeof *m->points);
        const int64_t bytes = (int64_t)(one->bytes & INT64_MAX);
        m->points[m->n++] = (memory_point){one->begin_ns, is_allocate ? bytes : -bytes};
    }
}

/* Are they in the order of time already? Then the order of what happens at one time is kept. */
static bool is_sorted(const rank_memory *m) {
    for (size_t i = 1; i < m->n; i++)
        if (m->points[i].ns < m->points[i - 1].ns)
            return false;
    return true;
}

static void sum_up(rank_memory *m, int64_t steady_bytes, uint64_t begin_ns) {
    int64_t held = steady_bytes;
    m->peak_bytes = held;
    m->peak_ns = begin_ns;
    for (size_t i = 0; i < m->n; i++) {
        if (__builtin_add_overflow(held, m->points[i].bytes, &held))
            die("expected sizes of buffers that add up, they exceed 2^63");
        m->points[i].bytes = held;
        if (held > m->peak_bytes) {
            m->peak_bytes = held;
            m->peak_ns = m->points[i].ns;
        }
    }
    m->end_bytes = held;
}

void memory_compute(figures *f) {
    const run *r = f->run;
    f->memory = take((size_t)r->n_ranks, sizeof *f->memory);
    for (int i = 0; i < r->n_ranks; i++) {
        rank_memory *m = &f->memory[i];
        size_t capacity = 0;
        for (int j = 0; j < MAX_STREAMS; j++)
            add_stream(m, &capacity, r, &r->ranks[i].streams[j]);
        if (!is_sorted(m))
            qsort(m->points, m->n, sizeof *m->points, compare_points);
        sum_up(m, (int64_t)(r->verdict.steady_bytes & INT64_MAX), r->begin_ns);
    }
}
