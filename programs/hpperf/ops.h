/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/ops.h - what can be measured: a row for each.
 *
 * A row says how large the buffers are, how to call, what must come out, and how many bytes have to
 * move; measure.c does all the rest.
 */
#ifndef HPPERF_OPS_H
#define HPPERF_OPS_H

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>
#include <stdbool.h>

typedef struct bench bench;

/* What the output of a rank must hold. */
typedef enum source {
    FROM_NOBODY,  /* there is none */
    FROM_ALL,     /* what is reduced */
    FROM_EACH,    /* a part from each rank */
    FROM_ROOT,    /* the root's, in the one buffer */
    FROM_PARTNER, /* what the other rank of a pair sent */
} source;

typedef struct op_row {
    const char *name;
    hp_collective what;
    bool is_latency;   /* --latency: of put, get and signal */
    bool has_in_place; /* can input and output be one buffer? */
    bool reduces;
    bool each_in, each_out; /* the buffer holds a part for each rank */
    source source;
    int least_ranks;
    bool is_pairs;     /* between ranks 0 and 1, 2 and 3 ...: half a round trip counts */
    bool is_one_sided; /* the peer takes no part in it */
    bool reads_itself; /* the call reads the output, where outputs are read */
    hp_status (*call)(bench *b);
    double (*bus)(double n); /* busbw over algbw */
    /* Bytes that a group of n must load and store together, at least, where the larger buffer has
     * `bytes` and `keep` bytes of each output are in place already: what is needed of an input is
     * read once, each output is written once. NULL: nothing is counted. */
    double (*bound)(double n, double bytes, double keep);
} op_row;

extern const op_row ops[];
extern const int n_ops;

/* NULL: there is none of that name. */
const op_row *op_find(const char *name, bool is_latency);
bool op_has_avg(hp_dtype dtype);
bool op_has_wire(hp_dtype dtype);

#endif
