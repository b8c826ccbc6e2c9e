/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/step/step.h - hpperf step: what the communication of a training step costs, nothing beside
 * it.
 *
 * Equal units go through forward and backward of the public fsdp under the schedule `serial`, and
 * the time inside its calls is added up; what lies between them, reading parameters and writing
 * gradients, is not. With --beside another library's job does the same steps in turns (beside.h):
 * a pair is a turn of each, and a ratio is taken within a pair.
 */
#ifndef HPPERF_STEP_H
#define HPPERF_STEP_H

#include "../beside/beside.h"
#include "../options.h"

#include <hyperparallel/fsdp.h>
#include <stdbool.h>
#include <stdio.h>

enum { STEP_MOST_MODES = 8, STEP_MOST_UNITS = 1024, STEP_MOST_PARAMS = 64 };

typedef struct step_options {
    hp_mode modes[STEP_MOST_MODES];
    int n_modes;
    int n_units, n_params; /* parameters of a unit, of the same size */
    uint64_t width_bytes;  /* of a unit's parameters, fp32 */
    bool is_threaded;      /* streams are threads; else the caller runs everything */
    const beside_row *beside;
    int n_pairs, n_steps; /* steps of a turn, behind one that is not timed */
    int timeout_ms;       /* of the peer */
    const char *trace;    /* directory; NULL: none */
    bool as_json;
    pin pin;
    bool wants_help;
} step_options;

/* ---- options.c ---- */

/* argv[0] is "step". Errors: ARGUMENT saying what was expected and given. */
hp_status step_parse(int argc, char **argv, step_options *out_options);
/* What only the number of ranks tells. Errors: ARGUMENT. */
hp_status step_check_ranks(const step_options *o, int n_ranks);
void step_help(FILE *file);

/* ---- model.c ---- */

typedef struct step_model step_model;

/* Collective. Owns: the caller. */
hp_status step_model_create(hp_world *world, const step_options *o, hp_mode mode,
                            step_model **out_model);
void step_model_destroy(step_model *m);
hp_mode step_model_mode(const step_model *m); /* never HP_AUTO */
/* A turn: out: milliseconds of a step inside the calls, and elements that are wrong; of the rank
 * with the most. Collective. */
hp_status step_model_turn(step_model *m, double *out_ms, double *out_wrong);
/* What its streams did. */
hp_status step_model_write_trace(const step_model *m);

/* ---- step.c ---- */

/* The peer is started while ranks may still use every core: before they are bound. *out_peer is
 * NULL without --beside. Collective. */
hp_status step_open_peer(hp_world *world, const step_options *o, beside **out_peer);
/* Measure and print. Collective. *out_wrong: elements. */
hp_status step(hp_world *world, const step_options *o, beside *peer, uint64_t *out_wrong);

#endif
