/* SPDX-License-Identifier: Apache-2.0
 *
 * test_random_reset.c - a hundred resets at random places; test_random_reset_full.c makes more.
 */
#include "fault/random_reset.h"

static void resets_at_random_places(void **state) {
    (void)state;
    reset_run_seeds(1, 20, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(resets_at_random_places, scratch_make, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
