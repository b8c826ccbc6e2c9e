/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/cores.c - see cores.h.
 */
#include "cores.h"

#include <sched.h>

int cores_bind(int rank) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return -1;
    int r = rank % CPU_COUNT(&allowed);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && r-- == 0)
            CPU_SET(core, &one);
    return sched_setaffinity(0, sizeof one, &one);
}

int cores_spread(int rank, int n_ranks) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) >= n_ranks)
        return 0;
    return cores_bind(rank);
}
