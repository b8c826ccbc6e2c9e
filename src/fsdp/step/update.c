/* SPDX-License-Identifier: Apache-2.0
 *
 * update.c - an update that the caller makes himself, by writing the shards.
 *
 * Its begin waits as the library's own optimizers do before they write. Its end is an update that
 * writes nothing but the cast copies, so that the plan, a verification and a reset count it as any
 * other. In between weights may be half new, and the fsdp takes no other call.
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

hp_status hp_fsdp_update_end(hp_fsdp *fsdp) {
    if (!fsdp || !fsdp->in_update)
        return HPI_FAIL(fsdp ? HP_ERR_STATE : HP_ERR_ARGUMENT,
                        "hp_fsdp_update_end: expected an fsdp after hp_fsdp_update_begin, given %s",
                        fsdp ? "one without" : "NULL");
    fsdp->in_update = false;
    return hpi_fsdp_apply(fsdp, HPI_APPLY_UPDATE, refresh_unit, NULL);
}
