/* SPDX-License-Identifier: Apache-2.0
 *
 * slice.c - a stream's thread runs soon after it was woken, though the cores are busy.
 *
 * It works in short bursts between waits for peers, and every rank waits for the last thread that
 * gets a core. A thread that asks the scheduler for a short slice is let in before one that has a
 * long one, and gets no more time than its share for that. Linux takes the wish of an ordinary
 * thread since 6.12 and leaves it aside before; none needs a privilege. Source: sched(7); Linux,
 * kernel/sched/fair.c (EEVDF, PREEMPT_SHORT).
 */
#include "executor.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct sched_attr, first version: the C library has none, and the kernel's header does not go
 * together with <sched.h>. */
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} attributes;
_Static_assert(sizeof(attributes) == 48, "SCHED_ATTR_SIZE_VER0");

/* The least that the kernel takes. */
static const uint64_t slice_ns = 100 * 1000;

/* Not taken is no failure: the thread only waits longer for its turn. */
void hpi_slices_short(void) {
    attributes a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) || a.policy != SCHED_OTHER)
        return;
    a.runtime_ns = slice_ns;
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}
