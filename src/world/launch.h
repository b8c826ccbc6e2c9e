/* SPDX-License-Identifier: Apache-2.0
 *
 * world/launch.h - what a launcher and its ranks agree on.
 *
 * A rank inherits two descriptors: its socket to the launcher's store, and the memfd that becomes
 * its segment. The launcher made the memfd with one page and maps that page, the control block; the
 * rank gives it its size. So the launcher can read what a rank was doing after it was killed.
 */
#ifndef HPI_LAUNCH_H
#define HPI_LAUNCH_H

#include "control.h"

#define HPI_LAUNCHER_ENVIRONMENT "HYPER_PARALLEL_LAUNCHER"
#define HPI_LAUNCHER_FORMAT "layout=%d,store=%d,segment=%d"

#endif
