/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/memory/buffers.h - a unit's buffers while they are laid out, for buffers.c and segments.c.
 *
 * Each field is the end of one buffer so far; a parameter, or a segment of several, takes its room
 * there. So all ranks come to the same sizes and offsets without a word.
 */
#ifndef HPI_BUFFERS_H
#define HPI_BUFFERS_H

#include "../engine.h"

enum { HPI_SLICE_ALIGNMENT = 512, HPI_PARAM_ALIGNMENT = 64 };

typedef struct hpi_unit_bytes {
    uint64_t shard, cast, storage, shared, grad, bucket[2], accumulator;
} hpi_unit_bytes;

/* Room for `bytes` at the end of a buffer that is being laid out. */
static inline uint64_t hpi_append(uint64_t *end, uint64_t bytes, uint64_t alignment) {
    const uint64_t at = hpi_align_up(*end, alignment);
    *end = at + bytes;
    return at;
}

/* segments.c: the flat segments of a unit's mapped parameters, each as one of the plan's. The
 * shared buffer's id is entered later. */
void hpi_segments_lay_out(hp_unit *unit, hpi_unit_bytes *end, hpi_plan_param *params,
                          hpi_plan_unit *out);
/* What all units share, taken from the system, and a view of it that cannot be written through.
 * Collective. */
hp_status hpi_segments_take_memory(hp_fsdp *fsdp);
void hpi_segments_drop_memory(hp_fsdp *fsdp);

#endif
