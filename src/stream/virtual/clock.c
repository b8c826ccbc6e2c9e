/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c - virtual time: from event to event, the operations of all ranks.
 *
 * An operation that begins is delayed by its rule, meets the other members of its group, takes its
 * fixed time and then moves. Each of these ends at a known moment, kept in a heap in the order of
 * time and then of ranks and streams, so a run is the same whenever it is repeated. When something
 * is done, only the heads of its rank's lanes can begin. Work is O(log ranks) for an operation,
 * memory does not depend on how long lists are, and none is taken after creation.
 */
#include "virtual.h"

static uint32_t slot_of(uint32_t rank, uint32_t stream) {
    return rank * HP_N_STREAMS + stream;
}

hpi_lane *hpi_clock_lane(hpi_clock *clock, uint32_t slot) {
    return &clock->ranks[slot / HP_N_STREAMS].lanes[slot % HP_N_STREAMS];
}

static const hp_op *op_of(const hpi_clock *clock, uint32_t slot) {
    const hpi_virtual_rank *r = &clock->ranks[slot / HP_N_STREAMS];
    return &r->program->ops[r->lanes[slot % HP_N_STREAMS].head];
}

/* ---- what is due when ------------------------------------------------------------------------ */

static bool is_before(hpi_clock *clock, uint32_t a, uint32_t b) {
    const uint64_t at = hpi_clock_lane(clock, a)->due_ns, bt = hpi_clock_lane(clock, b)->due_ns;
    return at < bt || (at == bt && a < b);
}

static void place(hpi_clock *clock, uint32_t at, uint32_t slot) {
    clock->heap[at] = slot;
    hpi_clock_lane(clock, slot)->heap_at = at + 1;
}

static void sift_up(hpi_clock *clock, uint32_t at) {
    const uint32_t slot = clock->heap[at];
    for (; at && is_before(clock, slot, clock->heap[(at - 1) / 2]); at = (at - 1) / 2)
        place(clock, at, clock->heap[(at - 1) / 2]);
    place(clock, at, slot);
}

static void sift_down(hpi_clock *clock, uint32_t at) {
    const uint32_t slot = clock->heap[at];
    for (uint32_t child; (child = 2 * at + 1) < clock->n_heap; at = child) {
        if (child + 1 < clock->n_heap &&
            is_before(clock, clock->heap[child + 1], clock->heap[child]))
            child++;
        if (!is_before(clock, clock->heap[child], slot))
            break;
        place(clock, at, clock->heap[child]);
    }
    place(clock, at, slot);
}

void hpi_clock_due(hpi_clock *clock, uint32_t slot, uint64_t due_ns) {
    hpi_lane *lane = hpi_clock_lane(clock, slot);
    lane->due_ns = due_ns;
    if (!lane->heap_at)
        place(clock, clock->n_heap++, slot);
    sift_up(clock, lane->heap_at - 1);
    sift_down(clock, lane->heap_at - 1);
}

static uint32_t take_next(hpi_clock *clock) {
    const uint32_t slot = clock->heap[0];
    hpi_clock_lane(clock, slot)->heap_at = 0;
    if (--clock->n_heap) {
        place(clock, 0, clock->heap[clock->n_heap]);
        sift_down(clock, 0);
    }
    return slot;
}

/* ---- meeting --------------------------------------------------------------------------------- */

const uint32_t *hpi_clock_members(const hpi_clock *clock, uint32_t slot, uint32_t *out_n) {
    static const uint32_t first_rank = 0;
    const hpi_meetings *m = &clock->meetings;
    const uint32_t rank = slot / HP_N_STREAMS, comm = op_of(clock, slot)->comm;
    *out_n = 1;
    if (!m->group_of)
        return &first_rank; /* the only one of an executor's clock */
    const uint32_t group = m->group_of[(size_t)comm * clock->n_ranks + rank];
    *out_n = m->starts[group + 1] - m->starts[group];
    return m->members + m->starts[group];
}

hpi_lane *hpi_clock_partner(hpi_clock *clock, uint32_t slot, uint32_t rank) {
    const hp_op *mine = op_of(clock, slot);
    if (rank == slot / HP_N_STREAMS)
        return hpi_clock_lane(clock, slot);
    for (uint32_t s = 0; s < HP_N_STREAMS; s++) {
        hpi_lane *lane = &clock->ranks[rank].lanes[s];
        if (lane->state < HPI_LANE_MEETING)
            continue;
        const hp_op *theirs = op_of(clock, slot_of(rank, s));
        if (theirs->comm == mine->comm && theirs->seq == mine->seq)
            return lane;
    }
    return NULL;
}

/* Note that this rank has come; true when it is the last. Its operations belong to its step. */
static bool has_met(hpi_clock *clock, uint32_t slot) {
    const hpi_meetings *m = &clock->meetings;
    const hp_op *op = op_of(clock, slot);
    const hpi_virtual_rank *r = &clock->ranks[slot / HP_N_STREAMS];
    if (!m->group_of || !op->comm)
        return true;
    const uint32_t group = m->group_of[(size_t)op->comm * clock->n_ranks + slot / HP_N_STREAMS];
    uint32_t *n_come = &m->n_come[m->bases[(size_t)r->step * m->n_groups + group] + op->seq];
    return ++*n_come == m->starts[group + 1] - m->starts[group];
}

/* ---- begin ----------------------------------------------------------------------------------- */

static bool is_event_done(const hpi_virtual_rank *r, uint32_t id) {
    return id == HPI_NO_OP || r->lanes[r->program->ops[id].stream].n_done >= r->program->turn[id];
}

bool hpi_clock_is_done(const hpi_clock *clock, uint32_t rank, uint32_t id) {
    return is_event_done(&clock->ranks[rank], id);
}

bool hpi_clock_is_through(const hpi_clock *clock, uint32_t rank) {
    for (uint32_t s = 0; s < HP_N_STREAMS; s++)
        if (clock->ranks[rank].lanes[s].head != HPI_NO_OP)
            return false;
    return true;
}

/* The first of an operation's waits that has not happened. */
static uint32_t first_wait(const hpi_virtual_rank *r, const hp_op *op) {
    for (uint32_t i = 0; i < op->n_waits; i++)
        if (op->waits[i] && !is_event_done(r, hpi_event_op(op->waits[i])))
            return hpi_event_op(op->waits[i]);
    return HPI_NO_OP;
}

static void end_on(hpi_clock *clock, uint32_t rank, hpi_lane *lane) {
    const hpi_program *program = clock->ranks[rank].program;
    const uint32_t id = lane->head;
    lane->state = HPI_LANE_IDLE;
    lane->n_done++;
    lane->last = id;
    lane->head = program->next[id];
    clock->calls->done(clock->owner, rank, &program->ops[id], lane->begin_ns, clock->now_ns);
}

/* It moves now; without a link to share, its end is known. */
static void start(hpi_clock *clock, uint32_t slot) {
    const hpi_cost cost = hpi_cost_of(clock->costs, op_of(clock, slot));
    hpi_clock_lane(clock, slot)->state = HPI_LANE_FIXED;
    hpi_clock_due(clock, slot, clock->now_ns + cost.fixed_ns + (cost.link ? 0 : cost.moving_ns));
}

static void meet(hpi_clock *clock, uint32_t slot) {
    hpi_clock_lane(clock, slot)->state = HPI_LANE_MEETING;
    if (has_met(clock, slot))
        start(clock, slot);
}

/* Most operations of a rank alone (lives of buffers, waits) take no time: no event for those. */
static bool is_instant(const hpi_clock *clock, const hp_op *op) {
    const hpi_cost cost = hpi_cost_of(clock->costs, op);
    return !op->comm && !cost.fixed_ns && !cost.moving_ns;
}

static hp_status begin(hpi_clock *clock, uint32_t rank, uint32_t stream) {
    hpi_virtual_rank *r = &clock->ranks[rank];
    hpi_lane *lane = &r->lanes[stream];
    const hp_op *op = &r->program->ops[lane->head];
    const uint64_t delay_ns = hpi_delay_ns(r->delay, op, r->n_earlier + op->id);
    lane->begin_ns = clock->now_ns;
    lane->state = HPI_LANE_DELAYED;
    if (clock->calls->begin)
        HP_TRY(clock->calls->begin(clock->owner, rank, op));
    if (delay_ns)
        hpi_clock_due(clock, slot_of(rank, stream), clock->now_ns + delay_ns);
    else if (is_instant(clock, op))
        end_on(clock, rank, lane);
    else
        meet(clock, slot_of(rank, stream));
    return HP_OK;
}

static bool can_begin(const hpi_virtual_rank *r, uint32_t stream) {
    const hpi_lane *lane = &r->lanes[stream];
    return lane->state == HPI_LANE_IDLE && lane->head != HPI_NO_OP &&
           is_event_done(r, r->program->gate[lane->head]) &&
           first_wait(r, &r->program->ops[lane->head]) == HPI_NO_OP;
}

/* ---- compute stands still -------------------------------------------------------------------- */

/* All streams are in order, so the first that is not done is the head of one. */
static uint32_t first_undone(const hpi_virtual_rank *r) {
    uint32_t first = HPI_NO_OP;
    for (uint32_t s = 0; s < HP_N_STREAMS; s++)
        first = r->lanes[s].head < first ? r->lanes[s].head : first;
    return first;
}

static uint32_t find_obstacle(const hpi_virtual_rank *r) {
    const hpi_lane *compute = &r->lanes[HP_STREAM_COMPUTE];
    if (compute->state != HPI_LANE_IDLE)
        return HPI_NO_OP;
    if (compute->head != HPI_NO_OP)
        return first_wait(r, &r->program->ops[compute->head]);
    if (r->is_draining)
        return first_undone(r);
    return is_event_done(r, r->awaited) ? HPI_NO_OP : r->awaited;
}

static void watch_compute(hpi_clock *clock, uint32_t rank) {
    hpi_virtual_rank *r = &clock->ranks[rank];
    const uint32_t obstacle = find_obstacle(r);
    if (obstacle == r->still_on)
        return;
    if (r->still_on != HPI_NO_OP && r->still_since_ns < clock->now_ns)
        clock->calls->stood_still(clock->owner, rank, r->still_on, r->still_since_ns,
                                  clock->now_ns);
    r->still_on = obstacle;
    r->still_since_ns = clock->now_ns;
}

/* The operation after `last` on its stream, or the first. */
static uint32_t after(const hpi_program *program, uint32_t stream, uint32_t last) {
    return last == HPI_NO_OP ? program->first[stream] : program->next[last];
}

/* ---- steps ----------------------------------------------------------------------------------- */

void hpi_clock_load(hpi_clock *clock, uint32_t rank, const hpi_program *program) {
    hpi_virtual_rank *r = &clock->ranks[rank];
    r->program = program;
    for (uint32_t s = 0; s < HP_N_STREAMS; s++) {
        r->lanes[s].head = program->first[s];
        r->lanes[s].last = HPI_NO_OP;
        r->lanes[s].n_done = 0;
    }
}

static void next_step(hpi_clock *clock, uint32_t rank) {
    hpi_virtual_rank *r = &clock->ranks[rank];
    while (clock->programs && r->step + 1 < clock->n_steps && hpi_clock_is_through(clock, rank)) {
        watch_compute(clock, rank); /* the step's last wait, while its operations have these ids */
        r->n_earlier += r->program->n;
        r->step++;
        hpi_clock_load(clock, rank, clock->programs[(size_t)r->step * clock->n_ranks + rank]);
    }
}

/* Begin what can begin now; *out_has_begun: something did, and has maybe ended. */
static hp_status begin_heads(hpi_clock *clock, uint32_t rank, bool *out_has_begun) {
    hpi_virtual_rank *r = &clock->ranks[rank];
    *out_has_begun = false;
    for (uint32_t s = 0; s < HP_N_STREAMS; s++) {
        if (r->lanes[s].head == HPI_NO_OP) /* the program may have grown */
            r->lanes[s].head = after(r->program, s, r->lanes[s].last);
        if (!can_begin(r, s))
            continue;
        HP_TRY(begin(clock, rank, s));
        *out_has_begun = true;
    }
    return HP_OK;
}

hp_status hpi_clock_wake(hpi_clock *clock, uint32_t rank) {
    for (bool has_begun = true; has_begun;) {
        next_step(clock, rank);
        HP_TRY(begin_heads(clock, rank, &has_begun));
    }
    watch_compute(clock, rank);
    return HP_OK;
}

/* ---- the next event -------------------------------------------------------------------------- */

/* It is done on all members at once. The leader is last: the others are found through it. */
static hp_status finish(hpi_clock *clock, uint32_t slot) {
    uint32_t n;
    const uint32_t *members = hpi_clock_members(clock, slot, &n);
    const uint32_t leader = slot / HP_N_STREAMS;
    for (uint32_t i = 0; i < n; i++) {
        hpi_lane *lane = members[i] == leader ? NULL : hpi_clock_partner(clock, slot, members[i]);
        if (lane)
            end_on(clock, members[i], lane);
    }
    end_on(clock, leader, hpi_clock_lane(clock, slot));
    for (uint32_t i = 0; i < n; i++)
        HP_TRY(hpi_clock_wake(clock, members[i]));
    return HP_OK;
}

bool hpi_clock_can_advance(const hpi_clock *clock) {
    return clock->n_heap != 0;
}

hp_status hpi_clock_advance(hpi_clock *clock) {
    const uint32_t slot = take_next(clock);
    hpi_lane *lane = hpi_clock_lane(clock, slot);
    if (lane->due_ns < clock->now_ns) /* a sum has gone round */
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected operations that take less than 584 years in all, "
                        "given more");
    clock->now_ns = lane->due_ns;
    if (lane->state == HPI_LANE_DELAYED) {
        meet(clock, slot);
        return HP_OK;
    }
    const hpi_cost cost = hpi_cost_of(clock->costs, op_of(clock, slot));
    if (lane->state == HPI_LANE_FIXED && cost.link && cost.moving_ns) {
        hpi_share_begin(clock, slot, &cost);
        return HP_OK;
    }
    if (lane->state == HPI_LANE_MOVING)
        hpi_share_end(clock, slot);
    return finish(clock, slot);
}

/* ---- life ------------------------------------------------------------------------------------ */

hp_status hpi_clock_create(hpi_clock *clock) {
    const size_t n = clock->n_ranks;
    clock->ranks = hpi_alloc(n, sizeof *clock->ranks);
    clock->heap = clock->ranks ? hpi_alloc(n * HP_N_STREAMS, sizeof *clock->heap) : NULL;
    clock->n_on_link =
        clock->heap ? hpi_alloc(n * clock->costs->n_links, sizeof *clock->n_on_link) : NULL;
    if (!clock->n_on_link)
        return HP_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        clock->ranks[i].awaited = clock->ranks[i].still_on = HPI_NO_OP;
    return HP_OK;
}

void hpi_clock_destroy(hpi_clock *clock) {
    hpi_free(clock->ranks);
    hpi_free(clock->heap);
    hpi_free(clock->n_on_link);
}
