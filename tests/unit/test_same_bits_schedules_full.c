/* SPDX-License-Identifier: Apache-2.0
 *
 * test_same_bits_schedules_full.c - SPEC A9: the product of all eleven factors, two steps of each
 * setting.
 *
 * Left out is what is another setting under a second name: a serial schedule prefetches nothing,
 * whatever the depth; and auto is the mode that it has chosen (test_same_bits_full.c has it).
 */
#include "unit/same_bits_product.h"

static bool is_itself(setting *s, uint64_t *seed) {
    (void)seed;
    return s->of[MODE] != HP_AUTO && (s->of[SCHEDULE] != HP_SERIAL || s->of[PREFETCH] == 0);
}

static void test_every_schedule(void **state) {
    (void)state;
    static const factor factors[] = {REPLAY, RESHARD, EXECUTOR,  SCHEDULE,    PREFETCH,
                                     MODE,   MESH,    PRECISION, ACCUMULATION};
    const product all = {factors, sizeof factors / sizeof *factors, 2, is_itself};
    const int n = train_product(&all);
    printf("%d settings of 2 steps\n", n);
    assert_int_equal(n, 2 * 2 * 2 * (2 * 3 + 1) * 4 * 4 * 4 * 3 * N_PHASES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
