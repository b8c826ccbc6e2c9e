/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/beside.h - a job of another library that takes turns with this one.
 *
 * beside_open starts `mpirun -n N hpperf-mpi.PEER ...` and connects everybody;
 * programs/perf/token.h is the protocol. Between turns the peer's ranks sit in read(2); in a turn
 * this job's do. What the peer measures it answers as a JSON object of numbers; of its ranks the
 * largest counts.
 */
#ifndef HPPERF_BESIDE_H
#define HPPERF_BESIDE_H

#include <hyperparallel/world.h>

typedef struct beside beside;

/* Peers and the commands that start them at their best; see start.c. */
typedef struct beside_row {
    const char *name;     /* --beside NAME */
    const char *launcher; /* looked for in PATH */
    const char *program;  /* beside this one */
    const char *options;  /* of the launcher, words */
    const char *pinned;   /* and with a core for each rank, */
    const char *shared;   /* and without */
} beside_row;

/* NULL with the record when there is none: ARGUMENT, listing the names. */
const beside_row *beside_find(const char *name);

/* Start `row`'s program with `arguments` (words) on as many ranks, before this job's ranks are
 * bound to cores; wait until all have connected. Errors: STATE, naming the peer, when it does not
 * start within `timeout_ms` or ends, SYSTEM. Owns: the caller. Collective. */
hp_status beside_open(hp_world *world, const beside_row *row, const char *arguments, int timeout_ms,
                      beside **out_beside);
/* A turn of the peer: `what` goes to each of its ranks; this job's sleep meanwhile. Errors: STATE
 * naming a rank of the peer that has gone, has said something else, or is silent for timeout_ms.
 * Collective; the values are the same on every rank. */
hp_status beside_turn(beside *b, const char *what, const char *const *names, int n,
                      double *out_values);
/* What the peer said about itself; rank 0 alone knows: "" elsewhere. */
const char *beside_version(const beside *b);
/* The peer ends, by itself or by force. Local, after the last turn. NULL is accepted. */
void beside_close(beside *b);

/* ---- start.c: a process of the launcher ---- */

/* A child that runs it, or -1 with errno. */
int beside_start(const beside_row *row, int n_ranks, const char *token, const char *arguments);
/* Has it ended? "exit status 1", "signal 9": into out_how. */
int beside_has_ended(int pid, char *out_how, size_t size);
/* It and all that it started end. */
void beside_stop(int pid, int grace_ms);

#endif
