/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/figures.h - what is computed from the spans of all ranks, once: the page and --json only
 * show it.
 *
 * Sums over ranks are sums: 4 ranks that stood still for 1 ms each are 4 ms. Communication and
 * exposed time are of all passes with a backward; evaluations are apart.
 */
#ifndef HPREPORT_FIGURES_H
#define HPREPORT_FIGURES_H

#include "run.h"

typedef enum pass_kind {
    PASS_TRAIN,
    PASS_NO_SYNC, /* this and the next come before a PASS_TRAIN, which takes in their gradients */
    PASS_DEFER_REPLICATE,
    PASS_EVALUATE,
    N_PASS_KINDS
} pass_kind;

/* One pass and what followed until the next: clipping, the update. */
typedef struct pass {
    uint32_t step;
    pass_kind kind;
    bool is_whole;             /* each rank that has a trace ended it */
    uint64_t begin_ns, end_ns; /* the first begin and the last end of any rank */
    uint64_t busy_ns[N_COMM_KINDS], exposed_ns[N_COMM_KINDS];
    uint64_t n_skews, skew_ns; /* the largest of its collectives */
    int last_rank;             /* of that collective; -1: none */
    int n_ranks;               /* that ended it */
} pass;

typedef struct unit_figures {
    uint16_t unit; /* NO_NAME: of none */
    uint64_t busy_ns[N_COMM_KINDS], exposed_ns[N_COMM_KINDS];
} unit_figures;

/* One collective of one group in one step: when its first and its last rank came. */
typedef struct arrival {
    uint64_t first_ns, last_ns, bytes;
    uint32_t step, id;
    uint16_t name, unit;
    int16_t first_rank, last_rank;
    uint16_t n_ranks;
    uint8_t comm;
} arrival;

typedef struct rank_skew {
    uint64_t n, n_last; /* collectives that it took part in; in which it came last */
    uint64_t median_ns, max_ns, total_ns; /* behind the first, where it came last */
} rank_skew;

/* All collectives of a name, kind and unit. */
typedef struct skew_row {
    uint8_t comm;
    uint16_t name, unit;
    uint64_t n, median_ns, max_ns, total_ns;
    int last_rank; /* which came last most often; -1: none was ever late */
    uint64_t n_last;
} skew_row;

typedef struct memory_point {
    uint64_t ns;
    int64_t bytes; /* held from here on */
} memory_point;

typedef struct rank_memory {
    memory_point *points;
    size_t n;
    int64_t peak_bytes, end_bytes;
    uint64_t peak_ns;
} rank_memory;

typedef struct figures {
    const run *run;
    pass *passes; /* by step */
    size_t n_passes, n_of[N_PASS_KINDS];
    uint64_t median_ns, min_ns, max_ns; /* of whole training passes */
    /* passes with a backward, over all ranks */
    uint64_t busy_ns[N_COMM_KINDS], exposed_ns[N_COMM_KINDS];
    uint64_t evaluate_busy_ns[N_COMM_KINDS], evaluate_exposed_ns[N_COMM_KINDS];
    uint64_t total_busy_ns, total_exposed_ns;
    unit_figures *units; /* the most exposed first */
    size_t n_units;
    rank_memory *memory; /* by trace */
    arrival *arrivals;
    size_t n_arrivals, capacity_arrivals;
    uint64_t skew_median_ns, skew_max_ns;
    rank_skew *rank_skews; /* by trace */
    skew_row *skew_rows;   /* the most time lost first */
    size_t n_skew_rows;
    char *summary[12]; /* sentences */
    int n_summary;
} figures;

/* The pass of a step; never NULL. */
pass *pass_of(const figures *f, uint32_t step);
/* How much of all communication no compute stood still for, in percent. */
double hidden_percent(uint64_t busy_ns, uint64_t exposed_ns);

/* All of them, of f->run. */
void figures_compute(figures *f);
void figures_release(figures *f);

/* Each fills in its part; in this order. */
void passes_compute(figures *f);
void exposed_compute(figures *f);
void memory_compute(figures *f);
void skew_compute(figures *f);
void summary_compute(figures *f);

#endif
