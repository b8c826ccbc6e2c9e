/* SPDX-License-Identifier: Apache-2.0
 *
 * random_lanes.h - several streams on a rank, each with a group of its own: three lanes.
 *
 * The groups overlap, so two ranks may meet in three lanes at once. All members put the same calls
 * on a lane, in its order; which lane gets its next call first is each rank's own affair. Six calls
 * of a lane are under way before anybody waits. All values follow from a call's number.
 */
#ifndef RANDOM_LANES_H
#define RANDOM_LANES_H

#include "random.h"

enum { LANES = 3, LANE_CALLS = 6, LANE_COUNT = 900 /* elements of one part */ };
#define LANE_BYTES (UINT64_C(8) * RANDOM_RANKS * LANE_COUNT)

/* A group with a stream of its own, and the calls that are on it. */
typedef struct lane {
    plan_group planned;
    hp_group *group;
    hp_stream *stream;
    int rank, n_put;
    hp_coll_call calls[LANE_CALLS];
    int64_t *in[LANE_CALLS], *out[LANE_CALLS]; /* LANE_BYTES each */
} lane;

/* Element k of what rank r gives to call `id`: closed, so that nobody has to be asked. */
static inline int64_t lane_value(uint64_t id, int r, uint64_t k) {
    uint64_t state = (id * RANDOM_RANKS + (uint64_t)r) * 16384 + k;
    return (int64_t)(hpi_random_next(&state) >> 8);
}

/* The call of this number: the same on every member; false for a member that takes no part. */
static inline bool lane_plan(lane *l, int number, uint64_t id, hp_coll_call *call) {
    uint64_t state = id * 977;
    static const hp_collective kinds[] = {HP_ALL_GATHER, HP_REDUCE_SCATTER, HP_ALL_REDUCE,
                                          HP_ALL_TO_ALL, HP_BROADCAST,      HP_SEND};
    const int n = l->planned.n;
    *call = (hp_coll_call)HP_COLL_CALL_INIT;
    call->what = kinds[random_below(&state, n > 1 ? 6 : 5)];
    call->group = l->group;
    call->stream = l->stream;
    call->in = l->in[number];
    call->out = l->out[number];
    call->dtype = HP_INT64;
    call->count = random_below(&state, random_below(&state, 4) ? 40 : LANE_COUNT);
    const int from = (int)random_below(&state, (uint64_t)n);
    call->rank = from; /* root of a broadcast */
    if (call->what != HP_SEND)
        return true;
    const int to = (from + 1 + (int)random_below(&state, (uint64_t)n - 1)) % n;
    call->what = l->rank == from ? HP_SEND : HP_RECV;
    call->rank = l->rank == from ? to : from;
    return l->rank == from || l->rank == to;
}

static inline int64_t lane_expected(const lane *l, const hp_coll_call *c, uint64_t id, uint64_t k) {
    const int part = (int)(k / hpi_max(c->count, 1));
    uint64_t sum = 0;
    switch (c->what) {
    case HP_ALL_GATHER:
        return lane_value(id, part, k % c->count);
    case HP_ALL_TO_ALL:
        return lane_value(id, part, (uint64_t)l->rank * c->count + k % c->count);
    case HP_BROADCAST:
    case HP_RECV:
        return lane_value(id, c->rank, k);
    default:
        for (int r = 0; r < l->planned.n; r++)
            sum += (uint64_t)lane_value(
                id, r, k + (c->what == HP_REDUCE_SCATTER ? (uint64_t)l->rank * c->count : 0));
        return (int64_t)sum;
    }
}

static inline void lane_put(lane *l, uint64_t round_id) {
    const int number = l->n_put++;
    const uint64_t id = round_id * LANE_CALLS + (uint64_t)number;
    hp_coll_call *call = &l->calls[number];
    if (!lane_plan(l, number, id, call)) {
        call->what = HP_BARRIER; /* not put on the stream: nothing to check */
        return;
    }
    const bool is_root = call->what == HP_BROADCAST && call->rank == l->rank;
    for (uint64_t k = 0; k < call->count * (uint64_t)l->planned.n; k++) {
        l->in[number][k] = lane_value(id, l->rank, k);
        l->out[number][k] = is_root ? l->in[number][k] : -1;
    }
    RANK_OK(hp_coll_run(call));
}

static inline void lane_check(const lane *l, uint64_t round_id) {
    RANK_OK(hp_stream_synchronize(l->stream));
    for (int i = 0; i < LANE_CALLS; i++) {
        const hp_coll_call *c = &l->calls[i];
        const bool is_wide = c->what == HP_ALL_GATHER || c->what == HP_ALL_TO_ALL;
        const uint64_t n = c->count * (uint64_t)(is_wide ? l->planned.n : 1);
        for (uint64_t k = 0; k < n && c->what != HP_SEND && c->what != HP_BARRIER; k++)
            RANK_CHECK(l->out[i][k] == lane_expected(l, c, round_id * LANE_CALLS + (uint64_t)i, k));
    }
}

/* Every lane gets its calls in order; which lane is next is each rank's own affair. */
static inline void lanes_fly(lane *lanes, uint64_t round_id, uint64_t *pace) {
    int left = 0;
    for (int i = 0; i < LANES; i++) {
        lanes[i].n_put = 0;
        left += lanes[i].rank >= 0 ? LANE_CALLS : 0;
    }
    while (left > 0) {
        const int i = (int)random_below(pace, LANES);
        if (lanes[i].rank < 0 || lanes[i].n_put == LANE_CALLS)
            continue;
        random_delay(pace);
        lane_put(&lanes[i], round_id * LANES + (uint64_t)i);
        left--;
    }
    const int first = (int)random_below(pace, LANES);
    for (int i = 0; i < LANES; i++) {
        const int which = (first + i) % LANES;
        if (lanes[which].rank >= 0)
            lane_check(&lanes[which], round_id * LANES + (uint64_t)which);
    }
}

/* Another group, of any ranks in any order. `outs` is symmetric memory, `ins` is not; every second
 * call goes from the one to the other the other way round. */
static inline void lane_open(lane *l, random_plan *plan, hp_world *world, unsigned char *ins,
                             unsigned char *outs) {
    random_op op = {0};
    memset(l, 0, sizeof *l);
    memset(&plan->groups[1], 0, sizeof plan->groups - sizeof *plan->groups);
    RANK_CHECK(plan_create(plan, &op));
    l->planned = plan->groups[op.group];
    l->rank = plan_rank_in(&l->planned, hp_world_rank(world));
    for (uint64_t k = 0; k < LANE_CALLS; k++) {
        l->in[k] = (void *)((k % 2 ? outs : ins) + k * LANE_BYTES);
        l->out[k] = (void *)((k % 2 ? ins : outs) + k * LANE_BYTES);
    }
    if (l->rank < 0)
        return;
    RANK_OK(hp_group_create(world, l->planned.members, l->planned.n, &l->group));
    RANK_OK(hp_stream_create(NULL, &l->stream));
}

static inline void lane_close(lane *l) {
    hp_stream_destroy(l->stream);
    hp_group_destroy(l->group);
}

/* n_ops calls on each lane; the groups change every tenth round. */
static inline void lanes_body(hp_world *world, void *argument) {
    const random_job *job = argument;
    const int rank = hp_world_rank(world);
    const uint64_t bytes = LANES * LANE_CALLS * LANE_BYTES;
    uint64_t pace = job->seed * 64 + (uint64_t)rank;
    random_plan plan;
    lane lanes[LANES];
    hp_symm memory;
    void *base = NULL;
    random_plan_begin(&plan, job->seed, job->n);
    RANK_OK(hp_symm_alloc(world, NULL, bytes, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &base));
    unsigned char *outs = base, *ins = malloc(bytes);
    RANK_CHECK(ins);
    for (uint64_t round = 0; round * LANE_CALLS < job->n_ops; round++) {
        const bool is_last = round % 10 == 9 || (round + 1) * LANE_CALLS >= job->n_ops;
        for (uint64_t i = 0; i < LANES && round % 10 == 0; i++)
            lane_open(&lanes[i], &plan, world, ins + i * LANE_CALLS * LANE_BYTES,
                      outs + i * LANE_CALLS * LANE_BYTES);
        lanes_fly(lanes, round, &pace);
        for (int i = 0; i < LANES && is_last; i++)
            lane_close(&lanes[i]);
    }
    RANK_OK(hp_symm_free(memory));
    free(ins);
}

#endif
