/* SPDX-License-Identifier: Apache-2.0
 *
 * yield.c - letting others run, as long as it is cheap.
 *
 * Between a thread that waits and the one that it waits for, a yield costs a tenth of a sleep and a
 * wake. But Linux (6.18, where it was seen) takes the rest of its time from a thread that yields
 * while others want its core: beside a computing thread it comes back late, and is let in late
 * after its next wakes too. So a thread to which that has happened sleeps at once in its next
 * waits. Source: Linux, kernel/sched/fair.c, yield_task_fair.
 */
#include "base.h"

#include <sched.h>

/* A yield that took so long was no hand-over between threads that wait for each other. */
static const uint64_t dear_ns = 100 * 1000;
enum { N_REFUSALS = 64 };

static _Thread_local uint32_t n_refusals;

bool hpi_yield(void) {
    if (n_refusals) {
        n_refusals--;
        return false;
    }
    const uint64_t begin_ns = hpi_now_ns();
    sched_yield();
    if (hpi_now_ns() - begin_ns > dear_ns)
        n_refusals = N_REFUSALS;
    return true;
}
