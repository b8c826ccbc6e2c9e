/* SPDX-License-Identifier: Apache-2.0
 *
 * test_random_reset_full.c - thousands of resets at random places.
 */
#include "fault/random_reset.h"

static void thousands_of_resets(void **state) {
    (void)state;
    reset_run_seeds(1000, 200, 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(thousands_of_resets, scratch_make, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
