/* SPDX-License-Identifier: Apache-2.0
 *
 * freed_buffers.h - row F8: buffers that were given back are poisoned, and operations come late at
 * random, on every rank and in every mode.
 *
 * Whoever reads a buffer that is no longer its own reads NaNs, which no value of the training is.
 */
#ifndef FREED_BUFFERS_H
#define FREED_BUFFERS_H

#include "exact_training.h"

/* Each mode on n_meshes meshes, each mesh with a precision and a depth of its own. */
static inline void train_over_freed_buffers(int n_steps, int n_meshes) {
    static const int meshes[][2] = {{2, 2}, {1, 4}, {4, 1}};
    exact_job job = EXACT_JOB_INIT;
    job.n_steps = n_steps;
    job.fsdp.poison = 1;
    job.fsdp.delay = "kind=*,rank=*,us=40,seed=8";
    for (int mode = HP_PER_PARAM; mode <= HP_MAPPED; mode++)
        for (int k = 0; k < n_meshes; k++) {
            const int m = (mode + k) % 3;
            job.fsdp.mode = (hp_mode)mode;
            job.fsdp.param_dtype = m == 1 ? HP_BF16 : HP_OWN_DTYPE;
            job.fsdp.prefetch = m;
            job.n_replicas = meshes[m][0];
            job.n_shards = meshes[m][1];
            exact_train(&job);
        }
}

#endif
