/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/pieces.h - which elements of a parameter a piece holds, and what this rank holds
 * of everything.
 *
 * A piece is an interval of each of `outer` blocks of `stride` elements of the row-major parameter.
 * So shards along any dimension are described alike: along dimension 0 there is one block, which is
 * the whole parameter. The elements of a piece lie one after the other, without padding.
 */
#ifndef HPI_PIECES_H
#define HPI_PIECES_H

#include "../optimize/optimizer.h"

typedef struct hpi_piece {
    uint64_t outer, stride; /* outer * stride is the whole parameter */
    uint64_t begin, end;    /* of each block */
} hpi_piece;

static inline uint64_t hpi_piece_count(const hpi_piece *p) {
    return p->outer * (p->end - p->begin);
}
/* The shard of `rank`. */
hpi_piece hpi_piece_of(const hpi_layout *layout, int rank);
/* Copy the elements that both hold; returns how many. `to_data` NULL: only count. Both are pieces
 * of one parameter, cut in whatever ways. */
uint64_t hpi_piece_copy(const hpi_piece *from, const void *from_data, const hpi_piece *to,
                        void *to_data, size_t element_bytes);

/* One tensor that a checkpoint holds and this rank's part of it: a parameter, or a state of the
 * optimizer ("exp_avg.NAME"). */
typedef struct hpi_part {
    char *name;
    hp_unit *unit;
    const hpi_param *param;
    hpi_piece mine;
    void *data;       /* the live memory; NULL when the parameter has no elements */
    uint64_t n_bytes; /* of this rank's part */
} hpi_part;

typedef struct hpi_parts {
    hpi_part *list; /* weights first, then states */
    uint64_t n, n_weights;
} hpi_parts;

/* Everything that shards hold, and the optimizer's state unless it is NULL. Errors: MEMORY. */
hp_status hpi_parts_make(const hp_fsdp *fsdp, const hp_optimizer *optimizer, hpi_parts *out_parts);
/* A rank of the replica that writes (0) puts its part on the disk: a replicated parameter once, one
 * without elements not at all. */
bool hpi_part_is_written(const hp_fsdp *fsdp, const hpi_part *part);
void hpi_parts_free(hpi_parts *parts);

/* Write weights: `install` is called once per unit when no peer reads them any more, and refreshes
 * the casts of what it changes. Gradients, accumulated ones too, are no more: they were of the
 * weights before. */
hp_status hpi_parts_install(hp_fsdp *fsdp, hpi_apply install, void *context);

#endif
