/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/peers.c - the peers, each at its best known setting.
 *
 * With fewer cores than ranks a library must yield, or each wait lasts until the scheduler takes
 * the core away, 4 ms and more. Open MPI: copies across processes (CMA), or over UCX through shared
 * memory. MPICH of Debian has no way to yield. Source: the reference measurements of this project.
 */
#include "../fail.h"
#include "beside.h"

#include <string.h>

#define OPENMPI "--allow-run-as-root --quiet --mca btl_base_warn_component_unused 0 "
#define OPENMPI_UCX                                                                                \
    "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any "               \
    "-x UCX_TLS=self,sm"
#define OPENMPI_PINNED "--bind-to core --map-by core"
#define OPENMPI_SHARED "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
static const beside_row rows[] = {
    {.name = "openmpi",
     .group = "mpi",
     .launcher = "mpirun.openmpi",
     .program = "hpperf-mpi.openmpi",
     .options = OPENMPI "--mca pml ob1 --mca btl self,vader "
                        "--mca btl_vader_single_copy_mechanism cma",
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI_SHARED},
    {.name = "openmpi-ucx",
     .group = "mpi",
     .launcher = "mpirun.openmpi",
     .program = "hpperf-mpi.openmpi",
     .options = OPENMPI OPENMPI_UCX,
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI_SHARED},
    {.name = "mpich",
     .group = "mpi",
     .launcher = "mpirun.mpich",
     .program = "hpperf-mpi.mpich",
     .options = "",
     .pinned = "-bind-to core",
     .shared = "-bind-to none"},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

const beside_row *beside_find(const char *name) {
    char names[200] = "";
    size_t length = 0;
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i ? ", " : "",
                                   rows[i].name);
    }
    (void)fail(HP_ERR_ARGUMENT, "expected --beside to be one of %s, given \"%s\"", names, name);
    return NULL;
}
