/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/schedule.h - the learning rate of a step.
 */
#ifndef HPTRAIN_SCHEDULE_H
#define HPTRAIN_SCHEDULE_H

#include "options.h"

/* Of the update after `step` steps: a straight rise over --warmup steps to --lr, then half a cosine
 * down to --lr-min at --steps, or no change. It depends on the step's number alone, so a resumed
 * run goes on as if it had never ended. Source: Loshchilov and Hutter 2017 (SGDR), without
 * restarts. */
double schedule_learning_rate(const options *o, uint64_t step);

#endif
