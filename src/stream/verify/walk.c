/* SPDX-License-Identifier: Apache-2.0
 *
 * walk.c - all operations, each rank's in the order of its lists.
 *
 * Streams and waits point backwards in a list, so an order that all lists allow is one that nothing
 * forbids. A rank goes on until it comes to a collective that others have not begun; the last of
 * them to come finishes it for all. When no rank can go on any more they wait for each other in a
 * circle. An executor may run a list in its order (HP_EXECUTOR_INLINE does, and on all of them what
 * is submitted behind an operation of the compute stream comes after it), so that more would go on
 * side by side is no excuse; and whatever an executor does allow, lists that can be run in order
 * cannot get stuck.
 *
 * The order of the list is no evidence for anything else. The clock of a begin joins the chain's
 * own with those of the waits. The done of a collective joins the begins of all members; its
 * drained adds that all of them are done. A step begins with everything of the rank's step before.
 */
#include "proof.h"

struct walker {
    hpi_proof *proof;
    hpi_clocks *clocks;
    uint32_t *steps;   /* [n_ranks]: that the rank is in */
    uint32_t *ids;     /* [n_ranks]: of the operation that it has come to */
    bool *is_begun;    /* [n_ranks]: that one is a collective, begun here */
    uint32_t *joined;  /* clocks of the collective that is being finished: of all begins, */
    uint32_t *drained; /* and when all are done */
    uint64_t n_taken;
};

static hpi_place place_of(const struct walker *w, uint32_t rank) {
    return (hpi_place){rank, w->steps[rank], w->ids[rank]};
}

static uint32_t chain_at(const struct walker *w, hpi_place at) {
    return hpi_chain_of(at, hpi_op_at(w->proof, at));
}

/* ---- steps -------------------------------------------------------------------------------------
 */

static bool is_through(const struct walker *w, uint32_t rank) {
    return w->steps[rank] == w->proof->job->n_steps;
}

/* Go on to the next step that has operations, from w->steps[rank] on. */
static void enter_step(struct walker *w, uint32_t rank) {
    w->ids[rank] = 0;
    while (!is_through(w, rank) && !hpi_list_at(w->proof, w->steps[rank], rank)->n)
        w->steps[rank]++;
}

static hp_status end_step(struct walker *w, uint32_t rank) {
    uint32_t *after = hpi_clock_after(w->clocks, rank);
    const uint32_t first = rank * HP_N_STREAMS;
    HP_TRY(hpi_proof_end_lives(w->proof, rank));
    for (uint32_t s = 0; s < HP_N_STREAMS; s++)
        hpi_clock_join(w->clocks, after, hpi_clock_now(w->clocks, first + s));
    for (uint32_t s = 0; s < HP_N_STREAMS; s++)
        hpi_clock_copy(w->clocks, hpi_clock_now(w->clocks, first + s), after);
    w->steps[rank]++;
    enter_step(w, rank);
    return HP_OK;
}

/* ---- one operation -----------------------------------------------------------------------------
 */

/* `clock` learns what a wait says; whoever is the last to wait gives the copy back. */
static void join_waits(const struct walker *w, hpi_place at, const hp_op *op, uint32_t *clock) {
    for (uint32_t i = 0; i < op->n_waits; i++) {
        if (!op->waits[i])
            continue;
        const hpi_place other = {at.rank, at.step, hpi_event_op(op->waits[i])};
        const bool is_drained =
            hpi_event_is_drained(op->waits[i]) && hpi_op_at(w->proof, other)->comm != 0;
        hpi_note *note = hpi_note_at(w->proof, other);
        const uint32_t number = note->kept[is_drained];
        hpi_clock_join(w->clocks, clock, w->clocks->kept[number]);
        if (--note->n_waiters[is_drained] == 0)
            hpi_clock_drop(w->clocks, number);
    }
}

/* What `rank` has come to is done; its chain's clock says so already. `drained`: when it is
 * drained, of a collective; else NULL. */
static hp_status finish(struct walker *w, uint32_t rank, const uint32_t *drained) {
    const hpi_place at = place_of(w, rank);
    hpi_note *note = hpi_note_at(w->proof, at);
    if (note->n_waiters[0])
        HP_TRY(
            hpi_clock_keep(w->clocks, hpi_clock_now(w->clocks, chain_at(w, at)), &note->kept[0]));
    if (note->n_waiters[1])
        HP_TRY(hpi_clock_keep(w->clocks, drained, &note->kept[1]));
    if (drained)
        hpi_clock_join(w->clocks, hpi_clock_after(w->clocks, rank), drained);
    w->is_begun[rank] = false;
    w->n_taken++;
    w->ids[rank]++;
    return w->ids[rank] < hpi_list_at(w->proof, at.step, rank)->n ? HP_OK : end_step(w, rank);
}

/* All members have begun the collective of which `at` is one. */
static hp_status finish_collective(struct walker *w, hpi_place at) {
    const hpi_proof *p = w->proof;
    const hpi_members *members = hpi_members_of(p, hpi_op_at(p, at)->comm, at.rank);
    uint32_t *joined = w->joined, *drained = w->drained;
    memset(joined, 0, w->clocks->n_chains * sizeof *joined);
    for (uint32_t i = 0; i < members->n; i++) {
        const uint32_t chain = chain_at(w, hpi_peer_place(p, at, members->ranks[i]));
        hpi_clock_join(w->clocks, joined, hpi_clock_now(w->clocks, chain));
    }
    hpi_clock_copy(w->clocks, drained, joined);
    for (uint32_t i = 0; i < members->n; i++) {
        const hpi_place peer = hpi_peer_place(p, at, members->ranks[i]);
        drained[chain_at(w, peer)] = hpi_note_at(p, peer)->position;
    }
    for (uint32_t i = 0; i < members->n; i++) {
        const hpi_place peer = hpi_peer_place(p, at, members->ranks[i]);
        const uint32_t chain = chain_at(w, peer);
        uint32_t *now = hpi_clock_now(w->clocks, chain);
        hpi_clock_copy(w->clocks, now, joined);
        now[chain] = hpi_note_at(p, peer)->position;
        HP_TRY(finish(w, peer.rank, drained));
    }
    return HP_OK;
}

/* On one rank a communicator's collectives must come one after the other, whatever their streams.
 */
static hp_status check_issue_order(const struct walker *w, hpi_place at, const uint32_t *clock) {
    char one[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT];
    const hp_op *op = hpi_op_at(w->proof, at);
    uint32_t n;
    if (!op->seq)
        return HP_OK;
    const uint32_t *ids = hpi_collectives_of(w->proof, at.step, at.rank, op->comm, &n);
    const hpi_place before = {at.rank, at.step, ids[op->seq - 1]};
    if (clock[chain_at(w, before)] >= hpi_note_at(w->proof, before)->position)
        return HP_OK;
    return hpi_unsound(w->proof, HP_RULE_MATCH, before, at,
                       "%s and %s are on one communicator and in no order",
                       hpi_place_text(w->proof, before, one), hpi_place_text(w->proof, at, other));
}

static hp_status begin_collective(struct walker *w, hpi_place at, const uint32_t *clock) {
    const hpi_members *members = hpi_members_of(w->proof, hpi_op_at(w->proof, at)->comm, at.rank);
    HP_TRY(check_issue_order(w, at, clock));
    w->is_begun[at.rank] = true;
    hpi_note *note = hpi_note_at(w->proof, hpi_peer_place(w->proof, at, members->ranks[0]));
    return ++note->n_begun < members->n ? HP_OK : finish_collective(w, at);
}

static hp_status begin(struct walker *w, hpi_place at) {
    const hp_op *op = hpi_op_at(w->proof, at);
    const uint32_t chain = hpi_chain_of(at, op);
    uint32_t *clock = hpi_clock_now(w->clocks, chain);
    join_waits(w, at, op, clock);
    HP_TRY(hpi_proof_access(w->proof, at, clock));
    if (op->comm)
        return begin_collective(w, at, clock);
    clock[chain] = hpi_note_at(w->proof, at)->position;
    return finish(w, at.rank, NULL);
}

/* As far as the rank comes by now. */
static hp_status advance(struct walker *w, uint32_t rank) {
    while (!is_through(w, rank) && !w->is_begun[rank])
        HP_TRY(begin(w, place_of(w, rank)));
    return HP_OK;
}

/* ---- circles -----------------------------------------------------------------------------------
 */

/* A member that has not come to the collective in which `rank` stands. */
static uint32_t find_blocker(const struct walker *w, uint32_t rank) {
    const hpi_place at = place_of(w, rank);
    const hpi_members *members = hpi_members_of(w->proof, hpi_op_at(w->proof, at)->comm, rank);
    for (uint32_t i = 0; i < members->n; i++) {
        const uint32_t peer = members->ranks[i];
        if (w->steps[peer] != at.step || w->ids[peer] != hpi_peer_place(w->proof, at, peer).id)
            return peer;
    }
    return rank;
}

/* No rank can go on: follow who waits for whom until it comes round, and name two of the circle. */
static hp_status fail_circle(struct walker *w) {
    char one[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT];
    uint32_t rank = 0;
    while (is_through(w, rank))
        rank++;
    for (uint32_t i = 0; i < w->proof->job->n_ranks; i++) /* by then it is inside the circle */
        rank = find_blocker(w, rank);
    const hpi_place a = place_of(w, rank), b = place_of(w, find_blocker(w, rank));
    return hpi_unsound(w->proof, HP_RULE_CYCLE, a, b, "%s and %s wait for each other",
                       hpi_place_text(w->proof, a, one), hpi_place_text(w->proof, b, other));
}

/* ---- the walk ----------------------------------------------------------------------------------
 */

static hp_status walk(struct walker *w) {
    const uint32_t n_ranks = w->proof->job->n_ranks;
    uint64_t n_before;
    for (uint32_t rank = 0; rank < n_ranks; rank++)
        enter_step(w, rank);
    do {
        n_before = w->n_taken;
        for (uint32_t rank = 0; rank < n_ranks; rank++)
            HP_TRY(advance(w, rank));
    } while (w->n_taken != n_before);
    return w->n_taken == w->proof->verdict->n_ops ? HP_OK : fail_circle(w);
}

hp_status hpi_proof_walk(hpi_proof *proof) {
    const uint32_t n_ranks = proof->job->n_ranks, n_chains = proof->clocks.n_chains;
    struct walker w = {.proof = proof, .clocks = &proof->clocks};
    w.steps = hpi_alloc(n_ranks, sizeof *w.steps);
    w.ids = hpi_alloc(n_ranks, sizeof *w.ids);
    w.is_begun = hpi_alloc(n_ranks, sizeof *w.is_begun);
    w.joined = hpi_alloc(n_chains, sizeof *w.joined);
    w.drained = hpi_alloc(n_chains, sizeof *w.drained);
    const bool has_memory = w.steps && w.ids && w.is_begun && w.joined && w.drained;
    const hp_status status = has_memory ? walk(&w) : HP_ERR_MEMORY;
    hpi_free(w.steps);
    hpi_free(w.ids);
    hpi_free(w.is_begun);
    hpi_free(w.joined);
    hpi_free(w.drained);
    return status;
}
