/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/plan.h - the plan: pure functions from (state, unit) to operations and the next state.
 *
 * The plan never communicates and never waits. It knows units by number, buffers by id and events
 * by the operation they belong to. hpi_plan_begin starts the numbering of a step afresh, so that
 * from the third step on the operations of a step are the same bytes as the last one's.
 */
#ifndef HPI_PLAN_H
#define HPI_PLAN_H

#include "../stream/stream.h"
#include <hyperparallel/fsdp.h>

typedef struct hpi_plan hpi_plan;

/* Operation kinds: the collectives of coll first, then these. */
enum {
    HPI_OP_ALLOCATE = 3,   /* writes[0] is a new life of a buffer */
    HPI_OP_RELEASE,        /* reads[0] is the life that ends */
    HPI_OP_WAIT,           /* nothing but its waits */
    HPI_OP_FORWARD_BEGIN,  /* reads the parameters, until the forward_end of the unit */
    HPI_OP_FORWARD_END,
    HPI_OP_BACKWARD_BEGIN, /* reads the parameters, writes the gradients, until backward_end */
    HPI_OP_BACKWARD_END,
    HPI_OP_CONVERT,        /* reads[0] in dtype -> writes[0] in the sum dtype, on one rank */
    HPI_OP_DIVIDE,         /* writes[0] (a bucket) times the unit's factor, over its divisor */
    HPI_OP_UPDATE,         /* writes[0] (shards) from reads[0] (bucket) */
    HPI_OP_SCALE,          /* writes[0] (bucket) */
    HPI_OP_N_KINDS
};

#endif
