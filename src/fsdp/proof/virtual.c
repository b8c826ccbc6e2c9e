/* SPDX-License-Identifier: Apache-2.0
 *
 * virtual.c - an fsdp of ranks that do not exist: it plans, and virtual time goes by.
 *
 * Its mesh has no world. Layouts, buffers' ids and sizes, plan and order of calls are those of a
 * real rank; groups and memory are not there, so no operation does anything but begin and end
 * what a unit does. Everything that reads or writes values is refused.
 */
#include "../engine.h"

static hp_unit *unit_of(void *context, const hp_op *op) {
    const hp_fsdp *fsdp = ((hpi_bindings *)context)->owner;
    return fsdp->units[op->unit];
}

static hp_status begin_forward(void *context, const hp_op *op) {
    unit_of(context, op)->phase = HPI_PHASE_FORWARD;
    return HP_OK;
}

static hp_status begin_backward(void *context, const hp_op *op) {
    unit_of(context, op)->phase = HPI_PHASE_BACKWARD;
    return HP_OK;
}

static hp_status begin_recompute(void *context, const hp_op *op) {
    unit_of(context, op)->phase = HPI_PHASE_RECOMPUTE;
    return HP_OK;
}

static hp_status end_phase(void *context, const hp_op *op) {
    unit_of(context, op)->phase = HPI_PHASE_IDLE;
    return HP_OK;
}

static hp_status begin_hold(void *context, const hp_op *op) {
    unit_of(context, op)->is_readable = true;
    return HP_OK;
}

static hp_status end_hold(void *context, const hp_op *op) {
    unit_of(context, op)->is_readable = false;
    return HP_OK;
}

void hpi_fsdp_virtualize_kinds(hp_kind *kinds) {
    for (int i = 0; i < HPI_OP_N_KINDS; i++) {
        kinds[i].run = NULL;
        kinds[i].drain = NULL;
    }
    kinds[HPI_OP_FORWARD_BEGIN].run = begin_forward;
    kinds[HPI_OP_BACKWARD_BEGIN].run = begin_backward;
    kinds[HPI_OP_RECOMPUTE_BEGIN].run = begin_recompute;
    kinds[HPI_OP_FORWARD_END].run = end_phase;
    kinds[HPI_OP_BACKWARD_END].run = end_phase;
    kinds[HPI_OP_RECOMPUTE_END].run = end_phase;
    kinds[HPI_OP_HOLD_BEGIN].run = begin_hold;
    kinds[HPI_OP_HOLD_END].run = end_hold;
}

hp_status hpi_fsdp_check_real(const hp_fsdp *fsdp, const char *call) {
    if (hpi_fsdp_is_virtual(fsdp))
        return HPI_FAIL(HP_ERR_UNSUPPORTED,
                        "%s: expected an fsdp of real ranks, given one of a virtual mesh, which "
                        "has no values",
                        call);
    return HP_OK;
}
