/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/timed.h - how long a call takes: measured in one way, whoever's call it is.
 *
 * An iteration begins with all ranks together and makes `batch` calls; their mean on the slowest
 * rank is one sample. Touched, each call stands between a fill of the input and a read of the
 * output, and the median of the same loop without the call is taken off; that loop runs by itself,
 * before each 25 iterations, so that both see the same machine. Right between calls it would take
 * over the cost of lines that peers hold, which is the call's.
 *
 * One way (broadcast): each call by itself, from the root's beginning to the end of the last rank,
 * by the clock that all ranks of a node share; else the root would run ahead of its readers.
 * Source: the touched mode of the reference measurements; nccl-tests for the rest.
 */
#ifndef PERF_TIMED_H
#define PERF_TIMED_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is measured. Functions get `self` and return 0; a negative number ends the measurement and
 * comes back from it. */
typedef struct timed {
    void *self;
    int (*begin)(void *self); /* before an iteration, not timed: all ranks meet */
    int (*fill)(void *self);  /* before a call; NULL: nothing */
    int (*call)(void *self);
    int (*read)(void *self);                   /* after it; NULL: nothing */
    int (*end)(void *self);                    /* waits until all that is done; NULL: it is */
    int (*most)(void *self, double *x, int n); /* x[k] becomes its largest over the ranks */
    bool call_reads;                           /* the call reads what it brings, itself */
    bool is_one_way, is_root;
} timed;

enum { TIMED_MOST_BATCH = 64 };

/* One iteration: *out_ns of a call and what stands beside it, on this rank. calls: false leaves the
 * call out. */
int timed_iteration(const timed *t, int batch, bool calls, double *out_ns);
/* n iterations. samples: [2 * n], the first half becomes ns of a call on the slowest rank, the same
 * on all. *out_own_ns: the median of this rank's own. One way, a batch is one call. */
int timed_run(const timed *t, int n, int batch, double *samples, double *out_own_ns);

typedef struct timed_result {
    double call_ns;  /* median of the samples */
    double whole_ns; /* a call with its fill and read, of the slowest rank */
} timed_result;

/* What one side does while it has the token: two iterations that warm its caches, then n. */
int timed_turn(const timed *t, int n, int batch, double *samples, timed_result *out_result);

/* Calls of an iteration, and iterations, for calls that take so long: see timed.c. */
int timed_batch(double whole_ns);
int timed_count(double whole_ns, int batch, double budget_ns, int least, int most);

#ifdef __cplusplus
}
#endif

#endif
