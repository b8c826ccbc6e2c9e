/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - the schedule of SPEC A2 (forward) and A3 (backward, per-parameter path).
 *
 * Every function appends operations to plan->ops and changes the state; nothing else. Waiting is an
 * operation too (HPI_OP_WAIT on the compute stream), so the list says all: what is issued, what is
 * waited for, when memory begins and ends a life.
 *
 * Always holds: at most one unit is between the issue of its reduce-scatter and the wait for it
 * (plan->reducing); a storage slot belongs to one unit that is pending or resident; a grad slot is
 * given a new life only after its reduce-scatters have drained.
 */
#include "plan.h"
#include "../base/base.h"

#include <assert.h>

enum { NOBODY = UINT32_MAX };

enum residency { SHARDED, PENDING, RESIDENT };

struct unit_state {
    enum residency residency;
    bool is_computing; /* between a begin and its end */
    bool is_forwarded; /* in this step */
    bool is_backwarded;
    hp_ref storage;         /* while pending or resident */
    hp_event gathered;      /* the last gather; 0: nothing to wait for */
    hp_ref grad;            /* while it holds a slot */
    hp_event reduced;       /* bucket complete on this rank's shard */
    hp_event grad_drained;  /* no peer reads the gradients any more; 0: none ever did */
    hp_event replicated[2]; /* bucket complete over the replicas */
};

struct hpi_plan {
    const hpi_plan_config *config;
    hp_pass pass;
    struct unit_state *units;
    uint32_t *order, n_order;     /* forward order, learnt from the last pass with a backward */
    uint32_t *current, n_current; /* the order of this pass */
    uint32_t *replicating, n_replicating; /* units whose all-reduce is in flight, in issue order */
    uint32_t reducing;                    /* unit whose reduce-scatter is in flight, or NOBODY */
    uint32_t storage_owner[HPI_MAX_SLOTS], grad_owner[HPI_MAX_SLOTS];
    uint32_t *lives;
    uint32_t next_id, next_seq[HPI_N_COMMS];
    hp_event last_drained[HPI_N_COMMS]; /* of the last collective on each communicator */
    hp_op *ops;
    uint64_t n_ops, ops_capacity;
};

/* ---- emitting ---------------------------------------------------------------------------- */

static hp_op *emit(hpi_plan *plan, uint16_t kind, uint16_t stream, uint32_t unit) {
    static const hp_op nothing;
    assert(plan->n_ops < plan->ops_capacity); /* see longest_burst */
    hp_op *op = &plan->ops[plan->n_ops++];
    *op = nothing;
    op->kind = kind;
    op->stream = stream;
    op->id = plan->next_id++;
    op->unit = unit;
    op->param = NOBODY;
    op->blocks = 1;
    return op;
}

static void wait_for(hp_op *op, hp_event event) {
    if (event && op->n_waits < HP_OP_WAITS)
        op->waits[op->n_waits++] = event;
}

static void emit_wait(hpi_plan *plan, uint32_t unit, hp_event event) {
    if (event)
        wait_for(emit(plan, HPI_OP_WAIT, HP_STREAM_COMPUTE, unit), event);
}

static hp_op *emit_collective(hpi_plan *plan, uint16_t kind, uint16_t stream, uint32_t comm,
                              uint32_t unit) {
    hp_op *op = emit(plan, kind, stream, unit);
    op->comm = comm;
    op->seq = plan->next_seq[comm]++;
    op->reduce = HP_SUM;
    op->peers_read = 1;
    plan->last_drained[comm] = hpi_drained(op->id);
    return op;
}

static hp_ref piece(hp_ref whole, uint64_t begin, uint64_t end) {
    return (hp_ref){whole.buffer, whole.life, begin, end};
}

static hp_ref emit_allocate(hpi_plan *plan, uint32_t unit, uint32_t buffer, uint64_t bytes) {
    hp_op *op = emit(plan, HPI_OP_ALLOCATE, HP_STREAM_COMPUTE, unit);
    op->writes[0] = (hp_ref){buffer, ++plan->lives[buffer], 0, bytes};
    op->bytes = bytes;
    return op->writes[0];
}

static void emit_release(hpi_plan *plan, uint32_t unit, hp_ref ref, hp_event after) {
    hp_op *op = emit(plan, HPI_OP_RELEASE, HP_STREAM_COMPUTE, unit);
    op->reads[0] = ref;
    op->bytes = ref.end - ref.begin;
    wait_for(op, after);
}

static void start(hpi_plan *plan) {
    plan->n_ops = 0;
}

static hp_status finish(const hpi_plan *plan, hpi_burst *out_burst) {
    *out_burst = (hpi_burst){plan->ops, plan->n_ops};
    return HP_OK;
}

/* ---- storage ----------------------------------------------------------------------------- */

static uint32_t slot_of(const uint32_t *owners, uint32_t n, uint32_t owner) {
    for (uint32_t s = 0; s < n; s++)
        if (owners[s] == owner)
            return s;
    return NOBODY;
}

static void reshard(hpi_plan *plan, uint32_t unit) {
    struct unit_state *u = &plan->units[unit];
    if (u->residency == SHARDED)
        return;
    const uint32_t slot = slot_of(plan->storage_owner, plan->config->n_storage_slots, unit);
    if (u->storage.buffer) /* a gather that nobody waited for is waited for here: cancelled */
        emit_release(plan, unit, u->storage, u->residency == PENDING ? u->gathered : 0);
    if (slot != NOBODY)
        plan->storage_owner[slot] = NOBODY;
    u->residency = SHARDED;
    u->storage = (hp_ref){0, 0, 0, 0};
}

/* Somebody whose storage can be taken back: a prefetch that was not used yet, else an idle one. */
static uint32_t find_evictable(const hpi_plan *plan) {
    uint32_t idle = NOBODY;
    for (uint32_t s = 0; s < plan->config->n_storage_slots; s++) {
        const uint32_t owner = plan->storage_owner[s];
        if (owner == NOBODY || plan->units[owner].is_computing)
            continue;
        if (plan->units[owner].residency == PENDING)
            return owner;
        idle = owner;
    }
    return idle;
}

/* The buffer for a unit's storage, or 0 when there is none to be had. */
static uint32_t take_storage(hpi_plan *plan, uint32_t unit, bool is_needed) {
    const hpi_plan_config *config = plan->config;
    if (config->units[unit].own_storage)
        return config->units[unit].own_storage;
    uint32_t slot = slot_of(plan->storage_owner, config->n_storage_slots, NOBODY);
    if (slot == NOBODY && is_needed) {
        const uint32_t victim = find_evictable(plan);
        if (victim != NOBODY)
            reshard(plan, victim);
        slot = slot_of(plan->storage_owner, config->n_storage_slots, NOBODY);
    }
    if (slot == NOBODY)
        return 0;
    plan->storage_owner[slot] = unit;
    return config->storage_slots[slot];
}

static void emit_gathers(hpi_plan *plan, uint32_t unit, hp_event allocated) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    struct unit_state *u = &plan->units[unit];
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hpi_plan_param *p = &description->params[j];
        if (!p->is_gathered)
            continue;
        hp_op *op = emit_collective(plan, 0, HP_STREAM_UNSHARD, HPI_COMM_UNSHARD, unit);
        op->param = p->param;
        op->dtype = op->wire = p->dtype;
        op->blocks = p->blocks;
        op->reads[0] = p->source;
        op->writes[0] = piece(u->storage, p->storage_begin, p->storage_end);
        op->bytes = p->source.end - p->source.begin;
        wait_for(op, allocated);
        allocated = 0; /* the stream is in order: the first one's wait is enough */
        u->gathered = hpi_done(op->id);
    }
}

/* Issue the gathers of a unit unless it is resident or on the way. */
static hp_status unshard(hpi_plan *plan, uint32_t unit, bool is_needed) {
    struct unit_state *u = &plan->units[unit];
    const uint64_t bytes = plan->config->units[unit].storage_bytes;
    if (u->residency != SHARDED)
        return HP_OK;
    u->gathered = 0;
    if (bytes) {
        const uint32_t buffer = take_storage(plan, unit, is_needed);
        if (!buffer && is_needed)
            return HPI_FAIL(
                HP_ERR_STATE,
                "expected at most %u units in use at once (1 + prefetch), given one more",
                plan->config->n_storage_slots);
        if (!buffer)
            return HP_OK;
        u->storage = emit_allocate(plan, unit, buffer, bytes);
        emit_gathers(plan, unit, hpi_done(plan->next_id - 1));
    }
    u->residency = PENDING;
    return HP_OK;
}

static void wait_unshard(hpi_plan *plan, uint32_t unit) {
    struct unit_state *u = &plan->units[unit];
    if (u->residency == PENDING)
        emit_wait(plan, unit, u->gathered);
    u->residency = RESIDENT;
}

static hp_status unshard_now(hpi_plan *plan, uint32_t unit) {
    HP_TRY(unshard(plan, unit, true));
    wait_unshard(plan, unit);
    plan->units[unit].is_computing = true; /* from here on it cannot be evicted */
    return HP_OK;
}

/* ---- forward ----------------------------------------------------------------------------- */

static uint32_t position(const uint32_t *order, uint32_t n, uint32_t unit) {
    for (uint32_t i = 0; i < n; i++)
        if (order[i] == unit)
            return i;
    return NOBODY;
}

static hp_status prefetch_forward(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    if (plan->config->schedule == HP_SERIAL)
        return HP_OK;
    if (description->prefetch) {
        for (uint32_t k = 0; k < description->n_prefetch; k++)
            HP_TRY(unshard(plan, description->prefetch[k], false));
        return HP_OK;
    }
    const uint32_t at = position(plan->order, plan->n_order, unit);
    for (uint32_t k = 1; at != NOBODY && k <= plan->config->prefetch && at + k < plan->n_order; k++)
        HP_TRY(unshard(plan, plan->order[at + k], false));
    return HP_OK;
}

static hp_op *emit_compute(hpi_plan *plan, uint16_t kind, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    const struct unit_state *u = &plan->units[unit];
    hp_op *op = emit(plan, kind, HP_STREAM_COMPUTE, unit);
    const bool is_begin = kind == HPI_OP_FORWARD_BEGIN || kind == HPI_OP_BACKWARD_BEGIN;
    if (is_begin && u->storage.buffer) {
        op->reads[0] = u->storage;
        op->reads[1] = description->cast.buffer ? description->cast : description->shard;
    } else if (is_begin) {
        op->reads[0] = description->shard;
        op->reads[1] = description->cast;
    }
    return op;
}

hp_status hpi_plan_forward_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    struct unit_state *u = &plan->units[unit];
    start(plan);
    HP_TRY(unshard_now(plan, unit));
    HP_TRY(prefetch_forward(plan, unit));
    if (!u->is_forwarded)
        plan->current[plan->n_current++] = unit;
    u->is_forwarded = true;
    emit_compute(plan, HPI_OP_FORWARD_BEGIN, unit);
    return finish(plan, out_burst);
}

/* Backward begins with the last unit of the forward, so that one stays. */
static bool stays_for_backward(const hpi_plan *plan, uint32_t unit) {
    return plan->pass == HP_SYNC && plan->n_order && plan->order[plan->n_order - 1] == unit;
}

hp_status hpi_plan_forward_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    start(plan);
    emit_compute(plan, HPI_OP_FORWARD_END, unit);
    plan->units[unit].is_computing = false;
    const bool is_freed = plan->config->units[unit].is_resharded || plan->pass == HP_EVALUATE;
    if (is_freed && !stays_for_backward(plan, unit))
        reshard(plan, unit);
    return finish(plan, out_burst);
}

/* ---- backward ---------------------------------------------------------------------------- */

/* The next `prefetch` units of the backward: those forwarded before `unit`, last first. */
static hp_status prefetch_backward(hpi_plan *plan, uint32_t unit) {
    if (plan->config->schedule == HP_SERIAL)
        return HP_OK;
    uint32_t n_left = plan->config->prefetch;
    for (uint32_t i = position(plan->current, plan->n_current, unit); i-- > 0 && n_left;) {
        if (plan->units[plan->current[i]].is_backwarded)
            continue;
        HP_TRY(unshard(plan, plan->current[i], false));
        n_left--;
    }
    return HP_OK;
}

static void release_grad(hpi_plan *plan, uint32_t unit) {
    struct unit_state *u = &plan->units[unit];
    emit_release(plan, unit, u->grad, u->grad_drained);
    plan->grad_owner[slot_of(plan->grad_owner, plan->config->n_grad_slots, unit)] = NOBODY;
    u->grad = (hp_ref){0, 0, 0, 0};
}

/* The slot to use next: a free one, else the one whose reductions were issued longest ago (they
 * have drained longest); NOBODY while every slot is being written. */
static uint32_t find_grad_slot(const hpi_plan *plan) {
    uint32_t best = NOBODY;
    for (uint32_t s = 0; s < plan->config->n_grad_slots; s++) {
        const uint32_t owner = plan->grad_owner[s];
        if (owner == NOBODY)
            return s;
        if (plan->units[owner].is_computing)
            continue;
        if (best == NOBODY ||
            plan->units[owner].reduced < plan->units[plan->grad_owner[best]].reduced)
            best = s;
    }
    return best;
}

static bool has_grad_slot(const hpi_plan *plan, uint32_t unit) {
    return !plan->config->units[unit].grad_bytes || find_grad_slot(plan) != NOBODY;
}

/* The caller has made sure that there is one. */
static void take_grad(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_config *config = plan->config;
    if (!config->units[unit].grad_bytes)
        return;
    const uint32_t slot = find_grad_slot(plan);
    assert(slot != NOBODY);
    if (plan->grad_owner[slot] != NOBODY)
        release_grad(plan, plan->grad_owner[slot]);
    plan->grad_owner[slot] = unit;
    plan->units[unit].grad =
        emit_allocate(plan, unit, config->grad_slots[slot], config->units[unit].grad_bytes);
}

static void emit_backward_begin(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hp_op *op = emit_compute(plan, HPI_OP_BACKWARD_BEGIN, unit);
    op->writes[0] = plan->units[unit].grad;
    for (uint32_t j = 0; j < description->n_params; j++)
        if (description->params[j].route == HPI_ROUTE_DIRECT)
            op->writes[1] = description->bucket[description->params[j].bucket];
}

hp_status hpi_plan_backward_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    start(plan);
    if (!has_grad_slot(plan, unit)) /* before anything has changed */
        return HPI_FAIL(HP_ERR_STATE,
                        "expected at most %u units in backward at once, given one more",
                        plan->config->n_grad_slots);
    HP_TRY(unshard_now(plan, unit));
    HP_TRY(prefetch_backward(plan, unit));
    take_grad(plan, unit);
    emit_backward_begin(plan, unit);
    return finish(plan, out_burst);
}

/* One parameter's way into the bucket; returns the event at which its slice is complete. */
static hp_event emit_route(hpi_plan *plan, uint32_t unit, const hpi_plan_param *p,
                           hp_event computed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    struct unit_state *u = &plan->units[unit];
    if (p->route == HPI_ROUTE_NONE || p->route == HPI_ROUTE_DIRECT)
        return 0;
    hp_op *op;
    if (p->route == HPI_ROUTE_CONVERT) {
        op = emit(plan, HPI_OP_CONVERT, HP_STREAM_COMPUTE, unit);
    } else {
        op = emit_collective(plan, p->route == HPI_ROUTE_REDUCE_SCATTER ? 1 : 2, HP_STREAM_REDUCE,
                             HPI_COMM_REDUCE, unit);
        wait_for(op, computed);
        u->grad_drained = hpi_drained(op->id);
    }
    op->param = p->param;
    op->dtype = op->wire = p->dtype;
    op->blocks = p->blocks;
    op->reads[0] = piece(u->grad, p->grad_begin, p->grad_end);
    op->writes[0] = piece(description->bucket[p->bucket], p->bucket_begin, p->bucket_end);
    op->bytes = p->grad_end - p->grad_begin;
    return hpi_done(op->id);
}

/* Step 3 of A3: issue the reductions of a unit over its shard group. */
static void issue_reduce(hpi_plan *plan, uint32_t unit, hp_event computed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    struct unit_state *u = &plan->units[unit];
    u->reduced = computed;
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hp_event event = emit_route(plan, unit, &description->params[j], computed);
        if (event)
            u->reduced = event; /* streams are in order: the last one is enough */
    }
}

static void emit_divide(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    for (int b = 0; b < 2; b++) {
        if (!description->bucket[b].buffer || !description->is_divided)
            continue;
        hp_op *op = emit(plan, HPI_OP_DIVIDE, HP_STREAM_COMPUTE, unit);
        op->dtype = op->wire = b ? HP_FP64 : HP_FP32;
        op->reads[0] = op->writes[0] = description->bucket[b];
        op->bytes = description->bucket[b].end;
    }
}

/* Step 4 of A3: one all-reduce, in place, for a unit's whole bucket. */
static void issue_replicate(hpi_plan *plan, uint32_t unit) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    for (int b = 0; b < 2; b++) {
        plan->units[unit].replicated[b] = 0;
        if (!description->bucket[b].buffer)
            continue;
        hp_op *op = emit_collective(plan, 2, HP_STREAM_REPLICATE, HPI_COMM_REPLICATE, unit);
        op->dtype = op->wire = b ? HP_FP64 : HP_FP32;
        op->reads[0] = op->writes[0] = description->bucket[b];
        op->bytes = description->bucket[b].end;
        wait_for(op, plan->units[unit].reduced);
        plan->units[unit].replicated[b] = hpi_done(op->id);
    }
    plan->replicating[plan->n_replicating++] = unit;
}

/* Steps 1 and 2 of A3 for the unit whose reduction is in flight; it is returned. */
static uint32_t finish_reduce(hpi_plan *plan) {
    const uint32_t unit = plan->reducing;
    plan->reducing = NOBODY;
    if (unit == NOBODY)
        return NOBODY;
    emit_wait(plan, unit, plan->units[unit].reduced);
    if (plan->config->n_replicas == 1)
        emit_divide(plan, unit);
    return unit;
}

/* Also for drained: the bucket, which peers read, is rewritten by the division. */
static void wait_replicate(hpi_plan *plan, uint32_t unit) {
    for (int b = 0; b < 2; b++) {
        const hp_event done = plan->units[unit].replicated[b];
        if (!done)
            continue;
        hp_op *op = emit(plan, HPI_OP_WAIT, HP_STREAM_COMPUTE, unit);
        wait_for(op, done);
        wait_for(op, hpi_drained(hpi_event_op(done)));
    }
}

static void replicate_after(hpi_plan *plan, uint32_t unit) {
    if (unit == NOBODY || plan->config->n_replicas == 1)
        return;
    issue_replicate(plan, unit);
    if (plan->config->schedule == HP_SERIAL)
        wait_replicate(plan, unit);
}

static void after_backward(hpi_plan *plan, uint32_t unit) {
    const hp_op *end = emit_compute(plan, HPI_OP_BACKWARD_END, unit);
    const hp_event computed = hpi_done(end->id);
    plan->units[unit].is_computing = false;
    plan->units[unit].is_backwarded = true;
    reshard(plan, unit);
    const uint32_t previous = finish_reduce(plan);
    if (plan->config->units[unit].is_trainable) {
        issue_reduce(plan, unit, computed);
        plan->reducing = unit;
    }
    replicate_after(plan, previous);
    if (plan->config->schedule == HP_SERIAL)
        replicate_after(plan, finish_reduce(plan));
}

hp_status hpi_plan_backward_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst) {
    start(plan);
    after_backward(plan, unit);
    return finish(plan, out_burst);
}

/* ---- begin, end, apply ------------------------------------------------------------------- */

void hpi_plan_begin(hpi_plan *plan, hp_pass pass) {
    plan->pass = pass;
    plan->n_current = 0;
    plan->next_id = 0;
    memset(plan->next_seq, 0, sizeof plan->next_seq);
    memset(plan->last_drained, 0, sizeof plan->last_drained);
    memset(plan->lives, 0, plan->config->n_buffers * sizeof *plan->lives);
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        struct unit_state *u = &plan->units[i];
        u->is_forwarded = u->is_backwarded = false;
        u->gathered = u->reduced = u->grad_drained = 0;
    }
}

/* Units that got no gradient are reduced as zeros, so that every rank issues the same collectives.
 */
static void reduce_missing(hpi_plan *plan) {
    for (uint32_t i = plan->config->n_units; i-- > 0;) {
        if (!plan->config->units[i].is_trainable || plan->units[i].is_backwarded)
            continue;
        reshard(plan, i);
        take_grad(plan, i); /* no unit is computing now, so there is a slot */
        emit_backward_begin(plan, i);
        after_backward(plan, i);
    }
}

static void finish_gradients(hpi_plan *plan) {
    reduce_missing(plan);
    replicate_after(plan, finish_reduce(plan));
    for (uint32_t k = 0; k < plan->n_replicating; k++) {
        const uint32_t unit = plan->replicating[k];
        wait_replicate(plan, unit);
        emit_divide(plan, unit);
    }
    plan->n_replicating = 0;
    for (uint32_t s = 0; s < plan->config->n_grad_slots; s++)
        if (plan->grad_owner[s] != NOBODY)
            release_grad(plan, plan->grad_owner[s]);
}

static void learn_order(hpi_plan *plan) {
    if (!plan->n_current)
        return;
    memcpy(plan->order, plan->current, plan->n_current * sizeof *plan->order);
    plan->n_order = plan->n_current;
}

hp_status hpi_plan_end(hpi_plan *plan, hpi_burst *out_burst) {
    start(plan);
    if (plan->pass == HP_SYNC) {
        finish_gradients(plan);
        learn_order(plan);
    }
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        reshard(plan, i);
    hp_op *quiet = NULL;
    for (int comm = 1; comm < HPI_N_COMMS; comm++) {
        if (!plan->last_drained[comm])
            continue;
        quiet = quiet ? quiet : emit(plan, HPI_OP_WAIT, HP_STREAM_COMPUTE, NOBODY);
        wait_for(quiet, plan->last_drained[comm]);
    }
    return finish(plan, out_burst);
}

hp_status hpi_plan_apply(hpi_plan *plan, uint16_t kind, hpi_burst *out_burst) {
    start(plan);
    for (uint32_t i = 0; i < plan->config->n_units; i++) {
        const hpi_plan_unit *description = &plan->config->units[i];
        if (kind == HPI_OP_SCALE && !description->is_trainable)
            continue;
        hp_op *op = emit(plan, kind, HP_STREAM_COMPUTE, i);
        memcpy(op->reads, description->bucket, sizeof op->reads);
        op->writes[0] = kind == HPI_OP_UPDATE ? description->shard : description->bucket[0];
        op->writes[1] = kind == HPI_OP_UPDATE ? description->cast : description->bucket[1];
    }
    return finish(plan, out_burst);
}

/* ---- life of a plan ---------------------------------------------------------------------- */

/* A burst touches each unit a bounded number of times, at most once in each role: gathered,
 * reduced, replicated, divided, released. So the list never grows. */
static uint64_t longest_burst(const hpi_plan_config *config) {
    uint64_t n = 64;
    for (uint32_t i = 0; i < config->n_units; i++)
        n += 2 * (uint64_t)config->units[i].n_params + 24;
    return n;
}

static void nobody_owns(uint32_t *owners) {
    for (int s = 0; s < HPI_MAX_SLOTS; s++)
        owners[s] = NOBODY;
}

hp_status hpi_plan_create(const hpi_plan_config *config, hpi_plan **out_plan) {
    hpi_plan *plan = hpi_alloc(1, sizeof *plan);
    if (!plan)
        return HP_ERR_MEMORY;
    plan->config = config;
    plan->reducing = NOBODY;
    plan->ops_capacity = longest_burst(config);
    plan->units = hpi_alloc(config->n_units, sizeof *plan->units);
    plan->order = hpi_alloc(config->n_units, sizeof *plan->order);
    plan->current = hpi_alloc(config->n_units, sizeof *plan->current);
    plan->replicating = hpi_alloc(config->n_units, sizeof *plan->replicating);
    plan->lives = hpi_alloc(config->n_buffers, sizeof *plan->lives);
    plan->ops = hpi_alloc(plan->ops_capacity, sizeof *plan->ops);
    if (!plan->units || !plan->order || !plan->current || !plan->replicating || !plan->lives ||
        !plan->ops) {
        hpi_plan_destroy(plan);
        return HP_ERR_MEMORY;
    }
    nobody_owns(plan->storage_owner);
    nobody_owns(plan->grad_owner);
    for (uint32_t i = 0; i < config->n_units; i++)
        plan->order[i] = i; /* until the first step has shown the real one */
    plan->n_order = config->n_units;
    *out_plan = plan;
    return HP_OK;
}

void hpi_plan_destroy(hpi_plan *plan) {
    if (!plan)
        return;
    hpi_free(plan->units);
    hpi_free(plan->order);
    hpi_free(plan->current);
    hpi_free(plan->replicating);
    hpi_free(plan->lives);
    hpi_free(plan->ops);
    hpi_free(plan);
}

uint32_t hpi_plan_n_gathered(const hpi_plan *plan) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->config->n_units; i++)
        n += plan->units[i].residency != SHARDED;
    return n;
}

bool hpi_plan_is_idle(const hpi_plan *plan) {
    return plan->reducing == NOBODY && plan->n_replicating == 0 && hpi_plan_n_gathered(plan) == 0;
}
