/* SPDX-License-Identifier: Apache-2.0
 *
 * coll/won.h - the backward of max and min: which rank the gradient of each element goes to.
 */
#ifndef HPI_WON_H
#define HPI_WON_H

#include "inside.h"

/* One backward of max or min, as a stream takes it. */
typedef struct hpi_won {
    uint64_t bytes; /* of all this */
    hp_group *group;
    const char *name;              /* a literal: "all_reduce" */
    const unsigned char *in, *out; /* of the forward, as it left them */
    const unsigned char *gradient; /* of `out` */
    unsigned char *in_grad;        /* of `in` */
    hp_dtype dtype;
    hp_reduce op;
    hp_wire wire; /* HP_WIRE_FULL, or what the forward rounded contributions to */
    bool is_on_stream, is_v;
    int n_parts;        /* 1: `out` holds the results; else a part of them on each rank */
    uint64_t longest;   /* elements of a part */
    uint64_t numbers[]; /* counts, then begins, of the parts in `in`: [n_parts] each */
} hpi_won;

/* From a backward and its mirror, which is checked. The caller frees it. Errors: ARGUMENT, MEMORY.
 */
hp_status hpi_won_create(const hp_coll_backward_call *b, const hp_coll_call *mirror,
                         hpi_won **out_won);
/* Find the winners and leave their gradients: zero where another rank has won. */
hp_status hpi_won_run(void *won);

#endif
