/* SPDX-License-Identifier: Apache-2.0
 *
 * passes.c - the begin and the end of a pass, and what it is to each unit.
 *
 * A unit follows the pass unless it has one of its own (hp_unit_set_pass). What a unit's pass is,
 * and how many passes went before it whose gradients it takes in, travels with each collective of
 * the unit, so ranks that disagree are told by the first of these. A trainable unit has gradients
 * in its shards after a pass that was HP_SYNC to it, until the next begin.
 */
#include "../engine.h"
#include "../together/groups.h"

enum { NOBODY = UINT32_MAX };

/* A number for what a HP_SYNC pass begins with: what is accumulated, and which units have a pass of
 * their own. */
static uint64_t situation(const hp_fsdp *fsdp) {
    uint64_t sum = hpi_plan_carried(fsdp->plan);
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        uint64_t seed = (uint64_t)(8 * (int64_t)i + fsdp->units[i]->own_pass);
        sum += fsdp->units[i]->own_pass > 0 ? hpi_random_next(&seed) : 0;
    }
    return sum;
}

/* A planned pass becomes the one to replay when the next pass begins. */
static hp_status begin_replay(hp_fsdp *fsdp, hp_pass pass) {
    const uint64_t after = (uint64_t)fsdp->config.replay_after;
    if (!fsdp->replay)
        return HP_OK;
    if (after && fsdp->stats.n_steps >= after && fsdp->pass == HP_SYNC)
        HP_TRY(hpi_replay_keep(fsdp->replay, fsdp->executor));
    return pass == HP_SYNC ? hpi_replay_begin(fsdp->replay, situation(fsdp)) : HP_OK;
}

_Static_assert(HP_SYNC == 0 && HP_EVALUATE == 1 && HP_NO_SYNC == 2 && HP_DEFER_REPLICATE == 3,
               "hpi_coll_pass says so");

void hpi_unit_forget(hp_unit *unit) {
    unit->phase = HPI_PHASE_IDLE;
    unit->storage = unit->grad = NULL;
    unit->n_forwards = unit->n_backwards = 0;
    unit->is_complete = unit->is_readable = unit->has_gradients = false;
    unit->n_no_sync = unit->n_deferred = 0;
}

/* ---- a unit's own ------------------------------------------------------------------------ */

hp_status hp_unit_set_pass(hp_unit *unit, int pass) {
    if (!unit)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a unit, given NULL");
    HP_TRY(hpi_fsdp_check_usable(unit->fsdp, "hp_unit_set_pass"));
    if (unit->fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_end before unit %s changes its pass",
                        unit->name);
    if (pass != -1 && pass != HP_SYNC && pass != HP_NO_SYNC && pass != HP_DEFER_REPLICATE)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected HP_SYNC, HP_NO_SYNC, HP_DEFER_REPLICATE or -1 "
                        "for unit %s, given %d",
                        unit->name, pass);
    unit->own_pass = pass;
    return HP_OK;
}

static hp_pass pass_of(const hp_unit *unit, hp_pass pass) {
    return unit->own_pass < 0 || pass == HP_EVALUATE ? pass : (hp_pass)unit->own_pass;
}

static void begin_unit(hp_unit *unit, hp_pass pass) {
    hp_fsdp *fsdp = unit->fsdp;
    unit->pass = pass_of(unit, pass);
    unit->n_forwards = unit->n_backwards = 0;
    unit->is_complete = unit->has_gradients = false;
    for (int j = 0; j < unit->n_params; j++)
        unit->params[j].grad_given = false;
    fsdp->bindings.unit_pass[unit->index] =
        hpi_coll_pass(unit->pass, unit->n_no_sync, unit->n_deferred);
    hpi_plan_set_pass(fsdp->plan, unit->index, unit->pass);
    unit->n_no_sync += unit->pass == HP_NO_SYNC;
    unit->n_deferred += unit->pass == HP_DEFER_REPLICATE;
}

static void end_unit(hp_unit *unit) {
    unit->has_gradients = unit->pass == HP_SYNC;
    if (unit->has_gradients)
        unit->n_no_sync = unit->n_deferred = 0;
    unit->fsdp->has_gradients |= unit->has_gradients;
}

/* Before the pass has begun, so that a lack of memory changes nothing. */
static hp_status take_partials(hp_fsdp *fsdp, hp_pass pass) {
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        if (pass_of(fsdp->units[i], pass) == HP_DEFER_REPLICATE)
            HP_TRY(hpi_unit_take_partial(fsdp->units[i]));
    return HP_OK;
}

hp_status hpi_unit_check_gradients(hp_unit *unit, const char *call) {
    if (unit->fsdp->config.missing_grad != HP_MISSING_ERROR || unit->pass != HP_SYNC ||
        hpi_fsdp_is_virtual(unit->fsdp))
        return HP_OK;
    for (int j = 0; j < unit->n_params; j++) {
        const hpi_param *p = &unit->params[j];
        if (!hpi_param_is_trainable(p) || !p->layout.n_elements || p->grad_given)
            continue;
        (void)HPI_FAIL(HP_ERR_STATE,
                       "%s: unit %s: expected the gradient of each trainable parameter in a "
                       "HP_SYNC pass (missing_grad is HP_MISSING_ERROR), that of %s was not asked "
                       "for on rank %d",
                       call, unit->name, p->name, hp_world_rank(unit->fsdp->world));
        return hpi_fsdp_abandon(unit->fsdp);
    }
    return HP_OK;
}

/* ---- passes ------------------------------------------------------------------------------ */

hp_status hp_fsdp_begin(hp_fsdp *fsdp, hp_pass pass) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, "hp_fsdp_begin"));
    HP_TRY(hpi_fsdp_listen(fsdp, "hp_fsdp_begin"));
    if (fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_end before the next hp_fsdp_begin");
    if ((unsigned)pass > HP_DEFER_REPLICATE)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected HP_SYNC, HP_EVALUATE, HP_NO_SYNC or HP_DEFER_REPLICATE, given %d",
                        (int)pass);
    HP_TRY(take_partials(fsdp, pass));
    HP_TRY(hpi_fsdp_take_writes(fsdp));
    HP_TRY(begin_replay(fsdp, pass));
    HP_TRY(hp_executor_begin_step(fsdp->executor));
    hpi_plan_begin(fsdp->plan, pass);
    for (int comm = 1; comm < HPI_N_COMMS; comm++)
        if (fsdp->bindings.comms[comm])
            fsdp->bindings.comm_base[comm] = hpi_coll_seq(fsdp->bindings.comms[comm]);
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        begin_unit(fsdp->units[i], pass);
    fsdp->bindings.pass = hpi_coll_pass(pass, 0, 0);
    fsdp->pass = pass;
    fsdp->in_pass = true;
    fsdp->n_passes++;
    fsdp->has_gradients = false;
    fsdp->pass_began_ns = hp_executor_now_ns(fsdp->executor);
    return HP_OK;
}

static void trace_pass(const hp_fsdp *fsdp) {
    static const char *const details[] = {[HP_SYNC] = NULL,
                                          [HP_EVALUATE] = "evaluate",
                                          [HP_NO_SYNC] = "no_sync",
                                          [HP_DEFER_REPLICATE] = "defer_replicate"};
    const hp_span span = {.name = "step",
                          .detail = details[fsdp->pass],
                          .begin_ns = fsdp->pass_began_ns,
                          .end_ns = hp_executor_now_ns(fsdp->executor),
                          .id = NOBODY,
                          .step = hpi_fsdp_step(fsdp)};
    hp_trace_span(fsdp->config.trace, HP_STREAM_COMPUTE, &span);
}

static hp_status check_end(hp_fsdp *fsdp) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, "hp_fsdp_end"));
    HP_TRY(hpi_fsdp_listen(fsdp, "hp_fsdp_end"));
    if (!fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_begin before hp_fsdp_end");
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        if (fsdp->units[i]->phase != HPI_PHASE_IDLE)
            return HPI_FAIL(HP_ERR_STATE,
                            "expected the end of unit %s before hp_fsdp_end, it is %s",
                            fsdp->units[i]->name, hpi_phase_name(fsdp->units[i]->phase));
    for (uint32_t i = fsdp->n_units; i-- > 0;)
        HP_TRY(hpi_unit_check_gradients(fsdp->units[i], "hp_fsdp_end"));
    return HP_OK;
}

hp_status hp_fsdp_end(hp_fsdp *fsdp) {
    HP_TRY(check_end(fsdp));
    HP_TRY(hpi_fsdp_run_hook(fsdp, HPI_HOOK_END, NOBODY));
    HP_TRY(hpi_fsdp_note_failure(fsdp, hp_executor_drain(fsdp->executor)));
    if (!hpi_plan_is_idle(fsdp->plan))
        return HPI_FAIL(HP_ERR_STATE,
                        "expected every queue of the plan to be empty at the end of a pass");
    trace_pass(fsdp);
    fsdp->in_pass = false;
    if (fsdp->pass == HP_SYNC && hpi_replay_is_active(fsdp->replay))
        hpi_plan_replayed(fsdp->plan, hpi_replay_n_ops(fsdp->replay));
    HP_TRY(hpi_fsdp_open_shards(fsdp));
    hpi_fsdp_done(fsdp);
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        end_unit(fsdp->units[i]);
    fsdp->stats.n_steps += fsdp->pass == HP_SYNC;
    fsdp->grad_generation += fsdp->has_gradients;
    return HP_OK;
}
