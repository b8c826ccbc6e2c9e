/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fused/fused.h - hpperf ag_matmul, matmul_rs, ag_weight_grad: fused products beside the
 * separate form.
 *
 * The separate form is a collective of this library and one product of the engine: in place in
 * symmetric memory, one behind the other. Both forms take turns in one run, each call by itself
 * behind a barrier, its input written anew; a ratio is taken within a pair of turns.
 */
#ifndef HPPERF_FUSED_H
#define HPPERF_FUSED_H

#include "../options.h"

#include <hyperparallel/base.h>
#include <hyperparallel/world.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum fused_op { AG_MATMUL, MATMUL_RS, AG_WEIGHT_GRAD, N_FUSED_OPS } fused_op;

/* A linear map of a model, as tensor parallelism cuts it: n over the ranks where rows are gathered,
 * k where products are summed. */
typedef struct fused_shape {
    const char *name;
    bool is_scatter; /* of MATMUL_RS; else of the other two */
    int64_t n, k;
} fused_shape;

enum { FUSED_MOST_SHAPES = 16, FUSED_MOST_TOKENS = 16 };

typedef struct fused_options {
    fused_op op;
    const fused_shape *shapes[FUSED_MOST_SHAPES];
    int n_shapes;
    uint64_t tokens[FUSED_MOST_TOKENS];
    int n_tokens;
    hp_dtype dtype;
    const char *engine; /* of hp_matmul_open */
    int n_pairs;
    bool delays; /* the last rank comes late, by the time of a whole product */
    bool as_json;
    pin pin;
    bool wants_help;
} fused_options;

/* ---- options.c ---- */

const char *fused_op_name(fused_op op);
/* *out_op: what the word names; false: nothing. */
bool fused_op_parse(const char *word, fused_op *out_op);
/* argv[0] names an op. Errors: ARGUMENT saying what was expected and given. */
hp_status fused_parse(int argc, char **argv, fused_options *out_options);
/* What only the number of ranks tells. Errors: ARGUMENT. */
hp_status fused_check_ranks(const fused_options *o, int n_ranks);
void fused_help(FILE *file);

/* ---- forms.c ---- */

/* One shape and number of tokens, its operands and both forms. */
typedef struct forms forms;
/* PRODUCT: that of the separate form alone. */
typedef enum form { FUSED, SEPARATE, PRODUCT, N_FORMS } form;

/* Collective. Owns: the caller. */
hp_status forms_create(hp_world *world, const fused_options *o, const fused_shape *shape,
                       int64_t tokens, forms **out_forms);
/* Collective. Takes NULL. */
hp_status forms_destroy(forms *f);
/* One call, behind a barrier, on an input that was written anew; late_us: behind which this rank
 * waits, which counts. Times are those of the node's clock. */
hp_status forms_call(forms *f, form which, double late_us, double *out_begin_us,
                     double *out_end_us);
/* Elements in which the two forms differ by more than their tolerance, of this rank. Collective. */
hp_status forms_compare(forms *f, uint64_t *out_wrong);

/* ---- run.c ---- */

/* Measure and print. Collective. *out_wrong: elements. */
hp_status fused_job(hp_world *world, const fused_options *o, uint64_t *out_wrong);

#endif
