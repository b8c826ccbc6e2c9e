/* SPDX-License-Identifier: Apache-2.0
 *
 * per_param.c - mode per-param: a collective for each parameter, and no copies.
 *
 * A parameter is gathered from its shard straight into the unit's storage; its gradient is reduced
 * from where backward has written it straight into the bucket. Peers read shards and grad slots, so
 * both are left alone until the collectives have drained. Source: SPEC A2, A3.
 */
#include "inside.h"

void hpi_per_param_gather(hpi_plan *plan, uint32_t unit, hp_event allocated) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hpi_unit_state *u = &plan->units[unit];
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hpi_plan_param *p = &description->params[j];
        if (!p->is_gathered)
            continue;
        hp_op *op =
            hpi_emit_collective(plan, HPI_OP_ALL_GATHER, HP_STREAM_UNSHARD, HPI_COMM_UNSHARD, unit);
        op->param = p->param;
        op->dtype = op->wire = p->dtype;
        op->blocks = p->blocks;
        op->reads[0] = p->source;
        op->writes[0] = hpi_ref_piece(u->storage, p->storage_begin, p->storage_end);
        op->bytes = p->source.end - p->source.begin;
        hpi_wait_for(op, allocated);
        allocated = 0; /* the stream is in order: the first one's wait is enough */
        u->gathered = hpi_done(op->id);
    }
}

/* One parameter's way into the bucket; returns the event at which its slice is complete. */
static hp_event emit_route(hpi_plan *plan, uint32_t unit, const hpi_plan_param *p,
                           hp_event computed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hpi_unit_state *u = &plan->units[unit];
    if (p->route == HPI_ROUTE_NONE || p->route == HPI_ROUTE_DIRECT)
        return 0;
    hp_op *op;
    if (p->route == HPI_ROUTE_CONVERT) {
        op = hpi_emit(plan, HPI_OP_CONVERT, HP_STREAM_COMPUTE, unit);
    } else {
        const bool is_cut = p->route == HPI_ROUTE_REDUCE_SCATTER;
        op = hpi_emit_collective(plan, is_cut ? HPI_OP_REDUCE_SCATTER : HPI_OP_ALL_REDUCE,
                                 HP_STREAM_REDUCE, HPI_COMM_REDUCE, unit);
        op->reduce = (uint8_t)u->reduction;
        hpi_wait_for(op, computed);
        u->grad_drained = hpi_drained(op->id);
    }
    hpi_about_grad(op, p, hpi_grad_of(plan, unit, p));
    op->blocks = p->blocks;
    op->writes[0] = hpi_ref_piece(description->bucket[p->bucket], p->bucket_begin, p->bucket_end);
    return hpi_done(op->id);
}

/* Step 3 of A3: issue the reductions of a unit over its shard group. */
void hpi_per_param_reduce(hpi_plan *plan, uint32_t unit, hp_event computed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hpi_unit_state *u = &plan->units[unit];
    u->reduced = computed;
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hp_event event = emit_route(plan, unit, &description->params[j], computed);
        if (!event)
            continue;
        u->reduced = event; /* streams are in order: the last one is enough, */
        computed = 0;       /* and the first one's wait */
    }
}
