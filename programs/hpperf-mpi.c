/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf-mpi.c - what hpperf measures, written with MPI: the peer of `hpperf --beside`.
 *
 * usage: mpirun -n N hpperf-mpi step --token NAME --units N --params N --width BYTES --steps N
 *
 * Built once for each MPI that is installed, without this library. hpperf starts it; it does
 * nothing by itself but wait for the token (programs/perf/token.h), and nothing of what it prints
 * is read. Exit status: 0 when the token is gone; 2 for a wrong command line; MPI ends the job on
 * its own errors.
 */
#include "hpperf-mpi/turn.h"
#include "standard.h"

#include <mpi.h>
#include <stdlib.h>

static const char *value_of(int argc, char **argv, const char *name) {
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return NULL;
}

/* A whole number from 1 to most; 0 when it is none. */
static long long number_of(int argc, char **argv, const char *name, long long most) {
    const char *text = value_of(argc, argv, name);
    char *end = NULL;
    const long long x = text ? strtoll(text, &end, 10) : 0;
    return text && *end == 0 && x >= 1 && x <= most ? x : 0;
}

static int read_options(int argc, char **argv, step_options *o) {
    o->n_units = (int)number_of(argc, argv, "--units", 1024);
    o->n_params = (int)number_of(argc, argv, "--params", 64);
    o->width_bytes = (uint64_t)number_of(argc, argv, "--width", 1LL << 32);
    o->n_steps = (int)number_of(argc, argv, "--steps", 10000);
    return argc > 1 && strcmp(argv[1], "step") == 0 && value_of(argc, argv, "--token") &&
           o->n_units && o->n_params && o->width_bytes && o->n_steps;
}

/* The library's own words, in one line, without spaces at the end. */
static void read_version(char *out, int size) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    snprintf(out, (size_t)size, "%.*s", (int)strcspn(text, ",\n"), text);
    for (char *c = out; *c; c++)
        *c = *c == '\t' ? ' ' : *c;
}

static void take_turns(step *s, int fd) {
    char line[TOKEN_LINE], reply[TOKEN_LINE];
    while (token_read(fd, line) == 1) {
        step_turn(s, reply, sizeof reply);
        if (token_write(fd, reply))
            break;
    }
}

int main(int argc, char **argv) {
    step_options o;
    char version[128];
    open_missing_stdio();
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "hpperf-mpi: expected step --token NAME --units N --params N --width BYTES "
                        "--steps N; hpperf --beside starts it\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &o.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &o.n_ranks);
    read_version(version, sizeof version);
    step *s = step_create(&o);
    const int fd = token_connect(value_of(argc, argv, "--token"), "peer", o.rank, version);
    if (!s || fd < 0) {
        fprintf(stderr, "hpperf-mpi: rank %d: expected %s: %m\n", o.rank,
                s ? "a connection to hpperf" : "memory");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    take_turns(s, fd);
    step_destroy(s);
    MPI_Finalize();
    return 0;
}
