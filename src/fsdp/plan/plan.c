/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - the life of a plan, the passes, and how operations are appended.
 *
 * The schedule itself is SPEC A2 in forward.c, SPEC A3 and A4 in backward.c.
 *
 * Always holds: at most one unit is between the issue of its reduce-scatter and the wait for it
 * (plan->reducing); a storage slot belongs to one unit that is pending or resident; a grad slot is
 * given a new life only after its reduce-scatters have drained.
 */
#include "inside.h"

#include <assert.h>

/* ---- appending --------------------------------------------------------------------------- */

hp_op *hpi_emit(hpi_plan *plan, uint16_t kind, uint16_t stream, uint32_t unit) {
    static const hp_op nothing;
    assert(plan->n_ops < plan->ops_capacity); /* see longest_burst */
    hp_op *op = &plan->ops[plan->n_ops++];
    *op = nothing;
    op->kind = kind;
    op->stream = stream;
    op->id = plan->next_id++;
    op->unit = unit;
    op->param = HPI_NOBODY;
    op->blocks = 1;
    return op;
}

void hpi_wait_for(hp_op *op, hp_event event) {
    assert(op->n_waits < HP_OP_WAITS);
    if (event)
        op->waits[op->n_waits++] = event;
}

void hpi_emit_wait(hpi_plan *plan, uint32_t unit, hp_event event) {
    if (event)
        hpi_wait_for(hpi_emit(plan, HPI_OP_WAIT, HP_STREAM_COMPUTE, unit), event);
}

hp_op *hpi_emit_collective(hpi_plan *plan, uint16_t kind, uint16_t stream, uint32_t comm,
                           uint32_t unit) {
    hp_op *op = hpi_emit(plan, kind, stream, unit);
    op->comm = comm;
    op->seq = plan->next_seq[comm]++;
    op->reduce = HP_SUM;
    op->peers_read = 1;
    plan->last_drained[comm] = hpi_drained(op->id);
    return op;
}

hp_ref hpi_emit_allocate_on(hpi_plan *plan, uint16_t stream, uint32_t unit, uint32_t buffer,
                            uint64_t bytes) {
    hp_op *op = hpi_emit(plan, HPI_OP_ALLOCATE, stream, unit);
    op->writes[0] = (hp_ref){buffer, ++plan->lives[buffer], 0, bytes};
    op->bytes = bytes;
    return op->writes[0];
}

hp_ref hpi_emit_allocate(hpi_plan *plan, uint32_t unit, uint32_t buffer, uint64_t bytes) {
    return hpi_emit_allocate_on(plan, HP_STREAM_COMPUTE, unit, buffer, bytes);
}

hp_op *hpi_emit_release_on(hpi_plan *plan, uint16_t stream, uint32_t unit, hp_ref ref) {
    hp_op *op = hpi_emit(plan, HPI_OP_RELEASE, stream, unit);
    op->reads[0] = ref;
    op->bytes = ref.end - ref.begin;
    return op;
}

void hpi_emit_release(hpi_plan *plan, uint32_t unit, hp_ref ref, hp_event after) {
    hpi_wait_for(hpi_emit_release_on(plan, HP_STREAM_COMPUTE, unit, ref), after);
}

void hpi_burst_start(hpi_plan *plan) {
    plan->n_ops = 0;
}

hp_status hpi_burst_finish(const hpi_plan *plan, hpi_burst *out_burst) {
    *out_burst = (hpi_burst){plan->ops, plan->n_ops};
    return HP_OK;
}

hp_op *hpi_emit_compute(hpi_plan *plan, uint16_t kind, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    const hpi_unit_state *u = &plan->units[unit];
    hp_op *op = hpi_emit(plan, kind, HP_STREAM_COMPUTE, unit);
    const bool is_begin = kind == HPI_OP_FORWARD_BEGIN || kind == HPI_OP_BACKWARD_BEGIN ||
                          kind == HPI_OP_RECOMPUTE_BEGIN || kind == HPI_OP_HOLD_BEGIN;
    const bool is_mapped = description->shared.buffer && u->residency == HPI_RESIDENT;
    if (is_begin && (u->storage.buffer || is_mapped)) {
        op->reads[0] = is_mapped ? description->shared : u->storage;
        op->reads[1] = description->cast.buffer ? description->cast : description->shard;
    } else if (is_begin) {
        op->reads[0] = description->shard;
        op->reads[1] = description->cast;
    }
    return op;
}

uint32_t hpi_slot_of(const uint32_t *owners, uint32_t n, uint32_t owner) {
    for (uint32_t s = 0; s < n; s++)
        if (owners[s] == owner)
            return s;
    return HPI_NOBODY;
}

/* ---- modes ------------------------------------------------------------------------------- */

const hpi_way *hpi_plan_way(const hpi_plan *plan, uint32_t unit) {
    static const hpi_way ways[] = {
        [HP_PER_PARAM] = {hpi_per_param_gather, hpi_per_param_reduce, false},
        [HP_FUSED] = {hpi_fused_gather, hpi_fused_reduce, true},
        [HP_FUSED_ZERO_COPY] = {hpi_fused_gather, hpi_fused_reduce, true},
        [HP_MAPPED] = {NULL, hpi_per_param_reduce, false},
    };
    return &ways[plan->config->units[unit].mode];
}

/* ---- begin, end, apply ------------------------------------------------------------------- */

void hpi_plan_begin(hpi_plan *plan, hp_pass pass) {
    plan->pass = pass;
    plan->n_uses = plan->next_use = 0;
    plan->next_id = 0;
    memset(plan->next_seq, 0, sizeof plan->next_seq);
    memset(plan->last_drained, 0, sizeof plan->last_drained);
    memset(plan->grad_free, 0, sizeof plan->grad_free);
    memset(plan->lives, 0, plan->config->n_buffers * sizeof *plan->lives);
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        hpi_unit_state *u = &plan->units[i];
        u->n_forwards = u->n_backwards = 0;
        u->is_reduced = false;
        u->pass = pass;
        u->gathered = u->reduced = u->grad_drained = 0;
    }
}

void hpi_plan_set_pass(hpi_plan *plan, uint32_t unit, hp_pass pass) {
    plan->units[unit].pass = pass;
}

static void learn_order(hpi_plan *plan) {
    if (!plan->n_uses)
        return;
    for (uint32_t i = 0; i < plan->n_uses; i++)
        plan->order[i] = plan->uses[i].unit;
    plan->n_order = plan->n_uses;
}

static void note_what_is_left(hpi_plan *plan) {
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        hpi_unit_state *u = &plan->units[i];
        u->left_accumulated = u->is_accumulated;
        u->left_partial = u->is_partial;
    }
}

hp_status hpi_plan_end(hpi_plan *plan, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        hpi_plan_end_hold(plan, i);
    if (plan->pass != HP_EVALUATE) {
        hpi_plan_finish_gradients(plan);
        learn_order(plan);
    }
    if (plan->pass == HP_SYNC)
        note_what_is_left(plan);
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        hpi_plan_reshard(plan, i);
    hpi_mapped_end(plan);
    hp_op *quiet = NULL;
    for (int comm = 1; comm < HPI_N_COMMS; comm++) {
        if (!plan->last_drained[comm])
            continue;
        quiet = quiet ? quiet : hpi_emit(plan, HPI_OP_WAIT, HP_STREAM_COMPUTE, HPI_NOBODY);
        hpi_wait_for(quiet, plan->last_drained[comm]);
    }
    return hpi_burst_finish(plan, out_burst);
}

hp_status hpi_plan_begin_update(hpi_plan *plan, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    hpi_mapped_begin_update(plan);
    return hpi_burst_finish(plan, out_burst);
}

void hpi_plan_note_writes(hpi_plan *plan) {
    hpi_mapped_end_update(plan);
}

hp_status hpi_plan_apply(hpi_plan *plan, uint16_t kind, hpi_burst *out_burst) {
    hpi_burst_start(plan);
    if (kind == HPI_OP_UPDATE)
        hpi_mapped_begin_update(plan);
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        const hpi_plan_unit *description = &plan->config->units[i];
        if (kind == HPI_OP_SCALE && !description->is_trainable)
            continue;
        hp_op *op = hpi_emit(plan, kind, HP_STREAM_COMPUTE, i);
        memcpy(op->reads, description->bucket, sizeof op->reads);
        op->writes[0] = kind == HPI_OP_UPDATE ? description->shard : description->bucket[0];
        op->writes[1] = kind == HPI_OP_UPDATE ? description->cast : description->bucket[1];
        if (kind != HPI_OP_UPDATE)
            continue;
        /* gradients of weights that are no more */
        plan->units[i].is_accumulated = plan->units[i].is_partial = false;
        hpi_mapped_name_writes(plan, i);
    }
    if (kind == HPI_OP_UPDATE)
        hpi_mapped_end_update(plan);
    return hpi_burst_finish(plan, out_burst);
}

/* ---- life of a plan ---------------------------------------------------------------------- */

/* A burst touches each unit a bounded number of times, at most once in each role: gathered, folded,
 * reduced, replicated, divided, released. So the list never grows. */
static uint64_t longest_burst(const hpi_plan_config *config) {
    uint64_t n = 64;
    for (uint32_t i = 0; i < config->n_units; i++)
        n += 6 * (uint64_t)config->units[i].n_params + 32;
    return n;
}

static void nobody_owns(uint32_t *owners) {
    for (int s = 0; s < HPI_MAX_SLOTS; s++)
        owners[s] = HPI_NOBODY;
}

void hpi_plan_reset(hpi_plan *plan) {
    memset(plan->units, 0, plan->config->n_units * sizeof *plan->units);
    nobody_owns(plan->storage_owner);
    nobody_owns(plan->grad_owner);
    plan->reducing = HPI_NOBODY;
    plan->n_replicating = 0;
    hpi_mapped_reset(plan);
    plan->n_order = plan->config->n_units;
    for (uint32_t i = 0; i < plan->n_order; i++) /* until a pass has shown the real one */
        plan->order[i] = i;
    hpi_plan_begin(plan, HP_SYNC);
}

hp_status hpi_plan_create(const hpi_plan_config *config, hpi_plan **out_plan) {
    hpi_plan *plan = hpi_alloc(1, sizeof *plan);
    if (!plan)
        return HP_ERR_MEMORY;
    plan->config = config;
    plan->ops_capacity = longest_burst(config);
    plan->units = hpi_alloc(config->n_units, sizeof *plan->units);
    plan->n_max_uses = config->n_units;
    plan->order = hpi_alloc(plan->n_max_uses, sizeof *plan->order);
    plan->uses = hpi_alloc(plan->n_max_uses, sizeof *plan->uses);
    plan->replicating = hpi_alloc(config->n_units, sizeof *plan->replicating);
    plan->lives = hpi_alloc(config->n_buffers, sizeof *plan->lives);
    plan->ops = hpi_alloc(plan->ops_capacity, sizeof *plan->ops);
    if (!plan->units || !plan->order || !plan->uses || !plan->replicating || !plan->lives ||
        !plan->ops) {
        hpi_plan_destroy(plan);
        return HP_ERR_MEMORY;
    }
    hpi_plan_reset(plan);
    *out_plan = plan;
    return HP_OK;
}

void hpi_plan_destroy(hpi_plan *plan) {
    if (!plan)
        return;
    hpi_free(plan->units);
    hpi_free(plan->order);
    hpi_free(plan->uses);
    hpi_free(plan->replicating);
    hpi_free(plan->lives);
    hpi_free(plan->ops);
    hpi_free(plan);
}

uint32_t hpi_plan_n_gathered(const hpi_plan *plan) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        n += plan->units[i].residency != HPI_SHARDED;
    return n;
}

bool hpi_plan_is_idle(const hpi_plan *plan) {
    return plan->reducing == HPI_NOBODY && plan->n_replicating == 0 &&
           hpi_plan_n_gathered(plan) == 0;
}

void hpi_plan_replayed(hpi_plan *plan, uint64_t n_ops) {
    plan->next_id = (uint32_t)n_ops;
    hpi_mapped_replayed(plan);
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        hpi_unit_state *u = &plan->units[i];
        u->is_accumulated = u->left_accumulated;
        u->is_partial = u->left_partial;
    }
}

uint64_t hpi_plan_carried(const hpi_plan *plan) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        const hpi_unit_state *u = &plan->units[i];
        uint64_t seed = 4 * (uint64_t)i + 2 * u->is_partial + u->is_accumulated;
        sum += u->is_partial || u->is_accumulated ? hpi_random_next(&seed) : 0;
    }
    return sum;
}
