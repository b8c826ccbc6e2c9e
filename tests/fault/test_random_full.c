/* SPDX-License-Identifier: Apache-2.0
 *
 * test_random_full.c - 10^5 random operations over overlapping groups.
 *
 * Worlds of 2 to 5 ranks, threads and processes in turn, 5,000 operations of a seed each; then
 * streams. HP_TEST_SEED is the first seed, HP_TEST_OPS how many operations there are in all. It
 * prints what it played.
 */
#include "fault/random_lanes.h"

enum { WORLD_OPS = 5000 };

static void play_worlds(ranks_body body, uint64_t n_ops, uint64_t first_seed) {
    const uint64_t begin_ns = hpi_now_ns();
    uint64_t seed = random_number_of("HP_TEST_SEED", first_seed), played = 0;
    for (; played < n_ops; seed++, played += WORLD_OPS)
        random_run(body, seed, 2 + (int)(seed % 4), seed / 4 % 2 ? RANKS_PROCESSES : RANKS_THREADS,
                   WORLD_OPS);
    print_message("%llu operations, seeds up to %llu, in %llu s\n", (unsigned long long)played,
                  (unsigned long long)(seed - 1),
                  (unsigned long long)((hpi_now_ns() - begin_ns) / UINT64_C(1000000000)));
}

static void N7_hundred_thousand_random_operations(void **state) {
    (void)state;
    play_worlds(random_body, random_number_of("HP_TEST_OPS", 100000), 1000);
}
static void N7_streams_of_overlapping_groups(void **state) {
    (void)state;
    play_worlds(lanes_body, random_number_of("HP_TEST_OPS", 100000) / 5, 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N7_hundred_thousand_random_operations),
        cmocka_unit_test(N7_streams_of_overlapping_groups),
    };
    ranks_set_deadline_ms(600 * 1000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
