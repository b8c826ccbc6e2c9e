/* SPDX-License-Identifier: Apache-2.0
 *
 * across.c - from a transport to the mapped segments of the ranks of this node.
 *
 * mpirun and srun say which rank this is, and nothing that is worth believing of who shares memory
 * with whom: LOCAL_WORLD_SIZE is a number, and two hosts may have one name, or one kernel two
 * hosts. So it is tried. All say hello over the transport, with the token of a socket that is open
 * by then; whoever can be greeted there can be passed memory. A rank's node is named by the lowest
 * rank that it reaches, and all must see the same nodes.
 */
#include "hello.h"

#include <stdio.h>

/* ---- agreeing ------------------------------------------------------------------------------- */

static hp_status gather(hp_world *world, const void *mine, size_t bytes, void *out_all) {
    const hpi_patience patience = {.operation = "world_create",
                                   .timeout_ms = world->options.start_timeout_ms};
    return hpi_transport_gather(world->transport, mine, bytes, out_all, &patience);
}

typedef struct verdict {
    int32_t status, culprit;
    char message[248];
} verdict;
_Static_assert(sizeof(verdict) == 256, "sent between hosts");

/* All go on, or none does; with the own record where it was this rank. */
static hp_status agree(hp_world *world, hp_status own, verdict *all) {
    verdict mine = {.status = own};
    hp_error record;
    hp_last_error_get(&record);
    if (own)
        snprintf(mine.message, sizeof mine.message, "%.247s", record.message);
    HP_TRY(gather(world, &mine, sizeof mine, all));
    if (own)
        return hpi_error_set(&record);
    for (int i = 0; i < world->n_ranks; i++) {
        all[i].message[sizeof mine.message - 1] = '\0';
        if (all[i].status < 0)
            return HPI_FAIL_RANK((hp_status)all[i].status, i, "rank %d on %s cannot take part: %s",
                                 i, hpi_transport_host_of(world->transport, i), all[i].message);
    }
    return HP_OK;
}

/* ---- who shares memory ---------------------------------------------------------------------- */

/* Who runs under another kernel need not be tried. */
static hp_status try_all(hp_world *world, const hello *all, bool *reaches) {
    for (int i = 0; i < world->n_ranks; i++) {
        reaches[i] = i == world->rank;
        if (i == world->rank || strcmp(all[i].boot_id, all[world->rank].boot_id) != 0)
            continue;
        hpi_share_peer(world, i, all[i].token);
        HP_TRY(hpi_share_try(world, i, &reaches[i]));
    }
    return HP_OK;
}

static int first_reached(const bool *reaches) {
    int first = 0;
    while (!reaches[first])
        first++;
    return first;
}

static hp_status check_nodes(const hp_world *world, const int32_t *first_of, const bool *reaches) {
    const int mine = first_of[world->rank];
    for (int i = 0; i < world->n_ranks; i++)
        if (first_of[i] < 0 || first_of[i] > i || first_of[first_of[i]] != first_of[i] ||
            (first_of[i] == mine) != reaches[i])
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, i,
                                 "expected ranks that share memory to see the same node: rank %d "
                                 "%s rank %d, whose node begins with rank %d and this one's with "
                                 "rank %d",
                                 world->rank, reaches[i] ? "reaches" : "does not reach", i,
                                 (int)first_of[i], mine);
    return HP_OK;
}

typedef struct across {
    hello *hellos;     /* [n_ranks], all of them */
    verdict *verdicts; /* [n_ranks] */
    int32_t *first_of; /* [n_ranks] */
    bool *reaches;     /* [n_ranks] */
} across;

static hp_status find_nodes(hp_world *world, across *a) {
    HP_TRY(agree(world, try_all(world, a->hellos, a->reaches), a->verdicts));
    const int32_t mine = first_reached(a->reaches);
    HP_TRY(gather(world, &mine, sizeof mine, a->first_of));
    HP_TRY(agree(world, check_nodes(world, a->first_of, a->reaches), a->verdicts));
    return hpi_world_place(world, a->first_of);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static hp_status say_hello(hp_world *world, across *a) {
    hello own = {0};
    hp_error record;
    hpi_hello_fill(world, &own);
    const hp_status status = hpi_share_open(world, own.token);
    hp_last_error_get(&record);
    own.status = status;
    if (status)
        snprintf(own.message, sizeof own.message, "%s", record.message);
    HP_TRY(gather(world, &own, sizeof own, a->hellos));
    if (status)
        return hpi_error_set(&record);
    for (int i = 0; i < world->n_ranks; i++)
        HP_TRY(hpi_hello_read(&a->hellos[i], i, sizeof own));
    return hpi_hellos_check(a->hellos, world);
}

static hp_status make_segment(hp_world *world) {
    uint64_t heap_bytes;
    if (world->n_local > HPI_MAX_LOCAL)
        return HPI_FAIL(HP_ERR_LIMIT, "expected at most %d ranks on a node, %d are on this one",
                        HPI_MAX_LOCAL, world->n_local);
    HP_TRY(hpi_heap_check(&world->options, world->n_local));
    HP_TRY(hpi_heap_bytes(&world->options, world->n_local, &heap_bytes));
    return hpi_segment_create(heap_bytes, world->rank, &world->segments[world->rank]);
}

static hp_status meet_ranks(hp_world *world, across *a) {
    HP_TRY(say_hello(world, a));
    HP_TRY(find_nodes(world, a));
    HP_TRY(agree(world, make_segment(world), a->verdicts));
    return agree(world, hpi_pass_segments(world, a->hellos), a->verdicts);
}

hp_status hpi_bootstrap_across(hp_world *world) {
    const size_t n = (size_t)world->n_ranks;
    across a = {.hellos = hpi_alloc(n, sizeof *a.hellos),
                .verdicts = hpi_alloc(n, sizeof *a.verdicts),
                .first_of = hpi_alloc(n, sizeof *a.first_of),
                .reaches = hpi_alloc(n, sizeof *a.reaches)};
    const bool has_room =
        hpi_segments_list(world) && a.hellos && a.verdicts && a.first_of && a.reaches;
    const hp_status status = has_room ? meet_ranks(world, &a) : HP_ERR_MEMORY;
    hpi_free(a.hellos);
    hpi_free(a.verdicts);
    hpi_free(a.first_of);
    hpi_free(a.reaches);
    return status;
}
