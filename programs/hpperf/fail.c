/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fail.c - who tells of a failure.
 *
 * A failure that all ranks see alike is told by the rank that the record names and by rank 0; that
 * a peer is gone, by everyone who saw it, because the peer cannot.
 */
#include "fail.h"

#include <hyperparallel/coll.h>

#include <stdbool.h>
#include <string.h>

/* The lowest rank that failed wins: its number stands in front of its status. */
enum { RANK_STEP = 256 };

hp_status agree(hp_world *world, hp_status mine) {
    const int rank = hp_world_rank(world);
    int64_t first = mine < 0 ? (int64_t)rank * RANK_STEP - mine : INT64_MAX;
    TRY(hp_all_reduce(hp_world_group(world), &first, &first, 1, HP_INT64, HP_MIN));
    if (first == INT64_MAX)
        return HP_OK;
    if (first / RANK_STEP == rank)
        failure_print(stderr, mine, rank);
    /* When one rank has ended the launcher ends the others: nobody leaves before it is told. */
    TRY(hp_barrier(hp_world_group(world)));
    return fail((hp_status)(-(int)(first % RANK_STEP)), "%s", "");
}

static bool is_mine(const hp_error *e, int world_rank) {
    if (world_rank < 0 || e->status == HP_ERR_PEER || e->status == HP_ERR_TIMEOUT)
        return true;
    return e->world_rank < 0 || world_rank == 0 || world_rank == e->world_rank;
}

void failure_print(FILE *file, hp_status status, int world_rank) {
    hp_error e;
    const char *text = hp_last_error();
    hp_last_error_get(&e);
    if (e.status != status) /* the record is of an earlier failure, which was dealt with */
        text = hp_status_text(status);
    else if (!*e.call && !*e.file) /* the program's own */
        text = e.message;
    else if (!is_mine(&e, world_rank))
        text = "";
    if (!*text)
        return;
    if (world_rank >= 0 && strncmp(text, "rank ", 5) != 0) /* some name it themselves */
        fprintf(file, "hpperf: rank %d: %s\n", world_rank, text);
    else
        fprintf(file, "hpperf: %s\n", text);
}
