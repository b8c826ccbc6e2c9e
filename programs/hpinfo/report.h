/* SPDX-License-Identifier: Apache-2.0
 *
 * hpinfo/report.h - what hpinfo found out, and its ways of saying it.
 */
#ifndef HPINFO_REPORT_H
#define HPINFO_REPORT_H

#include <hyperparallel/machine.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct report {
    hp_machine machine;
    int n_ranks;
    hp_machine_job job; /* when can_start */
    bool can_start, is_available, has_matmul;
    char why_not[1200];    /* hp_last_error() of what failed first */
    char matmul[64];       /* the engine of HYPER_PARALLEL_MATMUL */
    char matmul_note[512]; /* why it is plain; "" */
} report;

/* text.c: sections with a column of names, for people. */
void print_text(const report *r, FILE *file);
void print_options_text(FILE *file);
/* json.c: one object. */
void print_json(const report *r, FILE *file);
void print_options_json(FILE *file);

/* algorithms.c: `ranks` holds numbers of ranks, 0 behind the last. Errors: ARGUMENT, of
 * HYPER_PARALLEL_THRESHOLDS. */
enum { ALGORITHMS_RANKS = 3 };
hp_status print_algorithms_text(const int *ranks, FILE *file);
hp_status print_algorithms_json(const int *ranks, FILE *file);

#endif
