/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_cases.h - run a reduction over a wire and hold it against the oracle, bit for bit.
 *
 * The terms are rounded by the oracle's own scalar code, summed as the tree of coll.h, and rounded
 * once to the dtype: that is what every rank must have, and not a byte beside it. Tests feed it
 * cases.
 */
#ifndef WIRE_CASES_H
#define WIRE_CASES_H

#include "coll/inside.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_RANKS = 9, GUARD = 64 };

typedef enum whereabouts { SYMMETRIC, ORDINARY, MIXED, APART, ODD, N_MEMORIES } whereabouts;

typedef struct wire_case {
    hp_collective what;
    hp_wire wire;
    hp_dtype dtype;
    hp_reduce op;
    uint64_t count; /* of one part, or of the vector */
    whereabouts where;
    bool in_place, wire_result;
} wire_case;

typedef struct bench {
    hp_group *group;
    int rank, n;
    hp_symm memory;
    unsigned char *symmetric, *ordinary; /* input arena, then output arena */
    uint64_t arena_bytes, most, n_cases;
    unsigned char *input, *expected;
    float *rounded[MAX_RANKS];
} bench;

/* `most`: elements of the largest input. */
static void bench_open(bench *b, hp_world *world, uint64_t most) {
    void *base = NULL;
    *b = (bench){.group = hp_world_group(world), .most = most, .arena_bytes = most * 4 + 4096};
    b->rank = hp_group_rank(b->group);
    b->n = hp_group_size(b->group);
    hp_group *inner = hpi_group_inner(b->group); /* those who share memory */
    RANK_OK(hp_symm_alloc(world, inner, 2 * b->arena_bytes, 64, &b->memory));
    RANK_OK(hp_symm_pointer(b->memory, hp_group_rank(inner), inner, &base));
    b->symmetric = base;
    b->ordinary = malloc(2 * b->arena_bytes);
    b->input = malloc(most * 4);
    b->expected = malloc(most * 4);
    RANK_CHECK(b->ordinary && b->input && b->expected);
    for (int i = 0; i < b->n; i++)
        RANK_CHECK((b->rounded[i] = malloc(most * sizeof(float))));
}

static void bench_close(bench *b) {
    for (int i = 0; i < b->n; i++)
        free(b->rounded[i]);
    free(b->input);
    free(b->expected);
    free(b->ordinary);
    RANK_OK(hp_symm_free(b->memory));
}

/* Uneven parts: some empty, some long. */
static uint64_t part_of(const wire_case *c, int rank) {
    if (c->what != HP_REDUCE_SCATTER_V)
        return c->count;
    return rank % 3 == 1 ? 0 : c->count / (uint64_t)(1 + rank % 4) + (uint64_t)rank;
}

static uint64_t begin_of(const wire_case *c, int rank) {
    uint64_t begin = 0;
    for (int i = 0; i < rank; i++)
        begin += part_of(c, i);
    return begin;
}

/* Every rank's terms of this rank's result, rounded as they travel; returns how many. */
static uint64_t round_terms(bench *b, const wire_case *c, uint64_t total, unsigned char *own) {
    const uint64_t size = hp_dtype_size(c->dtype);
    const bool is_scatter = c->what != HP_ALL_REDUCE;
    const uint64_t begin = is_scatter ? begin_of(c, b->rank) : 0;
    const uint64_t count = is_scatter ? part_of(c, b->rank) : total;
    for (int i = 0; i < b->n; i++) {
        oracle_fill(c->dtype, b->input, total, b->n_cases * 100 + (uint64_t)i);
        oracle_wire(c->wire, c->dtype, b->input + begin * size, b->rounded[i], count);
        if (i == b->rank)
            memcpy(own, b->input, total * size);
    }
    return count;
}

static void expect(bench *b, const wire_case *c, uint64_t count) {
    const void *rows[MAX_RANKS];
    for (int i = 0; i < b->n; i++)
        rows[i] = b->rounded[i];
    if (!c->wire_result) {
        oracle_reduce(HP_FP32, c->dtype, c->op, rows, b->n, b->expected, count);
        return;
    }
    float *sums = (float *)(void *)b->input;
    const void *row = b->rounded[0];
    oracle_reduce(HP_FP32, HP_FP32, c->op, rows, b->n, sums, count);
    oracle_wire(c->wire, HP_FP32, sums, b->rounded[0], count);
    oracle_reduce(HP_FP32, c->dtype, HP_SUM, &row, 1, b->expected, count);
}

static unsigned char *place(const bench *b, const wire_case *c, int arena) {
    const bool is_ordinary = c->where == ORDINARY || (c->where == MIXED && b->rank % 2 == 1);
    unsigned char *at = (is_ordinary ? b->ordinary : b->symmetric) + GUARD;
    if (c->where == APART)
        at += 64 * b->rank;
    if (c->where == ODD)
        at += 3;
    return at + (uint64_t)arena * b->arena_bytes;
}

static void run_case(bench *b, const wire_case *c) {
    static const char *const memories[] = {"symmetric", "ordinary", "mixed", "apart", "odd"};
    const uint64_t size = hp_dtype_size(c->dtype);
    const uint64_t total = c->what == HP_ALL_REDUCE ? c->count : begin_of(c, b->n);
    unsigned char *in = place(b, c, 0), *out = place(b, c, 1);
    uint64_t counts[MAX_RANKS], first = 0;
    b->n_cases++;
    RANK_CHECK(total <= b->most);
    const uint64_t count = round_terms(b, c, total, in);
    expect(b, c, count);
    if (c->in_place)
        out = in + (c->what == HP_ALL_REDUCE ? 0 : begin_of(c, b->rank) * size);
    else
        memset(out - GUARD / 2, 0x5a, count * size + GUARD);
    for (int i = 0; i < b->n; i++)
        counts[i] = part_of(c, i);

    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = c->what;
    call.group = b->group;
    call.in = in;
    call.out = out;
    call.count = part_of(c, b->rank);
    call.in_counts = c->what == HP_REDUCE_SCATTER_V ? counts : NULL;
    call.dtype = c->dtype;
    call.op = c->op;
    call.wire = c->wire;
    call.wire_result = c->wire_result;
    RANK_OK(hp_coll_run(&call));

    if (!oracle_same(c->dtype, out, b->expected, count, &first)) {
        fprintf(stderr,
                "rank %d of %d: collective %d of %llu %s, op %d, wire %d%s, %s memory%s: element "
                "%llu of %llu is wrong\n",
                b->rank, b->n, (int)c->what, (unsigned long long)c->count, hp_dtype_name(c->dtype),
                (int)c->op, (int)c->wire, c->wire_result ? " (result too)" : "", memories[c->where],
                c->in_place ? ", in place" : "", (unsigned long long)first,
                (unsigned long long)count);
        ranks_fail(__FILE__, __LINE__, "what the oracle expects", 0);
    }
    for (int k = 0; !c->in_place && k < GUARD / 2; k++)
        RANK_CHECK(out[-1 - k] == 0x5a && out[count * size + (uint64_t)k] == 0x5a);
    RANK_OK(hp_barrier(b->group)); /* no peer writes here any more, nor will before all are ready */
}

static hp_dtype dtype_at(unsigned i) {
    static const hp_dtype dtypes[] = {HP_FP32, HP_FP16, HP_BF16};
    return dtypes[i % 3];
}

static const hp_collective reductions[] = {HP_ALL_REDUCE, HP_REDUCE_SCATTER, HP_REDUCE_SCATTER_V};

#endif
