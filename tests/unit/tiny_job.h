/* SPDX-License-Identifier: Apache-2.0
 *
 * tiny_job.h - a training of the tiny model over thread ranks, and what rank 0 got.
 */
#ifndef TINY_JOB_H
#define TINY_JOB_H

#include "support/ranks.h"
#include "support/tiny.h"

struct job {
    tiny_config config;
    tiny_result result; /* of rank 0 */
};

static inline void train_body(hp_world *world, void *argument) {
    struct job *job = argument;
    tiny_result result;
    RANK_OK(tiny_train(world, &job->config, &result));
    if (hp_world_rank(world) == 0)
        job->result = result;
}

static inline void train(struct job *job) {
    ranks_run(job->config.n_replicas * job->config.n_shards, RANKS_THREADS, train_body, job);
}

#endif
