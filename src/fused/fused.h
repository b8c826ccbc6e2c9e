/* SPDX-License-Identifier: Apache-2.0
 *
 * fused/fused.h - the door of room `fused`: for tests, how products are cut.
 */
#ifndef HPI_FUSED_H
#define HPI_FUSED_H

#include "../world/world.h"
#include <hyperparallel/fused.h>

/* How this rank cuts its later calls on the group, instead of by their shapes: blocks apart (1) or
 * all at once (-1), tiles of so many rows and columns; 0: by the shape. Tiles must be the same on
 * all members. Local. Errors: those of making the group's state, which the first caller waits for.
 */
typedef struct hpi_fused_cut {
    int apart;
    int64_t tile_rows, tile_columns;
    int late; /* 1: take this rank for one that comes late; -1: for one that does not */
} hpi_fused_cut;
hp_status hpi_fused_set_cut(hp_group *group, const hpi_fused_cut *cut);

#endif
