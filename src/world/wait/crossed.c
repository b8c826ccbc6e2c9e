/* SPDX-License-Identifier: Apache-2.0
 *
 * crossed.c - ranks that wait for each other in different calls, and so for ever.
 *
 * Two ranks of one group, one in a collective, the other in a set-up call or a fused product: each
 * waits for what the other posts only after its own call. The note of the awaited rank says where
 * it waits, and our own line, which nobody else writes, says that we have not posted what its call
 * needs; as a group is used by one thread at a time, we shall not. Mail counts as no call here: it
 * needs nobody's turn.
 *
 * Two ranks that wait for each other in groups that the other has never created: one of them was
 * given another list. Another thread (a stream's, which waits while its rank goes on, is one of
 * two) may yet create it: so this counts after half a second only where neither process has another
 * thread, and else at the deadline.
 */
#include "../inside.h"

#include <stdio.h>

#define PATIENCE_NS UINT64_C(500000000)

/* The kind of call that waits there; 0: none that is told of here. */
static int kind_of(uint64_t channel) {
    switch (channel) {
    case HPI_LINE_SAID:
    case HPI_LINE_ENTER:
        return 1;
    case HPI_LINE_SETUP:
        return 2;
    case HPI_LINE_FUSED:
        return 3;
    default:
        return 0;
    }
}

static bool is_crossing(uint64_t a, uint64_t b) {
    return kind_of(a) && kind_of(b) && kind_of(a) != kind_of(b);
}

static bool has_posted(const hp_group *group, int channel, uint64_t seq) {
    switch (channel) {
    case HPI_LINE_SAID:
        return hpi_said_is_there(group, group->rank, seq);
    case HPI_LINE_FUSED:
        return group->n_fused >= seq;
    default:
        return hpi_line_reached(group, group->rank, channel, seq);
    }
}

/* Is the awaited rank in a call on our group that needs us, who are in another one? */
static bool is_crossed_call(const hpi_reason *r, const hpi_note_copy *theirs) {
    const hp_group *group = r->group;
    return theirs->slot == group->slot + UINT64_C(1) && theirs->base == group->base &&
           is_crossing((uint64_t)r->line - 1, theirs->channel) &&
           !has_posted(group, (int)theirs->channel, theirs->seq);
}

static bool is_certain(const hpi_note_copy *theirs, hpi_certainty certainty) {
    return certainty == HPI_IS_LATE || (certainty == HPI_IS_LONE && theirs->is_lone &&
                                        hpi_now_ns() > theirs->since_ns + PATIENCE_NS);
}

static bool is_crossed_group(const hpi_reason *r, const hpi_note_copy *theirs) {
    const hp_world *world = r->group->world;
    const int whom = r->group->world_ranks[r->rank];
    return theirs->slot && theirs->world_rank == world->rank &&
           !hpi_directory_has_joined(world, (uint32_t)(theirs->slot - 1), world->rank) &&
           !hpi_directory_has_joined(world, r->group->slot, whom);
}

hp_status hpi_crossed_check(const hpi_reason *r, hpi_certainty certainty) {
    if (!r->line)
        return HP_OK;
    const hp_group *group = r->group;
    const int mine = group->world->rank, whom = group->world_ranks[r->rank];
    const hpi_control *control = hpi_world_control(group->world, whom);
    for (int i = 0; i < HPI_N_NOTES; i++) {
        hpi_note_copy theirs;
        if (!hpi_note_read(&control->notes[i], &theirs))
            continue;
        if (is_crossed_call(r, &theirs))
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, whom,
                                 "expected every rank of %s to make the same call: rank %d made "
                                 "%s, rank %d made %s, and each waits for the other",
                                 group->name, mine, r->operation, whom, theirs.operation);
        if (is_certain(&theirs, certainty) && is_crossed_group(r, &theirs)) {
            /* they learn it now: we shall not wait for them any longer */
            hpi_directory_disown(group->world, (uint32_t)(theirs.slot - 1));
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, whom,
                                 "expected every member to create the same groups: rank %d waits "
                                 "in %s of %s, which rank %d never created, and rank %d in %s of "
                                 "%s, which rank %d never created",
                                 mine, r->operation, group->name, whom, whom, theirs.operation,
                                 theirs.group, mine);
        }
    }
    return HP_OK;
}
