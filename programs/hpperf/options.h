/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/options.h - the command line.
 */
#ifndef HPPERF_OPTIONS_H
#define HPPERF_OPTIONS_H

#include "beside/beside.h"
#include "ops.h"

#include <stdio.h>

/* What --pin says. */
typedef enum pin { PIN_AUTO, PIN_YES, PIN_NO } pin;

enum { OPTIONS_MOST_SIZES = 64 };

typedef struct options {
    const op_row *op; /* NULL: every collective */
    uint64_t least_bytes, most_bytes;
    uint64_t factor;                    /* from one size to the next, unless step_bytes */
    uint64_t step_bytes;                /* 0: by factor */
    uint64_t sizes[OPTIONS_MOST_SIZES]; /* instead, ascending */
    int n_sizes;                        /* 0: none */
    int dtype;                          /* hp_dtype, or ALL */
    int reduce;                         /* hp_reduce, or ALL */
    hp_wire wire;
    int root;
    int n_warmup;
    int n_iterations; /* 0: as many as fit into the time */
    int batch;        /* calls of one iteration; 0: by their time */
    int n_groups;     /* --group-split */
    uint64_t misalign_bytes;
    const beside_row *beside;          /* NULL: this library alone */
    int n_pairs, timeout_ms;           /* turns of each side; of the peer */
    int pairs_ms;                      /* more pairs while a size has taken less; 0: none */
    double enough[OPTIONS_MOST_SIZES]; /* the i-th size ends with two pairs of this ratio */
    int n_enough;                      /* the last holds for the others too; 0: none ends */
    bool has_backward;
    hp_backward_mode backward; /* of all_reduce */
    bool is_classic, is_private, is_in_place, on_stream, checks, as_json, is_quiet, is_plain;
    pin pin;
    bool wants_help, wants_version;
} options;

enum { ALL = -1 };

/* Errors: ARGUMENT saying what was expected and given. */
hp_status options_parse(int argc, char **argv, options *out_options);
/* What only the number of ranks tells. Errors: ARGUMENT. */
hp_status options_check_ranks(const options *o, int n_ranks);
void options_help(FILE *file);

const char *reduce_name(hp_reduce reduce);
const char *wire_name(hp_wire wire);

#endif
