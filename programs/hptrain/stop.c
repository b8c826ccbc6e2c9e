/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/stop.c - the handler of SIGINT and SIGTERM.
 *
 * Whoever ends a whole job may send the same signal twice in a row, to a process and to its group
 * (timeout does), so a second one counts only after a moment.
 */
#include "stop.h"
#include "fail.h"
#include "report.h"

#include <hyperparallel/coll.h>

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

static const uint64_t moment_ns = 100000000;

/* A signal can reach nothing but a global. 0: not asked yet. */
static _Atomic uint64_t asked_ns;

/* With its default action back, the signal comes again when the handler returns. */
static void on_signal(int number) {
    const uint64_t first = atomic_load(&asked_ns);
    if (!first) {
        atomic_store(&asked_ns, now_ns());
    } else if (now_ns() - first > moment_ns) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
}

void stop_catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART; /* a step in progress is not disturbed */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    (void)sigaction(SIGINT, &action, NULL); /* fails only for signals that do not exist */
    (void)sigaction(SIGTERM, &action, NULL);
}

bool stop_is_requested(void) {
    return atomic_load(&asked_ns) != 0;
}

hp_status stop_agree(hp_world *world, bool *out_stop) {
    int64_t asked = stop_is_requested();
    TRY(hp_all_reduce(hp_world_group(world), &asked, &asked, 1, HP_INT64, HP_MAX));
    *out_stop = asked != 0;
    return HP_OK;
}
