/* SPDX-License-Identifier: Apache-2.0
 *
 * share.c - links: n operations that move on one link of a rank at once get 1/n of its rate each.
 *
 * A collective moves as fast as on the busiest of its members' links. Whenever something begins or
 * ends there, what shares a link with it is settled up to now and gets a new end. A rank moves at
 * most one operation on each of its streams, so n divides SHARES: whole numbers are enough, and
 * nothing is rounded but the end itself, up to a nanosecond.
 */
#include "virtual.h"

enum { SHARES = 12 };
_Static_assert(HP_N_STREAMS == 4 && SHARES % 2 == 0 && SHARES % 3 == 0 && SHARES % 4 == 0,
               "SHARES is divided by any number of streams");

static uint32_t *count_of(const hpi_clock *clock, uint32_t rank, uint32_t link) {
    return &clock->n_on_link[(size_t)rank * clock->costs->n_links + link - 1];
}

/* What was moved since the last change, at the rate until now. */
static void settle(const hpi_clock *clock, hpi_lane *leader) {
    if (leader->since_ns == clock->now_ns) /* also: nothing has been moved before */
        return;
    const uint64_t moved = (clock->now_ns - leader->since_ns) * (SHARES / leader->n_sharing);
    leader->left -= hpi_min(leader->left, moved);
    leader->since_ns = clock->now_ns;
}

static void retime(hpi_clock *clock, uint32_t slot) {
    hpi_lane *leader = hpi_clock_lane(clock, slot);
    if (leader->stamp == clock->stamp)
        return;
    leader->stamp = clock->stamp;
    settle(clock, leader);
    uint32_t n;
    const uint32_t *members = hpi_clock_members(clock, slot, &n);
    leader->n_sharing = 1;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t count = *count_of(clock, members[i], leader->link);
        leader->n_sharing = count > leader->n_sharing ? count : leader->n_sharing;
    }
    hpi_clock_due(clock, slot,
                  clock->now_ns + hpi_ceil_div(leader->left, SHARES / leader->n_sharing));
}

/* Everything that moves on that link of one of the members. */
static void retime_neighbours(hpi_clock *clock, const uint32_t *members, uint32_t n,
                              uint32_t link) {
    clock->stamp++;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = 0; s < HP_N_STREAMS; s++) {
            const hpi_lane *lane = &clock->ranks[members[i]].lanes[s];
            if (lane->state == HPI_LANE_MOVING && lane->link == link)
                retime(clock, lane->leader);
        }
}

void hpi_share_begin(hpi_clock *clock, uint32_t slot, const hpi_cost *cost) {
    uint32_t n;
    const uint32_t *members = hpi_clock_members(clock, slot, &n);
    hpi_lane *leader = hpi_clock_lane(clock, slot);
    leader->left = cost->moving_ns * SHARES;
    leader->since_ns = clock->now_ns;
    for (uint32_t i = 0; i < n; i++) {
        hpi_lane *lane = hpi_clock_partner(clock, slot, members[i]);
        if (!lane)
            continue;
        lane->state = HPI_LANE_MOVING;
        lane->leader = slot;
        lane->link = cost->link;
        ++*count_of(clock, members[i], cost->link);
    }
    retime_neighbours(clock, members, n, cost->link);
}

void hpi_share_end(hpi_clock *clock, uint32_t slot) {
    uint32_t n;
    const uint32_t *members = hpi_clock_members(clock, slot, &n);
    const uint32_t link = hpi_clock_lane(clock, slot)->link;
    for (uint32_t i = 0; i < n; i++) {
        hpi_lane *lane = hpi_clock_partner(clock, slot, members[i]);
        if (!lane || lane->state != HPI_LANE_MOVING)
            continue;
        lane->state = HPI_LANE_FIXED;
        --*count_of(clock, members[i], link);
    }
    retime_neighbours(clock, members, n, link);
}
