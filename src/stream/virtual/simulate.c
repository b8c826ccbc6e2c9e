/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate.c - hp_simulate: the lists of all ranks, run on one clock.
 *
 * The job is checked, each list is made ready once (ranks and steps that follow each other often
 * share one), the members of each group are found by color, and the clock runs until nothing is
 * due. If a rank is not through then, what it stands at is the answer.
 */
#include "virtual.h"

typedef struct simulation {
    const hp_job *job;
    hpi_costs costs;
    hpi_program *own;             /* lists that are not the same as one before */
    const hpi_program **programs; /* [n_steps][n_ranks] */
    uint64_t n_own;
    hpi_delay **delays; /* [n_ranks] */
    hpi_clock clock;
    hp_moment *const *moments;
    hp_executor_stats *stats;
} simulation;

/* ---- what the clock tells ---------------------------------------------------------------------
 */

static void on_done(void *owner, uint32_t rank, const hp_op *op, uint64_t begin_ns,
                    uint64_t end_ns) {
    simulation *s = owner;
    const size_t at = (size_t)s->clock.ranks[rank].step * s->job->n_ranks + rank;
    if (s->moments && s->moments[at])
        s->moments[at][op->id] = (hp_moment){begin_ns, end_ns, end_ns};
    if (s->stats) {
        s->stats[rank].n_ops++;
        s->stats[rank].busy_ns[op->stream] += end_ns - begin_ns;
    }
}

static void on_stood_still(void *owner, uint32_t rank, uint32_t id, uint64_t begin_ns,
                           uint64_t end_ns) {
    simulation *s = owner;
    if (s->stats)
        s->stats[rank].waited_ns[s->clock.ranks[rank].program->ops[id].stream] += end_ns - begin_ns;
}

/* ---- checks -----------------------------------------------------------------------------------
 */

static hp_status check_job(const hp_job *job) {
    if (job->size != sizeof *job)
        return HPI_FAIL(HP_ERR_VERSION, "expected hp_job.size to be %zu, given %zu", sizeof *job,
                        job->size);
    if (!job->n_ranks || !job->n_steps || !job->lists || !job->kinds || !job->n_kinds)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a job with ranks, steps, lists and kinds, given %u ranks, %u "
                        "steps, %s, %u kinds",
                        job->n_ranks, job->n_steps, job->lists ? "lists" : "no lists",
                        job->kinds ? job->n_kinds : 0);
    if (job->n_comms > 1 && !job->colors)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected the groups of %u communicators, given no colors",
                        job->n_comms);
    for (uint32_t i = 0; i < job->n_kinds; i++)
        if (!job->kinds[i].name)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected a name for every kind, given none for kind %u", i);
    return HP_OK;
}

static hp_status check_waits(const hp_op *op, uint64_t n, uint32_t rank) {
    for (uint32_t i = 0; i < op->n_waits; i++)
        if (op->waits[i] && (op->waits[i] < hpi_done(0) || hpi_event_op(op->waits[i]) >= n))
            return HPI_FAIL_RANK(HP_ERR_ARGUMENT, (int)rank,
                                 "expected operation %u to wait for events of its step, given %u",
                                 op->id, op->waits[i]);
    return HP_OK;
}

/* Is the list one that can be run, by this rank? */
static hp_status check_op(const simulation *s, const hp_op *op, uint64_t id, uint64_t n,
                          uint32_t rank) {
    const hp_job *job = s->job;
    if (op->id != id || op->kind >= job->n_kinds || op->stream >= HP_N_STREAMS ||
        op->n_waits > HP_OP_WAITS)
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, (int)rank,
                             "expected operation %llu to have that id, a kind below %u, a stream "
                             "below %d and at most %d waits, given id %u, kind %u, stream %u, %u "
                             "waits",
                             (unsigned long long)id, job->n_kinds, HP_N_STREAMS, HP_OP_WAITS,
                             op->id, op->kind, op->stream, op->n_waits);
    if (op->comm && (op->comm >= job->n_comms || op->seq >= n ||
                     job->colors[(size_t)op->comm * job->n_ranks + rank] < 0))
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, (int)rank,
                             "expected operation %u to use a communicator that rank %u is in, at a "
                             "position below %llu, given communicator %u, position %u",
                             op->id, rank, (unsigned long long)n, op->comm, op->seq);
    HP_TRY(check_waits(op, n, rank));
    return hpi_costs_check(&s->costs, op);
}

static hp_status check_list(const simulation *s, const hp_list *list, uint32_t rank) {
    if (list->n >= UINT32_MAX / 2 || (list->n && !list->ops))
        return HPI_FAIL_RANK(
            HP_ERR_ARGUMENT, (int)rank, "expected a list of less than %u operations, given %s%llu",
            UINT32_MAX / 2, list->ops ? "" : "NULL and ", (unsigned long long)list->n);
    for (uint64_t i = 0; i < list->n; i++)
        HP_TRY(check_op(s, &list->ops[i], i, list->n, rank));
    return HP_OK;
}

/* ---- lists ------------------------------------------------------------------------------------
 */

/* The same list, made ready already, of the rank before in this step or of this rank in the last
 * one; NULL: neither. */
static const hpi_program *find_same(const simulation *s, const hp_list *list, uint32_t step,
                                    uint32_t rank) {
    const size_t n_ranks = s->job->n_ranks, at = step * n_ranks + rank;
    const hpi_program *candidates[] = {rank ? s->programs[at - 1] : NULL,
                                       step ? s->programs[at - n_ranks] : NULL};
    for (int i = 0; i < 2; i++)
        if (candidates[i] && candidates[i]->ops == list->ops && candidates[i]->n == list->n)
            return candidates[i];
    return NULL;
}

static hp_status make_program(simulation *s, uint32_t step, uint32_t rank) {
    const size_t at = (size_t)step * s->job->n_ranks + rank;
    const hp_list *list = &s->job->lists[at];
    HP_TRY(check_list(s, list, rank));
    s->programs[at] = find_same(s, list, step, rank);
    if (s->programs[at])
        return HP_OK;
    hpi_program *program = &s->own[s->n_own];
    HP_TRY(hpi_program_create((uint32_t)list->n, program));
    s->n_own++;
    hpi_program_extend(program, list->ops, (uint32_t)list->n, s->job->kinds);
    s->programs[at] = program;
    return HP_OK;
}

static hp_status make_programs(simulation *s) {
    const size_t n = (size_t)s->job->n_steps * s->job->n_ranks;
    s->own = hpi_alloc(n, sizeof *s->own);
    s->programs = s->own ? hpi_alloc(n, sizeof *s->programs) : NULL;
    if (!s->programs)
        return HP_ERR_MEMORY;
    for (uint32_t step = 0; step < s->job->n_steps; step++)
        for (uint32_t rank = 0; rank < s->job->n_ranks; rank++)
            HP_TRY(make_program(s, step, rank));
    return HP_OK;
}

static hp_status make_delays(simulation *s, const char *delay) {
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    config.kinds = s->job->kinds;
    config.n_kinds = s->job->n_kinds;
    config.units = s->job->units;
    config.n_units = s->job->units ? s->job->n_units : 0;
    config.delay = delay;
    s->delays = hpi_alloc(s->job->n_ranks, sizeof(hpi_delay *));
    if (!s->delays)
        return HP_ERR_MEMORY;
    for (uint32_t rank = 0; rank < s->job->n_ranks; rank++) {
        config.rank = (int)rank;
        HP_TRY(hpi_delay_create(&config, &s->delays[rank]));
    }
    return HP_OK;
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static hp_status make_clock(simulation *s) {
    static const hpi_clock_calls on = {NULL, on_done, on_stood_still};
    s->clock.n_ranks = s->job->n_ranks;
    s->clock.n_steps = s->job->n_steps;
    s->clock.programs = s->programs;
    s->clock.costs = &s->costs;
    s->clock.calls = &on;
    s->clock.owner = s;
    HP_TRY(hpi_meetings_create(s->job, &s->clock.meetings));
    HP_TRY(hpi_clock_create(&s->clock));
    for (uint32_t rank = 0; rank < s->job->n_ranks; rank++) {
        s->clock.ranks[rank].delay = s->delays[rank];
        s->clock.ranks[rank].is_draining = true;
        hpi_clock_load(&s->clock, rank, s->programs[rank]);
    }
    return HP_OK;
}

static const char *kind_name(const hp_job *job, const hp_op *op) {
    return job->kinds[op->kind].name;
}

/* A collective that has begun and never moves, named with a member that does not come. */
static hp_status fail_alone(const simulation *s, uint32_t rank, const hp_op *op) {
    const hpi_meetings *m = &s->clock.meetings;
    const uint32_t group = m->group_of[(size_t)op->comm * s->job->n_ranks + rank];
    for (uint32_t i = m->starts[group]; i < m->starts[group + 1]; i++) {
        const hpi_virtual_rank *other = &s->clock.ranks[m->members[i]];
        bool has_come = false;
        for (int k = 0; k < HP_N_STREAMS; k++) {
            const hpi_lane *lane = &other->lanes[k];
            const hp_op *theirs = lane->head == HPI_NO_OP ? op : &other->program->ops[lane->head];
            has_come |= lane->state == HPI_LANE_MEETING && theirs->comm == op->comm &&
                        theirs->seq == op->seq && other->step == s->clock.ranks[rank].step;
        }
        if (!has_come)
            return HPI_FAIL_RANK(HP_ERR_UNSOUND, (int)m->members[i],
                                 "rank %u, step %u: operation %u (%s, communicator %u, position "
                                 "%u) waits for rank %u, which never comes to it",
                                 rank, s->clock.ranks[rank].step, op->id, kind_name(s->job, op),
                                 op->comm, op->seq, m->members[i]);
    }
    return HPI_FAIL_RANK(HP_ERR_UNSOUND, (int)rank,
                         "rank %u: two operations stand at position %u of communicator %u", rank,
                         op->seq, op->comm);
}

/* Nothing is due, and a rank is not through: name what it stands at. Meetings come first, since
 * others may only wait behind one. */
static hp_status fail_stuck(const simulation *s, uint32_t rank) {
    const hpi_virtual_rank *r = &s->clock.ranks[rank];
    const hp_op *idle = NULL;
    for (int k = 0; k < HP_N_STREAMS; k++) {
        const hpi_lane *lane = &r->lanes[k];
        if (lane->head == HPI_NO_OP)
            continue;
        if (lane->state == HPI_LANE_MEETING)
            return fail_alone(s, rank, &r->program->ops[lane->head]);
        idle = &r->program->ops[lane->head];
    }
    return HPI_FAIL_RANK(HP_ERR_UNSOUND, (int)rank,
                         "rank %u, step %u: operation %u (%s) waits in a circle", rank, r->step,
                         idle->id, kind_name(s->job, idle));
}

static hp_status check_through(const simulation *s) {
    for (uint32_t rank = 0; rank < s->job->n_ranks; rank++)
        if (!hpi_clock_is_through(&s->clock, rank))
            return fail_stuck(s, rank);
    return HP_OK;
}

static hp_status run(simulation *s, const hp_cost_model *costs, const char *delay,
                     uint64_t *out_end_ns) {
    HP_TRY(hpi_costs_create(costs, s->job->n_kinds, &s->costs));
    HP_TRY(make_programs(s));
    HP_TRY(make_delays(s, delay));
    HP_TRY(make_clock(s));
    if (s->stats)
        memset(s->stats, 0, s->job->n_ranks * sizeof *s->stats);
    for (uint32_t rank = 0; rank < s->job->n_ranks; rank++)
        HP_TRY(hpi_clock_wake(&s->clock, rank));
    while (hpi_clock_can_advance(&s->clock))
        HP_TRY(hpi_clock_advance(&s->clock));
    HP_TRY(check_through(s));
    *out_end_ns = s->clock.now_ns;
    return HP_OK;
}

static void release(simulation *s) {
    for (uint64_t i = 0; i < s->n_own; i++)
        hpi_program_destroy(&s->own[i]);
    for (uint32_t rank = 0; s->delays && rank < s->job->n_ranks; rank++)
        hpi_delay_destroy(s->delays[rank]);
    hpi_clock_destroy(&s->clock);
    hpi_meetings_destroy(&s->clock.meetings);
    hpi_costs_destroy(&s->costs);
    hpi_free(s->delays);
    hpi_free(s->programs);
    hpi_free(s->own);
}

hp_status hp_simulate(const hp_job *job, const hp_cost_model *costs, const char *delay,
                      hp_moment *const *out_moments, hp_executor_stats *out_stats,
                      uint64_t *out_end_ns) {
    if (!job || !out_end_ns)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a job and a place for its end, given %s",
                        job ? "no place" : "no job");
    HP_TRY(check_job(job));
    simulation s = {.job = job, .moments = out_moments, .stats = out_stats};
    const hp_status status = run(&s, costs, delay, out_end_ns);
    release(&s);
    return status;
}
