/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c - SPEC A2: parameters come before a unit computes and go after it.
 *
 * A unit is gathered when it is needed, and ahead of that while the units before it compute. What
 * comes next is the order of uses learnt from the last pass that had a backward, in which a unit
 * may stand several times. Source: SPEC A2.
 */
#include "inside.h"

/* ---- storage ----------------------------------------------------------------------------- */

void hpi_plan_reshard(hpi_plan *plan, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    if (u->residency == HPI_SHARDED || u->is_held)
        return;
    const uint32_t slot = hpi_slot_of(plan->storage_owner, plan->config->n_storage_slots, unit);
    if (u->storage.buffer) /* a gather that nobody waited for is waited for here: cancelled */
        hpi_emit_release(plan, unit, u->storage, u->residency == HPI_PENDING ? u->gathered : 0);
    if (slot != HPI_NOBODY)
        plan->storage_owner[slot] = HPI_NOBODY;
    u->residency = HPI_SHARDED;
    u->storage = (hp_ref){0, 0, 0, 0};
}

/* Where in this pass the unit's next backward stands: what comes last in the forward is needed
 * first. 0 when there is none to come. */
static uint32_t next_backward(const hpi_plan *plan, uint32_t unit) {
    for (uint32_t i = plan->n_uses; i-- > 0;)
        if (plan->uses[i].unit == unit && !plan->uses[i].is_backwarded)
            return i + 1;
    return 0;
}

/* Somebody whose storage can be taken back: a prefetch that was not used yet, else the idle one
 * that is needed last. */
static uint32_t find_evictable(const hpi_plan *plan) {
    uint32_t idle = HPI_NOBODY, when = UINT32_MAX;
    for (uint32_t s = 0; s < plan->config->n_storage_slots; s++) {
        const uint32_t owner = plan->storage_owner[s];
        if (owner == HPI_NOBODY || plan->units[owner].is_computing || plan->units[owner].is_held)
            continue;
        if (plan->units[owner].residency == HPI_PENDING)
            return owner;
        if (next_backward(plan, owner) >= when)
            continue;
        when = next_backward(plan, owner);
        idle = owner;
    }
    return idle;
}

/* The buffer for a unit's storage, or 0 when there is none to be had. */
static uint32_t take_storage(hpi_plan *plan, uint32_t unit, bool is_needed) {
    const hpi_plan_config *config = plan->config;
    if (config->units[unit].own_storage)
        return config->units[unit].own_storage;
    uint32_t slot = hpi_slot_of(plan->storage_owner, config->n_storage_slots, HPI_NOBODY);
    if (slot == HPI_NOBODY && is_needed) {
        const uint32_t victim = find_evictable(plan);
        if (victim != HPI_NOBODY)
            hpi_plan_reshard(plan, victim);
        slot = hpi_slot_of(plan->storage_owner, config->n_storage_slots, HPI_NOBODY);
    }
    if (slot == HPI_NOBODY)
        return 0;
    plan->storage_owner[slot] = unit;
    return config->storage_slots[slot];
}

hp_status hpi_plan_unshard(hpi_plan *plan, uint32_t unit, bool is_needed) {
    hpi_unit_state *u = &plan->units[unit];
    const uint64_t bytes = plan->config->units[unit].storage_bytes;
    if (is_needed && u->is_reduced && plan->config->units[unit].shared.buffer)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected no use behind the last backward of a pass that reduces: in mode "
                        "mapped the owners may write its parameters then");
    if (u->residency != HPI_SHARDED)
        return HP_OK;
    u->gathered = 0;
    hpi_mapped_publish(plan, unit);
    if (bytes) {
        const uint32_t buffer = take_storage(plan, unit, is_needed);
        if (!buffer && is_needed)
            return HPI_FAIL(
                HP_ERR_STATE,
                "expected at most %u units in use at once (1 + prefetch), given one more",
                plan->config->n_storage_slots);
        if (!buffer)
            return HP_OK;
        u->storage = hpi_emit_allocate(plan, unit, buffer, bytes);
        hpi_plan_way(plan, unit)->gather(plan, unit, hpi_done(plan->next_id - 1));
    }
    u->residency = HPI_PENDING;
    return HP_OK;
}

void hpi_plan_wait_unshard(hpi_plan *plan, uint32_t unit) {
    hpi_unit_state *u = &plan->units[unit];
    if (u->residency == HPI_PENDING)
        hpi_emit_wait(plan, unit, u->gathered);
    hpi_mapped_wait(plan, unit);
    u->residency = HPI_RESIDENT;
}

hp_status hpi_plan_unshard_now(hpi_plan *plan, uint32_t unit) {
    HP_TRY(hpi_plan_unshard(plan, unit, true));
    hpi_plan_wait_unshard(plan, unit);
    hpi_plan_begin_hold(plan, unit);
    plan->units[unit].is_computing = true; /* from here on it cannot be evicted */
    return HP_OK;
}

/* ---- forward ----------------------------------------------------------------------------- */

/* Where the learnt order uses `unit` next, from where this pass has come to, around the end. */
static uint32_t find_use(const hpi_plan *plan, uint32_t unit) {
    for (uint32_t k = 0; k < plan->n_order; k++) {
        const uint32_t at = (plan->next_use + k) % plan->n_order;
        if (plan->order[at] == unit)
            return at;
    }
    return HPI_NOBODY;
}

static hp_status prefetch_list(hpi_plan *plan, const uint32_t *units, uint32_t n) {
    for (uint32_t k = 0; k < n; k++)
        HP_TRY(hpi_plan_unshard(plan, units[k], false));
    return HP_OK;
}

static hp_status prefetch_forward(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    const uint32_t at = find_use(plan, unit);
    if (at != HPI_NOBODY)
        plan->next_use = at + 1;
    if (plan->config->schedule == HP_SERIAL)
        return HP_OK;
    if (description->prefetch)
        return prefetch_list(plan, description->prefetch, description->n_prefetch);
    if (at == HPI_NOBODY)
        return HP_OK;
    const uint64_t n = hpi_min(plan->config->prefetch, plan->n_order - plan->next_use);
    return prefetch_list(plan, plan->order + plan->next_use, (uint32_t)n);
}

/* Room to note one more use: the first pass that has so many takes it, later ones have it. */
static hp_status reserve_use(hpi_plan *plan) {
    if (plan->n_uses < plan->n_max_uses)
        return HP_OK;
    const uint32_t n = 2 * plan->n_max_uses;
    uint32_t *order = hpi_alloc(n, sizeof *order);
    hpi_use *uses = order ? hpi_alloc(n, sizeof *uses) : NULL;
    if (!uses) {
        hpi_free(order);
        return HP_ERR_MEMORY;
    }
    memcpy(order, plan->order, plan->n_order * sizeof *order);
    memcpy(uses, plan->uses, plan->n_uses * sizeof *uses);
    hpi_free(plan->order);
    hpi_free(plan->uses);
    plan->order = order;
    plan->uses = uses;
    plan->n_max_uses = n;
    return HP_OK;
}

hp_status hpi_plan_forward_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    HP_TRY(reserve_use(plan));
    HP_TRY(hpi_plan_unshard_now(plan, unit));
    HP_TRY(prefetch_forward(plan, unit));
    plan->uses[plan->n_uses++] = (hpi_use){.unit = unit};
    plan->units[unit].n_forwards++;
    hpi_emit_compute(plan, HPI_OP_FORWARD_BEGIN, unit);
    return hpi_burst_finish(plan, out_burst);
}

/* Backward begins with the last use of the forward, so its unit stays. */
static bool stays_for_backward(const hpi_plan *plan, uint32_t unit) {
    return plan->pass != HP_EVALUATE && plan->next_use == plan->n_order &&
           plan->order[plan->n_order - 1] == unit;
}

hp_status hpi_plan_forward_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    hpi_emit_compute(plan, HPI_OP_FORWARD_END, unit);
    plan->units[unit].is_computing = false;
    const bool is_freed = plan->config->units[unit].is_resharded || plan->pass == HP_EVALUATE;
    if (is_freed && !stays_for_backward(plan, unit))
        hpi_plan_reshard(plan, unit);
    return hpi_burst_finish(plan, out_burst);
}
