/* SPDX-License-Identifier: Apache-2.0
 *
 * every_order.h - a job small enough to be tried in every order: the oracle of hp_verify.
 *
 * An operation is waiting, begun or done. A state says which is which; the search goes through all
 * states that the rules of stream.h allow, by beginning or ending one operation at a time, and
 * looks in each for what no rule may ever see: two that touch the same bytes at one time, a life
 * used outside its allocate and release, a communicator with two collectives of a rank, a state
 * that nothing leaves. Nothing is shared with the verifier: no clocks, no order of a walk.
 */
#ifndef TESTS_EVERY_ORDER_H
#define TESTS_EVERY_ORDER_H

#include "job_bench.h"

enum { EVERY_MOST_OPS = 11, EVERY_STATES = 1 << 2 * EVERY_MOST_OPS };
enum { EVERY_WAITING, EVERY_BEGUN, EVERY_DONE };

struct every {
    const hp_job *job;
    struct {
        uint32_t rank, step;
        const hp_op *op;
        uint32_t before; /* on its stream; UINT32_MAX: none */
        uint32_t last;   /* its end, or itself */
    } ops[EVERY_MOST_OPS];
    uint32_t n_ops;
    const char *fault; /* the first that was found; NULL: none */
    uint8_t *is_seen;  /* [EVERY_STATES] */
    uint32_t *seen, n_seen;
};

typedef uint32_t every_state;

static inline unsigned every_at(every_state state, uint32_t i) {
    return state >> 2 * i & 3;
}

static inline hp_role every_role(const struct every *e, uint32_t i) {
    return e->job->kinds[e->ops[i].op->kind].role;
}

static inline uint32_t every_find(const struct every *e, uint32_t rank, uint32_t step,
                                  uint32_t id) {
    for (uint32_t i = 0; i < e->n_ops; i++)
        if (e->ops[i].rank == rank && e->ops[i].step == step && e->ops[i].op->id == id)
            return i;
    return UINT32_MAX;
}

static inline bool every_are_members(const struct every *e, uint32_t comm, uint32_t a, uint32_t b) {
    const int *colors = e->job->colors + comm * e->job->n_ranks;
    return a == b || (comm && colors[a] >= 0 && colors[a] == colors[b]);
}

/* Is `b` what another member, or the same, does in the collective `a`? */
static inline bool every_is_partner(const struct every *e, uint32_t a, uint32_t b) {
    const hp_op *x = e->ops[a].op, *y = e->ops[b].op;
    if (!x->comm)
        return a == b;
    return x->comm == y->comm && x->seq == y->seq && e->ops[a].step == e->ops[b].step &&
           every_are_members(e, x->comm, e->ops[a].rank, e->ops[b].rank);
}

/* Have all members come at least so far? */
static inline bool every_all(const struct every *e, every_state state, uint32_t i, unsigned far) {
    for (uint32_t k = 0; k < e->n_ops; k++)
        if (every_is_partner(e, i, k) && every_at(state, k) < far)
            return false;
    return true;
}

/* ---- what it touches ---- */

static inline hp_ref every_ref(const struct every *e, uint32_t i, int k) {
    return k < 2 ? e->ops[i].op->reads[k] : e->ops[i].op->writes[k - 2];
}

static inline bool every_is_life(const struct every *e, uint32_t i) {
    return every_role(e, i) == HP_ROLE_ALLOCATE || every_role(e, i) == HP_ROLE_RELEASE;
}

static inline bool every_is_used(const struct every *e, uint32_t i, int k) {
    const hp_ref ref = every_ref(e, i, k);
    return ref.buffer && ref.begin < ref.end && !every_is_life(e, i);
}

static inline bool every_is_touching(const struct every *e, every_state state, uint32_t i, int k) {
    const bool is_by_peers = k < 2 && e->ops[i].op->comm && (e->ops[i].op->peers_read >> k & 1);
    if (!every_is_used(e, i, k) || every_at(state, i) == EVERY_WAITING)
        return false;
    return every_at(state, e->ops[i].last) != EVERY_DONE ||
           (is_by_peers && !every_all(e, state, i, EVERY_DONE));
}

static inline bool every_is_same_memory(const struct every *e, uint32_t i, uint32_t j,
                                        uint32_t buffer) {
    return every_are_members(e, e->job->buffers[buffer].shared_by, e->ops[i].rank, e->ops[j].rank);
}

static inline bool every_collide(const struct every *e, every_state state, uint32_t i, int k,
                                 uint32_t j, int l) {
    const hp_ref a = every_ref(e, i, k), b = every_ref(e, j, l);
    return (k >= 2 || l >= 2) && a.buffer == b.buffer && every_is_same_memory(e, i, j, a.buffer) &&
           a.begin < b.end && b.begin < a.end && every_is_touching(e, state, i, k) &&
           every_is_touching(e, state, j, l);
}

static inline bool every_races(const struct every *e, every_state state, uint32_t i) {
    for (uint32_t j = 0; j < e->n_ops; j++)
        for (int kl = 0; kl < 16 && j != i; kl++)
            if (every_collide(e, state, i, kl / 4, j, kl % 4))
                return true;
    return false;
}

/* ---- lives ---- */

/* The operation of this rank and step that begins or ends a life. */
static inline uint32_t every_life(const struct every *e, uint32_t i, hp_role role, hp_ref ref) {
    for (uint32_t k = 0; k < e->n_ops; k++) {
        const hp_ref other = every_ref(e, k, role == HP_ROLE_ALLOCATE ? 2 : 0);
        if (e->ops[k].rank == e->ops[i].rank && e->ops[k].step == e->ops[i].step &&
            every_role(e, k) == role && other.buffer == ref.buffer && other.life == ref.life)
            return k;
    }
    return UINT32_MAX;
}

/* `i` begins now: is the life that it names there, and as long as it needs? */
static inline bool every_lives(const struct every *e, every_state state, uint32_t i, hp_ref ref) {
    const uint32_t begin = every_life(e, i, HP_ROLE_ALLOCATE, ref);
    const uint32_t end = every_life(e, i, HP_ROLE_RELEASE, ref);
    if (begin == UINT32_MAX || every_at(state, begin) != EVERY_DONE)
        return false;
    const hp_ref all = every_ref(e, begin, 2);
    return ref.begin >= all.begin && ref.end <= all.end &&
           (end == UINT32_MAX || end == i || every_at(state, end) == EVERY_WAITING);
}

static inline bool every_is_free(const struct every *e, every_state state, uint32_t release) {
    const hp_ref life = every_ref(e, release, 0);
    for (uint32_t j = 0; j < e->n_ops; j++)
        for (int k = 0; k < 4; k++) {
            const hp_ref ref = every_ref(e, j, k);
            if (e->ops[j].rank == e->ops[release].rank && ref.buffer == life.buffer &&
                every_is_touching(e, state, j, k))
                return false;
        }
    return true;
}

static inline const char *every_check_lives(const struct every *e, every_state state, uint32_t i) {
    const hp_ref made = every_ref(e, i, 2);
    if (every_role(e, i) == HP_ROLE_ALLOCATE) {
        const hp_ref before = {made.buffer, made.life - 1, 0, 0};
        const uint32_t end = every_life(e, i, HP_ROLE_RELEASE, before);
        const bool is_first = made.life == 1;
        return is_first || (end != UINT32_MAX && every_at(state, end) == EVERY_DONE) ? NULL
                                                                                     : "reuse";
    }
    for (int k = 0; k < 4; k++) {
        const hp_ref ref = every_ref(e, i, k);
        const bool is_named = every_is_used(e, i, k) || (every_is_life(e, i) && ref.buffer);
        if (is_named && ref.life && !every_lives(e, state, i, ref))
            return "life";
    }
    return every_role(e, i) != HP_ROLE_RELEASE || every_is_free(e, state, i) ? NULL : "release";
}

/* ---- what can happen ---- */

static inline bool every_can_begin(const struct every *e, every_state state, uint32_t i) {
    const hp_op *op = e->ops[i].op;
    const uint32_t before = e->ops[i].before;
    if (before != UINT32_MAX && every_at(state, before) != EVERY_DONE)
        return false;
    for (uint32_t w = 0; w < op->n_waits; w++) {
        const uint32_t k =
            every_find(e, e->ops[i].rank, e->ops[i].step, hpi_event_op(op->waits[w]));
        if (every_at(state, k) != EVERY_DONE ||
            (hpi_event_is_drained(op->waits[w]) && !every_all(e, state, k, EVERY_DONE)))
            return false;
    }
    for (uint32_t k = 0; k < e->n_ops; k++)
        if (e->ops[k].rank == e->ops[i].rank && e->ops[k].step < e->ops[i].step &&
            !every_all(e, state, k, EVERY_DONE))
            return false;
    return true;
}

/* Collectives of one rank on one communicator go one after the other. */
static inline bool every_is_its_turn(const struct every *e, every_state state, uint32_t i) {
    const hp_op *op = e->ops[i].op;
    for (uint32_t k = 0; k < e->n_ops && op->comm; k++)
        if (e->ops[k].rank == e->ops[i].rank && e->ops[k].step == e->ops[i].step &&
            e->ops[k].op->comm == op->comm && e->ops[k].op->seq < op->seq &&
            every_at(state, k) != EVERY_DONE)
            return false;
    return true;
}

static inline void every_find_fault(struct every *e, every_state state, uint32_t begun) {
    if (e->fault)
        return;
    const every_state before = state ^ (every_state)EVERY_BEGUN << 2 * begun;
    e->fault = every_check_lives(e, before, begun);
    if (!e->fault && every_races(e, state, begun))
        e->fault = "race";
    if (!e->fault && !every_is_its_turn(e, before, begun))
        e->fault = "order";
}

static inline void every_visit(struct every *e, every_state state) {
    if (e->is_seen[state] || e->fault)
        return;
    e->is_seen[state] = 1;
    e->seen[e->n_seen++] = state;
    bool is_stuck = false, has_moved = false;
    for (uint32_t i = 0; i < e->n_ops && !e->fault; i++) {
        const unsigned at = every_at(state, i);
        is_stuck |= at != EVERY_DONE;
        if (at == EVERY_WAITING && every_can_begin(e, state, i)) {
            const every_state next = state | (every_state)EVERY_BEGUN << 2 * i;
            has_moved = true;
            every_find_fault(e, next, i);
            every_visit(e, next);
        } else if (at == EVERY_BEGUN && every_all(e, state, i, EVERY_BEGUN)) {
            has_moved = true;
            every_visit(e, state ^ (every_state)(EVERY_BEGUN ^ EVERY_DONE) << 2 * i);
        }
    }
    if (is_stuck && !has_moved && !e->fault)
        e->fault = "circle";
}

/* The same with each list in its order, as HP_EXECUTOR_INLINE runs it. */
static inline void every_run_in_order(struct every *e) {
    every_state state = 0;
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (uint32_t i = 0; i < e->n_ops; i++) {
            const bool is_first = i == 0 || e->ops[i - 1].rank != e->ops[i].rank ||
                                  every_at(state, i - 1) == EVERY_DONE;
            if (every_at(state, i) == EVERY_WAITING && is_first) {
                state |= (every_state)EVERY_BEGUN << 2 * i;
                has_moved = true;
            }
            if (every_at(state, i) == EVERY_BEGUN && every_all(e, state, i, EVERY_BEGUN)) {
                state ^= (every_state)(EVERY_BEGUN ^ EVERY_DONE) << 2 * i;
                has_moved = true;
            }
        }
    }
    for (uint32_t i = 0; i < e->n_ops && !e->fault; i++)
        if (every_at(state, i) != EVERY_DONE)
            e->fault = "circle in list order";
}

/* ---- what needs no order ---- */

static inline const char *every_check_life_counts(const struct every *e, uint32_t i) {
    for (int k = 0; k < 4; k++) {
        const hp_ref ref = every_ref(e, i, k);
        for (uint32_t j = 0; every_is_used(e, i, k) && !ref.life && j < e->n_ops; j++)
            if (every_role(e, j) == HP_ROLE_ALLOCATE && every_ref(e, j, 2).buffer == ref.buffer)
                return "no life";
    }
    if (every_role(e, i) == HP_ROLE_ALLOCATE) {
        const hp_ref ref = every_ref(e, i, 2);
        if (every_life(e, i, HP_ROLE_ALLOCATE, ref) != i)
            return "allocated twice";
        if (every_life(e, i, HP_ROLE_RELEASE, ref) == UINT32_MAX)
            return "never released";
    }
    if (every_role(e, i) == HP_ROLE_RELEASE &&
        every_life(e, i, HP_ROLE_RELEASE, every_ref(e, i, 0)) != i)
        return "released twice";
    return NULL;
}

static inline const char *every_check_members(const struct every *e, uint32_t i) {
    const hp_op *op = e->ops[i].op;
    for (uint32_t rank = 0; op->comm && rank < e->job->n_ranks; rank++) {
        if (!every_are_members(e, op->comm, e->ops[i].rank, rank))
            continue;
        bool has_come = false;
        for (uint32_t k = 0; k < e->n_ops; k++)
            has_come |= every_is_partner(e, i, k) && e->ops[k].rank == rank &&
                        e->ops[k].op->bytes == op->bytes;
        if (!has_come)
            return "match";
    }
    return NULL;
}

static inline void every_add(struct every *e, uint32_t rank, uint32_t step, const hp_op *op) {
    const uint32_t i = e->n_ops++;
    e->ops[i].rank = rank;
    e->ops[i].step = step;
    e->ops[i].op = op;
    e->ops[i].before = UINT32_MAX;
    e->ops[i].last = i;
    for (uint32_t k = 0; k < i; k++) {
        if (e->ops[k].rank != rank || e->ops[k].step != step)
            continue;
        if (e->ops[k].op->stream == op->stream)
            e->ops[i].before = k;
    }
    for (uint32_t k = i; every_role(e, i) == HP_ROLE_END && k-- > 0;)
        if (e->ops[k].rank == rank && e->ops[k].step == step && e->ops[k].op->unit == op->unit &&
            every_role(e, k) == HP_ROLE_BEGIN && e->ops[k].last == k) {
            e->ops[k].last = i;
            break;
        }
}

static inline int every_make(struct every *e) {
    e->is_seen = calloc(EVERY_STATES, 1);
    e->seen = malloc(EVERY_STATES * sizeof *e->seen);
    return e->is_seen && e->seen ? 0 : -1;
}

static inline void every_drop(struct every *e) {
    free(e->is_seen);
    free(e->seen);
}

static inline void every_read(struct every *e, const hp_job *job) {
    e->job = job;
    e->n_ops = 0;
    for (uint32_t rank = 0; rank < job->n_ranks; rank++)
        for (uint32_t step = 0; step < job->n_steps; step++) {
            const hp_list *list = &job->lists[step * job->n_ranks + rank];
            for (uint32_t id = 0; id < list->n; id++)
                every_add(e, rank, step, &list->ops[id]);
        }
}

/* What an order of the job breaks; NULL: none breaks anything. Its lists are whole. */
static inline const char *every_judge(struct every *e, const hp_job *job) {
    e->n_seen = 0;
    e->fault = NULL;
    every_read(e, job);
    for (uint32_t i = 0; i < e->n_ops && !e->fault; i++) {
        e->fault = every_check_life_counts(e, i);
        e->fault = e->fault ? e->fault : every_check_members(e, i);
    }
    if (!e->fault)
        every_run_in_order(e);
    if (!e->fault)
        every_visit(e, 0);
    for (uint32_t k = 0; k < e->n_seen; k++)
        e->is_seen[e->seen[k]] = 0;
    return e->fault;
}

#endif
