/* SPDX-License-Identifier: Apache-2.0
 *
 * test_robustness_full.c - R14 in full: a million collectives in flat memory.
 */
#include "field/flat_memory.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void R14_a_million_barriers_in_flat_memory(void **state) {
    uint64_t n = 2000000; /* half of them barriers, half broadcasts */
    (void)state;
    ranks_set_deadline_ms(1500000);
    ranks_run(3, RANKS_PROCESSES, flat_memory_body, &n);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(R14_a_million_barriers_in_flat_memory)};
    return cmocka_run_group_tests_name("robustness_full", tests, NULL, NULL);
}
