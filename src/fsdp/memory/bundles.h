/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/memory/bundles.h - parameters that travel together, in the fused modes.
 *
 * A bundle is a matrix of bytes with a row for each shard of the group. A row is the shards of all
 * the unit's parameters of one dtype, one behind the other, padding included; so one collective
 * serves them all, whatever their shapes and shard dimensions. Rows of gradients lie as the bucket
 * does, into which they are summed.
 */
#ifndef HPI_BUNDLES_H
#define HPI_BUNDLES_H

#include "../engine.h"

static inline bool hpi_mode_is_fused(hp_mode mode) {
    return mode == HP_FUSED || mode == HP_FUSED_ZERO_COPY;
}

/* Lay out a unit whose parameters have their places in storage and grad slot, and their routes:
 * params[0..out->n_params), and bundles in `out`. Gradients of bundles get their places at
 * bucket_end[0] and [1], which rise; storage_bytes becomes large enough to pack in. */
void hpi_bundles_lay_out(hp_unit *unit, hpi_plan_param *params, hpi_plan_unit *out,
                         uint64_t bucket_end[2]);

/* What the operations do (hp_kind.run). They read the layout alone, so any stream may run them. */
hp_status hpi_run_pack(void *context, const hp_op *op);
hp_status hpi_run_copy(void *context, const hp_op *op);
hp_status hpi_run_copy_out(void *context, const hp_op *op);
hp_status hpi_run_pack_grads(void *context, const hp_op *op);

#endif
