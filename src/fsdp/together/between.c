/* SPDX-License-Identifier: Apache-2.0
 *
 * between.c - what clipping, optimizers and checkpoints share.
 */
#include "between.h"

hp_status hpi_fsdp_check_idle(const hp_fsdp *fsdp, const char *call) {
    HP_TRY(hpi_fsdp_check_usable(fsdp, call));
    if (fsdp->in_pass)
        return HPI_FAIL(HP_ERR_STATE, "%s: expected hp_fsdp_end first, a pass is running", call);
    return HP_OK;
}

hp_status hpi_fsdp_check_gradients(const hp_fsdp *fsdp, const char *call) {
    HP_TRY(hpi_fsdp_check_idle(fsdp, call));
    if (!fsdp->has_gradients && fsdp->n_passes &&
        (fsdp->pass == HP_NO_SYNC || fsdp->pass == HP_DEFER_REPLICATE))
        return HPI_FAIL(HP_ERR_STATE,
                        "%s: expected a HP_SYNC pass first: gradients are not reduced yet, only "
                        "accumulated",
                        call);
    if (!fsdp->has_gradients)
        return HPI_FAIL(HP_ERR_STATE,
                        "%s: expected gradients, which are there after a HP_SYNC pass until the "
                        "next hp_fsdp_begin",
                        call);
    return HP_OK;
}

void hpi_fsdp_trace(const hp_fsdp *fsdp, const char *name, uint64_t began_ns, uint64_t bytes) {
    const hp_span span = {.name = name,
                          .begin_ns = began_ns,
                          .end_ns = hp_executor_now_ns(fsdp->executor),
                          .bytes = bytes,
                          .id = UINT32_MAX,
                          .step = hpi_fsdp_step(fsdp)};
    hp_trace_span(fsdp->config.trace, HP_STREAM_COMPUTE, &span);
}

static bool next_param(const hp_fsdp *fsdp, hpi_cursor *c) {
    while (c->next_unit < fsdp->n_units && c->next_param >= fsdp->units[c->next_unit]->n_params) {
        c->next_unit++;
        c->next_param = 0;
    }
    if (c->next_unit == fsdp->n_units)
        return false;
    c->unit = fsdp->units[c->next_unit];
    c->param = &c->unit->params[c->next_param++];
    return true;
}

bool hpi_next_owned(const hp_fsdp *fsdp, hpi_cursor *cursor) {
    while (next_param(fsdp, cursor))
        if (hpi_param_is_owned(cursor->param))
            return true;
    return false;
}

bool hpi_next_trainable(const hp_fsdp *fsdp, hpi_cursor *cursor) {
    while (next_param(fsdp, cursor))
        if (hpi_param_is_trainable(cursor->param))
            return true;
    return false;
}

uint64_t hpi_param_count(const hp_fsdp *fsdp, const hpi_param *param) {
    return hpi_layout_count(&param->layout, fsdp->shard_rank);
}
