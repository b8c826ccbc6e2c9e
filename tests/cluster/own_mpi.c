/* SPDX-License-Identifier: Apache-2.0
 *
 * own_mpi.c - a program that uses MPI itself, beside the library's transport.
 *
 * usage: mpirun ... own_mpi LEVEL      LEVEL: single or multiple, what it starts MPI with
 *
 * Built for each MPI. Its own messages, on the tags that the transport uses, go on during a
 * gathering of the library's; it ends MPI itself, after the transport. Exit status 3 and the reason
 * where the transport cannot be opened.
 */
#include "base/base.h"
#include "transport/transport.h"

#include <mpi.h>
#include <stdio.h>

static int open_transport(hpi_transport **out) {
    hpi_options options;
    hp_error error;
    if (!hpi_options_load(&options) && !hpi_transport_open(&options, -1, -1, out))
        return 0;
    hp_last_error_get(&error);
    fprintf(stderr, "own_mpi: %s\n", error.message);
    return 3;
}

/* To the next rank, from the one before, with the library's gathering in between. */
static int talk(hpi_transport *t) {
    const hpi_patience patience = {.operation = "own_mpi", .timeout_ms = 20000};
    int sent = t->rank + 100, got = 0, all[1024];
    MPI_Request requests[2];
    MPI_Irecv(&got, 1, MPI_INT, (t->rank + t->n_ranks - 1) % t->n_ranks, 0, MPI_COMM_WORLD,
              &requests[0]);
    if (hpi_transport_gather(t, &sent, sizeof sent, all, &patience))
        return 1;
    MPI_Isend(&sent, 1, MPI_INT, (t->rank + 1) % t->n_ranks, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Status statuses[2];
    MPI_Waitall(2, requests, statuses);
    for (int i = 0; i < t->n_ranks; i++)
        if (all[i] != i + 100)
            return 1;
    return got != 100 + (t->rank + t->n_ranks - 1) % t->n_ranks;
}

int main(int argc, char **argv) {
    const bool is_single = argc > 1 && !strcmp(argv[1], "single");
    hpi_transport *t = NULL;
    int level;
    MPI_Init_thread(&argc, &argv, is_single ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
    int status = open_transport(&t);
    if (!status)
        status = talk(t);
    hpi_transport_close(t);
    MPI_Finalize();
    if (status)
        return status;
    /* after its end there is no second start */
    return open_transport(&t) == 3 ? 0 : 1;
}
