/* SPDX-License-Identifier: Apache-2.0
 *
 * test_traffic.c - hp_coll_traffic_get: every algorithm has a formula, and calls of known size give
 * the bytes that were counted by hand.
 */
#include "coll/inside.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { COUNT = 4096, BYTES = COUNT * sizeof(float) };

/* ---- every algorithm ---- */

static void has_every_row(hp_world *world, void *argument) {
    (void)argument;
    const uint64_t counts[] = {5, 9};
    float in[18], out[18];
    hpi_coll_state state = {.cell_bytes = 128 * 1024};
    for (int i = 0; i < hpi_n_algorithms; i++) {
        const hpi_algorithm *a = &hpi_algorithms[i];
        hp_coll_call call = HP_COLL_CALL_INIT;
        hp_coll_traffic t;
        hpi_run run;
        call.what = a->what;
        call.group = hp_world_group(world);
        call.in = in;
        call.out = out;
        call.count = counts[hp_world_rank(world)];
        call.in_counts = call.out_counts = counts;
        call.wire = hpi_needs_wire(a->needs) ? HP_WIRE_BF16 : HP_WIRE_FULL;
        RANK_OK(hpi_coll_check_call(&call, &run));
        run.state = &state;
        run.algorithm = a;
        if (!hpi_traffic_of(&run, &t))
            fprintf(stderr, "%s, %s: expected a row in src/coll/traffic.c\n",
                    hpi_collective_name(a->what), a->name);
        RANK_CHECK(hpi_traffic_of(&run, &t));
        RANK_CHECK(strcmp(t.algorithm, a->name) == 0 && t.steps == a->steps);
    }
}

static void every_algorithm_has_a_formula(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, has_every_row, NULL);
}

/* ---- known calls of two ranks ---- */

typedef struct known {
    hp_collective what;
    bool is_private, is_in_place;
    hp_wire wire;
    const char *algorithm;
    uint64_t read_bytes, written_bytes; /* of rank 0 */
} known;

static const known known_calls[] = {
    {HP_ALL_REDUCE, false, false, HP_WIRE_FULL, "push", BYTES, BYTES},
    {HP_ALL_REDUCE, false, true, HP_WIRE_FULL, "push", BYTES, BYTES},
    /* the peer's half to its own output first */
    {HP_ALL_REDUCE, false, false, HP_WIRE_FULL, "copied", BYTES / 2 + BYTES, BYTES / 2 + BYTES},
    /* the peer's half to the cell, its own and the peer's to sums, those of the peer to out */
    {HP_ALL_REDUCE, true, false, HP_WIRE_FULL, "staged", 2 * BYTES, 2 * BYTES},
    {HP_ALL_REDUCE, false, false, HP_WIRE_BF16, "wire", BYTES + BYTES / 2, BYTES / 2 + BYTES},
    {HP_ALL_REDUCE, true, false, HP_WIRE_FP16, "wire", BYTES + BYTES / 2 + BYTES,
     BYTES / 2 + BYTES / 2 + BYTES},
    {HP_ALL_GATHER, false, false, HP_WIRE_FULL, "pull", 2 * BYTES, 2 * BYTES},
    {HP_ALL_GATHER, false, true, HP_WIRE_FULL, "pull", BYTES, BYTES},
    {HP_ALL_GATHER, true, true, HP_WIRE_FULL, "staged", 2 * BYTES, 2 * BYTES},
    {HP_REDUCE_SCATTER, false, false, HP_WIRE_FULL, "pull", 2 * BYTES, BYTES},
    {HP_REDUCE_SCATTER, true, false, HP_WIRE_FULL, "staged", 3 * BYTES, 2 * BYTES},
    {HP_REDUCE_SCATTER, false, false, HP_WIRE_BF16, "wire", 3 * BYTES, 2 * BYTES},
    {HP_ALL_TO_ALL, false, false, HP_WIRE_FULL, "pull", 2 * BYTES, 2 * BYTES},
    {HP_ALL_TO_ALL, false, true, HP_WIRE_FULL, "staged", 2 * BYTES, 2 * BYTES},
    {HP_ALL_TO_ALL, true, false, HP_WIRE_FULL, "staged", 3 * BYTES, 3 * BYTES},
    {HP_BROADCAST, false, true, HP_WIRE_FULL, "cells", BYTES, BYTES},
    {HP_BROADCAST, false, true, HP_WIRE_FULL, "push_pull", BYTES / 2, BYTES / 2},
    {HP_BROADCAST, false, true, HP_WIRE_FULL, "pull", 0, 0}, /* the peer does it */
    {HP_BROADCAST, true, true, HP_WIRE_FULL, "staged", BYTES, BYTES},
    /* half of the peer's input to a piece in cache, and half of its sums to out */
    {HP_ALL_REDUCE, true, false, HP_WIRE_FULL, "direct", 2 * BYTES, BYTES + BYTES / 2},
    {HP_REDUCE_SCATTER, true, false, HP_WIRE_FULL, "direct", 3 * BYTES, 2 * BYTES},
    {HP_ALL_GATHER, true, true, HP_WIRE_FULL, "direct", BYTES, BYTES},
    {HP_ALL_TO_ALL, true, false, HP_WIRE_FULL, "direct", 2 * BYTES, 2 * BYTES},
    {HP_BROADCAST, true, true, HP_WIRE_FULL, "direct", BYTES / 2, BYTES / 2},
    {HP_ALL_REDUCE, false, false, HP_WIRE_BF16, "rounded", BYTES, BYTES},
    {HP_REDUCE_SCATTER, false, false, HP_WIRE_FP8_E4M3, "rounded", 2 * BYTES, BYTES},
};

static void check_known(const known *k, hp_group *group, unsigned char *memory) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    hp_coll_traffic t;
    call.what = k->what;
    call.group = group;
    call.out = memory;
    call.in = k->is_in_place ? memory : memory + 2 * BYTES;
    if (k->what == HP_ALL_GATHER && k->is_in_place)
        call.in = memory + (size_t)hp_group_rank(group) * BYTES;
    call.count = COUNT;
    call.wire = k->wire;
    RANK_OK(hpi_coll_only(group, k->algorithm)); /* whatever the thresholds are */
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t));
    if (strcmp(t.algorithm, k->algorithm) != 0 ||
        (hp_group_rank(group) == 0 &&
         (t.read_bytes != k->read_bytes || t.written_bytes != k->written_bytes)))
        fprintf(stderr, "row %d: %s, read %llu, written %llu\n", (int)(k - known_calls),
                t.algorithm, (unsigned long long)t.read_bytes, (unsigned long long)t.written_bytes);
    RANK_CHECK(strcmp(t.algorithm, k->algorithm) == 0);
    RANK_CHECK(hp_group_rank(group) != 0 || t.read_bytes == k->read_bytes);
    RANK_CHECK(hp_group_rank(group) != 0 || t.written_bytes == k->written_bytes);
}

static void run_known(hp_world *world, void *argument) {
    (void)argument;
    hp_symm symm;
    void *shared;
    unsigned char *ordinary = hpi_alloc(4, BYTES);
    RANK_CHECK(ordinary != NULL);
    RANK_OK(hp_symm_alloc(world, NULL, 4 * BYTES, 0, &symm));
    RANK_OK(hp_symm_pointer(symm, hp_world_rank(world), NULL, &shared));
    for (size_t i = 0; i < sizeof known_calls / sizeof *known_calls; i++) {
        const known *k = &known_calls[i];
        if (strcmp(k->algorithm, "copied") == 0 && !hpi_world_can_spin(world))
            continue; /* who shares a core copies nothing for the other */
        check_known(k, hp_world_group(world), k->is_private ? ordinary : shared);
    }
    RANK_OK(hp_symm_free(symm));
    hpi_free(ordinary);
}

/* 12 bytes by words: what goes into the own line, what comes in those of the peers. */
static void run_small(hp_world *world, void *argument) {
    (void)argument;
    const int rank = hp_world_rank(world);
    float data[3] = {1, 2, 3}, out[3];
    hp_coll_call call = HP_COLL_CALL_INIT;
    hp_coll_traffic t;
    call.group = hp_world_group(world);
    call.what = HP_BROADCAST;
    call.out = data;
    call.count = 3;
    call.rank = 1;
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t));
    RANK_CHECK(t.read_bytes == (rank == 1 ? 12 : HPI_SMALL_BYTES));
    RANK_CHECK(t.written_bytes == HPI_SMALL_BYTES + (rank == 1 ? 0 : 12));
    call.what = HP_ALL_REDUCE;
    call.in = data;
    call.out = out;
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t));
    RANK_CHECK(t.read_bytes == 12 + 2 * HPI_SMALL_BYTES && t.written_bytes == 12 + HPI_SMALL_BYTES);
}

static void small_calls_give_known_bytes(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, run_small, NULL);
}

static void known_calls_give_known_bytes(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, run_known, NULL);
}

/* ---- the rest ---- */

static void run_others(hp_world *world, void *argument) {
    (void)argument;
    float data[4] = {0};
    hp_coll_call call = HP_COLL_CALL_INIT;
    hp_coll_traffic t;
    RANK_FAILS(hp_coll_traffic_get(NULL, &t), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_coll_traffic_get(&call, &t), HP_ERR_ARGUMENT); /* no group */
    call.group = hp_world_group(world);
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t)); /* a barrier */
    RANK_CHECK(t.read_bytes == 0 && t.written_bytes == 0 && !*t.algorithm);
    call.what = HP_ALL_REDUCE;
    call.in = call.out = data;
    call.count = 2;
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t));
    RANK_CHECK(strcmp(t.algorithm, "words") == 0);
    RANK_CHECK(t.read_bytes == 8 + 2 * 32 && t.written_bytes == 32 + 8);
    RANK_OK(hpi_group_enter(call.group, "another thread"));
    RANK_FAILS(hp_coll_traffic_get(&call, &t), HP_ERR_BUSY);
    hpi_group_leave(call.group);
    call.wire = HP_WIRE_FP16;
    RANK_FAILS(hp_coll_traffic_get(&call, &t), HP_ERR_STATE);
    call.what = HP_BROADCAST;
    RANK_FAILS(hp_coll_traffic_get(&call, &t), HP_ERR_STATE);
}

/* ---- calls that are none ---- */

/* What hp_coll_run refuses is refused here, whatever the group's size, and nothing is looked at. */
static void run_wrong(hp_world *world, void *argument) {
    (void)argument;
    const int n = hp_world_size(world);
    const uint64_t counts[] = {2, 2, 2};
    float in[8] = {0}, out[8];
    hp_coll_call good = HP_COLL_CALL_INIT, call;
    hp_coll_traffic t = {"untouched", 7, 7, 7};
    good.what = HP_ALL_GATHER_V;
    good.group = hp_world_group(world);
    good.in = in;
    good.out = out;
    good.count = 2;
    good.out_counts = counts;
    RANK_OK(hp_coll_run(&good));
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        call = good;                                                                               \
        change;                                                                                    \
        RANK_FAILS(hp_coll_traffic_get(&call, &t), HP_ERR_ARGUMENT);                               \
        RANK_FAILS(hp_coll_run(&call), HP_ERR_ARGUMENT);                                           \
    } while (0)
    REFUSED(call.size -= 8);
    REFUSED(call.size = 28);
    REFUSED(call.what = (hp_collective)-1);
    REFUSED(call.what = (hp_collective)99);
    REFUSED(call.dtype = (hp_dtype)99);
    REFUSED(call.out_counts = NULL);
    REFUSED(call.what = HP_SEND; call.rank = n);
    REFUSED(call.what = HP_RECV; call.rank = -1);
    REFUSED(call.what = HP_BROADCAST; call.rank = n);
#undef REFUSED
    RANK_FAILS(hp_coll_traffic_get(&good, NULL), HP_ERR_ARGUMENT);
    RANK_CHECK(strcmp(t.algorithm, "untouched") == 0 && t.steps == 7);
    /* a barrier names nothing but its group */
    memset(&call, 0x5a, sizeof call);
    call.size = sizeof call;
    call.what = HP_BARRIER;
    call.group = good.group;
    RANK_OK(hp_coll_traffic_get(&call, &t));
    RANK_CHECK(!*t.algorithm && t.read_bytes == 0);
}

/* Where no rank has an element nothing moves, and that is no error. */
static void run_empty(hp_world *world, void *argument) {
    (void)argument;
    hp_coll_call call = HP_COLL_CALL_INIT;
    hp_coll_traffic t;
    call.what = HP_ALL_REDUCE;
    call.group = hp_world_group(world);
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t));
    RANK_CHECK(!*t.algorithm && t.steps == 0 && t.read_bytes == 0 && t.written_bytes == 0);
}

static void wrong_and_empty_calls(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++) {
        ranks_run(n, RANKS_THREADS, run_wrong, NULL);
        ranks_run(n, RANKS_THREADS, run_empty, NULL);
    }
}

/* ---- what the operands alone do not say ---- */

static hp_coll_traffic traffic_of(hp_group *group, const float *in, float *out, uint64_t count,
                                  hp_wire wire) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    hp_coll_traffic t;
    call.what = HP_ALL_REDUCE;
    call.group = group;
    call.in = in;
    call.out = out;
    call.count = count;
    call.wire = wire;
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &t));
    return t;
}

/* An output in symmetric memory is stored into by the owners only where every rank's is; and the
 * vector is cut chunk by chunk, so that rank 0 sums one element of a last chunk that has one. */
static void run_cut(hp_world *world, void *argument) {
    enum { CHUNK = 65536 /* bf16 in a cell */ };
    (void)argument;
    hp_group *group = hp_world_group(world);
    const uint64_t half = CHUNK / 2, own = hp_world_rank(world) == 0 ? half + 1 : half;
    hp_symm symm;
    void *shared;
    float *ordinary = hpi_alloc(CHUNK + 1, sizeof(float));
    RANK_CHECK(ordinary != NULL);
    RANK_OK(hp_symm_alloc(world, NULL, (CHUNK + 1) * sizeof(float), 0, &symm));
    RANK_OK(hp_symm_pointer(symm, hp_world_rank(world), NULL, &shared));
    RANK_OK(hpi_coll_only(group, "wire"));
    hp_coll_traffic t = traffic_of(group, shared, shared, CHUNK + 1, HP_WIRE_BF16);
    RANK_CHECK(t.read_bytes == 4 * (CHUNK + 1) + 2 * 2 * own);
    RANK_CHECK(t.written_bytes == 2 * (CHUNK + 1) + 2 * 4 * own);
    float *mixed = hp_world_rank(world) == 0 ? shared : ordinary;
    t = traffic_of(group, mixed, mixed, CHUNK + 1, HP_WIRE_BF16);
    RANK_CHECK(t.read_bytes == 2 * 4 * (CHUNK + 1) + 2 * 2 * own);
    RANK_CHECK(t.written_bytes == 2 * (CHUNK + 1) + 4 * own + 4 * (CHUNK + 1));
    RANK_OK(hp_symm_free(symm));
    hpi_free(ordinary);
}

static void cuts_and_mixed_memory(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, run_cut, NULL);
}

static void what_ran_last_is_known(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, run_others, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_has_a_formula),
        cmocka_unit_test(known_calls_give_known_bytes),
        cmocka_unit_test(small_calls_give_known_bytes),
        cmocka_unit_test(what_ran_last_is_known),
        cmocka_unit_test(wrong_and_empty_calls),
        cmocka_unit_test(cuts_and_mixed_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
