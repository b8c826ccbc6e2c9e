/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/values.h - what ranks contribute, and what must come out.
 *
 * Each rank has an endless stream of values; a buffer holds a piece of it. The streams are
 * periodic, so that filling and checking are copies and comparisons of a piece that stays in the
 * cache: element k of iteration i is number (k + 1009 i) mod 8191 of the period, a prime, which no
 * chunk, slice or part of a power of two is a multiple of. What ranks sum to is one more stream.
 *
 * Moved values are whole numbers that differ between any two ranks at every place. Reduced ones are
 * whole numbers from 1 to 7 (for max negative): every type and wire holds them exactly, a
 * contribution that is dropped or doubled changes every sum, and ranks next to each other differ at
 * every place, so that one taken for another is seen. In fp32 and fp64, from 3 ranks on, each
 * eighth element has one contribution so large that the sum depends on the order of additions.
 */
#ifndef PERF_VALUES_H
#define PERF_VALUES_H

#include <hyperparallel/base.h>
#include <stdbool.h>

enum { VALUES_PERIOD = 8191, VALUES_STEP = 1009, VALUES_REDUCED = -1 };

typedef struct values {
    size_t element_bytes;
    int n_ranks;
    unsigned char *periods; /* [n_ranks + 1][VALUES_PERIOD] elements; the last: what is reduced */
} values;

typedef struct values_config {
    hp_dtype dtype;
    int n_ranks;
    bool reduces;
    hp_reduce op;
    bool is_rounded; /* in low precision on the way, or in another order: no large contributions */
} values_config;

/* Owns: the caller. false: no memory. */
bool values_create(const values_config *config, values *out_values);
void values_destroy(values *v);

/* Bytes of an element. */
size_t values_size(hp_dtype dtype);
/* The number of a contribution, position in [0, VALUES_PERIOD), before it is a `dtype`. */
double values_number(const values_config *config, int rank, unsigned position);
/* What `x`, one number of each rank, is reduced to, by the tree that coll.h promises. */
double values_reduce(const values_config *config, const double *x);
/* Store a number as a dtype, rounded once; floats must be 0 or normal numbers of it. */
void values_store(hp_dtype dtype, double number, void *out);

/* Elements [first, first + count) of a rank's stream (or VALUES_REDUCED's) in an iteration. */
void values_fill(const values *v, int rank, uint64_t iteration, uint64_t first, uint64_t count,
                 void *out);
/* Read them all; what comes back keeps the compiler from leaving it out. */
uint64_t values_read(const void *data, uint64_t bytes);
/* How many of them are not what they must be, bit for bit. */
uint64_t values_wrong(const values *v, int rank, uint64_t iteration, uint64_t first, uint64_t count,
                      const void *data);

#endif
