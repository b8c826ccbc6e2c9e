/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.c - the user's calls: check the order, ask the plan, hand its operations to the executor.
 *
 * The engine holds no schedule of its own. Every call is one hook: the plan (or the recorded step)
 * gives a burst of operations, the executor runs those of the compute stream before the call
 * returns and the others when their turn comes. After a failed operation hp_fsdp_reset and
 * hp_fsdp_destroy are left.
 */
#include "../engine.h"
#include "../memory/buffers.h"
#include "../together/groups.h"

#include <hyperparallel/coll.h>
#include <stdio.h>

enum { NOBODY = UINT32_MAX };

/* ---- create and destroy ------------------------------------------------------------------ */

static void take_coordinates(hp_fsdp *fsdp) {
    const int shard_dim = hp_mesh_n_dims(fsdp->mesh) - 1;
    fsdp->n_shards = hp_mesh_size(fsdp->mesh, shard_dim);
    fsdp->shard_rank = hp_mesh_coordinate(fsdp->mesh, shard_dim);
    fsdp->n_replicas = shard_dim ? hp_mesh_size(fsdp->mesh, 0) : 1;
    fsdp->replica_rank = shard_dim ? hp_mesh_coordinate(fsdp->mesh, 0) : 0;
}

hp_status hp_fsdp_create(hp_mesh *mesh, const hp_fsdp_config *config, hp_fsdp **out_fsdp) {
    static const hp_fsdp_config defaults = HP_FSDP_CONFIG_INIT;
    if (!mesh || !out_fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a mesh and out_fsdp, given NULL");
    HP_TRY(hpi_config_check(mesh, config ? config : &defaults));
    hp_fsdp *fsdp = hpi_alloc(1, sizeof *fsdp);
    if (!fsdp)
        return HP_ERR_MEMORY;
    fsdp->mesh = mesh;
    fsdp->world = hp_mesh_world(mesh);
    fsdp->config = config ? *config : defaults;
    take_coordinates(fsdp);
    hp_status status = HP_OK;
    if (!hpi_fsdp_is_virtual(fsdp)) {
        status = hpi_fsdp_take_meeting(fsdp);
        const hp_status taken = hpi_fsdp_take_groups(fsdp); /* in any case: ranks count groups */
        status = status ? status : taken;
        status = status ? status : hpi_fsdp_warm_up(fsdp);
    }
    if (status) {
        hp_fsdp_destroy(fsdp);
        return status;
    }
    *out_fsdp = fsdp;
    return HP_OK;
}

/* Collectives in flight may wait for ranks that will not come: a failed group ends their waits. */
static void give_up(hp_fsdp *fsdp) {
    hp_error told; /* what the caller may want to print after the clean-up */
    hp_last_error_get(&told);
    (void)HPI_FAIL(HP_ERR_FAILED, "the fsdp was destroyed inside a pass, or after a failure");
    hpi_fsdp_fail_groups(fsdp);
    (void)hpi_error_set(&told);
}

void hp_fsdp_destroy(hp_fsdp *fsdp) {
    if (!fsdp || (fsdp->world && hpi_world_usable(fsdp->world) == HP_ERR_FORKED))
        return; /* nothing, or the parent's */
    const bool is_drained = !fsdp->in_pass && !fsdp->is_failed;
    if (!is_drained)
        give_up(fsdp);
    hp_executor_destroy(fsdp->executor);
    hpi_segments_drop_memory(fsdp);
    if (is_drained) /* nobody reaches for our memory any more */
        hpi_symm_drop(fsdp->memory);
    hpi_fsdp_drop_groups(fsdp);
    hpi_fsdp_drop_meeting(fsdp);
    hpi_plan_destroy(fsdp->plan);
    hpi_replay_destroy(fsdp->replay);
    hpi_units_free(fsdp);
    hpi_free(fsdp->plan_units);
    hpi_free(fsdp->plan_params);
    hpi_free(fsdp->prefetch_lists);
    hpi_free(fsdp->unit_names);
    hpi_free(fsdp->bindings.buffers);
    hpi_free(fsdp->bindings.buffer_bytes);
    hpi_free(fsdp->bindings.comms);
    hpi_free(fsdp->bindings.comm_base);
    hpi_free(fsdp->bindings.unit_pass);
    hpi_free(fsdp);
}

/* ---- hooks ------------------------------------------------------------------------------- */

static hp_status ask_plan(hp_fsdp *fsdp, hpi_hook hook, uint32_t unit, hpi_burst *out_burst) {
    switch (hook) {
    case HPI_HOOK_FORWARD_BEGIN:
        return hpi_plan_forward_begin(fsdp->plan, unit, out_burst);
    case HPI_HOOK_FORWARD_END:
        return hpi_plan_forward_end(fsdp->plan, unit, out_burst);
    case HPI_HOOK_BACKWARD_BEGIN:
        return hpi_plan_backward_begin(fsdp->plan, unit, out_burst);
    case HPI_HOOK_BACKWARD_END:
        return hpi_plan_backward_end(fsdp->plan, unit, out_burst);
    case HPI_HOOK_RECOMPUTE_BEGIN:
        return hpi_plan_recompute_begin(fsdp->plan, unit, out_burst);
    case HPI_HOOK_RECOMPUTE_END:
        return hpi_plan_recompute_end(fsdp->plan, unit, out_burst);
    case HPI_HOOK_UNSHARD:
    case HPI_HOOK_HOLD:
        return hpi_plan_hold(fsdp->plan, unit, hook == HPI_HOOK_HOLD, out_burst);
    case HPI_HOOK_RESHARD:
        return hpi_plan_let_go(fsdp->plan, unit, out_burst);
    case HPI_HOOK_END:
        return hpi_plan_end(fsdp->plan, out_burst);
    case HPI_HOOK_UPDATE_BEGIN:
        return hpi_plan_begin_update(fsdp->plan, out_burst);
    case HPI_HOOK_UPDATE:
        return hpi_plan_apply(fsdp->plan, HPI_OP_UPDATE, out_burst);
    case HPI_HOOK_SCALE:
        return hpi_plan_apply(fsdp->plan, HPI_OP_SCALE, out_burst);
    }
    return HPI_FAIL(HP_ERR_ARGUMENT, "expected a hook, given %d", (int)hook);
}

/* The plan knows units by number: its failure is told with the unit's name and the user's call. */
static hp_status name_unit(const hp_fsdp *fsdp, hpi_hook hook, uint32_t unit, hp_status status) {
    static const char *const calls[] = {[HPI_HOOK_FORWARD_BEGIN] = "hp_forward_begin",
                                        [HPI_HOOK_FORWARD_END] = "hp_forward_end",
                                        [HPI_HOOK_BACKWARD_BEGIN] = "hp_backward_begin",
                                        [HPI_HOOK_BACKWARD_END] = "hp_backward_end",
                                        [HPI_HOOK_RECOMPUTE_BEGIN] = "hp_recompute_begin",
                                        [HPI_HOOK_RECOMPUTE_END] = "hp_recompute_end",
                                        [HPI_HOOK_UNSHARD] = "hp_unit_unshard",
                                        [HPI_HOOK_HOLD] = "hp_unit_unshard",
                                        [HPI_HOOK_RESHARD] = "hp_unit_reshard"};
    if (status >= 0 || unit == NOBODY)
        return status;
    hp_error cause, named;
    hp_last_error_get(&cause);
    named = cause;
    snprintf(named.call, sizeof named.call, "%s", calls[hook]);
    snprintf(named.message, sizeof named.message, "unit %s: %s", fsdp->units[unit]->name,
             cause.message);
    return hpi_error_set(&named);
}

hp_status hpi_fsdp_run_hook(hp_fsdp *fsdp, hpi_hook hook, uint32_t unit) {
    hpi_burst burst = {NULL, 0};
    const bool has_notes = fsdp->replay && fsdp->in_pass && fsdp->pass == HP_SYNC;
    if (has_notes && hpi_replay_is_active(fsdp->replay)) {
        HP_TRY(hpi_replay_next(fsdp->replay, hook, unit, &burst));
    } else {
        if (has_notes)
            HP_TRY(hpi_replay_reserve(fsdp->replay));
        HP_TRY(name_unit(fsdp, hook, unit, ask_plan(fsdp, hook, unit, &burst)));
        if (has_notes)
            hpi_replay_note(fsdp->replay, hook, unit, burst.n);
    }
    return hpi_fsdp_note_failure(fsdp, hp_executor_submit(fsdp->executor, burst.ops, burst.n));
}

/* A rank that was told FAILED by a peer passes that on as it is; its own end is the end of a rank.
 */
hp_status hpi_fsdp_note_failure(hp_fsdp *fsdp, hp_status status) {
    if (status >= 0)
        return status;
    fsdp->is_failed = true;
    if (hpi_fsdp_is_virtual(fsdp))
        return status;
    hp_error cause; /* passed on to the ranks that this one speaks to in other groups */
    hp_last_error_get(&cause);
    if (status == HP_ERR_PEER)
        hpi_fsdp_end_meetings(fsdp);
    (void)hpi_error_set(&cause);
    if (status == HP_ERR_FAILED && hpi_world_usable(fsdp->world) == HP_OK)
        hpi_fsdp_cancel_groups(fsdp);
    else
        hpi_fsdp_fail_groups(fsdp);
    return hpi_error_set(&cause);
}

hp_status hpi_fsdp_abandon(hp_fsdp *fsdp) {
    hp_error cause, told;
    hp_last_error_get(&cause);
    told = cause;
    told.status = HP_ERR_FAILED;
    told.world_rank = hp_world_rank(fsdp->world);
    fsdp->is_failed = true;
    (void)hpi_error_set(&told);
    hpi_fsdp_cancel_groups(fsdp);
    return hpi_error_set(&cause);
}

hp_status hpi_fsdp_check_usable(const hp_fsdp *fsdp, const char *call) {
    if (!fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected an fsdp, given NULL", call);
    if (!hpi_fsdp_is_virtual(fsdp))
        HP_TRY(hpi_world_usable(fsdp->world));
    if (fsdp->is_failed)
        return HPI_FAIL(HP_ERR_FAILED,
                        "%s: expected a sound fsdp, given one in which an operation failed: "
                        "hp_fsdp_reset on all ranks, or hp_fsdp_destroy",
                        call);
    if (!fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected hp_fsdp_commit first", call);
    if (fsdp->in_update)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected hp_fsdp_update_end first", call);
    return HP_OK;
}

const char *hpi_phase_name(hpi_phase phase) {
    static const char *const names[] = {"idle", "in forward", "in backward", "recomputed"};
    return names[phase];
}

hp_status hpi_unit_check(const hp_unit *unit, const char *call, hpi_phase expected) {
    if (!unit)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a unit, given NULL", call);
    HP_TRY(hpi_fsdp_check_usable(unit->fsdp, call));
    HP_TRY(hpi_fsdp_listen(unit->fsdp, call));
    if (!unit->fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected unit %s between hp_fsdp_begin and hp_fsdp_end",
                        call, unit->name);
    if (unit->phase != expected)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected unit %s to be %s, it is %s", call, unit->name,
                        hpi_phase_name(expected), hpi_phase_name(unit->phase));
    return HP_OK;
}

hp_status hpi_unit_begin_compute(hp_unit *unit, hpi_hook hook) {
    HP_TRY(hpi_fsdp_run_hook(unit->fsdp, hook, unit->index));
    unit->phase_began_ns = hp_executor_now_ns(unit->fsdp->executor);
    return HP_OK;
}

hp_status hpi_unit_end_compute(hp_unit *unit, hpi_hook hook, const char *name) {
    const hp_span span = {.name = name,
                          .detail = unit->name,
                          .begin_ns = unit->phase_began_ns,
                          .end_ns = hp_executor_now_ns(unit->fsdp->executor),
                          .id = NOBODY,
                          .step = hpi_fsdp_step(unit->fsdp)};
    hp_trace_span(unit->fsdp->config.trace, HP_STREAM_COMPUTE, &span);
    return hpi_fsdp_run_hook(unit->fsdp, hook, unit->index);
}

hp_status hp_forward_begin(hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_forward_begin", HPI_PHASE_IDLE));
    HP_TRY(hpi_unit_begin_compute(unit, HPI_HOOK_FORWARD_BEGIN));
    unit->n_forwards++;
    return HP_OK;
}

hp_status hp_forward_end(hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_forward_end", HPI_PHASE_FORWARD));
    return hpi_unit_end_compute(unit, HPI_HOOK_FORWARD_END, "forward");
}

static hp_status check_backward(const hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_backward_begin", HPI_PHASE_IDLE));
    if (unit->fsdp->pass == HP_EVALUATE)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected a pass with a backward (HP_SYNC and others) for unit %s, given "
                        "HP_EVALUATE",
                        unit->name);
    if (unit->n_backwards == unit->n_forwards)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected a forward of unit %s before each backward, given %u and one "
                        "backward more",
                        unit->name, unit->n_forwards);
    if (unit->is_complete)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected all forwards of unit %s before its last backward in a pass, "
                        "given another one after it",
                        unit->name);
    return HP_OK;
}

hp_status hp_backward_begin(hp_unit *unit) {
    HP_TRY(check_backward(unit));
    const bool is_last = unit->n_backwards + 1 == unit->n_forwards;
    if (!is_last || unit->pass == HP_NO_SYNC)
        HP_TRY(hpi_unit_take_accumulator(unit));
    HP_TRY(hpi_unit_begin_compute(unit, HPI_HOOK_BACKWARD_BEGIN));
    unit->n_backwards++;
    unit->is_complete = is_last;
    return HP_OK;
}

hp_status hp_backward_end(hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_backward_end", HPI_PHASE_BACKWARD));
    if (unit->is_complete)
        HP_TRY(hpi_unit_check_gradients(unit, "hp_backward_end"));
    return hpi_unit_end_compute(unit, HPI_HOOK_BACKWARD_END, "backward");
}

/* ---- between passes ----------------------------------------------------------------------- */

hp_status hpi_fsdp_apply(hp_fsdp *fsdp, int what, hpi_apply apply, void *context) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, what == HPI_APPLY_UPDATE ? "update" : "scale"));
    if (fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected hp_fsdp_end before weights or gradients are written");
    fsdp->apply = apply;
    fsdp->apply_context = context;
    if (what != HPI_APPLY_UPDATE)
        return hpi_fsdp_run_hook(fsdp, HPI_HOOK_SCALE, NOBODY);
    for (uint32_t i = 0; i < fsdp->n_units; i++) /* gradients of weights that are no more */
        fsdp->units[i]->n_no_sync = fsdp->units[i]->n_deferred = 0;
    HP_TRY(hpi_fsdp_run_hook(fsdp, HPI_HOOK_UPDATE, NOBODY));
    fsdp->has_torn_weights = false;
    fsdp->n_updates++;
    hpi_fsdp_done(fsdp); /* ranks may have met in it (mapped) */
    return HP_OK;
}

/* ---- looking inside ---------------------------------------------------------------------- */

hp_status hp_fsdp_stats_get(const hp_fsdp *fsdp, hp_fsdp_stats *out_stats) {
    hp_executor_stats executor = {0};
    if (!fsdp || !out_stats)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected fsdp and out_stats, given NULL");
    if (!fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_commit before statistics");
    if (fsdp->executor) /* none after a reset that failed */
        hp_executor_stats_get(fsdp->executor, &executor);
    *out_stats = fsdp->stats;
    out_stats->exposed_unshard_ns += executor.waited_ns[HP_STREAM_UNSHARD];
    out_stats->exposed_reduce_ns += executor.waited_ns[HP_STREAM_REDUCE];
    out_stats->exposed_replicate_ns += executor.waited_ns[HP_STREAM_REPLICATE];
    out_stats->optimizer_bytes = fsdp->optimizer_bytes;
    out_stats->gathered_units = hpi_plan_n_gathered(fsdp->plan);
    out_stats->bound_bytes = hpi_fsdp_bound(fsdp);
    return HP_OK;
}

hp_status hp_fsdp_recorded(const hp_fsdp *fsdp, const hp_op **out_ops, uint64_t *out_n,
                           const hp_kind **out_kinds, uint32_t *out_n_kinds) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, "hp_fsdp_recorded"));
    if (!fsdp->config.record)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_config.record, given 0");
    HP_TRY(hp_recorder_ops(fsdp->executor, out_ops, out_n));
    *out_kinds = fsdp->kinds;
    *out_n_kinds = HPI_OP_N_KINDS;
    return HP_OK;
}
