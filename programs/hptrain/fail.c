/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/fail.c - the text of a failure, kept until main prints it.
 */
#include "fail.h"

#include <hyperparallel/coll.h>
#include <stdarg.h>
#include <stdio.h>

static _Thread_local struct {
    hp_status status;
    char text[1024];
    bool is_told; /* by another rank */
} own;

hp_status fail(hp_status status, const char *format, ...) {
    va_list arguments;
    own.status = status;
    va_start(arguments, format);
    vsnprintf(own.text, sizeof own.text, format, arguments);
    va_end(arguments);
    return status;
}

/* The record may be of an earlier failure that was dealt with. */
static bool library_knows(hp_status status, hp_error *out_error) {
    hp_last_error_get(out_error);
    return out_error->status == status;
}

const char *failure_text(hp_status status) {
    hp_error error;
    if (own.status == status)
        return own.text;
    return library_knows(status, &error) ? hp_last_error() : hp_status_text(status);
}

bool failure_is_mine(hp_status status, int world_rank) {
    hp_error error;
    if (world_rank < 0) /* there is no world yet: nobody else can tell */
        return true;
    if (own.status == status)
        return !own.is_told;
    if (!library_knows(status, &error))
        return true;
    /* That a peer is gone is what this rank saw, and the peer cannot tell. */
    if (status == HP_ERR_PEER || status == HP_ERR_TIMEOUT || error.world_rank < 0)
        return true;
    return world_rank == 0 || world_rank == error.world_rank;
}

hp_status agree(hp_world *world, hp_status mine) {
    const int rank = hp_world_rank(world), n_ranks = hp_world_size(world);
    int64_t first = mine < 0 ? rank : n_ranks;
    TRY(hp_all_reduce(hp_world_group(world), &first, &first, 1, HP_INT64, HP_MIN));
    if (first == n_ranks)
        return HP_OK;
    /* The first speaks for all: mostly each of them failed for the same reason. */
    if (first == rank)
        return mine;
    own.is_told = true;
    return fail(mine < 0 ? mine : HP_ERR_PEER, "rank %lld failed", (long long)first);
}
