/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/report.h - what a run says: the log, the progress line, the words at the end.
 *
 * Rank 0 alone reports. On a terminal progress is one live line; elsewhere it is a line every few
 * seconds. All of it goes to standard output, the log to its file.
 */
#ifndef HPTRAIN_REPORT_H
#define HPTRAIN_REPORT_H

#include "curve.h"
#include "options.h"

#include <stdio.h>

/* One step, over all ranks. */
typedef struct step_record {
    uint64_t step; /* steps done, this one included */
    double loss;   /* mean over the global batch, before this step's update */
    double step_ms, tokens_per_s;
    double unshard_ms, reduce_ms, replicate_ms; /* compute stood still for them; mean over ranks */
    uint64_t peak_bytes;                        /* of the rank with most */
    double held_out_loss;                       /* after this step's update; NAN: not evaluated */
} step_record;

/* What the run is; shown at the beginning and in the picture. */
typedef struct run_facts {
    const char *data;
    uint64_t n_parameters, n_train_bytes, n_held_out_bytes, tokens_per_step;
    int n_ranks, n_replicas, n_shards;
    uint64_t first_step, n_steps; /* steps done before this run, and after it */
} run_facts;

typedef struct report {
    const options *options;
    run_facts facts;
    FILE *log; /* NULL: none */
    bool is_live;
    uint64_t begin_ns, shown_ns;
    double held_out_before, held_out_after; /* NAN: not evaluated */
    curve curve;
} report;

/* Open the log (a resumed run adds to it) and say what is going to run. Errors: FILE. */
hp_status report_begin(report *r, const options *o, const run_facts *facts);
/* A held-out loss: the curve, and the first and last are kept. */
void report_held_out(report *r, uint64_t step, double loss);
/* One line of the log, a point of the curve, and progress. Errors: FILE. */
hp_status report_step(report *r, const step_record *record);
/* Say on a line of its own what happened. */
void report_say(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The losses, the curve, what was written where, and what to try next. is_stopped: ended by a
 * signal at step n_done. Errors: FILE. */
hp_status report_end(report *r, uint64_t n_done, bool is_stopped);
/* Takes a zeroed report. */
void report_close(report *r);

uint64_t now_ns(void);

#endif
