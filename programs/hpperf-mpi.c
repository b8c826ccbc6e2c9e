/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf-mpi.c - what hpperf measures, written with MPI: the peer of `hpperf --beside`.
 *
 * usage: mpirun -n N hpperf-mpi collectives --token NAME
 *        mpirun -n N hpperf-mpi step --token NAME --units N --params N --width BYTES --steps N
 *
 * Built once for each MPI that is installed, without this library. hpperf starts it; it does
 * nothing by itself but wait for the token (programs/perf/token.h), and nothing of what it prints
 * is read. Exit status: 0 when the token is gone; 2 for a wrong command line; MPI ends the job on
 * its own errors.
 */
#include "hpperf-mpi/jobs.h"
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

static int is_job(int argc, char **argv, const char *name) {
    return argc > 1 && strcmp(argv[1], name) == 0 && value_of(argc, argv, "--token");
}

static int read_step_options(int argc, char **argv, step_options *o) {
    o->n_units = (int)number_of(argc, argv, "--units", 1024);
    o->n_params = (int)number_of(argc, argv, "--params", 64);
    o->width_bytes = (uint64_t)number_of(argc, argv, "--width", 1LL << 32);
    o->n_steps = (int)number_of(argc, argv, "--steps", 10000);
    return o->n_units && o->n_params && o->width_bytes && o->n_steps;
}

/* The library's own words up to a comma or the end of the line, with single spaces. */
static void read_version(char *out, size_t size) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    size_t n = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    for (const char *c = text; *c && n + 1 < size; c++) {
        const char now = *c == '\t' ? ' ' : *c;
        if (now != ' ' || (n && out[n - 1] != ' '))
            out[n++] = now;
    }
    out[n] = 0;
}

static void fail(int rank, const char *what) {
    fprintf(stderr, "hpperf-mpi: rank %d: expected %s: %m\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void take_steps(const step_options *o, int fd) {
    char line[TOKEN_LINE], reply[TOKEN_LINE];
    step *s = step_create(o);
    if (!s)
        fail(o->rank, "memory");
    while (token_read(fd, line) == 1) {
        step_turn(s, reply, sizeof reply);
        if (token_write(fd, reply))
            break;
    }
    step_destroy(s);
}

static void take_turns(step_options *o, int steps, const char *token) {
    char version[128];
    MPI_Comm_rank(MPI_COMM_WORLD, &o->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &o->n_ranks);
    read_version(version, sizeof version);
    const int fd = token_connect(token, "peer", o->rank, version);
    if (fd < 0)
        fail(o->rank, "a connection to hpperf");
    if (steps)
        take_steps(o, fd);
    else if (collectives_take_turns(o->rank, o->n_ranks, fd) < 0)
        fail(o->rank, "memory");
}

int main(int argc, char **argv) {
    step_options o = {0};
    open_missing_stdio();
    const int steps = is_job(argc, argv, "step") && read_step_options(argc, argv, &o);
    if (!steps && !is_job(argc, argv, "collectives")) {
        fprintf(stderr,
                "hpperf-mpi: expected collectives --token NAME, or step --token NAME "
                "--units N --params N --width BYTES --steps N; hpperf --beside starts it\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    take_turns(&o, steps, value_of(argc, argv, "--token"));
    MPI_Finalize();
    return 0;
}
