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

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const uint64_t moment_ns = 100000000;

/* A signal can reach nothing but a global. 0: not asked yet. */
static _Atomic uint64_t asked_ns;

/* How this process speaks; whether it writes to a terminal is asked before any signal. */
enum { SILENT, PLAIN, ON_TERMINAL };
static _Atomic int manner = SILENT;

/* A signal may come while stdio is at work, hence write. On a terminal there is a line before: the
 * live one, or the key's own mark. */
static void say(const char *text) {
    const int how = atomic_load(&manner);
    if (how == SILENT)
        return;
    if (how == ON_TERMINAL)
        (void)!write(STDERR_FILENO, "\n", 1);
    (void)!write(STDERR_FILENO, text, strlen(text)); /* nobody hears of a failure */
}

/* With its default action back, the signal comes again when the handler returns. */
static void on_signal(int number) {
    const int error = errno;
    const uint64_t first = atomic_load(&asked_ns);
    if (!first) {
        atomic_store(&asked_ns, now_ns());
        say("hptrain: stopping after this step (again: at once)\n");
    } else if (now_ns() - first > moment_ns) {
        say("hptrain: stopped at once; nothing more is saved\n");
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
    errno = error;
}

void stop_catch_signals(bool speaks) {
    atomic_store(&manner, !speaks ? SILENT : isatty(STDERR_FILENO) == 1 ? ON_TERMINAL : PLAIN);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART; /* a step in progress is not disturbed */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    (void)sigaction(SIGINT, &action, NULL); /* fails only for signals that do not exist */
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

hp_status stop_unread(void) {
    if (!atomic_load(&asked_ns)) {
        atomic_store(&asked_ns, now_ns());
        say("hptrain: nobody reads standard output: stopping after this step\n");
    }
    return HP_OK;
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
