/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf-mpi/collectives.c - each collective of hpperf as MPI has it.
 *
 * fp16 and bf16 are moved by every MPI, and reduced by those that have such a type (MPICH and what
 * comes from it); elsewhere the answer is that there is no such call. MPI ends the job on its own
 * errors, so no result is looked at.
 */
#include "../perf/peer.h"
#include "jobs.h"

#include <limits.h>
#include <mpi.h>

typedef struct mpi_types {
    MPI_Datatype type; /* of an element */
    MPI_Op op;
} mpi_types;

/* MPICH 4.0 and 5.0 name types that they fail to add up: fp16 in 4, bf16 in both. */
#if defined(MPIX_C_FLOAT16) && (defined(I_MPI_VERSION) || MPICH_NUMVERSION >= 50000000)
#define HAS_FP16
#endif

/* MPI_DATATYPE_NULL: this MPI has none. */
static MPI_Datatype half_type(hp_dtype dtype) {
#ifdef HAS_FP16
    if (dtype == HP_FP16)
        return MPIX_C_FLOAT16;
#endif
#ifdef MPIX_C_BF16
    if (dtype == HP_BF16)
        return MPIX_C_BF16;
#endif
    (void)dtype;
    return MPI_DATATYPE_NULL;
}

static MPI_Datatype type_of(const peer_call *c) {
    const int adds = c->what == HP_ALL_REDUCE || c->what == HP_REDUCE_SCATTER;
    switch (c->dtype) {
    case HP_FP64:
        return MPI_DOUBLE;
    case HP_FP32:
        return MPI_FLOAT;
    case HP_INT64:
        return MPI_INT64_T;
    case HP_INT32:
        return MPI_INT32_T;
    case HP_INT8:
        return MPI_INT8_T;
    case HP_UINT8:
        return MPI_UINT8_T;
    default:
        return adds ? half_type(c->dtype) : MPI_UINT16_T;
    }
}

static int prepare(void *self, const peer_call *c) {
    mpi_types *m = self;
    m->type = type_of(c);
    m->op = c->reduce == HP_MAX ? MPI_MAX : c->reduce == HP_MIN ? MPI_MIN : MPI_SUM;
    return m->type != MPI_DATATYPE_NULL && c->reduce != HP_AVG && c->count <= INT_MAX;
}

static void bounce(const mpi_types *m, const peer_call *c) {
    const int n = (int)c->count;
    if (c->partner < 0)
        return;
    if (c->partner % 2) /* this is the even one */
        MPI_Send(c->in, n, m->type, c->partner, 0, MPI_COMM_WORLD);
    MPI_Recv(c->out, n, m->type, c->partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (c->partner % 2 == 0)
        MPI_Send(c->in, n, m->type, c->partner, 0, MPI_COMM_WORLD);
}

static int run(void *self, const peer_call *c) {
    const mpi_types *m = self;
    const int n = (int)c->count;
    const void *in = c->is_in_place ? MPI_IN_PLACE : c->in;
    switch (c->what) {
    case HP_ALL_REDUCE:
        MPI_Allreduce(in, c->out, n, m->type, m->op, MPI_COMM_WORLD);
        break;
    case HP_ALL_GATHER:
        MPI_Allgather(in, n, m->type, c->out, n, m->type, MPI_COMM_WORLD);
        break;
    case HP_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(in, c->out, n, m->type, m->op, MPI_COMM_WORLD);
        break;
    case HP_ALL_TO_ALL:
        MPI_Alltoall(in, n, m->type, c->out, n, m->type, MPI_COMM_WORLD);
        break;
    case HP_BROADCAST:
        MPI_Bcast(c->out, n, m->type, c->root, MPI_COMM_WORLD);
        break;
    case HP_SEND:
        bounce(m, c);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
    return 0;
}

static int barrier(void *self) {
    (void)self;
    MPI_Barrier(MPI_COMM_WORLD);
    return 0;
}

static int most(void *self, double *x, int n) {
    (void)self;
    MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return 0;
}

int collectives_take_turns(int rank, int n_ranks, int fd) {
    mpi_types m;
    const peer_library library = {.self = &m,
                                  .rank = rank,
                                  .n_ranks = n_ranks,
                                  .prepare = prepare,
                                  .run = run,
                                  .barrier = barrier,
                                  .most = most};
    return peer_take_turns(&library, fd);
}
