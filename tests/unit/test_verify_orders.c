/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verify_orders.c - hp_verify accepts a job exactly if no order of its operations breaks it.
 */
#include "random_jobs.h"

static void test_random_jobs_in_every_order(void **state) {
    (void)state;
    compare_judges(1, 20000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_jobs_in_every_order)};
    return cmocka_run_group_tests_name("verify_orders", tests, NULL, NULL);
}
