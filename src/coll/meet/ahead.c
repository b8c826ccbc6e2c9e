/* SPDX-License-Identifier: Apache-2.0
 *
 * ahead.c - how far a rank may be ahead of the others.
 *
 * Who meets the others is never ahead of them. The root of a broadcast that goes without a meeting
 * is: it says its words and goes on. Its entries must stay until all have read them, and what the
 * others say meanwhile must be compared with what it said; both are looked at only now and then, by
 * the number of the last collective that each peer has left, on its READ line. That number is known
 * to be at least the `floor`.
 *
 * A rank is at most HPI_MOST_AHEAD numbers beyond what any peer has left, and a ring holds twice as
 * many entries: so those of the last HPI_MOST_AHEAD numbers are whole on both sides of a
 * comparison. Peers say what they have left at every LEAVE_STEP-th number without a meeting. Nobody
 * waits for ever: what is waited for lies CATCH_UP back, which is more than a step.
 */
#include "words.h"

enum { CATCH_UP = HPI_MOST_AHEAD / 2, LEAVE_STEP = CATCH_UP / 2 };

/* What a peer has left, and so said, compared with what this rank said. */
static hp_status look_at(hpi_run *run, int peer, uint64_t *floor) {
    HP_TRY(hpi_line_wait(run->group, peer, HPI_LINE_READ, run->seq - CATCH_UP, run->name));
    const uint64_t left = hpi_min(hpi_line_seq(run->group, peer, HPI_LINE_READ), run->seq - 1);
    *floor = hpi_min(*floor, left);
    return hpi_words_compare_past(run, peer, left);
}

hp_status hpi_ahead_catch_up(hpi_run *run) {
    uint64_t floor = run->seq - 1;
    for (int k = 1; k < run->n; k++)
        HP_TRY(look_at(run, (run->rank + k) % run->n, &floor));
    run->state->floor = floor;
    return HP_OK;
}

void hpi_ahead_leave(hpi_run *run) {
    if (run->seq % LEAVE_STEP == 0)
        hpi_line_post(run->group, HPI_LINE_READ, run->seq);
}
