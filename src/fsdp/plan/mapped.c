/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped.c - mode mapped: nothing is gathered, so what is left to plan is who reads and who writes.
 *
 * The shard group has one copy of a unit's parameters; each rank writes its own range of it between
 * passes and all read all of it in them. Two barriers keep these apart. Before weights are written:
 * nobody reads any more; it is left out where every unit was reduced in the pass before, because a
 * reduce-scatter is done nowhere before all have left the unit's backward. Before the first use:
 * what was written is there; on the unshard stream, in every HP_SYNC pass, so that a step's list is
 * always the same, and in others only when weights are new, so that evaluation never waits.
 * Gradients go the way of per_param.c: a segment is one parameter to the plan.
 */
#include "inside.h"

static bool is_shared(const hpi_plan *plan, uint32_t unit) {
    return plan->config->units[unit].shared.buffer != 0;
}

static bool has_shared(const hpi_plan *plan) {
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        if (is_shared(plan, i))
            return true;
    return false;
}

/* Nobody's in particular: ranks may come to it with different units. */
static hp_op *emit_barrier(hpi_plan *plan, uint16_t stream, uint32_t comm) {
    hp_op *op = hpi_emit_collective(plan, HPI_OP_BARRIER, stream, comm, HPI_NOBODY);
    op->peers_read = 0;
    return op;
}

/* ---- reading ----------------------------------------------------------------------------- */

void hpi_mapped_publish(hpi_plan *plan, uint32_t unit) {
    hpi_sharing *s = &plan->sharing;
    if (!is_shared(plan, unit) || s->is_published || (!s->is_written && plan->pass != HP_SYNC))
        return;
    const hp_op *op = emit_barrier(plan, HP_STREAM_UNSHARD, HPI_COMM_UNSHARD);
    s->published = hpi_done(op->id);
    s->is_published = true;
}

void hpi_mapped_wait(hpi_plan *plan, uint32_t unit) {
    if (!is_shared(plan, unit))
        return;
    hpi_emit_wait(plan, HPI_NOBODY, plan->sharing.published);
    plan->sharing.published = 0;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* Were all units reduced after they were last read? */
static bool is_read_by_nobody(const hpi_plan *plan) {
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        if (is_shared(plan, i) && !plan->units[i].is_reduced)
            return false;
    return true;
}

void hpi_mapped_end(hpi_plan *plan) {
    hpi_sharing *s = &plan->sharing;
    s->is_read = s->was_held || !is_read_by_nobody(plan);
    if (s->is_published)
        s->is_written = false;
    if (plan->pass == HP_SYNC) {
        s->next_seq_after_sync = plan->next_seq[HPI_COMM_REDUCE];
        s->is_read_after_sync = s->is_read;
    }
    s->is_published = s->was_held = false;
    s->published = 0;
}

/* On the reduce communicator: whoever works between passes uses the other (between.h). */
void hpi_mapped_begin_update(hpi_plan *plan) {
    if (plan->sharing.is_read && has_shared(plan))
        (void)emit_barrier(plan, HP_STREAM_COMPUTE, HPI_COMM_REDUCE);
    plan->sharing.is_read = false;
}

void hpi_mapped_name_writes(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    for (uint32_t j = 0; is_shared(plan, unit) && j < description->n_params; j++) {
        const hpi_plan_param *p = &description->params[j];
        if (p->source.buffer != description->shared.buffer)
            continue;
        hp_op *op = hpi_emit(plan, HPI_OP_UPDATE, HP_STREAM_COMPUTE, unit);
        op->param = p->param;
        op->writes[0] = p->source;
    }
}

void hpi_mapped_end_update(hpi_plan *plan) {
    plan->sharing.is_written = has_shared(plan);
}

void hpi_mapped_replayed(hpi_plan *plan) {
    hpi_sharing *s = &plan->sharing;
    plan->next_seq[HPI_COMM_REDUCE] = s->next_seq_after_sync;
    s->is_read = s->is_read_after_sync;
    s->is_written = false;
}

/* All ranks have met. */
void hpi_mapped_reset(hpi_plan *plan) {
    plan->sharing = (hpi_sharing){.is_written = false};
}
