/* SPDX-License-Identifier: Apache-2.0
 *
 * by_hand.c - SPEC A12: units that the user gathers, and forwards that are computed again.
 *
 * A unit that is held keeps its storage whatever else happens in the pass. A unit that is computed
 * again keeps it for the backward to come, unless somebody needs the slot before: then it is
 * gathered once more. Neither is a use, so the order that is learnt does not change.
 */
#include "inside.h"

void hpi_plan_begin_hold(hpi_plan *plan, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    if (!u->is_held || u->is_read)
        return;
    hpi_emit_compute(plan, HPI_OP_HOLD_BEGIN, unit);
    u->is_read = true;
    plan->sharing.was_held = true;
}

void hpi_plan_end_hold(hpi_plan *plan, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    if (u->is_read)
        hpi_emit_compute(plan, HPI_OP_HOLD_END, unit);
    u->is_held = u->is_read = false;
}

hp_status hpi_plan_hold(hpi_plan *plan, uint32_t unit, bool is_read, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    HP_TRY(hpi_plan_unshard(plan, unit, true));
    plan->units[unit].is_held = true;
    if (is_read) {
        hpi_plan_wait_unshard(plan, unit);
        hpi_plan_begin_hold(plan, unit);
    }
    return hpi_burst_finish(plan, out_burst);
}

hp_status hpi_plan_let_go(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    hpi_plan_end_hold(plan, unit);
    hpi_plan_reshard(plan, unit);
    return hpi_burst_finish(plan, out_burst);
}

/* Segments are computed again in the order of the forward: the uses behind this one are next, up to
 * where backward has come. */
static hp_status prefetch_recompute(hpi_plan *plan, uint32_t unit) {
    uint32_t at = plan->n_uses;
    if (plan->config->schedule == HP_SERIAL)
        return HP_OK;
    while (at > 0 && (plan->uses[at - 1].unit != unit || plan->uses[at - 1].is_backwarded))
        at--;
    for (uint32_t k = 0; k < plan->config->prefetch && at + k < plan->n_uses; k++)
        if (!plan->uses[at + k].is_backwarded)
            HP_TRY(hpi_plan_unshard(plan, plan->uses[at + k].unit, false));
    return HP_OK;
}

hp_status hpi_plan_recompute_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    HP_TRY(hpi_plan_unshard_now(plan, unit));
    HP_TRY(prefetch_recompute(plan, unit));
    hpi_emit_compute(plan, HPI_OP_RECOMPUTE_BEGIN, unit);
    return hpi_burst_finish(plan, out_burst);
}

hp_status hpi_plan_recompute_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    hpi_emit_compute(plan, HPI_OP_RECOMPUTE_END, unit);
    plan->units[unit].is_computing = false;
    return hpi_burst_finish(plan, out_burst);
}
