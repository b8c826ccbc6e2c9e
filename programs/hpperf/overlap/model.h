/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/model.h - a model of equal units that trains for nothing but its times.
 *
 * One for each case, all alive together so that they can take turns. Its parameters and gradients
 * are real, and are checked; its compute is work or a sleep of the length that was asked for.
 */
#ifndef HPPERF_OVERLAP_MODEL_H
#define HPPERF_OVERLAP_MODEL_H

#include "overlap.h"

/* What is known of a step; in ms but for the last. */
typedef enum metric {
    M_FORWARD,
    M_BACKWARD,
    M_STEP,
    M_EXPOSED_UNSHARD, /* the next two follow, in the order of streams */
    M_EXPOSED_REDUCE,
    M_EXPOSED_REPLICATE,
    M_PACK,
    M_COLLECTIVE,
    M_FORWARD_COMPUTE,
    M_BACKWARD_COMPUTE,
    M_WRONG,      /* elements */
    N_OF_SLOWEST, /* of all above the slowest rank's counts, of those below each rank's own */
    M_FORWARD_GATHERS = N_OF_SLOWEST,
    M_BACKWARD_GATHERS,
    M_FIRST_GATHER,
    M_REDUCES,
    M_FIRST_REDUCE,
    M_LAST_REDUCE,
    M_REPLICATES,
    M_LAST_REPLICATE,
    N_METRICS
} metric;

typedef struct model {
    hp_world *world;
    const overlap_options *o;
    overlap_case what;
    hp_mode mode; /* never HP_AUTO, once made */
    hp_mesh *mesh;
    hp_trace *trace;
    hp_fsdp *fsdp;
    hp_unit *units[OVERLAP_MOST_UNITS];
    uint64_t loops_per_ms;
    uint64_t seen[HP_N_STREAMS]; /* spans of the trace that were looked at */
    double forward_end_ns;       /* of the last step, by the clock */
    volatile uint64_t sink;      /* takes what work gives, so that it is done */
} model;

/* ---- model.c ---- */

/* How fast this machine works: the same number on every rank. Collective. */
hp_status overlap_calibrate(hp_world *world, uint64_t *out_loops_per_ms);
/* `m` is zeroed memory of the caller's; after a failure it is destroyed too. Collective. */
hp_status model_create(hp_world *world, const overlap_options *o, const overlap_case *what,
                       uint64_t loops_per_ms, model *m);
void model_destroy(model *m);
/* Forward and backward of all units, once, from a barrier on. Collective. */
hp_status model_step(model *m, double metrics[N_METRICS]);

/* ---- spans.c ---- */

/* What the trace says of the step that was just made. The needs of collectives are asked for where
 * nothing lies beside them: `is_alone`. Collective. */
hp_status model_look(model *m, bool is_alone, double metrics[N_METRICS]);

#endif
