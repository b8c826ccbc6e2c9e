/* SPDX-License-Identifier: Apache-2.0
 *
 * test_symmetric_memory_full.c - row S19 of the field cases at its full length: 10^7 times.
 */
#include "field/payload_then_flag.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void S19_payload_before_flag_ten_million_times(void **state) {
    uint64_t n = 10000000;
    (void)state;
    ranks_set_deadline_ms(900000);
    ranks_run(2, RANKS_THREADS, payload_then_flag_body, &n);
    ranks_run(2, RANKS_PROCESSES, payload_then_flag_body, &n);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(S19_payload_before_flag_ten_million_times)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
