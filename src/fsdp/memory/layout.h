/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/memory/layout.h - which elements of a parameter a rank holds. Pure arithmetic.
 *
 * Around its shard dimension a parameter is [outer][rows][inner]. Rows are cut into n_shards chunks
 * of ceil(rows / n_shards); a shard is [outer][chunk][inner], padded with zeros where rows end.
 * With shard_dim 0 outer is 1, so a shard is one interval of the row-major parameter and the
 * gathered shards are the parameter followed by padding. An inner dimension must divide evenly.
 *
 * The flat form knows nothing of dimensions: several parameters stand in one row of elements that
 * is cut into equal chunks, so a shard is an interval of elements, possibly none, possibly all.
 * Then outer and inner are 1, rows are elements, and `first` is where the parameter begins in that
 * row.
 */
#ifndef HPI_LAYOUT_H
#define HPI_LAYOUT_H

#include "../../base/base.h"
#include <hyperparallel/fsdp.h>

typedef struct hpi_layout {
    uint64_t n_elements; /* of the whole parameter */
    uint64_t outer, rows, inner;
    uint64_t n_shards;       /* 1 when replicated */
    uint64_t chunk;          /* rows of one shard, padding included */
    uint64_t first;          /* rows that are cut before this parameter's; 0 unless flat */
    uint64_t shard_elements; /* outer * chunk * inner; flat: those that this rank owns */
    uint64_t full_elements;  /* n_shards * shard_elements: the gathered parameter with its padding;
                              * flat: n_elements */
    bool is_flat;
} hpi_layout;

/* Errors: ARGUMENT (too large, or an inner dimension that does not divide, naming the sizes). */
hp_status hpi_layout_make(const hp_param *param, int n_shards, hpi_layout *out_layout);
/* Turn a sharded layout into the flat form, for the row of elements in which it begins at `first`
 * and each rank owns `chunk`, as shard `rank` sees it. */
void hpi_layout_flatten(hpi_layout *layout, uint64_t first, uint64_t chunk, int rank);
/* Rows [begin, end) of shard `rank`; begin == end when it owns none. A replicated parameter has one
 * shard, which every rank holds. */
void hpi_layout_rows(const hpi_layout *layout, int rank, uint64_t *out_begin, uint64_t *out_end);
/* Elements of shard `rank` without padding. They lie in front, without gaps: only dimension 0 pads,
 * and there outer is 1. */
uint64_t hpi_layout_count(const hpi_layout *layout, int rank);
/* Copy shard `rank` out of the whole parameter, or fill it element range by element range; `bytes`
 * is the element size. Padding is left alone. */
void hpi_layout_extract(const hpi_layout *layout, int rank, size_t bytes, const void *whole,
                        void *out_shard);

#endif
