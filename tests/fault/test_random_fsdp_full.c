/* SPDX-License-Identifier: Apache-2.0
 *
 * test_random_fsdp_full.c - thousands of random training loops, on up to 8 ranks.
 */
#include "fault/random_fsdp.h"

static void A9_random_loops_on_a_few_ranks(void **state) {
    (void)state;
    run_seeds(1000, 4000, 4);
}

static void A9_random_loops_on_many_ranks(void **state) {
    (void)state;
    run_seeds(100000, 1000, FSDP_RANKS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A9_random_loops_on_a_few_ranks),
        cmocka_unit_test(A9_random_loops_on_many_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
