/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/report.h - what a run says to people: progress, the curve, the words at the end.
 *
 * Rank 0 alone reports. Text goes to standard output, or, when that gets the JSON lines of log.h,
 * to standard error if it is a terminal. On a terminal progress is one live line; elsewhere it is a
 * line every few seconds.
 */
#ifndef HPTRAIN_REPORT_H
#define HPTRAIN_REPORT_H

#include "curve.h"
#include "log.h"

typedef struct report {
    const options *options;
    run_facts facts;
    log_lines log;
    FILE *text; /* NULL: nobody reads */
    bool is_live;
    bool is_line_open;                           /* the live line has no end yet */
    uint64_t begin_ns, steps_begin_ns, shown_ns; /* steps: after the first evaluation */
    uint64_t n_held_out;                         /* how often it was evaluated */
    uint64_t held_out_step;                      /* of held_out_after */
    double held_out_before, held_out_after;
    curve curve;
} report;

/* Open the log and say what is going to run. Errors: FILE. */
hp_status report_begin(report *r, const options *o, const run_facts *facts);
/* What hp_fsdp_verify said: a line for people, one of the log. Errors: FILE. */
hp_status report_verified(report *r, const verified *v);
/* A held-out loss: the curve, and the first and last are kept. Errors: FILE. */
hp_status report_held_out(report *r, uint64_t step, double loss);
/* One line of the log, a point of the curve, and progress. Errors: FILE. */
hp_status report_step(report *r, const step_record *record);
/* What follows is written below the live line. */
void report_end_line(report *r);
/* The curve and the losses. is_stopped: ended by a signal at step n_done. Errors: FILE. */
hp_status report_result(report *r, uint64_t n_done, bool is_stopped);
hp_status report_sample(report *r, const sample_text *sample);
/* What was written where, and what to try next. Errors: FILE. */
hp_status report_end(report *r, uint64_t n_done, bool is_stopped);
/* Takes a zeroed report. */
void report_close(report *r);

uint64_t now_ns(void);

#endif
