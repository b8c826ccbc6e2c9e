/* SPDX-License-Identifier: Apache-2.0
 *
 * restart.c - whether a job that failed is started again, and when.
 *
 * A try that lasted did some work, and what ended it may not come again: the next begins at once.
 * One that ended within a second will most likely do so again (a file that is missing, a machine
 * without memory), so a pause comes before the next, twice as long each time. Signals and the
 * deadline end a pause.
 */
#include "launch.h"

#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { SHORT_MS = 1000, FIRST_PAUSE_MS = 100, MOST_PAUSE_MS = 10000, EXIT_LATE = 124 };

/* That it fails again is certain, or nobody wants it any more. */
static bool may_not(const hpi_launcher *l) {
    return !l->exit_status || l->is_late || l->is_told_to_end || l->is_usage;
}

static uint64_t next_pause_ns(const hpi_launcher *l) {
    if (hpi_now_ns() - l->begin_ns >= SHORT_MS * MS)
        return 0;
    return l->pause_ns ? hpi_min(2 * l->pause_ns, MOST_PAUSE_MS * MS) : FIRST_PAUSE_MS * MS;
}

/* There are no ranks to pass a signal on to; only one that ends the job means something. */
static void read_signals(hpi_launcher *l) {
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        l->is_told_to_end |= hpi_tells_to_end(info.ssi_signo);
}

/* Signals that came while the last rank was ending count too, so there is one look in any case. */
static void wait_until(hpi_launcher *l, uint64_t end_ns) {
    uint64_t now_ns;
    read_signals(l);
    while (!l->is_told_to_end && (now_ns = hpi_now_ns()) < end_ns) {
        struct pollfd poll_fd = {.fd = l->signal_fd, .events = POLLIN};
        (void)poll(&poll_fd, 1, (int)((end_ns - now_ns) / MS + 1));
        read_signals(l);
    }
}

static void announce(const hpi_launcher *l) {
    if (l->pause_ns)
        hpi_say(l, "restart %d of %d in %llu ms, as this try lasted less than %d", l->n_restarts,
                l->config->max_restarts, (unsigned long long)(l->pause_ns / MS), SHORT_MS);
    else
        hpi_say(l, "restart %d of %d", l->n_restarts, l->config->max_restarts);
}

bool hpi_restart(hpi_launcher *l) {
    const int max_restarts = l->config->max_restarts;
    if (!max_restarts || may_not(l))
        return false;
    if (l->n_restarts == max_restarts) {
        hpi_say(l, "it has failed after each of %d restart%s: no more", max_restarts,
                max_restarts == 1 ? "" : "s");
        return false;
    }
    l->n_restarts++;
    l->pause_ns = next_pause_ns(l);
    announce(l);
    wait_until(l, hpi_min(hpi_add_saturated(hpi_now_ns(), l->pause_ns), l->deadline_ns));
    if (!l->is_told_to_end && hpi_now_ns() >= l->deadline_ns) {
        l->exit_status = EXIT_LATE;
        hpi_report_late(l);
        return false;
    }
    return !l->is_told_to_end;
}
