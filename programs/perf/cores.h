/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/cores.h - which core a rank runs on, for this library and its peers alike.
 */
#ifndef PERF_CORES_H
#define PERF_CORES_H

/* Bind rank r to the r-th core that this process may use, counting round where there are fewer: 0,
 * or -1 with errno. */
int cores_bind(int rank);
/* The same where ranks share cores: the kernel would move them about, and who is beside whom
 * decides how long a meeting takes. Ranks that have a core each stay where their launcher has put
 * them. */
int cores_spread(int rank, int n_ranks);

#endif
