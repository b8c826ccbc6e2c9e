/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/train.h - the run itself: set up, train, evaluate, save.
 */
#ifndef HPTRAIN_TRAIN_H
#define HPTRAIN_TRAIN_H

#include "options.h"

#include <hyperparallel/world.h>

/* Train as the options say and report. SIGINT and SIGTERM end it after the step, or the pass of an
 * evaluation, they come in. Defaults that depend on the model are filled in. Collective over the
 * world. */
hp_status train(hp_world *world, options *o);

#endif
