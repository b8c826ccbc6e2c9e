/* SPDX-License-Identifier: Apache-2.0
 *
 * test_save_killed_full.c - 200 kills at random moments of a save, each followed by a load and more
 * steps.
 */
#include "fault/save_killed.h"

static void whatever_a_kill_leaves_loads(void **state) {
    kill_while_saving(*state, 200);
    load_everywhere(*state, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whatever_a_kill_leaves_loads, restarted_setup,
                                        restarted_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
