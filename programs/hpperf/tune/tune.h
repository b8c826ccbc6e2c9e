/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/tune/tune.h - measure the thresholds between algorithms on this machine.
 */
#ifndef HPPERF_TUNE_H
#define HPPERF_TUNE_H

#include "../options.h"

/* hpperf tune: everything, from the command line behind "tune" to the exit status. It makes worlds
 * of its own, one for each setting of HYPER_PARALLEL_THRESHOLDS. `bind` gives this rank a core of
 * its own where there is one for each. Collective. */
int tune_main(int argc, char **argv, hp_status (*bind)(const hp_world *world, pin asked));

#endif
