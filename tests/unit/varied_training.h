/* SPDX-License-Identifier: Apache-2.0
 *
 * varied_training.h - the varied model with an optimizer, for tests of what is saved in between.
 */
#ifndef VARIED_TRAINING_H
#define VARIED_TRAINING_H

#include "unit/varied_model.h"

static inline void training_make(hp_world *world, varied *m, hp_optimizer **o) {
    varied_create(world, 1, m);
    RANK_OK(hp_optimizer_create(m->fsdp, "adamw", NULL, o));
}

/* Steps [from, to). */
static inline void training_run(const varied *m, hp_optimizer *o, int from, int to) {
    for (int t = from; t < to; t++) {
        varied_pass(m, t, 1);
        RANK_OK(hp_optimizer_step(o, 0.1));
    }
}

static inline void training_drop(varied *m, hp_optimizer *o) {
    hp_optimizer_destroy(o);
    varied_destroy(m);
}

#endif
