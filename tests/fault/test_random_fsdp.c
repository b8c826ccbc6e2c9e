/* SPDX-License-Identifier: Apache-2.0
 *
 * test_random_fsdp.c - random training loops: the same bits in every way, and sound lists.
 *
 * The same seeds every time; HP_TEST_SEED plays another one, and HP_TEST_CASES so many from there.
 * test_random_fsdp_full.c plays thousands.
 */
#include "fault/random_fsdp.h"

static void A9_random_loops_have_the_bits_of_the_plainest_way(void **state) {
    (void)state;
    run_seeds(1, 40, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A9_random_loops_have_the_bits_of_the_plainest_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
