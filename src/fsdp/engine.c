/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.c - the user's calls: check the order, ask the plan, hand its operations to the executor.
 *
 * The engine holds no schedule of its own. Every call is one hook: the plan (or the recorded step)
 * gives a burst of operations, the executor runs those of the compute stream before the call
 * returns and the others when their turn comes. After a failed operation only hp_fsdp_destroy is
 * left.
 */
#include "engine.h"
#include "buffers.h"

#include <hyperparallel/coll.h>
#include <stdio.h>

enum { NOBODY = UINT32_MAX };

/* ---- create and destroy ------------------------------------------------------------------ */

static hp_status take_groups(hp_fsdp *fsdp) {
    const int shard_dim = hp_mesh_n_dims(fsdp->mesh) - 1;
    fsdp->n_shards = hp_mesh_size(fsdp->mesh, shard_dim);
    fsdp->shard_rank = hp_mesh_coordinate(fsdp->mesh, shard_dim);
    fsdp->n_replicas = shard_dim ? hp_mesh_size(fsdp->mesh, 0) : 1;
    fsdp->replica_rank = shard_dim ? hp_mesh_coordinate(fsdp->mesh, 0) : 0;
    HP_TRY(hp_group_duplicate(hp_mesh_group(fsdp->mesh, shard_dim), &fsdp->shard));
    HP_TRY(hp_group_duplicate(hp_mesh_group(fsdp->mesh, shard_dim), &fsdp->reduce));
    hpi_group_set_name(fsdp->shard, "unshard");
    hpi_group_set_name(fsdp->reduce, "reduce");
    /* a group's first collective takes memory; from here on agreeing (agree.h) takes none */
    HP_TRY(hp_barrier(hp_world_group(fsdp->world)));
    if (fsdp->n_replicas == 1)
        return HP_OK;
    HP_TRY(hp_group_duplicate(hp_mesh_group(fsdp->mesh, 0), &fsdp->replicate));
    hpi_group_set_name(fsdp->replicate, "replicate");
    return HP_OK;
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
    const hp_status status = take_groups(fsdp);
    if (status) {
        hp_fsdp_destroy(fsdp);
        return status;
    }
    *out_fsdp = fsdp;
    return HP_OK;
}

/* Collectives in flight may wait for ranks that will not come: a failed group ends their waits. */
static void cancel(hp_fsdp *fsdp) {
    hp_group *const groups[] = {fsdp->shard, fsdp->reduce, fsdp->replicate};
    hp_error told; /* what the caller may want to print after the clean-up */
    hp_last_error_get(&told);
    (void)HPI_FAIL(HP_ERR_FAILED, "the fsdp was destroyed inside a pass, or after a failure");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i])
            hpi_group_fail(groups[i]);
    (void)hpi_error_set(&told);
}

void hp_fsdp_destroy(hp_fsdp *fsdp) {
    if (!fsdp)
        return;
    const bool is_drained = !fsdp->in_pass && !fsdp->is_failed;
    if (!is_drained)
        cancel(fsdp);
    hp_executor_destroy(fsdp->executor);
    hpi_segments_drop_memory(fsdp);
    if (is_drained) /* nobody reaches for our memory any more */
        hpi_symm_drop(fsdp->memory);
    hp_group_destroy(fsdp->replicate);
    hp_group_destroy(fsdp->reduce);
    hp_group_destroy(fsdp->shard);
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
    case HPI_HOOK_END:
        return hpi_plan_end(fsdp->plan, out_burst);
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
                                        [HPI_HOOK_BACKWARD_END] = "hp_backward_end"};
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

static hp_status run_hook(hp_fsdp *fsdp, hpi_hook hook, uint32_t unit) {
    hpi_burst burst = {NULL, 0};
    const bool has_notes = fsdp->replay && fsdp->in_pass && fsdp->pass == HP_SYNC;
    if (has_notes && hpi_replay_is_active(fsdp->replay)) {
        HP_TRY(hpi_replay_next(fsdp->replay, hook, unit, &burst));
    } else {
        HP_TRY(name_unit(fsdp, hook, unit, ask_plan(fsdp, hook, unit, &burst)));
        if (has_notes)
            HP_TRY(hpi_replay_note(fsdp->replay, hook, unit, burst.n));
    }
    const hp_status status = hp_executor_submit(fsdp->executor, burst.ops, burst.n);
    fsdp->is_failed = status < 0;
    return status;
}

hp_status hpi_fsdp_check_usable(const hp_fsdp *fsdp, const char *call) {
    if (!fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected an fsdp, given NULL", call);
    HP_TRY(hpi_world_usable(fsdp->world));
    if (fsdp->is_failed)
        return HPI_FAIL(HP_ERR_FAILED,
                        "%s: expected a sound fsdp, given one in which an operation failed", call);
    if (!fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected hp_fsdp_commit first", call);
    return HP_OK;
}

static const char *phase_name(hpi_phase phase) {
    static const char *const names[] = {"idle", "in forward", "in backward"};
    return names[phase];
}

/* A unit's call is in order when it is in a pass, in the phase that the call expects. */
static hp_status check_unit(const hp_unit *unit, const char *call, hpi_phase expected) {
    if (!unit)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a unit, given NULL", call);
    HP_TRY(hpi_fsdp_check_usable(unit->fsdp, call));
    if (!unit->fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected unit %s between hp_fsdp_begin and hp_fsdp_end",
                        call, unit->name);
    if (unit->phase != expected)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected unit %s to be %s, it is %s", call, unit->name,
                        phase_name(expected), phase_name(unit->phase));
    return HP_OK;
}

/* The user's compute is what lies between two hooks: after the begin's operations have run, before
 * the end's are submitted. */
static hp_status begin_compute(hp_unit *unit, hpi_hook hook) {
    HP_TRY(run_hook(unit->fsdp, hook, unit->index));
    unit->phase_began_ns = hpi_now_ns();
    return HP_OK;
}

static hp_status end_compute(hp_unit *unit, hpi_hook hook, const char *name) {
    const hp_span span = {.name = name,
                          .detail = unit->name,
                          .begin_ns = unit->phase_began_ns,
                          .end_ns = hpi_now_ns(),
                          .id = NOBODY,
                          .step = hpi_fsdp_step(unit->fsdp)};
    hp_trace_span(unit->fsdp->config.trace, HP_STREAM_COMPUTE, &span);
    return run_hook(unit->fsdp, hook, unit->index);
}

hp_status hp_forward_begin(hp_unit *unit) {
    HP_TRY(check_unit(unit, "hp_forward_begin", HPI_PHASE_IDLE));
    HP_TRY(begin_compute(unit, HPI_HOOK_FORWARD_BEGIN));
    unit->n_forwards++;
    return HP_OK;
}

hp_status hp_forward_end(hp_unit *unit) {
    HP_TRY(check_unit(unit, "hp_forward_end", HPI_PHASE_FORWARD));
    return end_compute(unit, HPI_HOOK_FORWARD_END, "forward");
}

static hp_status check_backward(const hp_unit *unit) {
    HP_TRY(check_unit(unit, "hp_backward_begin", HPI_PHASE_IDLE));
    if (unit->fsdp->pass == HP_EVALUATE)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected a HP_SYNC or HP_NO_SYNC pass for the backward of unit %s, given "
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
    if (!is_last || unit->fsdp->pass == HP_NO_SYNC)
        HP_TRY(hpi_unit_take_accumulator(unit));
    HP_TRY(begin_compute(unit, HPI_HOOK_BACKWARD_BEGIN));
    unit->n_backwards++;
    unit->is_complete = is_last;
    return HP_OK;
}

hp_status hp_backward_end(hp_unit *unit) {
    HP_TRY(check_unit(unit, "hp_backward_end", HPI_PHASE_BACKWARD));
    return end_compute(unit, HPI_HOOK_BACKWARD_END, "backward");
}

/* ---- passes ------------------------------------------------------------------------------ */

/* A planned pass becomes the one to replay when the next pass begins. */
static hp_status begin_replay(hp_fsdp *fsdp, hp_pass pass) {
    const uint64_t after = (uint64_t)fsdp->config.replay_after;
    if (!fsdp->replay)
        return HP_OK;
    if (after && fsdp->stats.n_steps >= after && fsdp->pass == HP_SYNC)
        HP_TRY(hpi_replay_keep(fsdp->replay, fsdp->executor));
    return pass == HP_SYNC ? hpi_replay_begin(fsdp->replay, hpi_plan_carried(fsdp->plan)) : HP_OK;
}

_Static_assert(HP_SYNC == 0 && HP_EVALUATE == 1 && HP_NO_SYNC == 2, "hpi_coll_pass says so");

static void reset_unit(hp_unit *unit) {
    unit->n_forwards = unit->n_backwards = 0;
    unit->is_complete = false;
}

hp_status hp_fsdp_begin(hp_fsdp *fsdp, hp_pass pass) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, "hp_fsdp_begin"));
    if (fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_end before the next hp_fsdp_begin");
    if (pass != HP_SYNC && pass != HP_EVALUATE && pass != HP_NO_SYNC)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected HP_SYNC, HP_EVALUATE or HP_NO_SYNC, given %d",
                        (int)pass);
    HP_TRY(begin_replay(fsdp, pass));
    HP_TRY(hp_executor_begin_step(fsdp->executor));
    hpi_plan_begin(fsdp->plan, pass);
    for (int comm = 1; comm < HPI_N_COMMS; comm++)
        if (fsdp->bindings.comms[comm])
            fsdp->bindings.comm_base[comm] = hpi_coll_seq(fsdp->bindings.comms[comm]);
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        reset_unit(fsdp->units[i]);
    fsdp->bindings.pass = hpi_coll_pass(pass, fsdp->n_unreduced);
    fsdp->n_unreduced += pass == HP_NO_SYNC;
    fsdp->pass = pass;
    fsdp->in_pass = true;
    fsdp->n_passes++;
    fsdp->has_gradients = false;
    fsdp->pass_began_ns = hpi_now_ns();
    return HP_OK;
}

static void trace_pass(const hp_fsdp *fsdp) {
    static const char *const details[] = {
        [HP_SYNC] = NULL, [HP_EVALUATE] = "evaluate", [HP_NO_SYNC] = "no_sync"};
    const hp_span span = {.name = "step",
                          .detail = details[fsdp->pass],
                          .begin_ns = fsdp->pass_began_ns,
                          .end_ns = hpi_now_ns(),
                          .id = NOBODY,
                          .step = hpi_fsdp_step(fsdp)};
    hp_trace_span(fsdp->config.trace, HP_STREAM_COMPUTE, &span);
}

hp_status hp_fsdp_end(hp_fsdp *fsdp) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, "hp_fsdp_end"));
    if (!fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_begin before hp_fsdp_end");
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        if (fsdp->units[i]->phase != HPI_PHASE_IDLE)
            return HPI_FAIL(HP_ERR_STATE,
                            "expected the end of unit %s before hp_fsdp_end, it is %s",
                            fsdp->units[i]->name, phase_name(fsdp->units[i]->phase));
    HP_TRY(run_hook(fsdp, HPI_HOOK_END, NOBODY));
    const hp_status drained = hp_executor_drain(fsdp->executor);
    fsdp->is_failed = drained < 0;
    HP_TRY(drained);
    if (!hpi_plan_is_idle(fsdp->plan))
        return HPI_FAIL(HP_ERR_STATE,
                        "expected every queue of the plan to be empty at the end of a pass");
    trace_pass(fsdp);
    fsdp->in_pass = false;
    if (fsdp->pass == HP_SYNC) {
        if (hpi_replay_is_active(fsdp->replay))
            hpi_plan_replayed(fsdp->plan, hpi_replay_n_ops(fsdp->replay));
        fsdp->n_unreduced = 0;
        fsdp->stats.n_steps++;
        fsdp->grad_generation++;
        fsdp->has_gradients = true;
    }
    return HP_OK;
}

hp_status hpi_fsdp_apply(hp_fsdp *fsdp, int what, hpi_apply apply, void *context) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, what == HPI_APPLY_UPDATE ? "update" : "scale"));
    if (fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected hp_fsdp_end before weights or gradients are written");
    fsdp->apply = apply;
    fsdp->apply_context = context;
    if (what == HPI_APPLY_UPDATE) /* gradients of weights that are no more */
        fsdp->n_unreduced = 0;
    return run_hook(fsdp, what == HPI_APPLY_UPDATE ? HPI_HOOK_UPDATE : HPI_HOOK_SCALE, NOBODY);
}

/* ---- looking inside ---------------------------------------------------------------------- */

hp_status hp_fsdp_stats_get(const hp_fsdp *fsdp, hp_fsdp_stats *out_stats) {
    hp_executor_stats executor;
    if (!fsdp || !out_stats)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected fsdp and out_stats, given NULL");
    if (!fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_commit before statistics");
    hp_executor_stats_get(fsdp->executor, &executor);
    *out_stats = fsdp->stats;
    out_stats->exposed_unshard_ns = executor.waited_ns[HP_STREAM_UNSHARD];
    out_stats->exposed_reduce_ns = executor.waited_ns[HP_STREAM_REDUCE];
    out_stats->exposed_replicate_ns = executor.waited_ns[HP_STREAM_REPLICATE];
    out_stats->optimizer_bytes = fsdp->optimizer_bytes;
    out_stats->gathered_units = hpi_plan_n_gathered(fsdp->plan);
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
