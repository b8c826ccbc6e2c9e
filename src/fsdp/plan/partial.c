/* SPDX-License-Identifier: Apache-2.0
 *
 * partial.c - SPEC A8: sums over the shard group that wait for the one all-reduce.
 *
 * A bucket that is complete over its shard group is added to the unit's partial sums in a
 * HP_DEFER_REPLICATE pass, ((b0 + b1) + b2) + ..., and takes them in, partial + bucket, in the next
 * HP_SYNC pass, before it is all-reduced and divided. All of it is in the sum dtype, so nothing is
 * rounded to what goes over the wire.
 */
#include "inside.h"

static hp_op *emit(hpi_plan *plan, uint16_t kind, uint32_t unit, int b) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hp_op *op = hpi_emit(plan, kind, HP_STREAM_COMPUTE, unit);
    op->dtype = op->wire = b ? HP_FP64 : HP_FP32;
    op->reads[0] = description->bucket[b];
    op->bytes = description->bucket[b].end;
    return op;
}

static void defer(hpi_plan *plan, uint32_t unit, int b) {
    hp_op *op = emit(plan, HPI_OP_ACCUMULATE, unit, b);
    op->writes[0] = plan->config->units[unit].partial[b];
    if (plan->units[unit].is_partial)
        op->reads[1] = op->writes[0];
}

static void take_in(hpi_plan *plan, uint32_t unit, int b) {
    hp_op *op = emit(plan, HPI_OP_FOLD, unit, b);
    op->writes[0] = op->reads[0];
    op->reads[1] = plan->config->units[unit].partial[b];
    plan->units[unit].reduced = hpi_done(op->id);
}

void hpi_plan_add_partial(hpi_plan *plan, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    const bool is_deferred = u->pass == HP_DEFER_REPLICATE;
    for (int b = 0; b < 2; b++) {
        if (!plan->config->units[unit].bucket[b].buffer)
            continue;
        if (is_deferred)
            defer(plan, unit, b);
        else if (u->is_partial)
            take_in(plan, unit, b);
    }
    u->is_partial = is_deferred;
}
