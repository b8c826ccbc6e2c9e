/* SPDX-License-Identifier: Apache-2.0
 *
 * test_choose.c - hp_coll_choice_get says what runs, and why; thresholds come from one table, or
 * from the option, and are the same on every rank, whatever cores each may use.
 */
#include "coll/inside.h"
#include "support/ranks.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define OPTION "HYPER_PARALLEL_THRESHOLDS"

/* ---- the table and the option ---- */

static void test_rows(void **state) {
    (void)state;
    hp_coll_threshold t;
    int n = 0;
    for (; hp_coll_threshold_at(n, &t); n++)
        assert_true(*t.name && *t.meaning);
    assert_int_equal(n, HPI_N_THRESHOLDS);
    assert_int_equal(hp_coll_threshold_at(-1, &t), 0);
    assert_int_equal(hp_coll_threshold_at(0, NULL), 0);
}

static void test_option_stands_in_place_of_the_table(void **state) {
    (void)state;
    uint64_t table[HPI_N_THRESHOLDS], crowded[HPI_N_THRESHOLDS], given[HPI_N_THRESHOLDS];
    hp_coll_threshold t;
    assert_int_equal(hpi_thresholds_fill("", false, table), HP_OK);
    assert_int_equal(hpi_thresholds_fill("", true, crowded), HP_OK);
    for (int i = 0; hp_coll_threshold_at(i, &t); i++) {
        char text[64];
        assert_true(table[i] == t.roomy_bytes && crowded[i] == t.crowded_bytes);
        snprintf(text, sizeof text, "%s=3K,", t.name);
        assert_int_equal(hpi_thresholds_fill(text, i % 2, given), HP_OK);
        for (int k = 0; k < HPI_N_THRESHOLDS; k++)
            assert_true(given[k] == (k == i ? 3072 : i % 2 ? crowded[k] : table[k]));
    }
}

static void test_option_is_checked(void **state) {
    (void)state;
    static const char *const wrong[] = {"strom=16M",   "stream",      "stream=",
                                        "stream=16X",  "stream=-1",   "stream=16M;stream=1",
                                        "=16M",        ",stream=16M", "stream=99999999999999999999",
                                        "stream= 16M", "STREAM=16M"};
    uint64_t thresholds[HPI_N_THRESHOLDS];
    char longest[300];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(hpi_thresholds_fill(wrong[i], false, thresholds), HP_ERR_ARGUMENT);
        assert_non_null(strstr(hp_last_error(), "with NAME one of "));
        assert_non_null(strstr(hp_last_error(), "stream"));
        assert_non_null(strstr(hp_last_error(), wrong[i]));
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(hpi_thresholds_fill(longest, false, thresholds), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "at most 255 characters"));
}

static void refuses_every_collective(hp_world *world, void *argument) {
    float x[4] = {0};
    (void)argument;
    for (int i = 0; i < 2; i++) {
        RANK_FAILS(hp_all_reduce(hp_world_group(world), x, x, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
        RANK_CHECK(strstr(hp_last_error(), "\"strom=1M\""));
    }
}

static void test_wrong_option_is_told_by_every_rank(void **state) {
    (void)state;
    setenv(OPTION, "strom=1M", 1);
    ranks_run(2, RANKS_THREADS, refuses_every_collective, NULL);
    unsetenv(OPTION);
}

/* ---- what is said is what runs ---- */

enum { MOST_COUNT = 1 << 15, N_PARTS = 3 };

static void compare(hp_group *group, const hp_coll_call *call, const hp_coll_case *c) {
    hp_coll_choice choice;
    hp_coll_traffic ran;
    RANK_OK(hp_coll_run(call));
    RANK_OK(hp_coll_traffic_get(call, &ran));
    RANK_OK(hp_coll_choice_get(c, &choice));
    if (c->what != HP_BROADCAST && strcmp(ran.algorithm, "cells") == 0)
        return; /* ranks that are afar, which no choice knows */
    if (strcmp(choice.algorithm, ran.algorithm) != 0)
        fprintf(stderr, "%s of %llu: expected %s (%s), %s ran\n", hpi_collective_name(c->what),
                (unsigned long long)c->count, choice.algorithm, choice.why, ran.algorithm);
    RANK_CHECK(strcmp(choice.algorithm, ran.algorithm) == 0);
    RANK_CHECK(strcmp(choice.algorithm, hpi_coll_last(group)) == 0);
    RANK_CHECK(choice.steps == ran.steps && *choice.why && *choice.moves && *choice.source);
    RANK_CHECK(choice.from_bytes <= choice.bytes && choice.bytes < choice.to_bytes);
}

/* Every collective at one count. Parts of the v forms are equal. */
static void compare_all(hp_group *group, unsigned char *in, unsigned char *out, bool is_symmetric,
                        uint64_t count, hp_wire wire) {
    static const hp_collective all[] = {HP_ALL_GATHER, HP_ALL_GATHER_V,     HP_REDUCE_SCATTER,
                                        HP_ALL_REDUCE, HP_REDUCE_SCATTER_V, HP_ALL_TO_ALL,
                                        HP_BROADCAST,  HP_ALL_TO_ALL_V};
    const uint64_t counts[N_PARTS] = {count, count, count};
    const bool is_crowded = !hpi_world_can_spin(hp_group_world(group));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const bool has_in_place = all[i] == HP_ALL_REDUCE || all[i] == HP_ALL_TO_ALL;
            hp_coll_call call = HP_COLL_CALL_INIT;
            hp_coll_case c = HP_COLL_CASE_INIT;
            if (in_place && !has_in_place)
                continue;
            call.what = c.what = all[i];
            call.group = group;
            call.in = in_place ? out : in;
            call.out = out;
            call.count = c.count = count;
            call.in_counts = call.out_counts = counts;
            call.wire = c.wire = wire;
            c.n_ranks = hp_group_size(group);
            c.is_crowded = is_crowded;
            c.in_is_symmetric = c.out_is_symmetric = is_symmetric;
            c.is_in_place = in_place;
            compare(group, &call, &c);
        }
}

static void runs_what_is_said(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const uint64_t most = (uint64_t)N_PARTS * MOST_COUNT * sizeof(float);
    hp_symm memory;
    void *symmetric;
    unsigned char *ordinary = hpi_alloc(2, most);
    (void)argument;
    RANK_CHECK(ordinary);
    RANK_OK(hp_symm_alloc(world, group, 2 * most, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, hp_group_rank(group), group, &symmetric));
    unsigned char *in = symmetric;
    for (uint64_t count = 1; count <= MOST_COUNT; count *= 2)
        for (uint64_t odd = 0; odd < 2; odd++) {
            compare_all(group, in, in + most, true, count - (count > 1 && odd), HP_WIRE_FULL);
            compare_all(group, ordinary, ordinary + most, false, count, HP_WIRE_FULL);
            compare_all(group, in, in + most, true, count, HP_WIRE_BF16);
        }
    RANK_OK(hp_symm_free(memory));
    hpi_free(ordinary);
}

static void test_choice_is_what_runs(void **state) {
    (void)state;
    ranks_run(N_PARTS, RANKS_THREADS, runs_what_is_said, NULL);
    ranks_run(2, RANKS_THREADS, runs_what_is_said, NULL); /* which may have a core each */
    /* where every threshold is met, and where none is */
    for (int is_met = 0; is_met < 2; is_met++) {
        char text[255] = "";
        hp_coll_threshold t;
        for (int i = 0; hp_coll_threshold_at(i, &t); i++) {
            const size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s=%s,", t.name, is_met ? "0" : "1T");
        }
        setenv(OPTION, text, 1);
        ranks_run(2, RANKS_THREADS, runs_what_is_said, NULL);
        unsetenv(OPTION);
    }
}

static void test_choice_is_checked(void **state) {
    (void)state;
    hp_coll_case c = HP_COLL_CASE_INIT;
    hp_coll_choice choice;
    c.count = 64;
    assert_int_equal(hp_coll_choice_get(&c, &choice), HP_OK);
    assert_int_equal(hp_coll_choice_get(&c, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_coll_choice_get(NULL, &choice), HP_ERR_ARGUMENT);
    const hp_coll_case wrong[] = {
        {.size = 1},
        {.size = sizeof c, .what = (hp_collective)99, .n_ranks = 2},
        {.size = sizeof c, .n_ranks = 0},
        {.size = sizeof c, .n_ranks = 1025},
        {.size = sizeof c, .n_ranks = 2, .dtype = (hp_dtype)99},
        {.size = sizeof c, .n_ranks = 2, .count = UINT64_MAX / 4},
        {.size = sizeof c, .what = HP_ALL_GATHER_V, .n_ranks = 2, .count = UINT64_MAX / 4},
        {.size = sizeof c, .what = HP_ALL_REDUCE, .n_ranks = 2, .wire = (hp_wire)99}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(hp_coll_choice_get(&wrong[i], &choice), HP_ERR_ARGUMENT);
    setenv(OPTION, "nonsense", 1);
    assert_int_equal(hp_coll_choice_get(&c, &choice), HP_ERR_ARGUMENT);
    unsetenv(OPTION);
}

/* ---- ranks that may use different cores ---- */

typedef struct bound {
    hp_hub *hub;
    int rank;
    int n_cores, cores[2]; /* that it may use */
    bool can_spin, has_joined;
} bound;

static void *join_bound(void *argument) {
    bound *b = argument;
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *world;
    float x[64] = {0};
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int i = 0; i < b->n_cores; i++)
        CPU_SET((size_t)b->cores[i], &cores);
    if (sched_setaffinity(0, sizeof cores, &cores))
        return NULL;
    config.hub = b->hub;
    config.rank = b->rank;
    if (hp_world_create(&config, &world))
        return NULL;
    b->can_spin = hpi_world_can_spin(world);
    b->has_joined = !hp_all_reduce(hp_world_group(world), x, x, 64, HP_FP32, HP_SUM);
    hp_world_destroy(world);
    return NULL;
}

static void run_bound(bound *ranks, int n, bool expected) {
    pthread_t threads[3];
    assert_int_equal(hp_hub_create(n, &ranks[0].hub), HP_OK);
    for (int i = 0; i < n; i++) {
        ranks[i].hub = ranks[0].hub;
        ranks[i].rank = i;
        assert_int_equal(pthread_create(&threads[i], NULL, join_bound, &ranks[i]), 0);
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < n; i++)
        assert_true(ranks[i].has_joined && ranks[i].can_spin == expected);
    hp_hub_destroy(ranks[0].hub);
}

static void test_ranks_bound_to_different_cores_agree(void **state) {
    (void)state;
    cpu_set_t allowed;
    int cores[2], n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (int core = 0; core < CPU_SETSIZE && n < 2; core++)
        if (CPU_ISSET((size_t)core, &allowed))
            cores[n++] = core;
    if (n < 2) {
        print_message("skipped: needs two cores\n");
        skip();
    }
    const int a = cores[0], b = cores[1];
    run_bound((bound[]){{.n_cores = 1, .cores = {a}}, {.n_cores = 1, .cores = {b}}}, 2, true);
    run_bound((bound[]){{.n_cores = 1, .cores = {a}}, {.n_cores = 1, .cores = {a}}}, 2, false);
    /* the first takes what the second needs, and gives it back */
    run_bound((bound[]){{.n_cores = 2, .cores = {a, b}}, {.n_cores = 1, .cores = {a}}}, 2, true);
    run_bound((bound[]){{.n_cores = 2, .cores = {a, b}},
                        {.n_cores = 1, .cores = {a}},
                        {.n_cores = 1, .cores = {b}}},
              3, false);
}

static void test_why_in_place_differs(void **state) {
    hp_coll_case c = HP_COLL_CASE_INIT;
    hp_coll_choice apart, in_place;
    (void)state;
    setenv(OPTION, "in_place=1K,one_shot=8K", 1);
    c.count = 512;
    assert_int_equal(hp_coll_choice_get(&c, &apart), HP_OK);
    c.is_in_place = 1;
    assert_int_equal(hp_coll_choice_get(&c, &in_place), HP_OK);
    unsetenv(OPTION);
    assert_string_equal(apart.algorithm, "one_shot");
    assert_string_equal(in_place.algorithm, "push");
    assert_non_null(strstr(in_place.why, "not one_shot, in place from in_place=1K"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_option_stands_in_place_of_the_table),
                                       cmocka_unit_test(test_option_is_checked),
                                       cmocka_unit_test(test_wrong_option_is_told_by_every_rank),
                                       cmocka_unit_test(test_choice_is_what_runs),
                                       cmocka_unit_test(test_choice_is_checked),
                                       cmocka_unit_test(test_why_in_place_differs),
                                       cmocka_unit_test(test_ranks_bound_to_different_cores_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
