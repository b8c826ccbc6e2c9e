/* SPDX-License-Identifier: Apache-2.0
 *
 * test_copy.c - hpi_copy and hpi_copy_past copy what memcpy does and touch nothing else, at every
 * size around those at which they change their way, wherever the blocks begin.
 */
#include "../../src/base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* after those */
#include <cmocka.h>

enum { PAGE = 4096, MOST = 40 * PAGE, MARGIN = 64, FILL = 0xA5 };

typedef void (*copy_function)(void *to, const void *from, uint64_t bytes);

static void check_one(copy_function copy, unsigned char *to, const unsigned char *from,
                      uint64_t bytes) {
    memset(to, FILL, bytes + 2 * MARGIN);
    copy(to + MARGIN, from, bytes);
    for (uint64_t i = 0; i < MARGIN; i++) {
        assert_int_equal(to[i], FILL);
        assert_int_equal(to[MARGIN + bytes + i], FILL);
    }
    assert_memory_equal(to + MARGIN, from, bytes);
}

static void check(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    check_one(hpi_copy, to, from, bytes);
    check_one(hpi_copy_past, to, from, bytes);
}

static void copies_what_memcpy_does(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0,
                                     1,
                                     63,
                                     64,
                                     200,
                                     PAGE,
                                     16 * PAGE - 1,
                                     16 * PAGE,
                                     16 * PAGE + 1,
                                     17 * PAGE,
                                     18 * PAGE - 1,
                                     35 * PAGE + 77};
    unsigned char *to = malloc(MOST + 4 * MARGIN), *from = malloc(MOST + MARGIN);
    uint64_t random = 1;
    assert_true(to && from);
    for (uint64_t i = 0; i < MOST + MARGIN; i++)
        from[i] = (unsigned char)hpi_random_next(&random);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint64_t skip = 0; skip < MARGIN; skip += 21) {
            check(to + skip, from + skip, sizes[s]);
            check(to, from + skip, sizes[s]);
            check(to + skip, from, sizes[s]);
        }
    free(to);
    free(from);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_what_memcpy_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
