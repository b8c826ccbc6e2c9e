/* SPDX-License-Identifier: Apache-2.0
 *
 * agree.c - a word, a record or a status over all ranks, without taking memory.
 *
 * What is told travels in pieces that fit beside the collective's signal: larger ones need memory,
 * and news of a lack of memory must get through.
 */
#include "agree.h"
#include "groups.h"

#include <hyperparallel/coll.h>
#include <stdio.h>

hp_status hpi_tell(const hp_fsdp *fsdp, void *data, size_t n_bytes, int root) {
    enum { PIECE_BYTES = 32 };
    unsigned char *bytes = data;
    for (size_t i = 0; i < n_bytes; i += PIECE_BYTES)
        HP_TRY(
            hp_broadcast(fsdp->all, bytes + i, hpi_min(PIECE_BYTES, n_bytes - i), HP_UINT8, root));
    return HP_OK;
}

/* The first rank of the world that is marked, the same everywhere; -1 when none is. */
static hp_status find_first(const hp_fsdp *fsdp, bool is_marked, int *out_rank) {
    int64_t first = is_marked ? hp_world_rank(fsdp->world) : INT64_MAX;
    HP_TRY(hp_all_reduce(fsdp->all, &first, &first, 1, HP_INT64, HP_MIN));
    *out_rank = first == INT64_MAX ? -1 : (int)first;
    return HP_OK;
}

hp_status hpi_agree(const hp_fsdp *fsdp, hp_status mine) {
    if (hpi_fsdp_is_virtual(fsdp)) /* with itself */
        return mine;
    hp_error error, named;
    int failed;
    hp_last_error_get(&error);
    HP_TRY(find_first(fsdp, mine < 0, &failed));
    if (failed < 0) {
        hpi_fsdp_done(fsdp);
        return HP_OK;
    }
    named = error;
    named.world_rank = (int32_t)failed;
    snprintf(named.message, sizeof named.message, "rank %d: %s", failed, error.message);
    HP_TRY(hpi_tell(fsdp, &named, sizeof named, failed));
    (void)!hp_barrier(fsdp->all); /* who gives the group up now does so when all have heard */
    hpi_fsdp_done(fsdp);
    return hpi_error_set(&named);
}

hp_status hpi_find_odd_rank(const hp_fsdp *fsdp, uint64_t word, int *out_rank) {
    if (hpi_fsdp_is_virtual(fsdp)) {
        *out_rank = -1;
        return HP_OK;
    }
    uint64_t first = word;
    HP_TRY(hpi_tell(fsdp, &first, sizeof first, 0));
    return find_first(fsdp, word != first, out_rank);
}
