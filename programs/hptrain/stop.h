/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/stop.h - being asked to end by SIGINT or SIGTERM.
 */
#ifndef HPTRAIN_STOP_H
#define HPTRAIN_STOP_H

#include <hyperparallel/world.h>
#include <stdbool.h>

/* The first signal is noted, a second one ends the process at once. */
void stop_catch_signals(void);
bool stop_is_requested(void);

/* Was any rank asked? For places where nothing else is told between ranks. Collective. */
hp_status stop_agree(hp_world *world, bool *out_stop);

#endif
