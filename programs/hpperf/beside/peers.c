/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/peers.c - the peers, each at its best known setting; where that depends on the
 * size, a row for each.
 *
 * With fewer cores than ranks a library must yield, or each wait lasts until the scheduler takes
 * the core away, 4 ms and more; MPICH and oneCCL have no setting that does. -sm: Open MPI's
 * collectives in shared memory, the fastest barrier of a pair. -rg: MPICH's, with buffers of 1 MiB.
 * Source: the reference measurements of this project, and docs/hpperf.md.
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
#define OPENMPI5 "--allow-run-as-root "
#define OPENMPI5_SHARED "--map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1"
#define INTELMPI_PINNED "-genv I_MPI_PIN_DOMAIN core"
#define INTELMPI_SHARED "-genv I_MPI_PIN 0 -genv I_MPI_THREAD_YIELD 2"
static const beside_row rows[] = {
    {.name = "openmpi",
     .group = "mpi",
     .launcher = "mpirun.openmpi",
     .program = "./hpperf-mpi.openmpi",
     .options = OPENMPI "--mca pml ob1 --mca btl self,vader "
                        "--mca btl_vader_single_copy_mechanism cma",
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI_SHARED},
    {.name = "openmpi-ucx",
     .group = "mpi",
     .launcher = "mpirun.openmpi",
     .program = "./hpperf-mpi.openmpi",
     .options = OPENMPI OPENMPI_UCX,
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI_SHARED},
    {.name = "mpich",
     .group = "mpi",
     .launcher = "mpirun.mpich",
     .program = "./hpperf-mpi.mpich",
     .pinned = "-bind-to core",
     .shared = "-bind-to none",
     .cannot_yield = true},
    {.name = "openmpi5",
     .group = "peers",
     .launcher = "openmpi5/bin/mpiexec",
     .program = "./hpperf-mpi.openmpi5",
     .options = OPENMPI5 "--mca pml ob1 --mca btl self,sm --mca smsc cma",
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI5_SHARED},
    {.name = "openmpi5-ucx",
     .group = "peers",
     .launcher = "openmpi5/bin/mpiexec",
     .program = "./hpperf-mpi.openmpi5",
     .options = OPENMPI5 OPENMPI_UCX,
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI5_SHARED},
    {.name = "mpich5",
     .group = "peers",
     .launcher = "mpich5/bin/mpiexec",
     .program = "./hpperf-mpi.mpich5",
     .pinned = "-bind-to core",
     .shared = "-bind-to none",
     .cannot_yield = true},
    {.name = "openmpi5-sm",
     .group = "peers",
     .launcher = "openmpi5/bin/mpiexec",
     .program = "./hpperf-mpi.openmpi5",
     .options =
         OPENMPI5 "--mca pml ob1 --mca btl self,sm --mca smsc cma --mca coll_sm_priority 100",
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI5_SHARED},
    {.name = "openmpi-sm",
     .group = "mpi",
     .launcher = "mpirun.openmpi",
     .program = "./hpperf-mpi.openmpi",
     .options = OPENMPI "--mca pml ob1 --mca btl self,vader "
                        "--mca btl_vader_single_copy_mechanism cma --mca coll_sm_priority 100",
     .pinned = OPENMPI_PINNED,
     .shared = OPENMPI_SHARED},
    {.name = "mpich5-rg",
     .group = "peers",
     .launcher = "mpich5/bin/mpiexec",
     .program = "./hpperf-mpi.mpich5",
     .pinned = "-bind-to core",
     .shared = "-bind-to none",
     .cannot_yield = true,
     .environment = "MPIR_CVAR_BCAST_INTRANODE_BUFFER_TOTAL_SIZE=1048576 "
                    "MPIR_CVAR_REDUCE_INTRANODE_BUFFER_TOTAL_SIZE=1048576 "
                    "MPIR_CVAR_BCAST_INTRANODE_NUM_CELLS=8 "
                    "MPIR_CVAR_REDUCE_INTRANODE_NUM_CELLS=8 "
                    "MPIR_CVAR_COLL_SHM_LIMIT_PER_NODE=1048576"},
    {.name = "intelmpi",
     .group = "peers",
     .launcher = "intelmpi/bin/mpiexec",
     .program = "./hpperf-mpi.intelmpi",
     .pinned = INTELMPI_PINNED,
     .shared = INTELMPI_SHARED,
     .environment = "I_MPI_FABRICS=shm"},
    {.name = "oneccl",
     .group = "peers",
     .launcher = "intelmpi/bin/mpiexec",
     .program = "./hpperf-ccl",
     .pinned = INTELMPI_PINNED,
     .shared = INTELMPI_SHARED,
     .environment =
         "I_MPI_FABRICS=shm CCL_ATL_TRANSPORT=mpi CCL_WORKER_OFFLOAD=0 CCL_LOG_LEVEL=error",
     .has_no_step = true},
    {.name = "gloo",
     .group = "peers",
     .launcher = "./hprun",
     .interpreter = "gloo/bin/python",
     .program = "./hpperf-gloo.py",
     .environment = "GLOO_SOCKET_IFNAME=lo",
     .has_no_step = true},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

const beside_row *beside_find(const char *name) {
    char names[400] = "";
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
