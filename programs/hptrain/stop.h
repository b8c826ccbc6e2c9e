/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/stop.h - being asked to end by SIGINT or SIGTERM.
 */
#ifndef HPTRAIN_STOP_H
#define HPTRAIN_STOP_H

#include <hyperparallel/world.h>
#include <stdbool.h>

/* The first signal is noted, a second one ends the process at once; `speaks`: this process says so
 * on standard error. Writing to nobody becomes an error, EPIPE. */
void stop_catch_signals(bool speaks);
/* Nobody reads standard output any more: the run ends as on a signal. Returns HP_OK. */
hp_status stop_unread(void);
bool stop_is_requested(void);

/* Was any rank asked? For places where nothing else is told between ranks. Collective. */
hp_status stop_agree(hp_world *world, bool *out_stop);

#endif
