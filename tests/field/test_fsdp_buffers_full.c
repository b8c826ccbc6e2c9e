/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_buffers_full.c - row F8 at its full length.
 */
#include "freed_buffers.h"

static void F8_nothing_freed_is_read_in_a_thousand_steps(void **state) {
    (void)state;
    train_over_freed_buffers(1000, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F8_nothing_freed_is_read_in_a_thousand_steps),
    };
    ranks_set_deadline_ms(600000);
    return cmocka_run_group_tests_name("fsdp_buffers_full", tests, NULL, NULL);
}
