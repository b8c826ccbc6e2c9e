/* SPDX-License-Identifier: Apache-2.0
 *
 * by_hand.c - units that the user gathers, and forwards that are computed again.
 *
 * As the hooks of engine.c: check the order, then let the plan (plan/by_hand.c) say what is done.
 */
#include "../engine.h"

/* ---- gathered by hand -------------------------------------------------------------------- */

hp_status hp_unit_unshard(hp_unit *unit, int wait) {
    HP_TRY(hpi_unit_check(unit, "hp_unit_unshard", HPI_PHASE_IDLE));
    return hpi_fsdp_run_hook(unit->fsdp, wait ? HPI_HOOK_HOLD : HPI_HOOK_UNSHARD, unit->index);
}

hp_status hp_unit_reshard(hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_unit_reshard", HPI_PHASE_IDLE));
    return hpi_fsdp_run_hook(unit->fsdp, HPI_HOOK_RESHARD, unit->index);
}

/* ---- computed again ---------------------------------------------------------------------- */

hp_status hp_recompute_begin(hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_recompute_begin", HPI_PHASE_IDLE));
    if (unit->fsdp->pass == HP_EVALUATE)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected a pass with a backward, for which unit %s is computed again, "
                        "given HP_EVALUATE",
                        unit->name);
    if (unit->n_backwards == unit->n_forwards)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected a forward of unit %s whose backward is to come, before it is "
                        "computed again, given %u forwards and %u backwards",
                        unit->name, unit->n_forwards, unit->n_backwards);
    return hpi_unit_begin_compute(unit, HPI_HOOK_RECOMPUTE_BEGIN);
}

hp_status hp_recompute_end(hp_unit *unit) {
    HP_TRY(hpi_unit_check(unit, "hp_recompute_end", HPI_PHASE_RECOMPUTE));
    return hpi_unit_end_compute(unit, HPI_HOOK_RECOMPUTE_END, "recompute");
}
