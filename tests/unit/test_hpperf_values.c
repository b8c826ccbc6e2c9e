/* SPDX-License-Identifier: Apache-2.0
 *
 * test_hpperf_values.c - hpperf's checker: what it expects is what the oracle gives, and no planted
 * fault passes: a wrong element, a contribution dropped, doubled or taken for another, parts of
 * other ranks, data of the last iteration or of another place, additions in another order.
 */
#include "../../programs/perf/values.c"

#include "support/oracle.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum {
    COUNT = 1000,
    MOST_RANKS = 9,
    NOBODY = MOST_RANKS,
    LARGEST = 8,
    FIRST = 8000,
    ITERATION = 3
};

typedef struct contributions {
    values values;
    values_config config;
    _Alignas(16) unsigned char of[MOST_RANKS + 1][COUNT * LARGEST]; /* the last: zeros */
    _Alignas(16) unsigned char result[COUNT * LARGEST];
} contributions;

static bool has_avg(hp_dtype dtype) {
    return dtype <= HP_BF16;
}

/* The pieces go over the end of the period. */
static void open(contributions *c, const values_config *config) {
    c->config = *config;
    assert_true(values_create(config, &c->values));
    for (int r = 0; r < config->n_ranks; r++)
        values_fill(&c->values, r, ITERATION, FIRST, COUNT, c->of[r]);
}

/* Reduce what `from` names by rank: [n]; n may be another than the ranks. */
static uint64_t wrong_of(contributions *c, const int *from, int n) {
    const void *in[2 * MOST_RANKS];
    for (int i = 0; i < n; i++)
        in[i] = c->of[from[i]];
    oracle_reduce(c->config.dtype, c->config.dtype, c->config.op, in, n, c->result, COUNT);
    return values_wrong(&c->values, VALUES_REDUCED, ITERATION, FIRST, COUNT, c->result);
}

static void each_reduction(void (*body)(contributions *c), int least_ranks) {
    static contributions c;
    for (int dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        for (int op = HP_SUM; op <= HP_MIN; op++)
            for (int n = least_ranks; n <= MOST_RANKS; n++) {
                const values_config config = {
                    .dtype = (hp_dtype)dtype, .n_ranks = n, .reduces = true, .op = (hp_reduce)op};
                if (op == HP_AVG && !has_avg((hp_dtype)dtype))
                    continue;
                open(&c, &config);
                body(&c);
                values_destroy(&c.values);
            }
}

static void is_right(contributions *c) {
    int from[MOST_RANKS];
    for (int i = 0; i < c->config.n_ranks; i++)
        from[i] = i;
    assert_int_equal(wrong_of(c, from, c->config.n_ranks), 0);
}

static void expects_what_the_oracle_gives(void **state) {
    (void)state;
    each_reduction(is_right, 1);
}

static bool adds(const contributions *c) {
    return c->config.op == HP_SUM || c->config.op == HP_AVG;
}

/* A sum shows it everywhere, but where a contribution drowns beside a large one; the largest and
 * the smallest show it where they are this rank's alone. */
static void assert_seen(const contributions *c, uint64_t wrong) {
    assert_true(wrong >= (adds(c) ? COUNT * 3 / 4 : 1));
}

/* Above 7 ranks another may have the same number wherever this one's is the largest. */
static void drop_each(contributions *c) {
    const int n = c->config.n_ranks;
    int from[MOST_RANKS];
    for (int dropped = 0; dropped < n && (adds(c) || n <= 7); dropped++) {
        int kept = 0;
        for (int i = 0; i < n; i++)
            if (i != dropped)
                from[kept++] = i;
            else if (adds(c)) /* the mean is still over all */
                from[kept++] = NOBODY;
        assert_seen(c, wrong_of(c, from, kept));
    }
}

static void sees_a_dropped_contribution(void **state) {
    (void)state;
    each_reduction(drop_each, 2);
}

static void double_each(contributions *c) {
    const int n = c->config.n_ranks;
    int from[MOST_RANKS + 1];
    for (int doubled = 0; c->config.op == HP_SUM && doubled < n; doubled++) {
        for (int i = 0; i < n; i++)
            from[i] = i;
        from[n] = doubled;
        assert_seen(c, wrong_of(c, from, n + 1));
    }
}

static void sees_a_doubled_contribution(void **state) {
    (void)state;
    each_reduction(double_each, 1);
}

static void mistake_each(contributions *c) {
    const int n = c->config.n_ranks;
    int from[MOST_RANKS];
    for (int missing = 0; n <= 7 && missing < n; missing++) {
        for (int i = 0; i < n; i++)
            from[i] = i;
        from[missing] = (missing + 1) % n;
        assert_seen(c, wrong_of(c, from, n));
    }
}

static void sees_one_rank_taken_for_another(void **state) {
    (void)state;
    each_reduction(mistake_each, 2);
}

static void sees_the_order_of_additions(void **state) {
    (void)state;
    static contributions c;
    static const int orders[][4] = {{0, 2, 1, 3}, {3, 0, 1, 2}, {1, 2, 3, 0}};
    for (int dtype = HP_FP64; dtype <= HP_FP32; dtype++) {
        const values_config config = {.dtype = (hp_dtype)dtype, .n_ranks = 4, .reduces = true};
        open(&c, &config);
        for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
            assert_true(wrong_of(&c, orders[i], 4) > 0);
        values_destroy(&c.values);
    }
}

/* ---- what is moved ---- */

static void sees_the_wrong_part(void **state) {
    (void)state;
    static contributions c;
    for (int dtype = HP_FP64; dtype <= HP_UINT8; dtype++) {
        const values_config config = {.dtype = (hp_dtype)dtype, .n_ranks = MOST_RANKS};
        open(&c, &config);
        for (int r = 0; r < MOST_RANKS; r++)
            for (int other = 0; other < MOST_RANKS; other++)
                assert_int_equal(values_wrong(&c.values, r, ITERATION, FIRST, COUNT, c.of[other]),
                                 r == other ? 0 : COUNT);
        values_destroy(&c.values);
    }
}

static void sees_another_place_or_time(void **state) {
    (void)state;
    static contributions c;
    for (int reduces = 0; reduces < 2; reduces++)
        for (int dtype = HP_FP64; dtype <= HP_UINT8; dtype++) {
            const values_config config = {
                .dtype = (hp_dtype)dtype, .n_ranks = 2, .reduces = reduces == 1};
            open(&c, &config);
            for (uint64_t shift = 1; shift <= UINT64_C(1) << 40; shift *= 2)
                assert_true(values_wrong(&c.values, 0, ITERATION, FIRST + shift, COUNT, c.of[0]) >
                            COUNT / 2);
            assert_true(values_wrong(&c.values, 0, ITERATION - 1, FIRST, COUNT, c.of[0]) >
                        COUNT / 2);
            values_destroy(&c.values);
        }
}

static void counts_wrong_elements(void **state) {
    (void)state;
    static contributions c;
    for (int dtype = HP_FP64; dtype <= HP_UINT8; dtype++) {
        const values_config config = {.dtype = (hp_dtype)dtype, .n_ranks = 1};
        const size_t size = hp_dtype_size((hp_dtype)dtype);
        open(&c, &config);
        for (int i = 0; i < 5; i++)
            c.of[0][(size_t)(i * 237) * size + (size_t)i % size] ^= 1;
        assert_int_equal(values_wrong(&c.values, 0, ITERATION, FIRST, COUNT, c.of[0]), 5);
        values_destroy(&c.values);
    }
}

/* A wire of fp8 holds 3 significant bits: contributions must be as many or fewer. */
static void holds_in_every_wire(void **state) {
    (void)state;
    static contributions c;
    for (int op = HP_SUM; op <= HP_MIN; op++) {
        const values_config config = {.dtype = HP_FP32,
                                      .n_ranks = MOST_RANKS,
                                      .reduces = true,
                                      .op = (hp_reduce)op,
                                      .is_rounded = true};
        open(&c, &config);
        for (int wire = HP_WIRE_FP16; wire <= HP_WIRE_FP8_E5M2; wire++)
            for (int r = 0; r < MOST_RANKS; r++) {
                oracle_wire((hp_wire)wire, HP_FP32, c.of[r], (float *)(void *)c.result, COUNT);
                assert_memory_equal(c.result, c.of[r], COUNT * sizeof(float));
            }
        values_destroy(&c.values);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expects_what_the_oracle_gives),
        cmocka_unit_test(sees_a_dropped_contribution),
        cmocka_unit_test(sees_a_doubled_contribution),
        cmocka_unit_test(sees_one_rank_taken_for_another),
        cmocka_unit_test(sees_the_order_of_additions),
        cmocka_unit_test(sees_the_wrong_part),
        cmocka_unit_test(sees_another_place_or_time),
        cmocka_unit_test(counts_wrong_elements),
        cmocka_unit_test(holds_in_every_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
