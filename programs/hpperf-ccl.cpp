/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf-ccl.cpp - what hpperf measures, written with oneCCL on processors: a peer of hpperf
 * --beside.
 *
 * usage: mpiexec -n N hpperf-ccl collectives --token NAME      (of Intel MPI)
 *
 * As hpperf-mpi.c: started by hpperf, waits for the token, says nothing. MPI starts the ranks,
 * carries oneCCL's address, and is what oneCCL moves bytes with. Exit status: 0 when the token is
 * gone; 1 when oneCCL failed; 2 for a wrong command line.
 */
#include "perf/peer.h"
#include "perf/token.h"
#include "standard.h"

#include <cstdlib>
#include <exception>
#include <mpi.h>
#include <oneapi/ccl.hpp>

namespace {

struct job {
    int rank = 0, n_ranks = 1;
    ccl::communicator communicator;
    ccl::datatype type = ccl::datatype::uint8;
    ccl::reduction reduction = ccl::reduction::sum;
};

ccl::datatype type_of(hp_dtype dtype) {
    static const ccl::datatype types[] = {ccl::datatype::float64, ccl::datatype::float32,
                                          ccl::datatype::float16, ccl::datatype::bfloat16,
                                          ccl::datatype::int64,   ccl::datatype::int32,
                                          ccl::datatype::int8,    ccl::datatype::uint8};
    return types[dtype];
}

int prepare(void *self, const peer_call *c) {
    job *j = static_cast<job *>(self);
    j->type = type_of(c->dtype);
    j->reduction = c->reduce == HP_MAX   ? ccl::reduction::max
                   : c->reduce == HP_MIN ? ccl::reduction::min
                                         : ccl::reduction::sum;
    return c->reduce != HP_AVG;
}

/* One message there and one back; `partner` is odd on the even rank, which begins. */
void bounce(job *j, const peer_call *c) {
    const bool begins = c->partner % 2;
    if (c->partner < 0)
        return;
    if (begins)
        ccl::send(c->in, c->count, j->type, c->partner, j->communicator).wait();
    ccl::recv(c->out, c->count, j->type, c->partner, j->communicator).wait();
    if (!begins)
        ccl::send(c->in, c->count, j->type, c->partner, j->communicator).wait();
}

void call(job *j, const peer_call *c) {
    switch (c->what) {
    case HP_ALL_REDUCE:
        ccl::allreduce(c->in, c->out, c->count, j->type, j->reduction, j->communicator).wait();
        break;
    case HP_ALL_GATHER:
        ccl::allgather(c->in, c->out, c->count, j->type, j->communicator).wait();
        break;
    case HP_REDUCE_SCATTER:
        ccl::reduce_scatter(c->in, c->out, c->count, j->type, j->reduction, j->communicator).wait();
        break;
    case HP_ALL_TO_ALL:
        ccl::alltoall(c->in, c->out, c->count, j->type, j->communicator).wait();
        break;
    case HP_BROADCAST:
        ccl::broadcast(c->out, c->count, j->type, c->root, j->communicator).wait();
        break;
    case HP_SEND:
        bounce(j, c);
        break;
    default:
        ccl::barrier(j->communicator).wait();
        break;
    }
}

/* Exceptions end here: the callers are C. */
int failed(const std::exception &e) {
    fprintf(stderr, "hpperf-ccl: %s\n", e.what());
    return -1;
}

int run(void *self, const peer_call *c) {
    try {
        call(static_cast<job *>(self), c);
    } catch (const std::exception &e) {
        return failed(e);
    }
    return 0;
}

int barrier(void *self) {
    try {
        ccl::barrier(static_cast<job *>(self)->communicator).wait();
    } catch (const std::exception &e) {
        return failed(e);
    }
    return 0;
}

int most(void *self, double *x, int n) {
    try {
        ccl::allreduce(x, x, static_cast<size_t>(n), ccl::datatype::float64, ccl::reduction::max,
                       static_cast<job *>(self)->communicator)
            .wait();
    } catch (const std::exception &e) {
        return failed(e);
    }
    return 0;
}

ccl::communicator connect(int rank, int n_ranks) {
    ccl::shared_ptr_class<ccl::kvs> kvs;
    ccl::kvs::address_type address;
    ccl::init();
    if (rank == 0) {
        kvs = ccl::create_main_kvs();
        address = kvs->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0)
        kvs = ccl::create_kvs(address);
    return ccl::create_communicator(n_ranks, rank, kvs);
}

int take_turns(const char *token) {
    int rank, n_ranks;
    char version[64];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    job j{rank, n_ranks, connect(rank, n_ranks)};
    const ccl::library_version v = ccl::get_library_version();
    snprintf(version, sizeof version, "oneCCL %u.%u.%u", v.major, v.minor, v.update);
    const int fd = token_connect(token, "peer", rank, version);
    peer_library library{};
    library.self = &j;
    library.rank = rank;
    library.n_ranks = n_ranks;
    library.scatters_to_own_part = true;
    library.prepare = prepare;
    library.run = run;
    library.barrier = barrier;
    library.most = most;
    return fd < 0 ? -1 : peer_take_turns(&library, fd);
}

} // namespace

int main(int argc, char **argv) {
    int status = -1;
    open_missing_stdio();
    if (argc != 4 || strcmp(argv[1], "collectives") != 0 || strcmp(argv[2], "--token") != 0) {
        fprintf(stderr,
                "hpperf-ccl: expected collectives --token NAME; hpperf --beside starts it\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    try {
        status = take_turns(argv[3]);
    } catch (const std::exception &e) {
        failed(e);
    }
    if (status < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
