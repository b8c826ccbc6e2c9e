/* SPDX-License-Identifier: Apache-2.0
 *
 * walk.c - all operations in an order that their streams, waits and joins allow.
 *
 * The first operation of a chain that is still to come is its head. A head begins when its waits
 * have happened; what is not a collective is done at once, a collective when its last member has
 * begun it. When no head can begin any more and some are left, they wait for each other in a
 * circle.
 *
 * The clock of a begin joins the chain's own with those of the waits. The done of a collective
 * joins the begins of all members; its drained adds that all of them are done. A step begins with
 * everything of the rank's step before.
 */
#include "proof.h"

struct walker {
    hpi_proof *proof;
    hpi_clocks *clocks;
    uint32_t *steps;   /* [n_ranks]: that the rank is in */
    uint64_t *n_left;  /* [n_ranks]: operations of the step that are not done */
    uint32_t *heads;   /* [n_chains]: id, or HPI_NO_OP */
    bool *is_begun;    /* [n_chains]: the head is a collective, begun here */
    uint32_t *joined;  /* clocks of the collective that is being finished: of all begins, */
    uint32_t *drained; /* and when all are done */
    uint64_t n_taken;
};

static hpi_place head_of(const struct walker *w, uint32_t chain) {
    const uint32_t rank = chain / HP_N_STREAMS;
    return (hpi_place){rank, w->steps[rank], w->heads[chain]};
}

/* ---- steps -------------------------------------------------------------------------------------
 */

static void find_heads(struct walker *w, uint32_t rank) {
    const hp_list *list = hpi_list_at(w->proof, w->steps[rank], rank);
    uint32_t *heads = w->heads + (uint64_t)rank * HP_N_STREAMS;
    for (uint32_t id = 0; id < list->n; id++)
        if (heads[list->ops[id].stream] == HPI_NO_OP)
            heads[list->ops[id].stream] = id;
    w->n_left[rank] = list->n;
}

/* Go on to the next step that has operations, from w->steps[rank] on. */
static void enter_step(struct walker *w, uint32_t rank) {
    for (; w->steps[rank] < w->proof->job->n_steps; w->steps[rank]++) {
        find_heads(w, rank);
        if (w->n_left[rank])
            return;
    }
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

static bool is_ready(const struct walker *w, hpi_place at, const hp_op *op) {
    for (uint32_t i = 0; i < op->n_waits; i++) {
        const hpi_place other = {at.rank, at.step, hpi_event_op(op->waits[i])};
        if (op->waits[i] && !hpi_note_at(w->proof, other)->is_done)
            return false;
    }
    return true;
}

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

/* The head of `chain` is done; its chain's clock says so already. `drained`: when it is drained, of
 * a collective; else NULL. */
static hp_status finish(struct walker *w, uint32_t chain, const uint32_t *drained) {
    const hpi_place at = head_of(w, chain);
    hpi_note *note = hpi_note_at(w->proof, at);
    if (note->n_waiters[0])
        HP_TRY(hpi_clock_keep(w->clocks, hpi_clock_now(w->clocks, chain), &note->kept[0]));
    if (note->n_waiters[1])
        HP_TRY(hpi_clock_keep(w->clocks, drained, &note->kept[1]));
    if (drained)
        hpi_clock_join(w->clocks, hpi_clock_after(w->clocks, at.rank), drained);
    note->is_done = true;
    w->heads[chain] = note->next;
    w->is_begun[chain] = false;
    w->n_taken++;
    return --w->n_left[at.rank] ? HP_OK : end_step(w, at.rank);
}

static uint32_t chain_at(const struct walker *w, hpi_place at) {
    return hpi_chain_of(at, hpi_op_at(w->proof, at));
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
        HP_TRY(finish(w, chain, drained));
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

static hp_status begin_collective(struct walker *w, uint32_t chain, hpi_place at) {
    const uint32_t comm = hpi_op_at(w->proof, at)->comm;
    const hpi_members *members = hpi_members_of(w->proof, comm, at.rank);
    HP_TRY(check_issue_order(w, at, hpi_clock_now(w->clocks, chain)));
    w->is_begun[chain] = true;
    hpi_note *note = hpi_note_at(w->proof, hpi_peer_place(w->proof, at, members->ranks[0]));
    return ++note->n_begun < members->n ? HP_OK : finish_collective(w, at);
}

static hp_status begin(struct walker *w, uint32_t chain, hpi_place at) {
    const hp_op *op = hpi_op_at(w->proof, at);
    uint32_t *clock = hpi_clock_now(w->clocks, chain);
    join_waits(w, at, op, clock);
    HP_TRY(hpi_proof_access(w->proof, at, clock));
    if (op->comm)
        return begin_collective(w, chain, at);
    clock[chain] = hpi_note_at(w->proof, at)->position;
    return finish(w, chain, NULL);
}

/* Everything that can begin on a chain now. */
static hp_status advance(struct walker *w, uint32_t chain) {
    while (w->heads[chain] != HPI_NO_OP && !w->is_begun[chain]) {
        const hpi_place at = head_of(w, chain);
        if (!is_ready(w, at, hpi_op_at(w->proof, at)))
            return HP_OK;
        HP_TRY(begin(w, chain, at));
    }
    return HP_OK;
}

/* ---- circles -----------------------------------------------------------------------------------
 */

/* The chain whose head holds up the head of `chain`. */
static uint32_t find_blocker(const struct walker *w, uint32_t chain) {
    const hpi_place at = head_of(w, chain);
    const hp_op *op = hpi_op_at(w->proof, at);
    for (uint32_t i = 0; !w->is_begun[chain] && i < op->n_waits; i++) {
        const hpi_place other = {at.rank, at.step, hpi_event_op(op->waits[i])};
        if (op->waits[i] && !hpi_note_at(w->proof, other)->is_done)
            return chain_at(w, other);
    }
    const hpi_members *members = hpi_members_of(w->proof, op->comm, at.rank);
    for (uint32_t i = 0; i < members->n; i++) {
        const uint32_t rank = members->ranks[i];
        const hpi_place peer = hpi_peer_place(w->proof, at, rank);
        uint32_t other = chain_at(w, peer);
        if (w->steps[rank] == at.step && w->heads[other] == peer.id && w->is_begun[other])
            continue;
        /* a rank that is a step behind: whatever it still has to do there */
        for (uint32_t s = 0; w->steps[rank] != at.step && s < HP_N_STREAMS; s++)
            if (w->heads[rank * HP_N_STREAMS + s] != HPI_NO_OP)
                other = rank * HP_N_STREAMS + s;
        return other;
    }
    return chain;
}

/* No head can begin: follow who waits for whom until it comes round, and name two of the circle,
 * of two ranks where it has such. */
static hp_status fail_circle(struct walker *w) {
    char one[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT];
    uint32_t chain = 0, second;
    while (w->heads[chain] == HPI_NO_OP)
        chain++;
    for (uint32_t i = 0; i < w->clocks->n_chains; i++) /* by then it is inside the circle */
        chain = find_blocker(w, chain);
    for (second = find_blocker(w, chain); second != chain; second = find_blocker(w, second))
        if (second / HP_N_STREAMS != chain / HP_N_STREAMS)
            break;
    second = second != chain ? second : find_blocker(w, chain);
    const hpi_place a = head_of(w, chain), b = head_of(w, second);
    return hpi_unsound(w->proof, HP_RULE_CYCLE, a, b, "%s and %s wait for each other",
                       hpi_place_text(w->proof, a, one), hpi_place_text(w->proof, b, other));
}

/* ---- the walk ----------------------------------------------------------------------------------
 */

static hp_status walk(struct walker *w) {
    uint64_t n_before;
    for (uint32_t chain = 0; chain < w->clocks->n_chains; chain++)
        w->heads[chain] = HPI_NO_OP;
    for (uint32_t rank = 0; rank < w->proof->job->n_ranks; rank++)
        enter_step(w, rank);
    do {
        n_before = w->n_taken;
        for (uint32_t chain = 0; chain < w->clocks->n_chains; chain++)
            HP_TRY(advance(w, chain));
    } while (w->n_taken != n_before);
    return w->n_taken == w->proof->verdict->n_ops ? HP_OK : fail_circle(w);
}

hp_status hpi_proof_walk(hpi_proof *proof) {
    const uint32_t n_ranks = proof->job->n_ranks, n_chains = proof->clocks.n_chains;
    struct walker w = {.proof = proof, .clocks = &proof->clocks};
    w.steps = hpi_alloc(n_ranks, sizeof *w.steps);
    w.n_left = hpi_alloc(n_ranks, sizeof *w.n_left);
    w.heads = hpi_alloc(n_chains, sizeof *w.heads);
    w.is_begun = hpi_alloc(n_chains, sizeof *w.is_begun);
    w.joined = hpi_alloc(n_chains, sizeof *w.joined);
    w.drained = hpi_alloc(n_chains, sizeof *w.drained);
    const bool has_memory = w.steps && w.n_left && w.heads && w.is_begun && w.joined && w.drained;
    const hp_status status = has_memory ? walk(&w) : HP_ERR_MEMORY;
    hpi_free(w.steps);
    hpi_free(w.n_left);
    hpi_free(w.heads);
    hpi_free(w.is_begun);
    hpi_free(w.joined);
    hpi_free(w.drained);
    return status;
}
