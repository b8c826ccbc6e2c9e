/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/together/between.h - what clipping, optimizers and checkpoints share: they work between two
 * passes.
 *
 * Then the executor is drained and no group is in use, so collectives on the world's and on the
 * unshard group (fsdp->shard) are free to take; sequence numbers are read anew by the next pass.
 */
#ifndef HPI_BETWEEN_H
#define HPI_BETWEEN_H

#include "../../trace/trace.h"
#include "../engine.h"

/* HP_OK when the fsdp is sound, committed and between two passes. */
hp_status hpi_fsdp_check_idle(const hp_fsdp *fsdp, const char *call);
/* The same, and its gradients are there. */
hp_status hpi_fsdp_check_gradients(const hp_fsdp *fsdp, const char *call);

/* A span on the compute stream from `began_ns` until now. */
void hpi_fsdp_trace(const hp_fsdp *fsdp, const char *name, uint64_t began_ns, uint64_t bytes);

/* One by one, the parameters whose gradient shards exist: start with {0}, false after the last. */
typedef struct hpi_cursor {
    hp_unit *unit;
    hpi_param *param;
    uint32_t next_unit;
    int next_param;
} hpi_cursor;
bool hpi_next_trainable(const hp_fsdp *fsdp, hpi_cursor *cursor);
/* The same over everything that shards hold: frozen ones and those without elements too. */
bool hpi_next_owned(const hp_fsdp *fsdp, hpi_cursor *cursor);

/* Elements of this rank's shard, without padding. */
uint64_t hpi_param_count(const hp_fsdp *fsdp, const hpi_param *param);

#endif
