/* SPDX-License-Identifier: Apache-2.0
 *
 * steady.h - what a rank holds after a few steps is what it holds after many.
 *
 * Counted in each rank's own process: allocations of the library (its hook) and of everybody
 * (malloc's own count), resident memory, descriptors, mappings, symmetric memory, and what the fsdp
 * says of itself. A step is two passes, a clipped update and now and then an evaluation, in every
 * mode, planned and replayed.
 */
#ifndef STEADY_H
#define STEADY_H

#include "support/ranks.h"
#include "support/tiny.h"

#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEADY_RANKS = 4, STEADY_EVALUATE_EVERY = 7 };

typedef struct steady_job {
    hp_mode mode;
    bool is_replayed;
    int n_warm, n_steps;
} steady_job;

typedef struct holding {
    uint64_t n_library_allocations, malloc_bytes, resident_bytes, n_fds, n_mappings;
    hp_symm_stats memory;
    hp_fsdp_stats stats;
} holding;

/* Read without malloc, which is among what is counted. */
static inline uint64_t count_lines(const char *path) {
    static char block[65536];
    uint64_t n = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t got; fd >= 0 && (got = read(fd, block, sizeof block)) > 0;)
        for (ssize_t i = 0; i < got; i++)
            n += block[i] == '\n';
    if (fd >= 0)
        close(fd);
    return n;
}

static inline uint64_t resident_bytes(void) {
    char text[128] = "";
    unsigned long long all = 0, resident = 0;
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
        sscanf(text, "%llu %llu", &all, &resident);
    if (fd >= 0)
        close(fd);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Asked one by one: a directory would be one more. */
static inline uint64_t count_fds(void) {
    uint64_t n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static inline void hold(hp_world *world, tiny *model, holding *out) {
    out->malloc_bytes = mallinfo2().uordblks;
    out->n_library_allocations = hpi_alloc_count();
    out->n_fds = count_fds();
    out->n_mappings = count_lines("/proc/self/maps");
    out->resident_bytes = resident_bytes();
    RANK_OK(hp_symm_stats_get(world, &out->memory));
    RANK_OK(hp_fsdp_stats_get(tiny_fsdp(model), &out->stats));
}

static inline void steady_step(tiny *model, int step) {
    double loss, norm;
    RANK_OK(tiny_step(model, step, &loss));
    RANK_OK(hp_clip_grad_norm(tiny_fsdp(model), 1.0, 2.0, &norm));
    RANK_OK(hp_optimizer_step(tiny_optimizer(model), 1e-4));
    if (step % STEADY_EVALUATE_EVERY == 0)
        RANK_OK(tiny_evaluate(model, step, &loss));
}

/* Pages of stacks and of the program's own are first touched at any time: a few are no growth. */
#define STEADY_SLACK_BYTES (UINT64_C(256) << 10)

static inline void check_holding(const holding *a, const holding *b) {
    RANK_CHECK(a->n_library_allocations == b->n_library_allocations);
    RANK_CHECK(a->n_fds == b->n_fds);
    RANK_CHECK(a->memory.allocated_bytes == b->memory.allocated_bytes);
    RANK_CHECK(a->memory.peak_bytes == b->memory.peak_bytes);
    RANK_CHECK(a->memory.n_allocations == b->memory.n_allocations);
    RANK_CHECK(a->stats.grad_bytes == b->stats.grad_bytes);
    RANK_CHECK(a->stats.gather_bytes == b->stats.gather_bytes);
    RANK_CHECK(a->stats.optimizer_bytes == b->stats.optimizer_bytes);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    RANK_CHECK(a->malloc_bytes == b->malloc_bytes);
    RANK_CHECK(a->n_mappings == b->n_mappings);
    RANK_CHECK(b->resident_bytes <= a->resident_bytes + STEADY_SLACK_BYTES);
#endif
}

static inline void steady_body(hp_world *world, void *argument) {
    const steady_job *j = argument;
    tiny_config config = TINY_CONFIG_INIT;
    tiny *model = NULL;
    holding before, after;
    config.fsdp.mode = j->mode;
    config.fsdp.record = j->is_replayed;
    config.fsdp.replay_after = j->is_replayed ? 4 : 0;
    config.n_replicas = 2;
    config.n_shards = STEADY_RANKS / 2;
    config.is_mixed = 1;
    config.n_passes = j->is_replayed ? 1 : 2; /* only passes that reduce are replayed */
    RANK_OK(tiny_create(world, &config, &model));
    for (int step = 0; step < j->n_warm; step++)
        steady_step(model, step);
    hold(world, model, &before);
    for (int step = 0; step < j->n_steps; step++)
        steady_step(model, step);
    hold(world, model, &after);
    check_holding(&before, &after);
    tiny_destroy(model);
}

static inline void steady_in_every_mode(int n_steps) {
    for (int mode = 0; mode <= HP_AUTO; mode++)
        for (int is_replayed = 0; is_replayed < 2; is_replayed++) {
            steady_job job = {(hp_mode)mode, is_replayed != 0, 20, n_steps};
            ranks_run(STEADY_RANKS, RANKS_PROCESSES, steady_body, &job);
        }
}

#endif
