/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.c - SPEC A3 and A4: gradients from where backward writes them to the buckets.
 *
 * A unit's full gradients are written into a slot. Those of the last backward of a HP_SYNC pass are
 * reduced, one unit behind the compute; all others are first added up in the unit's accumulator,
 * which the reduced ones then take in (SPEC A8, A12). A3 and A4 differ in the order of one unit's
 * reduction and the all-reduces of those before it. Source: SPEC A3, A4; the seed's overlap
 * document, section 5.
 */
#include "inside.h"

#include <assert.h>

/* ---- slots ------------------------------------------------------------------------------- */

/* The last forward of this unit whose backward has not begun: that begins now. Returns where in
 * plan->uses it stands. */
static uint32_t take_use(hpi_plan *plan, uint32_t unit) {
    for (uint32_t i = plan->n_uses; i-- > 0;) {
        hpi_use *use = &plan->uses[i];
        if (use->unit != unit || use->is_backwarded)
            continue;
        use->is_backwarded = true;
        return i;
    }
    return 0;
}

/* The next `prefetch` uses of the backward: those before this one in the forward, last first. */
static hp_status prefetch_backward(hpi_plan *plan, uint32_t use) {
    if (plan->config->schedule == HP_SERIAL)
        return HP_OK;
    uint32_t n_left = plan->config->prefetch;
    for (uint32_t i = use; i-- > 0 && n_left;) {
        if (plan->uses[i].is_backwarded)
            continue;
        HP_TRY(hpi_plan_unshard(plan, plan->uses[i].unit, false));
        n_left--;
    }
    return HP_OK;
}

static void release_grad(hpi_plan *plan, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    hpi_emit_release(plan, unit, u->grad, u->grad_drained);
    plan->grad_owner[hpi_slot_of(plan->grad_owner, plan->config->n_grad_slots, unit)] = HPI_NOBODY;
    u->grad = (hp_ref){0, 0, 0, 0};
}

void hpi_release_grad_on(hpi_plan *plan, uint16_t stream, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    const uint32_t slot = hpi_slot_of(plan->grad_owner, plan->config->n_grad_slots, unit);
    plan->grad_free[slot] = hpi_done(hpi_emit_release_on(plan, stream, unit, u->grad)->id);
    plan->grad_owner[slot] = HPI_NOBODY;
    u->grad = (hp_ref){0, 0, 0, 0};
}

/* Of the slots that nobody owns the one that was released first. */
static uint32_t find_free_slot(const hpi_plan *plan) {
    uint32_t best = HPI_NOBODY;
    for (uint32_t s = 0; s < plan->config->n_grad_slots; s++)
        if (plan->grad_owner[s] == HPI_NOBODY &&
            (best == HPI_NOBODY || plan->grad_free[s] < plan->grad_free[best]))
            best = s;
    return best;
}

/* The slot to use next: a free one, else the one whose reductions were issued longest ago (they
 * have drained longest); HPI_NOBODY while every slot is being written. */
static uint32_t find_grad_slot(const hpi_plan *plan) {
    uint32_t best = find_free_slot(plan);
    if (best != HPI_NOBODY)
        return best;
    for (uint32_t s = 0; s < plan->config->n_grad_slots; s++) {
        const uint32_t owner = plan->grad_owner[s];
        if (plan->units[owner].is_computing)
            continue;
        if (best == HPI_NOBODY ||
            plan->units[owner].reduced < plan->units[plan->grad_owner[best]].reduced)
            best = s;
    }
    return best;
}

static bool has_grad_slot(const hpi_plan *plan, uint32_t unit) {
    return !plan->config->units[unit].grad_bytes || find_grad_slot(plan) != HPI_NOBODY;
}

/* The caller has made sure that there is one. */
static void take_grad(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_config *config = plan->config;
    if (!config->units[unit].grad_bytes)
        return;
    const uint32_t slot = find_grad_slot(plan);
    assert(slot != HPI_NOBODY);
    if (plan->grad_owner[slot] != HPI_NOBODY)
        release_grad(plan, plan->grad_owner[slot]);
    plan->grad_owner[slot] = unit;
    plan->units[unit].grad =
        hpi_emit_allocate(plan, unit, config->grad_slots[slot], config->units[unit].grad_bytes);
    hpi_wait_for(&plan->ops[plan->n_ops - 1], plan->grad_free[slot]);
    plan->grad_free[slot] = 0;
}

static void emit_backward_begin(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hp_op *op = hpi_emit_compute(plan, HPI_OP_BACKWARD_BEGIN, unit);
    op->writes[0] = plan->units[unit].grad;
    for (uint32_t j = 0; j < description->n_params; j++)
        if (description->params[j].route == HPI_ROUTE_DIRECT)
            op->writes[1] = description->bucket[description->params[j].bucket];
}

hp_status hpi_plan_backward_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    if (!has_grad_slot(plan, unit)) /* before anything has changed */
        return HPI_FAIL(HP_ERR_STATE,
                        "expected at most %u units in backward at once, given one more",
                        plan->config->n_grad_slots);
    HP_TRY(hpi_plan_unshard_now(plan, unit));
    HP_TRY(prefetch_backward(plan, take_use(plan, unit)));
    take_grad(plan, unit);
    emit_backward_begin(plan, unit);
    return hpi_burst_finish(plan, out_burst);
}

/* Where backward has written a parameter's gradient. */
hp_ref hpi_grad_of(const hpi_plan *plan, uint32_t unit, const hpi_plan_param *p) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    if (p->route == HPI_ROUTE_DIRECT)
        return hpi_ref_piece(description->bucket[p->bucket], p->bucket_begin, p->bucket_end);
    return hpi_ref_piece(plan->units[unit].grad, p->grad_begin, p->grad_end);
}

void hpi_about_grad(hp_op *op, const hpi_plan_param *p, hp_ref grad) {
    op->param = p->param;
    op->dtype = op->wire = p->grad_dtype;
    op->reads[0] = grad;
    op->bytes = grad.end - grad.begin;
}

/* Keep a unit's gradients for later: they are added to what its accumulator holds. */
static void accumulate(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hpi_unit_state *u = &plan->units[unit];
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hpi_plan_param *p = &description->params[j];
        if (p->route == HPI_ROUTE_NONE)
            continue;
        hp_op *op = hpi_emit(plan, HPI_OP_ACCUMULATE, HP_STREAM_COMPUTE, unit);
        hpi_about_grad(op, p, hpi_grad_of(plan, unit, p));
        op->writes[0] =
            hpi_ref_piece(description->accumulator, p->accumulator_begin, p->accumulator_end);
        if (u->is_accumulated)
            op->reads[1] = op->writes[0];
    }
    u->is_accumulated = true;
    if (u->grad.buffer)
        release_grad(plan, unit);
}

/* Add what was accumulated to a unit's gradients, if anything was; returns when they are complete.
 */
static hp_event fold(hpi_plan *plan, uint32_t unit, hp_event computed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hpi_unit_state *u = &plan->units[unit];
    if (!u->is_accumulated)
        return computed;
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hpi_plan_param *p = &description->params[j];
        if (p->route == HPI_ROUTE_NONE)
            continue;
        hp_op *op = hpi_emit(plan, HPI_OP_FOLD, HP_STREAM_COMPUTE, unit);
        hpi_about_grad(op, p, hpi_grad_of(plan, unit, p));
        op->reads[1] =
            hpi_ref_piece(description->accumulator, p->accumulator_begin, p->accumulator_end);
        op->writes[0] = op->reads[0];
        computed = hpi_done(op->id);
    }
    u->is_accumulated = false;
    return computed;
}

/* How the unit's gradients are reduced over the shard group: to a mean where nothing is added to
 * them afterwards, so that no pass over the bucket is needed to divide it; else to a sum. */
static hp_reduce reduction_of(const hpi_plan *plan, uint32_t unit) {
    const hpi_unit_state *u = &plan->units[unit];
    const bool is_last = plan->config->n_replicas == 1 && u->pass == HP_SYNC && !u->is_partial;
    return is_last && plan->config->units[unit].is_mean ? HP_AVG : HP_SUM;
}

/* Where the reduction has divided, the operation still says from when on the bucket is complete. */
static void emit_divide(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    for (int b = 0; b < 2; b++) {
        if (!description->bucket[b].buffer || !description->is_divided)
            continue;
        hp_op *op = hpi_emit(plan, HPI_OP_DIVIDE, HP_STREAM_COMPUTE, unit);
        op->dtype = op->wire = b ? HP_FP64 : HP_FP32;
        op->reduce = (uint8_t)plan->units[unit].reduction;
        op->reads[0] = op->writes[0] = description->bucket[b];
        op->bytes = op->reduce == HP_AVG ? 0 : description->bucket[b].end;
    }
}

/* Step 4 of A3: one all-reduce, in place, for a unit's whole bucket. */
static void issue_replicate(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    for (int b = 0; b < 2; b++) {
        plan->units[unit].replicated[b] = 0;
        if (!description->bucket[b].buffer)
            continue;
        hp_op *op = hpi_emit_collective(plan, HPI_OP_ALL_REDUCE, HP_STREAM_REPLICATE,
                                        HPI_COMM_REPLICATE, unit);
        op->dtype = b ? HP_FP64 : HP_FP32;
        op->wire = b ? HP_FP64 : (uint8_t)plan->config->replicate_wire;
        op->reads[0] = op->writes[0] = description->bucket[b];
        op->bytes = description->bucket[b].end;
        hpi_wait_for(op, plan->units[unit].reduced);
        plan->units[unit].replicated[b] = hpi_done(op->id);
    }
    plan->replicating[plan->n_replicating++] = unit;
}

/* Steps 1 and 2 of A3 for the unit whose reduction is in flight; it is returned. */
static uint32_t finish_reduce(hpi_plan *plan) {
    const uint32_t unit = plan->reducing;
    plan->reducing = HPI_NOBODY;
    if (unit == HPI_NOBODY)
        return HPI_NOBODY;
    hpi_emit_wait(plan, unit, plan->units[unit].reduced);
    hpi_plan_add_partial(plan, unit);
    if (plan->config->n_replicas == 1 && plan->units[unit].pass == HP_SYNC)
        emit_divide(plan, unit);
    return unit;
}

/* Also for drained: the bucket, which peers read, is rewritten by the division. */
static void wait_replicate(hpi_plan *plan, uint32_t unit) {
    for (int b = 0; b < 2; b++) {
        const hp_event done = plan->units[unit].replicated[b];
        if (!done)
            continue;
        hp_op *op = hpi_emit(plan, HPI_OP_WAIT, HP_STREAM_COMPUTE, unit);
        hpi_wait_for(op, done);
        hpi_wait_for(op, hpi_drained(hpi_event_op(done)));
        plan->units[unit].replicated[b] = 0; /* once is enough */
    }
}

static void replicate_after(hpi_plan *plan, uint32_t unit) {
    if (unit == HPI_NOBODY || plan->config->n_replicas == 1 || plan->units[unit].pass != HP_SYNC)
        return;
    issue_replicate(plan, unit);
    if (plan->config->schedule != HP_OVERLAP)
        wait_replicate(plan, unit);
}

/* Wait for the all-reduces in flight, in the order of issue, and divide. */
static void finish_replicates(hpi_plan *plan) {
    for (uint32_t k = 0; k < plan->n_replicating; k++) {
        const uint32_t unit = plan->replicating[k];
        wait_replicate(plan, unit);
        emit_divide(plan, unit);
    }
    plan->n_replicating = 0;
}

/* Is the unit's reduction a collective? With one shard it is not: nothing to wait for, and its
 * all-reduce need not come a unit later. */
static bool is_collective(const hpi_plan *plan, uint32_t unit) {
    for (uint32_t j = 0; unit != HPI_NOBODY && j < plan->config->units[unit].n_params; j++) {
        const hpi_route route = plan->config->units[unit].params[j].route;
        if (route == HPI_ROUTE_REDUCE_SCATTER || route == HPI_ROUTE_ALL_REDUCE)
            return true;
    }
    return false;
}

/* After a backward of a unit, which is reduced now or not. A3: its reduction comes between the wait
 * for the previous unit's and that one's all-reduce. A4: it comes last, after the wait for the
 * all-reduce of the unit before the previous one, so that there is one unit in each stage. */
static void advance(hpi_plan *plan, uint32_t unit, hp_event computed) {
    const hpi_way *way = hpi_plan_way(plan, unit);
    if (way->is_staged)
        finish_replicates(plan);
    const uint32_t previous = finish_reduce(plan);
    if (way->is_staged)
        replicate_after(plan, previous);
    if (plan->units[unit].is_reduced) {
        plan->units[unit].reduction = reduction_of(plan, unit);
        way->reduce(plan, unit, computed);
        plan->reducing = unit;
    }
    if (!way->is_staged)
        replicate_after(plan, previous);
    if (plan->config->schedule != HP_OVERLAP || !is_collective(plan, plan->reducing))
        replicate_after(plan, finish_reduce(plan));
}

/* A full gradient is there. A unit's last one is reduced, with what was accumulated; any other, and
 * all of a HP_NO_SYNC pass, wait in the accumulator. */
static void after_backward(hpi_plan *plan, uint32_t unit, bool is_last) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    const hp_op *end = hpi_emit_compute(plan, HPI_OP_BACKWARD_END, unit);
    hp_event computed = hpi_done(end->id);
    hpi_unit_state *u = &plan->units[unit];
    u->is_computing = false;
    u->is_reduced = description->is_trainable && is_last && u->pass != HP_NO_SYNC;
    if (u->is_reduced && description->shared.buffer) { /* so that it tells that nobody reads */
        hpi_plan_end_hold(plan, unit);
        computed = hpi_done(plan->next_id - 1);
    }
    if (is_last || description->is_resharded)
        hpi_plan_reshard(plan, unit);
    if (u->is_reduced)
        computed = fold(plan, unit, computed);
    else if (description->is_trainable)
        accumulate(plan, unit);
    advance(plan, unit, computed);
}

hp_status hpi_plan_backward_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_unit_state *u = &plan->units[unit];
    hpi_burst_start(plan);
    u->n_backwards++;
    after_backward(plan, unit, u->n_backwards == u->n_forwards);
    return hpi_burst_finish(plan, out_burst);
}

/* ---- the end of a pass ------------------------------------------------------------------- */

/* Units that got no gradient, or fewer backwards than forwards, are reduced with zeros and what was
 * accumulated, so that every rank issues the same collectives. */
static void reduce_missing(hpi_plan *plan) {
    for (uint32_t i = plan->config->n_units; i-- > 0;) {
        const hpi_unit_state *u = &plan->units[i];
        if (!plan->config->units[i].is_trainable || u->is_reduced || u->pass == HP_NO_SYNC)
            continue;
        hpi_plan_reshard(plan, i);
        take_grad(plan, i); /* no unit is computing now, so there is a slot */
        emit_backward_begin(plan, i);
        after_backward(plan, i, true);
    }
}

void hpi_plan_finish_gradients(hpi_plan *plan) {
    reduce_missing(plan);
    if (plan->reducing != HPI_NOBODY && hpi_plan_way(plan, plan->reducing)->is_staged)
        finish_replicates(plan);
    replicate_after(plan, finish_reduce(plan));
    finish_replicates(plan);
    for (uint32_t s = 0; s < plan->config->n_grad_slots; s++)
        if (plan->grad_owner[s] != HPI_NOBODY)
            release_grad(plan, plan->grad_owner[s]);
}
