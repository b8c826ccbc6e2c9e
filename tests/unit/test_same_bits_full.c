/* SPDX-License-Identifier: Apache-2.0
 *
 * test_same_bits_full.c - SPEC A9: every mode, prefetch, executor, mesh, optimizer, clipping,
 * accumulation and precision with every other, 20 steps each, the oracle's bits in every step.
 *
 * Schedule, resharding and replay are drawn for each session, with a fixed seed;
 * test_same_bits_schedules_full.c has all of them.
 */
#include "unit/same_bits_product.h"

static bool draw_the_rest(setting *s, uint64_t *seed) {
    static const factor rest[] = {SCHEDULE, RESHARD, REPLAY};
    for (int k = 0; k < 3; k++)
        s->of[rest[k]] = (int)(hpi_random_next(seed) % (uint64_t)n_values[rest[k]]);
    return true;
}

static void test_every_training(void **state) {
    (void)state;
    static const factor factors[] = {EXECUTOR, PREFETCH, MODE, MESH, PRECISION, ACCUMULATION};
    const product all = {factors, sizeof factors / sizeof *factors, 20, draw_the_rest};
    const int n = train_product(&all);
    printf("%d settings of 20 steps\n", n);
    assert_int_equal(n, 2 * 3 * 5 * 4 * 4 * 3 * N_PHASES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
