/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verify_orders_full.c - the same as test_verify_orders, for millions of jobs.
 */
#include "random_jobs.h"

static void test_many_random_jobs_in_every_order(void **state) {
    (void)state;
    for (uint64_t seed = 2; seed < 12; seed++)
        compare_judges(seed, 1000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_random_jobs_in_every_order)};
    return cmocka_run_group_tests_name("verify_orders_full", tests, NULL, NULL);
}
