/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/beside.h - a job of another library that takes turns with this one.
 *
 * beside_open starts the peer's launcher with a program of ours on it, say `mpirun -n N
 * hpperf-mpi.PEER`, and connects everybody; perf/token.h is the protocol. Between turns the peer's
 * ranks sit in read(2); in a turn this job's do. What the peer measures it answers as a JSON object
 * of numbers; of its ranks the largest counts.
 */
#ifndef HPPERF_BESIDE_H
#define HPPERF_BESIDE_H

#include <hyperparallel/world.h>
#include <stdbool.h>

typedef struct beside beside;

/* A peer and the command that starts it at its best; see peers.c. Files: ./NAME lies in the folder
 * of this program, FOLDER/NAME in that of the peers beside it, NAME in PATH. */
typedef struct beside_row {
    const char *name;        /* --beside NAME */
    const char *group;       /* tools/setup.sh GROUP installs it */
    const char *launcher;    /* a file */
    const char *interpreter; /* of the program, a file; NULL: none */
    const char *program;     /* a file */
    const char *options;     /* of the launcher, words; NULL: none */
    const char *pinned;      /* and with a core for each rank, */
    const char *shared;      /* and without */
    const char *environment; /* NAME=VALUE words; NULL: none */
    bool has_no_step;        /* it is measured in collectives alone */
    bool cannot_yield; /* with fewer cores than ranks each wait lasts a slice of the scheduler */
} beside_row;

/* For --help. */
#define BESIDE_NAMES                                                                               \
    "openmpi, openmpi-sm, openmpi-ucx, mpich (tools/setup.sh mpi); openmpi5, openmpi5-sm, "        \
    "openmpi5-ucx, mpich5, mpich5-rg, intelmpi, oneccl, gloo (tools/setup.sh peers)"

/* NULL with the record when there is none: ARGUMENT, listing the names. */
const beside_row *beside_find(const char *name);

/* Start `row`'s program with `arguments` (words) on as many ranks, before this job's ranks are
 * bound to cores; wait until all have connected. Errors: STATE, naming the peer, when it is not
 * installed, does not start within `timeout_ms` or ends, SYSTEM. Owns: the caller. Collective. */
hp_status beside_open(hp_world *world, const beside_row *row, const char *arguments, int timeout_ms,
                      beside **out_beside);
/* A turn of the peer: `what` goes to each of its ranks; this job's sleep meanwhile. Errors: STATE
 * naming a rank of the peer that has gone, has said something else, or is silent for timeout_ms.
 * Collective; the values are the same on every rank. */
hp_status beside_turn(beside *b, const char *what, const char *const *names, int n,
                      double *out_values);
/* Do the ranks of both sides share cores, and the peer's wait without giving theirs away? Then its
 * times are the scheduler's. */
bool beside_starves(const beside *b);
/* What the peer said about itself; rank 0 alone knows: "" elsewhere. */
const char *beside_version(const beside *b);
/* The peer ends, by itself or by force. Local, after the last turn. NULL is accepted. */
void beside_close(beside *b);

/* ---- start.c: a process of the launcher ---- */

/* That this process may use. */
int beside_n_cores(void);
/* Is all there that the row names? Errors: STATE, saying what is not and what installs it. */
hp_status beside_look(const beside_row *row);
/* A child that runs it, or -1 with errno. */
int beside_start(const beside_row *row, int n_ranks, const char *token, const char *arguments);
#define BESIDE_NO_LAUNCHER "there is no such program"
/* Has it ended? "exit status 1", "signal 9", or that: into out_how. */
int beside_has_ended(int pid, char *out_how, size_t size);
/* It and all that it started end. */
void beside_stop(int pid, int grace_ms);

#endif
