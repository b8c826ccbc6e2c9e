/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.c - who it is that a wait has been in vain for.
 *
 * The rank that is waited for may itself wait for another, and that one for a third, which is
 * stopped or computes for ever. Each one's notes say whom it waits for, so the end of the chain can
 * be named at the deadline, whoever reaches his first. A wait counts when it has lasted at least
 * half as long as ours: a rank that is late because it is slow waits now and then, but not for
 * long.
 */
#include "../inside.h"

bool hpi_rank_is_stopped(const hp_world *world, int world_rank) {
    return world_rank != world->rank && hpi_world_is_local(world, world_rank) &&
           hpi_process_is_stopped(hpi_pidfd_pid(world->pidfds[world_rank]));
}

static bool is_of_group(const hpi_note_copy *note, const hp_group *group) {
    return group ? note->base == group->base && !strcmp(note->group, group->name) : !*note->group;
}

/* The rank that `note` waits for when that wait began before `latest_ns`; -1 otherwise. */
static int awaited_by(const hpi_note *note, uint64_t latest_ns, hpi_note_copy *out) {
    return hpi_note_read(note, out) && out->since_ns <= latest_ns ? (int)out->world_rank : -1;
}

/* Whom a rank waits for: in our group (of none, while the ranks start), else in any. A rank whose
 * wait in our group has just failed has freed its note, and its failure is told a moment later. */
static int next_of(const hp_world *world, int world_rank, const hp_group *group,
                   uint64_t latest_ns) {
    const hpi_control *control = hpi_world_control(world, world_rank);
    hpi_note_copy note;
    int next = -1;
    for (int i = 0; i < HPI_N_NOTES; i++) {
        const int awaited = awaited_by(&control->notes[i], latest_ns, &note);
        if (awaited >= 0 && is_of_group(&note, group))
            return awaited;
        next = awaited >= 0 ? awaited : next;
    }
    const int failed = awaited_by(&control->failure, latest_ns, &note);
    return next < 0 && failed >= 0 && is_of_group(&note, group) ? failed : next;
}

int hpi_chain_end(const hp_world *world, const hp_group *group, int first, uint64_t begin_ns) {
    const uint64_t now_ns = hpi_now_ns(), latest_ns = begin_ns + (now_ns - begin_ns) / 2;
    int rank = first;
    for (int n = 0; n < world->n_local; n++) {
        const int next =
            hpi_rank_is_stopped(world, rank) ? -1 : next_of(world, rank, group, latest_ns);
        if (!hpi_world_is_local(world, next))
            return rank; /* or on to another node, whose notes are not read here */
        if (next == world->rank)
            break;
        rank = next;
    }
    return first; /* a ring: each waits for the next */
}
