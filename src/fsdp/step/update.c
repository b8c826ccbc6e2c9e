/* SPDX-License-Identifier: Apache-2.0
 *
 * update.c - updates that the caller makes himself, by writing the shards.
 *
 * Between hp_fsdp_update_begin and end: begin waits as the library's own optimizers do before they
 * write, and end is an update that writes nothing but the cast copies, so that the plan, a
 * verification and a reset count it as any other. In between weights may be half new, and the fsdp
 * takes no other call.
 * Or between any two passes, untold (hp_fsdp_config.caller_writes): each pass then ends with such a
 * wait and begins with fresh casts. Whether there was an update nobody knows, so none is counted
 * and no sum of gradients is dropped.
 */
#include "../together/between.h"

hp_status hp_fsdp_update_begin(hp_fsdp *fsdp) {
    HP_TRY(hpi_fsdp_check_idle(fsdp, __func__));
    HP_TRY(hpi_fsdp_check_real(fsdp, __func__));
    HP_TRY(hpi_fsdp_run_hook(fsdp, HPI_HOOK_UPDATE_BEGIN, UINT32_MAX));
    fsdp->in_update = fsdp->has_torn_weights = true;
    return HP_OK;
}

/* A parameter that is another's alias, or ignored, has no master of its own. */
static hp_status refresh_unit(void *context, hp_unit *unit) {
    (void)context;
    for (int j = 0; j < unit->n_params; j++)
        if (hpi_param_is_owned(&unit->params[j]) && unit->params[j].layout.n_elements)
            HP_TRY(hpi_param_refresh_cast(unit, &unit->params[j]));
    return HP_OK;
}

hp_status hpi_fsdp_open_shards(hp_fsdp *fsdp) {
    return fsdp->config.caller_writes ? hpi_fsdp_run_hook(fsdp, HPI_HOOK_UPDATE_BEGIN, UINT32_MAX)
                                      : HP_OK;
}

hp_status hpi_fsdp_take_writes(hp_fsdp *fsdp) {
    if (!fsdp->config.caller_writes)
        return HP_OK;
    for (uint32_t i = 0; i < fsdp->n_units && !hpi_fsdp_is_virtual(fsdp); i++)
        HP_TRY(refresh_unit(NULL, fsdp->units[i]));
    hpi_plan_note_writes(fsdp->plan);
    return HP_OK;
}

hp_status hp_fsdp_update_end(hp_fsdp *fsdp) {
    if (!fsdp || !fsdp->in_update)
        return HPI_FAIL(fsdp ? HP_ERR_STATE : HP_ERR_ARGUMENT,
                        "hp_fsdp_update_end: expected an fsdp after hp_fsdp_update_begin, given %s",
                        fsdp ? "one without" : "NULL");
    fsdp->in_update = false;
    return hpi_fsdp_apply(fsdp, HPI_APPLY_UPDATE, refresh_unit, NULL);
}
