/* SPDX-License-Identifier: Apache-2.0
 *
 * together.c - ranks that save and load say the same of how it went.
 *
 * What is told travels in pieces that fit beside the collective's signal: larger ones need memory,
 * and news of a lack of memory must get through.
 */
#include "together.h"

#include <hyperparallel/coll.h>
#include <stdio.h>
#include <sys/random.h>

hp_status hpi_tell(const hp_fsdp *fsdp, void *data, size_t n_bytes, int root) {
    enum { PIECE_BYTES = 32 };
    unsigned char *bytes = data;
    for (size_t i = 0; i < n_bytes; i += PIECE_BYTES)
        HP_TRY(hp_broadcast(hp_world_group(fsdp->world), bytes + i,
                            hpi_min(PIECE_BYTES, n_bytes - i), HP_UINT8, root));
    return HP_OK;
}

hp_status hpi_agree(const hp_fsdp *fsdp, hp_status mine) {
    const int rank = hp_world_rank(fsdp->world);
    int64_t failed = mine < 0 ? rank : INT64_MAX;
    hp_error error, named;
    hp_last_error_get(&error);
    HP_TRY(hp_all_reduce(hp_world_group(fsdp->world), &failed, &failed, 1, HP_INT64, HP_MIN));
    if (failed == INT64_MAX)
        return HP_OK;
    named = error;
    named.world_rank = (int32_t)failed;
    snprintf(named.message, sizeof named.message, "rank %d: %s", rank, error.message);
    HP_TRY(hpi_tell(fsdp, &named, sizeof named, (int)failed));
    return hpi_error_set(&named);
}

hp_status hpi_token(const hp_fsdp *fsdp, uint64_t *out_token) {
    uint64_t token = 0;
    if (getrandom(&token, sizeof token, 0) != sizeof token)
        token = hpi_now_ns();
    HP_TRY(hpi_tell(fsdp, &token, sizeof token, 0));
    *out_token = token;
    return HP_OK;
}
