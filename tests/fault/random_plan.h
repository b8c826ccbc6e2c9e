/* SPDX-License-Identifier: Apache-2.0
 *
 * random_plan.h - a list of random operations over overlapping groups, from one seed.
 *
 * An operation is data: which group or memory, who sends to whom, what must come out. Every rank
 * makes the same list for itself, without a word to the others, and plays its own part of it
 * (random.h); whoever looks for a fault makes it once more to print it. The plan knows which groups
 * and memories there are when an operation's turn comes.
 */
#ifndef RANDOM_PLAN_H
#define RANDOM_PLAN_H

#include "support/coll_bench.h"

#include <stdio.h>
#include <string.h>

enum { RANDOM_RANKS = 5, RANDOM_GROUPS = 8, RANDOM_MEMORIES = 6 };
enum {
    OPERAND_BYTES = 320 * 1024,
    STAGE_BYTES = 128 * 1024 /* a cell of src/coll/staged/stage.c */
};

/* ---- the block of a memory: words, then a region for each pair and direction, then a tail ---- */

enum { BY_PUT, BY_GET, N_WAYS };
enum { READY, ACKNOWLEDGED, N_ROLES };
enum { REGION_BYTES = 2048, TAIL_BYTES = 4096 };
enum {
    SUM_AT = N_WAYS * N_ROLES * RANDOM_RANKS * 8,
    REGIONS_AT = SUM_AT + 32,
    TAIL_AT = REGIONS_AT + N_WAYS * RANDOM_RANKS * REGION_BYTES
};
/* The word at whoever waits for it, about its partner of this way. */
static inline uint64_t random_word_at(int way, int role, int partner) {
    return (uint64_t)((way * N_ROLES + role) * RANDOM_RANKS + partner) * 8;
}
static inline uint64_t random_region_at(int way, int partner) {
    return REGIONS_AT + (uint64_t)(way * RANDOM_RANKS + partner) * REGION_BYTES;
}

/* ---- what there is, and what is done next ---- */

typedef struct plan_group {
    int n, members[RANDOM_RANKS]; /* world ranks in the group's order; n is 0 where there is none */
} plan_group;

typedef struct plan_memory {
    int group; /* that it was allocated over; -1: there is none */
    bool is_spanning;
    uint64_t alignment, tail_bytes;
    uint64_t last[N_WAYS][RANDOM_RANKS][RANDOM_RANKS]; /* number of the last operation of a pair */
    uint64_t sums[RANDOM_RANKS];                       /* of all that was added, by target */
} plan_memory;

typedef enum random_what {
    CREATE_GROUP,
    SPLIT_GROUP,
    DUPLICATE_GROUP,
    END_GROUP,
    MAKE_MEMORY,
    END_MEMORY,
    COLLECTIVE,
    REDUCE_BY_WIRE,
    BARRIER,
    MESSAGES,
    PUT,
    GET,
    ADD,
    N_RANDOM_WHATS
} random_what;

enum { MOST_MESSAGES = 24 }; /* more than a ring of src/coll/mailbox.h takes: its sender waits */
typedef struct random_op {
    uint64_t number; /* from 1; the seed of its data too */
    random_what what;
    int group, made[2]; /* the group that takes part; slots of the groups that come out of it */
    int colors[RANDOM_RANKS], keys[RANDOM_RANKS]; /* of a split, by rank of `group` */
    int memory, from, to;                         /* ranks of `group` */
    uint64_t offset, bytes, last; /* in a region; the number that must be acknowledged before */
    uint64_t terms[RANDOM_RANKS]; /* of ADD, by rank */
    uint64_t counts[MOST_MESSAGES];
    int n_messages;
    bool is_answered;
    uint64_t way; /* any number: in which of several equal ways it is done */
    hp_wire wire;
    coll_case c;
} random_op;

typedef struct random_plan {
    uint64_t state, number;
    int n; /* ranks of the world */
    plan_group groups[RANDOM_GROUPS];
    plan_memory memories[RANDOM_MEMORIES];
} random_plan;

static inline uint64_t random_below(uint64_t *state, uint64_t n) {
    return (hpi_random_next(state) >> 8) % n;
}
static inline int plan_below(random_plan *p, int n) {
    return (int)random_below(&p->state, (uint64_t)n);
}

/* Group 0 is the world and stays. */
static inline void random_plan_begin(random_plan *p, uint64_t seed, int n) {
    memset(p, 0, sizeof *p);
    p->state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    p->n = n;
    p->groups[0].n = n;
    for (int i = 0; i < n; i++)
        p->groups[0].members[i] = i;
    for (int m = 0; m < RANDOM_MEMORIES; m++)
        p->memories[m].group = -1;
}

/* One of the groups that are there with `least` ranks or more, or of the free slots; -1: none. */
static inline int plan_pick_group(random_plan *p, bool is_there, int least) {
    int picked = -1, n_seen = 0;
    for (int g = 0; g < RANDOM_GROUPS; g++)
        if (is_there ? p->groups[g].n >= least : p->groups[g].n == 0)
            picked = plan_below(p, ++n_seen) == 0 ? g : picked;
    return picked;
}

static inline int plan_pick_memory(random_plan *p, bool is_there) {
    int picked = -1, n_seen = 0;
    for (int m = 0; m < RANDOM_MEMORIES; m++)
        if ((p->memories[m].group >= 0) == is_there)
            picked = plan_below(p, ++n_seen) == 0 ? m : picked;
    return picked;
}

static inline int plan_rank_in(const plan_group *g, int world_rank) {
    for (int i = 0; i < g->n; i++)
        if (g->members[i] == world_rank)
            return i;
    return -1;
}

/* ---- each kind of operation: false where it cannot be done now ---- */

static inline bool plan_create(random_plan *p, random_op *op) {
    int left[RANDOM_RANKS];
    op->made[0] = plan_pick_group(p, false, 0);
    if (op->made[0] < 0)
        return false;
    plan_group *g = &p->groups[op->made[0]];
    for (int i = 0; i < p->n; i++)
        left[i] = i;
    g->n = 1 + plan_below(p, p->n);
    for (int i = 0; i < g->n; i++) {
        const int k = plan_below(p, p->n - i);
        g->members[i] = left[k];
        left[k] = left[p->n - i - 1];
    }
    op->group = op->made[0];
    return true;
}

/* Members of one color, by key and then by rank in the parent. */
static inline void plan_split_one(const random_op *op, const plan_group *parent, int color,
                                  plan_group *out) {
    out->n = 0;
    for (int key = 0; key < 3; key++)
        for (int r = 0; r < parent->n; r++)
            if (op->colors[r] == color && op->keys[r] == key)
                out->members[out->n++] = parent->members[r];
}

static inline bool plan_split(random_plan *p, random_op *op) {
    op->group = plan_pick_group(p, true, 1);
    const plan_group *parent = &p->groups[op->group];
    for (int r = 0; r < parent->n; r++) {
        op->colors[r] = plan_below(p, 3) - 1;
        op->keys[r] = plan_below(p, 3);
    }
    for (int color = 0; color < 2; color++) {
        plan_group one;
        plan_split_one(op, parent, color, &one);
        op->made[color] = one.n ? plan_pick_group(p, false, 0) : -1;
        if (one.n && op->made[color] < 0) { /* no room: as if nobody had asked */
            for (int r = 0; r < parent->n; r++)
                op->colors[r] = op->colors[r] == color ? -1 : op->colors[r];
            continue;
        }
        if (one.n)
            p->groups[op->made[color]] = one;
    }
    return true;
}

static inline bool plan_duplicate(random_plan *p, random_op *op) {
    op->made[0] = plan_pick_group(p, false, 0);
    if (op->made[0] < 0)
        return false;
    op->group = plan_pick_group(p, true, 1);
    p->groups[op->made[0]] = p->groups[op->group];
    return true;
}

/* The player ends the group's memories first, by the plan as it was before. */
static inline bool plan_end_group(random_plan *p, random_op *op) {
    op->group = plan_pick_group(p, true, 1);
    return op->group > 0;
}

static inline bool plan_make_memory(random_plan *p, random_op *op) {
    op->memory = plan_pick_memory(p, false);
    if (op->memory < 0)
        return false;
    plan_memory *m = &p->memories[op->memory];
    memset(m, 0, sizeof *m);
    op->group = m->group = plan_pick_group(p, true, 1);
    m->is_spanning = plan_below(p, 4) == 0;
    m->alignment = plan_below(p, 2) ? 0 : UINT64_C(1) << plan_below(p, 13);
    m->tail_bytes = random_below(&p->state, TAIL_BYTES);
    if (m->is_spanning)
        m->tail_bytes = hpi_align_up(TAIL_AT + m->tail_bytes, 64) - TAIL_AT;
    return true;
}

static inline bool plan_of_memory(random_plan *p, random_op *op) {
    op->memory = plan_pick_memory(p, true);
    if (op->memory < 0)
        return false;
    plan_memory *m = &p->memories[op->memory];
    op->group = m->group;
    const int n = p->groups[m->group].n;
    op->from = plan_below(p, n);
    op->to = plan_below(p, n);
    op->bytes = plan_below(p, 8) ? random_below(&p->state, 300) : REGION_BYTES / 2;
    op->offset = random_below(&p->state, REGION_BYTES - op->bytes + 1);
    if (op->what == PUT || op->what == GET) {
        uint64_t *last = &m->last[op->what == PUT ? BY_PUT : BY_GET][op->from][op->to];
        op->last = *last;
        *last = op->number;
    }
    for (int r = 0; op->what == ADD && r < n; r++) {
        op->terms[r] = plan_below(p, 3) ? random_below(&p->state, 1000) : 0;
        m->sums[op->to] += op->terms[r];
    }
    return true;
}

static inline bool plan_messages(random_plan *p, random_op *op) {
    op->group = plan_pick_group(p, true, 2);
    if (op->group < 0)
        return false;
    const int n = p->groups[op->group].n;
    op->from = plan_below(p, n);
    op->to = (op->from + 1 + plan_below(p, n - 1)) % n;
    op->c.dtype = (hp_dtype)plan_below(p, 8);
    op->n_messages = plan_below(p, 6) ? 1 + plan_below(p, 4) : MOST_MESSAGES;
    op->is_answered = plan_below(p, 3) == 0;
    for (int i = 0; i < op->n_messages; i++) {
        const uint64_t cell = 8192 / hp_dtype_size(op->c.dtype); /* so much does one hold */
        op->counts[i] = random_below(&p->state, 70);
        if (op->n_messages < MOST_MESSAGES && plan_below(p, 6) == 0)
            op->counts[i] =
                (op->way % 8 ? 1 + 2 * (op->way % 2) : 20) * cell - 1 + random_below(&p->state, 3);
    }
    return true;
}

/* Elements of one part: few, or beside a threshold. `parts` of them must fit into an operand. */
static inline uint64_t plan_count(random_plan *p, uint64_t element_bytes, uint64_t parts, int n) {
    const uint64_t marks[] = {HPI_SMALL_BYTES, HPI_POCKET_BYTES, HPI_CHUNK_BYTES,
                              STAGE_BYTES / (uint64_t)n / 64 * 64, STAGE_BYTES};
    const uint64_t mark = plan_below(p, 8) ? 0 : marks[plan_below(p, 5)] / element_bytes;
    const uint64_t count = mark ? mark - 1 + random_below(&p->state, 3) : 0;
    if (mark && (count + 16) * parts * hpi_max(element_bytes, 4) <= OPERAND_BYTES)
        return count;
    return plan_below(p, 5) ? random_below(&p->state, 70) : random_below(&p->state, 2);
}

static inline bool plan_collective(random_plan *p, random_op *op) {
    coll_case *c = &op->c;
    op->group = plan_pick_group(p, true, 1);
    const int n = p->groups[op->group].n;
    c->what = (hp_collective)plan_below(p, HP_BARRIER);
    c->dtype = c->out_dtype = (hp_dtype)plan_below(p, 8);
    c->op = (hp_reduce)plan_below(p, 4);
    if (c->op == HP_AVG && !hpi_dtype_is_float(c->dtype))
        c->op = HP_SUM;
    const bool is_reduction =
        c->what == HP_REDUCE_SCATTER || c->what == HP_REDUCE_SCATTER_V || c->what == HP_ALL_REDUCE;
    if (is_reduction && plan_below(p, 4) == 0)
        c->out_dtype = hpi_sum_dtype(c->dtype);
    c->blocks = 1;
    if (plan_below(p, 8) == 0 && (c->what == HP_ALL_GATHER || c->what == HP_REDUCE_SCATTER))
        c->blocks = 3;
    c->where = (whereabouts)plan_below(p, N_MEMORIES);
    c->in_place = bench_can_be_in_place(c) && plan_below(p, 2);
    c->root = plan_below(p, n);
    const bool is_v = hpi_is_v(c->what);
    c->skew = is_v ? (skew)plan_below(p, 3) : EVEN;
    c->layout = is_v ? (layout)plan_below(p, 3) : PACKED;
    const bool is_whole = c->what == HP_ALL_REDUCE || c->what == HP_BROADCAST;
    c->count = plan_count(p, hp_dtype_size(c->dtype),
                          c->blocks * (is_v ? 2 : 1) * (uint64_t)(is_whole ? 1 : n), n);
    return true;
}

static inline bool plan_wire(random_plan *p, random_op *op) {
    static const hp_dtype dtypes[] = {HP_FP32, HP_FP16, HP_BF16};
    coll_case *c = &op->c;
    op->group = plan_pick_group(p, true, 1);
    c->what = plan_below(p, 2) ? HP_ALL_REDUCE : HP_REDUCE_SCATTER;
    c->dtype = c->out_dtype = dtypes[plan_below(p, 3)];
    c->op = (hp_reduce)plan_below(p, 4);
    c->where = plan_below(p, 2) ? SYMMETRIC : ORDINARY;
    c->in_place = plan_below(p, 2);
    c->count = plan_below(p, 4) ? random_below(&p->state, 70) : random_below(&p->state, 1500);
    op->wire = (hp_wire)(HP_WIRE_FP16 + plan_below(p, 4));
    return true;
}

static inline bool plan_barrier(random_plan *p, random_op *op) {
    op->group = plan_pick_group(p, true, 1);
    return true;
}

/* The next operation. What cannot be done now becomes a barrier of everybody. `p` is then as it is
 * before the operation but for the counts and groups that it makes: END_ takes effect with
 * random_plan_done. */
static inline void random_plan_next(random_plan *p, random_op *op) {
    static const struct {
        bool (*plan)(random_plan *, random_op *);
        int weight;
    } kinds[N_RANDOM_WHATS] = {[CREATE_GROUP] = {plan_create, 8},
                               [SPLIT_GROUP] = {plan_split, 4},
                               [DUPLICATE_GROUP] = {plan_duplicate, 3},
                               [END_GROUP] = {plan_end_group, 10},
                               [MAKE_MEMORY] = {plan_make_memory, 8},
                               [END_MEMORY] = {plan_of_memory, 4},
                               [COLLECTIVE] = {plan_collective, 70},
                               [REDUCE_BY_WIRE] = {plan_wire, 8},
                               [BARRIER] = {plan_barrier, 6},
                               [MESSAGES] = {plan_messages, 30},
                               [PUT] = {plan_of_memory, 30},
                               [GET] = {plan_of_memory, 20},
                               [ADD] = {plan_of_memory, 12}};
    int total = 0, what = 0;
    for (int i = 0; i < N_RANDOM_WHATS; i++)
        total += kinds[i].weight;
    for (int at = plan_below(p, total); at >= kinds[what].weight; what++)
        at -= kinds[what].weight;
    *op = (random_op){.number = ++p->number, .what = (random_what)what, .made = {-1, -1}};
    op->way = hpi_random_next(&p->state) >> 8;
    if (!kinds[what].plan(p, op))
        *op = (random_op){.number = p->number, .what = BARRIER, .made = {-1, -1}};
}

static inline void random_plan_done(random_plan *p, const random_op *op) {
    if (op->what == END_MEMORY)
        p->memories[op->memory].group = -1;
    if (op->what != END_GROUP)
        return;
    for (int m = 0; m < RANDOM_MEMORIES; m++)
        if (p->memories[m].group == op->group)
            p->memories[m].group = -1;
    p->groups[op->group].n = 0;
}

static inline void random_op_print(const random_plan *p, const random_op *op, char *text,
                                   size_t size) {
    static const char *const names[N_RANDOM_WHATS] = {
        "create",     "split",          "duplicate", "end a group", "make a memory", "end a memory",
        "collective", "reduce by wire", "barrier",   "messages",    "put",           "get",
        "add"};
    const plan_group *g = &p->groups[op->group];
    int length = snprintf(text, size, "operation %llu, %s, in group %d of world ranks",
                          (unsigned long long)op->number, names[op->what], op->group);
    for (int i = 0; i < g->n; i++)
        length += snprintf(text + length, size - (size_t)length, " %d", g->members[i]);
    if (op->what == COLLECTIVE || op->what == REDUCE_BY_WIRE)
        snprintf(text + length, size - (size_t)length, ": %s of %llu %s, memory %d%s",
                 hpi_collective_name(op->c.what), (unsigned long long)op->c.count,
                 hp_dtype_name(op->c.dtype), (int)op->c.where, op->c.in_place ? ", in place" : "");
    else if (op->what >= MESSAGES)
        snprintf(text + length, size - (size_t)length, ": from %d to %d, memory %d, %llu bytes",
                 op->from, op->to, op->memory, (unsigned long long)op->bytes);
}

#endif
