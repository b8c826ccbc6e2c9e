/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3_bits.h - a training run of the small model, reduced to its bits.
 *
 * What a run leaves are the losses of its steps, a digest of the gradients of all steps, and one of
 * the weights at the end: two runs are the same when these are.
 */
#ifndef QWEN3_BITS_H
#define QWEN3_BITS_H

#include "small_qwen3.h"

#include <string.h>

/* Sanitizers, which are after other things, take minutes for 20. */
#ifdef HP_PLAIN_KERNELS
enum { BITS_MOST_STEPS = 4 };
#else
enum { BITS_MOST_STEPS = 20 };
#endif

typedef struct bits_job {
    small_config config;
    int n_steps;
    double losses[BITS_MOST_STEPS]; /* of rank 0, as the digests */
    uint64_t gradients, weights;    /* digests */
} bits_job;

static inline bits_job bits_job_init(void) {
    return (bits_job){.config = small_config_init(), .n_steps = 3};
}

static inline void bits_train_body(hp_world *world, void *argument) {
    bits_job *j = argument, mine = {0};
    small s = small_begin(world, &j->config);
    for (int step = 0; step < j->n_steps; step++) {
        mine.losses[step] = small_gradients(&s, step);
        mine.gradients = mine.gradients * 31 + small_digest(&s, true);
        double norm;
        RANK_OK(hp_clip_grad_norm(s.fsdp, j->config.max_norm, 2.0, &norm));
        RANK_OK(hp_optimizer_step(s.optimizer, j->config.learning_rate));
    }
    mine.weights = small_digest(&s, false);
    small_end(&s);
    if (hp_world_rank(world) == 0) {
        memcpy(j->losses, mine.losses, sizeof mine.losses);
        j->gradients = mine.gradients;
        j->weights = mine.weights;
    }
}

static inline void bits_train(bits_job *j) {
    ranks_run(j->config.n_replicas * j->config.n_shards, RANKS_THREADS, bits_train_body, j);
}

static inline void bits_expect_same(const bits_job *a, const bits_job *b) {
    for (int step = 0; step < a->n_steps; step++)
        if (a->losses[step] != b->losses[step])
            fail_msg("step %d: loss %.17g of (%d,%d), %.17g of (%d,%d) with prefetch %d", step,
                     a->losses[step], a->config.n_replicas, a->config.n_shards, b->losses[step],
                     b->config.n_replicas, b->config.n_shards, b->config.fsdp.prefetch);
    assert_int_equal(a->gradients, b->gradients);
    assert_int_equal(a->weights, b->weights);
}

/* Returns the first job's losses. */
static inline bits_job bits_check_meshes(bits_job base) {
    static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
    bits_job first = base;
    for (int m = 0; m < 4; m++) {
        bits_job j = base;
        j.config.n_replicas = meshes[m][0];
        j.config.n_shards = meshes[m][1];
        bits_train(&j);
        if (m == 0)
            first = j;
        bits_expect_same(&first, &j);
    }
    return first;
}

#endif
