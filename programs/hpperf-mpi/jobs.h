/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf-mpi/jobs.h - what is done with the token: collectives, or steps of a sharded training
 * without compute.
 */
#ifndef HPPERF_MPI_JOBS_H
#define HPPERF_MPI_JOBS_H

#include "../perf/token.h"

#include <stdint.h>

/* ---- step.c ---- */

typedef struct step_options {
    int n_units, n_params; /* parameters of a unit, of the same size */
    uint64_t width_bytes;  /* of a unit's parameters, fp32 */
    int n_steps;           /* of a turn, behind one that is not timed */
    int rank, n_ranks;
} step_options;

typedef struct step step;

/* NULL: no memory. */
step *step_create(const step_options *o);
void step_destroy(step *s);
/* A turn; out: a JSON object, milliseconds of a step: "calls_ms" in MPI, "step_ms" with packing,
 * and "wrong", elements that were not what they must be. Collective. */
void step_turn(step *s, char *out, size_t size);

/* ---- collectives.c ---- */

/* Measure what the lines of `fd` say until there is none any more. 0, or negative: no memory.
 * Collective. */
int collectives_take_turns(int rank, int n_ranks, int fd);

#endif
