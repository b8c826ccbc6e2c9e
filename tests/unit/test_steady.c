/* SPDX-License-Identifier: Apache-2.0
 *
 * test_steady.c - 40 steps after the first ones take no memory, descriptor or mapping, in every
 * mode.
 */
#include "unit/steady.h"

static void nothing_grows(void **state) {
    (void)state;
    steady_in_every_mode(40);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_grows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
