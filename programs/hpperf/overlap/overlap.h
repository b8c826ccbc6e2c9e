/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/overlap.h - hpperf overlap: how much communication a schedule hides behind
 * compute.
 *
 * N equal units go through forward and backward of the public fsdp, with compute of a chosen length
 * and communication that is made to last. A case is a schedule, a mode and a mesh; the cases of one
 * call are measured in turns. What a step could take at least, its bound, is put together from what
 * compute and each collective need alone: docs/hpperf.md says how, bound.c does it, for
 * real ranks (run.c) and for virtual time (virtual.c) alike.
 */
#ifndef HPPERF_OVERLAP_H
#define HPPERF_OVERLAP_H

#include "../options.h"

#include <hyperparallel/fsdp.h>
#include <stdbool.h>
#include <stdio.h>

enum {
    OVERLAP_MOST = 8, /* of a list */
    OVERLAP_MOST_UNITS = 1024,
    OVERLAP_MOST_PARAMS = 64,
    OVERLAP_MOST_RANKS = 1024
};

/* What the parts of one unit last. In options: what was asked for; 0 ms of a collective: nothing is
 * added to what it takes by itself. */
typedef struct overlap_times {
    double forward_ms, backward_ms;            /* compute */
    double gather_ms, reduce_ms, replicate_ms; /* gathers in both phases; over all parameters */
    double copy_ms; /* virtual: what fused, and not fused-zero-copy, copies before a gather */
} overlap_times;

typedef struct overlap_mesh {
    int n_replicas, n_shards;
} overlap_mesh;

typedef struct overlap_options {
    hp_schedule schedules[OVERLAP_MOST]; /* each list with each other makes the cases */
    hp_mode modes[OVERLAP_MOST];
    overlap_mesh meshes[OVERLAP_MOST]; /* none: 1 x ranks */
    int n_schedules, n_modes, n_meshes;
    int n_units, n_params; /* parameters of a unit, of the same size */
    uint64_t width_bytes;  /* of a unit's parameters, fp32 */
    int prefetch;
    bool is_busy; /* compute is work; else a timed sleep */
    overlap_times times;
    uint64_t inject_seed; /* with injects: overlap_delay_us */
    bool injects;
    int n_runs, n_warmup;
    bool is_virtual;
    const char *preset; /* NULL: none */
    const char *trace;  /* directory for traces of the ranks; NULL: none */
    bool as_json;
    pin pin;
    bool wants_help;
} overlap_options;

typedef struct overlap_case {
    hp_schedule schedule;
    hp_mode mode; /* as asked for, maybe HP_AUTO */
    overlap_mesh mesh;
} overlap_case;

/* What a step needs, added up over the units; a collective: from the arrival of its last rank. */
typedef struct overlap_needs {
    int n_units;
    int prefetch; /* 0: no gather lies beside the compute */
    double forward_ms, backward_ms;
    double forward_gathers_ms, backward_gathers_ms, first_gather_ms;
    double reduces_ms, first_reduce_ms, last_reduce_ms;
    double replicates_ms, last_replicate_ms;
} overlap_needs;

typedef struct overlap_bound {
    double forward_ms, backward_ms, step_ms; /* NAN when it is not known */
} overlap_bound;

/* Medians over the runs, of the slowest rank. */
typedef struct overlap_result {
    hp_mode mode; /* never HP_AUTO */
    double forward_ms, backward_ms, step_ms;
    overlap_needs needs;
    overlap_bound bound;
    double exposed_unshard_ms, exposed_reduce_ms, exposed_replicate_ms; /* compute stood still */
    /* Of the gathers of a step: packing and unpacking, the collective, compute's waits for it. */
    double pack_ms, collective_ms, wait_ms;
    double over_serial; /* the median of step over serial step of the same run; NAN: not measured */
    bool is_wrong;      /* gradients or parameters are not what they must be */
} overlap_result;

/* ---- options.c ---- */

/* argv[0] is "overlap". Errors: ARGUMENT saying what was expected and given. */
hp_status overlap_parse(int argc, char **argv, overlap_options *out_options);
/* What only the number of ranks tells; fills in the mesh where none is given. Errors: ARGUMENT. */
hp_status overlap_check_ranks(overlap_options *o, int n_ranks);
void overlap_help(FILE *file);
int overlap_n_cases(const overlap_options *o);
/* Case i of them; those of one mesh and mode are neighbours, which differ in the schedule. */
overlap_case overlap_case_at(const overlap_options *o, int i);

/* ---- bound.c ---- */

/* Of one rank. That of all is the largest of each, for ranks wait for each other in groups alone:
 * what one needs in forward and another in backward does not add up. */
overlap_bound overlap_bound_of(const overlap_needs *needs);
/* What is asked of a unit's collectives on a stream, together; 0 on compute. */
double overlap_stream_ms(const overlap_times *times, unsigned stream);
/* What they are called, and how many there are, in a mode that is not HP_AUTO. */
const char *overlap_collective(hp_mode mode, unsigned stream);
int overlap_n_collectives(const overlap_options *o, hp_mode mode, unsigned stream);
/* What is put before each collective of a unit by --comm-ms and --inject on a rank, in us, when the
 * unit has so many on that stream: --comm-ms of the stream, and by --inject up to as much again. */
uint64_t overlap_delay_us(const overlap_options *o, unsigned stream, int rank, int unit,
                          int n_collectives);

/* ---- print.c ---- */

/* Before the rows; nothing with --json. `about`: a line of its own, or NULL. */
void overlap_print_head(const overlap_options *o, const char *about);
/* A line of the table, or a JSON object. `name`: of a row of a preset; NULL: none. */
void overlap_print_row(const overlap_options *o, const char *name, const overlap_case *c,
                       const overlap_result *r);

/* ---- run.c: real ranks ---- */

/* Measure n cases in turns. Collective; the results are the same on every rank. */
hp_status overlap_run(hp_world *world, const overlap_options *o, const overlap_case *cases, int n,
                      overlap_result *out_results);

/* ---- virtual.c: all ranks of the meshes in virtual time, without a world ---- */

hp_status overlap_virtual(const overlap_options *o, const overlap_case *cases, int n,
                          overlap_result *out_results);

/* ---- preset.c ---- */

/* Measure and print the rows of o->preset, in virtual time and then on the ranks of `world`.
 * Errors: ARGUMENT for a name that is none. Collective; rank 0 prints. *out_wrong: rows with
 * is_wrong. */
hp_status overlap_preset(hp_world *world, const overlap_options *o, uint64_t *out_wrong);

/* ---- overlap.c ---- */

/* Everything that the options ask for. Collective. *out_wrong: rows. */
hp_status overlap(hp_world *world, const overlap_options *o, uint64_t *out_wrong);

#endif
