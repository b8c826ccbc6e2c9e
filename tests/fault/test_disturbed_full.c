/* SPDX-License-Identifier: Apache-2.0
 *
 * test_disturbed_full.c - 1000 steps with delays, kills, restarts and changes of mesh and mode.
 */
#include "fault/disturbed.h"

static void with_threads(void **state) {
    train_disturbed(*state, 1000, RANKS_THREADS);
}

static void with_processes(void **state) {
    train_disturbed(*state, 1000, RANKS_PROCESSES);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, restarted_setup, restarted_teardown)

/* Processes first: of threads that were cut streams are left, and a sanitizer refuses to fork. */
int main(void) {
    const struct CMUnitTest tests[] = {TEST(with_processes), TEST(with_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
