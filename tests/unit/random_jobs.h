/* SPDX-License-Identifier: Apache-2.0
 *
 * random_jobs.h - small random jobs, judged by hp_verify and in every order.
 *
 * A skeleton that all ranks share, of pieces as plans are made of (a life with its uses, a
 * collective, a begin with its end), with many waits; then a few changes on single ranks: about
 * every second job is sound, so that both answers are asked for.
 */
#ifndef TESTS_RANDOM_JOBS_H
#define TESTS_RANDOM_JOBS_H

#include "every_order.h"

enum { MOST_IN_A_LIST = 5 };

static inline uint32_t below(uint64_t *random, uint32_t n) {
    return (uint32_t)(hpi_random_next(random) >> 33) % n;
}

static inline hp_ref random_piece(uint64_t *random, uint32_t buffer, uint32_t life) {
    const uint64_t begin = below(random, 3) == 0 ? 2 : 0, end = below(random, 3) == 0 ? 2 : 4;
    return piece(buffer, life, begin, begin == end ? 4 : end);
}

static inline void random_waits(uint64_t *random, hp_op *op) {
    for (uint32_t k = below(random, 3); k-- > 0 && op->id;)
        after(op, (below(random, 2) ? hpi_done : hpi_drained)(below(random, op->id)));
    if (op->id && below(random, 3) && op->kind != K_SHARE) /* what is most often meant */
        after(op, (below(random, 3) ? hpi_done : hpi_drained)(op->id - 1));
}

/* An operation of the skeleton, on rank 0. Buffers 1 and 2 have lives, 3 and 4 none, 5 is shared
 * by communicator 1. */
static inline void random_op(uint64_t *random, struct bench *b, uint32_t step, uint32_t *life,
                             uint32_t *is_open) {
    static const uint16_t streams[] = {COMPUTE, COMPUTE, UNSHARD, REDUCE};
    const uint16_t stream = streams[below(random, 4)];
    const uint32_t what = below(random, b->job.n_units == 2 ? 8 : 3); /* see random_job */
    const uint32_t buffer = *is_open && below(random, 3) ? 1 : 3 + below(random, 3);
    const hp_ref ref = random_piece(random, buffer, buffer == 1 ? *life : 0);
    hp_op *op;
    if (what < 2) {
        const uint32_t comm = 1 + below(random, 2);
        op = share(b, step, 0, below(random, 4) ? (uint16_t)comm : stream, comm);
        op->peers_read = (uint8_t)below(random, 4);
    } else if (what < 4 && !*is_open) {
        op = add(b, step, 0, K_ALLOCATE, stream);
        writes(op, piece(1, ++*life, 0, 4));
        *is_open = 1;
    } else if (what == 4 && *is_open) {
        op = add(b, step, 0, K_RELEASE, stream);
        reads(op, piece(1, *life, 0, 4));
        *is_open = 0;
    } else {
        op = add(b, step, 0, K_WORK, stream);
    }
    if (op->kind == K_WORK || op->kind == K_SHARE) {
        (below(random, 2) ? reads : writes)(op, ref);
        if (below(random, 3) == 0)
            (below(random, 2) ? reads : writes)(op, random_piece(random, 3 + below(random, 3), 0));
    }
    random_waits(random, op);
}

/* Two neighbours of rank 0 become a begin and its end, around what stands between. */
static inline void random_hold(uint64_t *random, struct bench *b, uint32_t step) {
    hp_list *list = &b->lists[step * b->job.n_ranks];
    hp_op *ops = b->ops[step][0];
    if (list->n < 2)
        return;
    const uint32_t begin = below(random, (uint32_t)list->n - 1);
    const uint32_t end = begin + 1 + below(random, (uint32_t)list->n - begin - 1);
    if (ops[begin].kind != K_WORK || ops[end].kind != K_WORK)
        return;
    ops[begin].kind = K_HOLD;
    ops[end].kind = K_LET_GO;
    ops[begin].unit = ops[end].unit = below(random, 2);
    ops[end].stream = ops[begin].stream;
}

/* Positions on communicators, counted again. */
static inline void renumber(struct bench *b, uint32_t step, uint32_t rank) {
    hp_list *list = &b->lists[step * b->job.n_ranks + rank];
    uint32_t n_seqs[N_COMMS] = {0};
    for (uint32_t i = 0; i < list->n; i++) {
        hp_op *op = &b->ops[step][rank][i];
        op->id = i;
        op->seq = op->comm ? n_seqs[op->comm]++ : 0;
    }
}

/* Exchange two neighbours, if neither waits for the other or is a begin or an end. */
static inline void swap(hp_op *ops, uint32_t n, uint32_t id) {
    for (uint32_t i = id; i < id + 2; i++)
        if (ops[i].kind == K_HOLD || ops[i].kind == K_LET_GO)
            return;
    for (uint32_t w = 0; w < ops[id + 1].n_waits; w++)
        if (hpi_event_op(ops[id + 1].waits[w]) == id)
            return;
    const hp_op other = ops[id];
    ops[id] = ops[id + 1];
    ops[id + 1] = other;
    for (uint32_t i = id + 2; i < n; i++)
        for (uint32_t w = 0; w < ops[i].n_waits; w++)
            if (hpi_event_op(ops[i].waits[w]) - id < 2) /* done and drained keep their bit */
                ops[i].waits[w] += hpi_event_op(ops[i].waits[w]) == id ? 2 : (hp_event)-2;
}

static inline void disturb(uint64_t *random, struct bench *b, uint32_t step, uint32_t rank) {
    hp_list *list = &b->lists[step * b->job.n_ranks + rank];
    hp_op *ops = b->ops[step][rank];
    if (!list->n)
        return;
    hp_op *op = &ops[below(random, (uint32_t)list->n)];
    switch (below(random, b->job.n_units == 2 ? 6 : 2)) {
    case 0:
        op->n_waits -= op->n_waits != 0;
        break;
    case 1:
        if (op->id + 1 < list->n)
            swap(ops, (uint32_t)list->n, op->id);
        break;
    case 2:
        if (op->kind != K_HOLD && op->kind != K_LET_GO)
            op->stream = (uint16_t)below(random, 3);
        break;
    case 3:
        if (op->id + 1 == list->n && op->kind != K_LET_GO)
            list->n--;
        break;
    case 4:
        op->bytes += below(random, 8) == 0;
        break;
    default:
        if (op->reads[0].buffer == 1 && op->kind == K_WORK)
            op->reads[0].life = below(random, 3);
    }
    renumber(b, step, rank);
}

static inline void random_job(uint64_t *random, struct bench *b) {
    const uint32_t n_ranks = 1 + below(random, 3), n_steps = 1 + (below(random, 4) == 0);
    const uint32_t most = EVERY_MOST_OPS / (n_ranks * n_steps);
    start(b, n_ranks, n_steps);
    b->buffers[5].shared_by = 1;
    b->job.n_units = 1 + (below(random, 4) != 0); /* 1: mostly collectives */
    if (n_ranks == 3 && below(random, 2))         /* one alone, the others together */
        b->colors[N_COMMS - 2 + 2 * n_ranks - 1] = 1;
    for (uint32_t s = 0; s < n_steps; s++) {
        const uint32_t n = 1 + below(random, most < MOST_IN_A_LIST ? most : MOST_IN_A_LIST);
        uint32_t life = 0, is_open = 0;
        for (uint32_t i = 0; i < n; i++)
            random_op(random, b, s, &life, &is_open);
        if (is_open && b->lists[s * n_ranks].n < most)
            random_waits(random, reads(add(b, s, 0, K_RELEASE, COMPUTE), piece(1, life, 0, 4)));
        if (below(random, 3) == 0)
            random_hold(random, b, s);
        for (uint32_t r = 1; r < n_ranks; r++) {
            memcpy(b->ops[s][r], b->ops[s][0], sizeof b->ops[s][0]);
            b->lists[s * n_ranks + r].n = b->lists[s * n_ranks].n;
        }
    }
    for (uint32_t k = below(random, 3); k-- > 0;)
        disturb(random, b, below(random, n_steps), below(random, n_ranks));
}

static inline void print_job(const struct bench *b) {
    char text[400];
    for (uint32_t s = 0; s < b->job.n_steps; s++)
        for (uint32_t r = 0; r < b->job.n_ranks; r++)
            for (uint32_t i = 0; i < b->lists[s * b->job.n_ranks + r].n; i++) {
                const hp_op *op = &b->ops[s][r][i];
                hp_op_print(op, kinds, N_KINDS, text, sizeof text);
                print_message("step %u rank %u: %s\n", s, r, text);
            }
}

/* Both judges agree about `n` jobs. */
static inline void compare_judges(uint64_t seed, uint32_t n) {
    struct bench *b = malloc(sizeof *b);
    struct every every = {.n_ops = 0};
    uint64_t random = seed;
    uint32_t n_sound = 0, n_by_rule[HP_RULE_CYCLE + 1] = {0};
    assert_non_null(b);
    assert_int_equal(every_make(&every), 0);
    for (uint32_t i = 0; i < n; i++) {
        random_job(&random, b);
        const hp_status status = hp_verify(&b->job, &b->verdict);
        const char *fault = every_judge(&every, &b->job);
        assert_int_equal(status, b->verdict.rule ? HP_ERR_UNSOUND : HP_OK);
        assert_int_not_equal(b->verdict.rule, HP_RULE_LIST);
        if (!fault != !b->verdict.rule) {
            print_job(b);
            fail_msg("job %u of seed %llu: in some order: %s; the verifier: %s", i,
                     (unsigned long long)seed, fault ? fault : "nothing",
                     b->verdict.rule ? hp_last_error() : "sound");
        }
        n_sound += !fault;
        n_by_rule[b->verdict.rule]++;
    }
    print_message("%u jobs: %u sound, life %u, reuse %u, race %u, match %u, cycle %u\n", n, n_sound,
                  n_by_rule[HP_RULE_LIFE], n_by_rule[HP_RULE_REUSE], n_by_rule[HP_RULE_RACE],
                  n_by_rule[HP_RULE_MATCH], n_by_rule[HP_RULE_CYCLE]);
    for (hp_rule rule = HP_RULE_NONE; rule <= HP_RULE_CYCLE; rule++)
        if (rule != HP_RULE_LIST && n >= 1000)
            assert_true(n_by_rule[rule] >= n / 2000);
    every_drop(&every);
    free(b);
}

#endif
