/* SPDX-License-Identifier: Apache-2.0
 *
 * random.h - ranks that play a plan of random operations (random_plan.h), each at its own pace.
 *
 * A rank does its part of every operation that one of its groups takes part in, and nothing for the
 * others; it sleeps or spins before some of them, by a sequence of its own. All that arrives is
 * compared with what the operation's number says must: no two operations carry the same data. On a
 * failure the seed and what every rank was at are printed, and HP_TEST_SEED plays it again.
 */
#ifndef RANDOM_H
#define RANDOM_H

#include "random_plan.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

/* What a job is, and where its ranks are; the latter in memory that processes share. */
typedef struct random_job {
    uint64_t seed, n_ops;
    ranks_kind kind;
    int n;
    _Atomic uint64_t *at; /* [RANDOM_RANKS]: numbers of operations */
} random_job;

typedef struct player {
    hp_world *world;
    int rank; /* in the world */
    random_plan plan;
    uint64_t pace; /* state of this rank's own sequence */
    hp_group *groups[RANDOM_GROUPS];
    bench benches[RANDOM_GROUPS];
    hp_symm memories[RANDOM_MEMORIES];
    unsigned char *sent, *expected; /* OPERAND_BYTES each */
    float *terms[RANDOM_RANKS];
} player;

/* Up to 200 us late, before every fourth operation; seldom ten times that. */
static inline void random_delay(uint64_t *pace) {
    const uint64_t r = random_below(pace, 1024);
    const uint64_t ns = random_below(pace, 200 * 1000) * (r == 0 ? 10 : 1);
    if (r < 128) {
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    } else if (r < 256) {
        const uint64_t until = hpi_now_ns() + ns / 8;
        while (hpi_now_ns() < until) {
        }
    }
}

static inline int own_rank(const player *p, int group) {
    return plan_rank_in(&p->plan.groups[group], p->rank);
}

/* ---- groups ---- */

static inline void play_group_made(player *p, int g, hp_group *group) {
    const plan_group *planned = &p->plan.groups[g];
    p->groups[g] = group;
    RANK_CHECK(hp_group_size(group) == planned->n);
    for (int i = 0; i < planned->n; i++)
        RANK_CHECK(hp_group_world_rank(group, i) == planned->members[i]);
    bench_open(&p->benches[g], p->world, group, OPERAND_BYTES);
}

static inline void play_create(player *p, const random_op *op) {
    hp_group *group = NULL;
    const plan_group *planned = &p->plan.groups[op->group];
    RANK_OK(hp_group_create(p->world, planned->members, planned->n, &group));
    play_group_made(p, op->group, group);
}

static inline void play_split(player *p, const random_op *op) {
    hp_group *group = NULL;
    const int r = own_rank(p, op->group), color = op->colors[r];
    RANK_OK(hp_group_split(p->groups[op->group], color, op->keys[r], &group));
    RANK_CHECK((group != NULL) == (color >= 0));
    if (group)
        play_group_made(p, op->made[color], group);
}

static inline void play_duplicate(player *p, const random_op *op) {
    hp_group *group = NULL;
    RANK_OK(hp_group_duplicate(p->groups[op->group], &group));
    play_group_made(p, op->made[0], group);
}

/* ---- memories ---- */

static inline unsigned char *own_block(const player *p, int memory) {
    void *block = NULL;
    RANK_OK(hp_symm_pointer(p->memories[memory], own_rank(p, p->plan.memories[memory].group), NULL,
                            &block));
    return block;
}

static inline bool is_filled(const unsigned char *data, uint64_t bytes, unsigned char with) {
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != with)
            return false;
    return true;
}

static inline void play_make_memory(player *p, const random_op *op) {
    const plan_memory *m = &p->plan.memories[op->memory];
    const uint64_t bytes = TAIL_AT + m->tail_bytes;
    hp_group *group = p->groups[op->group];
    if (m->is_spanning)
        RANK_OK(hp_symm_alloc_spanning(p->world, group, bytes, &p->memories[op->memory]));
    else
        RANK_OK(hp_symm_alloc(p->world, group, bytes, m->alignment, &p->memories[op->memory]));
    unsigned char *block = own_block(p, op->memory);
    RANK_CHECK((uintptr_t)block % (m->alignment && !m->is_spanning ? m->alignment : 64) == 0);
    RANK_CHECK(is_filled(block + TAIL_AT, m->tail_bytes, 0)); /* nobody else writes there */
    memset(block + TAIL_AT, op->memory + 1, m->tail_bytes);
}

/* All that was added has come, and nothing was written behind the regions. */
static inline void play_end_memory(player *p, int memory) {
    const plan_memory *m = &p->plan.memories[memory];
    const unsigned char *block = own_block(p, memory);
    RANK_OK(hp_barrier(p->groups[m->group]));
    RANK_OK(hp_symm_wait(p->memories[memory], SUM_AT, HP_EQ, m->sums[own_rank(p, m->group)], 0));
    RANK_CHECK(is_filled(block + TAIL_AT, m->tail_bytes, (unsigned char)(memory + 1)));
    const hp_symm ended = p->memories[memory];
    RANK_OK(hp_symm_free(ended));
    RANK_FAILS(hp_symm_wait(ended, SUM_AT, HP_GE, 0, 0), HP_ERR_HANDLE);
}

static inline void play_end_group(player *p, int g) {
    for (int m = 0; m < RANDOM_MEMORIES; m++)
        if (p->plan.memories[m].group == g)
            play_end_memory(p, m);
    bench_close(&p->benches[g]);
    if (g > 0)
        hp_group_destroy(p->groups[g]);
    p->groups[g] = NULL;
}

/* ---- put, get, signal, wait ---- */

/* A rank of the operation's group, as a call takes it: numbered in the memory's own group, which
 * may be left out, or in the world. */
typedef struct named_rank {
    int rank;
    hp_group *group;
} named_rank;
static inline named_rank name_rank(const player *p, const random_op *op, int rank) {
    if (op->way % 3 == 0)
        return (named_rank){p->plan.groups[op->group].members[rank], p->groups[0]};
    return (named_rank){rank, op->way % 3 == 1 ? NULL : p->groups[op->group]};
}

/* `from` writes into its region at `to`, by a put or by plain stores, and signals. */
static inline void play_put_from(player *p, const random_op *op) {
    const hp_symm memory = p->memories[op->memory];
    const named_rank to = name_rank(p, op, op->to);
    const uint64_t at = random_region_at(BY_PUT, op->from) + op->offset;
    const uint64_t word = random_word_at(BY_PUT, READY, op->from);
    RANK_OK(hp_symm_wait(memory, random_word_at(BY_PUT, ACKNOWLEDGED, op->to), HP_EQ, op->last, 0));
    oracle_fill(HP_UINT8, p->sent, op->bytes, op->number);
    if (op->way / 3 % 3 == 0) {
        RANK_OK(hp_symm_put_signal(memory, at, p->sent, op->bytes, memory, word, HP_SIGNAL_SET,
                                   op->number, to.rank, to.group));
        return;
    }
    if (op->way / 3 % 3 == 1) {
        RANK_OK(hp_symm_put(memory, at, p->sent, op->bytes, to.rank, to.group));
    } else {
        void *there = NULL;
        RANK_OK(hp_symm_pointer(memory, to.rank, to.group, &there));
        memcpy((unsigned char *)there + at, p->sent, op->bytes);
    }
    RANK_OK(hp_symm_signal(memory, word, HP_SIGNAL_SET, op->number, to.rank, to.group));
}

/* Compare, then say to `from` that its region may be written again. */
static inline void acknowledge(player *p, const random_op *op, int way,
                               const unsigned char *given) {
    const named_rank from = name_rank(p, op, op->from);
    oracle_fill(HP_UINT8, p->expected, op->bytes, op->number);
    RANK_CHECK(memcmp(given, p->expected, op->bytes) == 0);
    RANK_OK(hp_symm_signal(p->memories[op->memory], random_word_at(way, ACKNOWLEDGED, op->to),
                           HP_SIGNAL_SET, op->number, from.rank, from.group));
}

static inline void play_put_to(player *p, const random_op *op) {
    RANK_OK(hp_symm_wait(p->memories[op->memory], random_word_at(BY_PUT, READY, op->from), HP_EQ,
                         op->number, 0));
    acknowledge(p, op, BY_PUT,
                own_block(p, op->memory) + random_region_at(BY_PUT, op->from) + op->offset);
}

/* `from` writes at home and signals; `to` fetches it. */
static inline void play_get_from(player *p, const random_op *op) {
    const hp_symm memory = p->memories[op->memory];
    const named_rank to = name_rank(p, op, op->to);
    RANK_OK(hp_symm_wait(memory, random_word_at(BY_GET, ACKNOWLEDGED, op->to), HP_EQ, op->last, 0));
    oracle_fill(HP_UINT8, own_block(p, op->memory) + random_region_at(BY_GET, op->to) + op->offset,
                op->bytes, op->number);
    RANK_OK(hp_symm_signal(memory, random_word_at(BY_GET, READY, op->from), HP_SIGNAL_SET,
                           op->number, to.rank, to.group));
}
static inline void play_get_to(player *p, const random_op *op) {
    const hp_symm memory = p->memories[op->memory];
    const named_rank from = name_rank(p, op, op->from);
    RANK_OK(hp_symm_wait(memory, random_word_at(BY_GET, READY, op->from), HP_EQ, op->number, 0));
    RANK_OK(hp_symm_get(p->sent, memory, random_region_at(BY_GET, op->to) + op->offset, op->bytes,
                        from.rank, from.group));
    acknowledge(p, op, BY_GET, p->sent);
}

/* Later operations may have added more by the time that the target looks. */
static inline void play_add(player *p, const random_op *op, int r) {
    const hp_symm memory = p->memories[op->memory];
    const named_rank to = name_rank(p, op, op->to);
    if (op->terms[r])
        RANK_OK(hp_symm_signal(memory, SUM_AT, HP_SIGNAL_ADD, op->terms[r], to.rank, to.group));
    if (r == op->to)
        RANK_OK(hp_symm_wait(memory, SUM_AT, HP_GE, p->plan.memories[op->memory].sums[r], 0));
}

/* ---- messages ---- */

static inline void play_send(player *p, const random_op *op, int to) {
    bench *b = &p->benches[op->group];
    unsigned char *data = op->way % 2 ? b->symmetric[0] : b->ordinary[0];
    for (int i = 0; i < op->n_messages; i++) {
        oracle_fill(op->c.dtype, data, op->counts[i], op->number * 16 + (uint64_t)i);
        RANK_OK(hp_send(b->group, data, op->counts[i], op->c.dtype, to));
    }
}

static inline void play_recv(player *p, const random_op *op, int from) {
    bench *b = &p->benches[op->group];
    unsigned char *data = op->way / 2 % 2 ? b->symmetric[1] : b->ordinary[1];
    for (int i = 0; i < op->n_messages; i++) {
        uint64_t first = 0;
        oracle_fill(op->c.dtype, p->expected, op->counts[i], op->number * 16 + (uint64_t)i);
        RANK_OK(hp_recv(b->group, data, op->counts[i], op->c.dtype, from));
        RANK_CHECK(oracle_same(op->c.dtype, data, p->expected, op->counts[i], &first));
    }
}

static inline void play_messages(player *p, const random_op *op, int r) {
    if (r == op->from)
        play_send(p, op, op->to);
    if (r == op->to)
        play_recv(p, op, op->from);
    if (r == op->to && op->is_answered)
        play_send(p, op, op->from);
    if (r == op->from && op->is_answered)
        play_recv(p, op, op->to);
}

/* ---- reductions with low precision on the wire ---- */

static inline void play_wire(player *p, const random_op *op, int r) {
    const coll_case *c = &op->c;
    bench *b = &p->benches[op->group];
    const bool is_scatter = c->what == HP_REDUCE_SCATTER;
    const uint64_t size = hp_dtype_size(c->dtype);
    const uint64_t total = c->count * (uint64_t)(is_scatter ? b->n : 1);
    const uint64_t begin = is_scatter ? c->count * (uint64_t)r : 0;
    unsigned char **arenas = c->where == SYMMETRIC ? b->symmetric : b->ordinary;
    const void *rows[RANDOM_RANKS];
    uint64_t first = 0;
    for (int i = 0; i < b->n; i++) {
        oracle_fill(c->dtype, p->sent, total, op->number * 16 + (uint64_t)i);
        oracle_wire(op->wire, c->dtype, p->sent + begin * size, p->terms[i], c->count);
        rows[i] = p->terms[i];
        if (i == r)
            memcpy(arenas[0], p->sent, total * size);
    }
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = c->what;
    call.group = b->group;
    call.in = arenas[0];
    call.out = c->in_place ? arenas[0] + begin * size : arenas[1];
    call.count = c->count;
    call.dtype = c->dtype;
    call.op = c->op;
    call.wire = op->wire;
    RANK_OK(hp_coll_run(&call));
    oracle_reduce(HP_FP32, c->dtype, c->op, rows, b->n, p->expected, c->count);
    RANK_CHECK(oracle_same(c->dtype, call.out, p->expected, c->count, &first));
}

/* ---- a rank ---- */

static inline void play_pair(player *p, const random_op *op, int r) {
    if (r == op->from)
        op->what == PUT ? play_put_from(p, op) : play_get_from(p, op);
    if (r == op->to)
        op->what == PUT ? play_put_to(p, op) : play_get_to(p, op);
}

/* r: this rank in the operation's group. */
static inline void play(player *p, const random_op *op, int r) {
    switch (op->what) {
    case CREATE_GROUP:
        play_create(p, op);
        break;
    case SPLIT_GROUP:
        play_split(p, op);
        break;
    case DUPLICATE_GROUP:
        play_duplicate(p, op);
        break;
    case END_GROUP:
        play_end_group(p, op->group);
        break;
    case MAKE_MEMORY:
        play_make_memory(p, op);
        break;
    case END_MEMORY:
        play_end_memory(p, op->memory);
        break;
    case COLLECTIVE:
        p->benches[op->group].n_cases = op->number; /* the seed of its data */
        bench_run(&p->benches[op->group], &op->c);
        break;
    case REDUCE_BY_WIRE:
        play_wire(p, op, r);
        break;
    case MESSAGES:
        play_messages(p, op, r);
        break;
    case PUT:
    case GET:
        play_pair(p, op, r);
        break;
    case ADD:
        play_add(p, op, r);
        break;
    default:
        RANK_OK(hp_barrier(p->groups[op->group]));
    }
}

static inline void random_body(hp_world *world, void *argument) {
    const random_job *job = argument;
    player *p = calloc(1, sizeof *p);
    RANK_CHECK(p && (p->sent = malloc(OPERAND_BYTES)) && (p->expected = malloc(OPERAND_BYTES)));
    for (int i = 0; i < job->n; i++)
        RANK_CHECK((p->terms[i] = malloc(OPERAND_BYTES)));
    p->world = world;
    p->rank = hp_world_rank(world);
    p->pace = job->seed * 64 + (uint64_t)p->rank;
    random_plan_begin(&p->plan, job->seed, job->n);
    play_group_made(p, 0, hp_world_group(world));
    for (uint64_t i = 0; i < job->n_ops; i++) {
        random_op op;
        random_plan_next(&p->plan, &op);
        const int r = own_rank(p, op.group);
        atomic_store_explicit(&job->at[p->rank], op.number, memory_order_relaxed);
        if (r >= 0) {
            random_delay(&p->pace);
            play(p, &op, r);
        }
        random_plan_done(&p->plan, &op);
    }
    for (int g = RANDOM_GROUPS - 1; g >= 0; g--)
        if (p->groups[g])
            play_end_group(p, g);
    for (int i = 0; i < job->n; i++)
        free(p->terms[i]);
    free(p->expected);
    free(p->sent);
    free(p);
}

/* ---- a test ---- */

static inline uint64_t random_number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* What every rank was at. */
static inline void random_print(const random_job *job) {
    random_plan plan;
    random_plan_begin(&plan, job->seed, job->n);
    for (uint64_t i = 0; i < job->n_ops; i++) {
        random_op op;
        char text[400];
        random_plan_next(&plan, &op);
        random_op_print(&plan, &op, text, sizeof text);
        random_plan_done(&plan, &op);
        for (int r = 0; r < job->n; r++)
            if (atomic_load_explicit(&job->at[r], memory_order_relaxed) == op.number)
                print_error("  rank %d: %s\n", r, text);
    }
}

static inline void random_run(ranks_body body, uint64_t seed, int n, ranks_kind kind,
                              uint64_t n_ops) {
    char text[512];
    random_job job = {.seed = seed, .n_ops = n_ops, .kind = kind, .n = n};
    job.at = mmap(NULL, sizeof *job.at * RANDOM_RANKS, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job.at != MAP_FAILED);
    const int n_failed = ranks_try(n, kind, body, &job, text, sizeof text);
    if (n_failed)
        print_error("seed %llu, %llu operations, %d ranks as %s\n", (unsigned long long)seed,
                    (unsigned long long)n_ops, n, kind == RANKS_THREADS ? "threads" : "processes");
    if (n_failed && body == random_body)
        random_print(&job);
    munmap(job.at, sizeof *job.at * RANDOM_RANKS);
    if (n_failed)
        fail_msg("HP_TEST_SEED=%llu plays it again: %s", (unsigned long long)seed, text);
}

#endif
