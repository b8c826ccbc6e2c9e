/* SPDX-License-Identifier: Apache-2.0
 *
 * test_random.c - random operations over overlapping groups, as threads and as processes.
 *
 * Every collective, messages, one-sided calls, memories and groups that come and go, and several
 * streams on a rank. The same seeds every time; HP_TEST_SEED plays another one, HP_TEST_OPS so many
 * operations of it. test_random_full.c plays 10^5.
 */
#include "fault/random_lanes.h"

static uint64_t n_ops(uint64_t otherwise) {
    return random_number_of("HP_TEST_OPS", otherwise);
}

static void N7_random_operations_as_threads(void **state) {
    (void)state;
    random_run(random_body, random_number_of("HP_TEST_SEED", 1), 5, RANKS_THREADS, n_ops(2000));
}
static void N7_random_operations_as_processes(void **state) {
    (void)state;
    random_run(random_body, random_number_of("HP_TEST_SEED", 2), 4, RANKS_PROCESSES, n_ops(2000));
}
static void N7_streams_of_overlapping_groups_as_threads(void **state) {
    (void)state;
    random_run(lanes_body, random_number_of("HP_TEST_SEED", 3), 4, RANKS_THREADS, n_ops(400));
}
static void N7_streams_of_overlapping_groups_as_processes(void **state) {
    (void)state;
    random_run(lanes_body, random_number_of("HP_TEST_SEED", 4), 5, RANKS_PROCESSES, n_ops(400));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N7_random_operations_as_threads),
        cmocka_unit_test(N7_random_operations_as_processes),
        cmocka_unit_test(N7_streams_of_overlapping_groups_as_threads),
        cmocka_unit_test(N7_streams_of_overlapping_groups_as_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
