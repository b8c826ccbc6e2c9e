/* SPDX-License-Identifier: Apache-2.0
 *
 * reset.c - leaving a pass in its middle, all ranks together.
 *
 * Nothing is repaired: groups and executor are replaced, and the plan starts as after commit. The
 * order is what matters. Every rank sees all others where it is itself, cancels its groups, which
 * ends all waits, and joins its executor, so that it touches nobody's memory any more; then the
 * ranks meet, and only then may memory be used again. They meet once more when each has all that
 * the next pass needs, so that either all can go on or none.
 */
#include "../engine.h"
#include "groups.h"

static hp_status check(const hp_fsdp *fsdp) {
    if (!fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "hp_fsdp_reset: expected an fsdp, given NULL");
    if (!fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "hp_fsdp_reset: expected hp_fsdp_commit first");
    if (fsdp->has_torn_weights)
        return HPI_FAIL(HP_ERR_FAILED,
                        "hp_fsdp_reset: expected whole weights, given some that an update which "
                        "failed has left half new");
    return hpi_fsdp_is_virtual(fsdp) ? HP_OK : hpi_world_usable(fsdp->world);
}

/* From here on this rank reads and writes nothing of its peers. */
static hp_status stop(hp_fsdp *fsdp) {
    const hp_status status = hpi_fsdp_begin_reset(fsdp);
    hp_error cause; /* of that, or what the caller may want to print afterwards */
    hp_last_error_get(&cause);
    (void)HPI_FAIL_RANK(HP_ERR_FAILED, hp_world_rank(fsdp->world),
                        "rank %d has reset the fsdp (hp_fsdp_reset)", hp_world_rank(fsdp->world));
    hpi_fsdp_cancel_groups(fsdp);
    hpi_fsdp_drop_executor(fsdp);
    hpi_fsdp_drop_groups(fsdp);
    (void)hpi_error_set(&cause);
    return status;
}

static hp_status start_over(hp_fsdp *fsdp) {
    HP_TRY(hpi_fsdp_take_groups(fsdp));
    hpi_fsdp_bind_groups(fsdp);
    return hpi_fsdp_make_executor(fsdp);
}

static void forget_pass(hp_fsdp *fsdp) {
    hpi_plan_reset(fsdp->plan);
    if (fsdp->replay)
        hpi_replay_forget(fsdp->replay);
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        hpi_unit_forget(fsdp->units[i]);
    fsdp->in_pass = fsdp->has_gradients = false;
}

/* Without peers there is nobody to meet. */
static hp_status reset_virtual(hp_fsdp *fsdp) {
    hpi_fsdp_drop_executor(fsdp);
    forget_pass(fsdp);
    return hpi_fsdp_make_executor(fsdp);
}

static hp_status reset(hp_fsdp *fsdp) {
    HP_TRY(hp_world_check(fsdp->world));
    const hp_status stopped = stop(fsdp);
    forget_pass(fsdp);
    HP_TRY(stopped);
    HP_TRY(hpi_fsdp_meet(fsdp, HP_OK));
    HP_TRY(hpi_fsdp_meet(fsdp, start_over(fsdp)));
    hpi_fsdp_end_reset(fsdp);
    return hpi_fsdp_warm_up(fsdp);
}

hp_status hp_fsdp_reset(hp_fsdp *fsdp) {
    HP_TRY(check(fsdp));
    fsdp->is_failed = true; /* until all ranks have come through */
    const hp_status status = hpi_fsdp_is_virtual(fsdp) ? reset_virtual(fsdp) : reset(fsdp);
    if (status == HP_ERR_PEER) { /* those who come later would name this rank, that leaves then */
        hp_error cause;
        hp_last_error_get(&cause);
        hpi_fsdp_end_meetings(fsdp);
        return hpi_error_set(&cause);
    }
    HP_TRY(status);
    fsdp->is_failed = false;
    return HP_OK;
}
