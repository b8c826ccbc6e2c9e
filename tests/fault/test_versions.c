/* SPDX-License-Identifier: Apache-2.0
 *
 * test_versions.c - programs and ranks of another version of the library.
 *
 * Each rank of this test is a real process with the library linked in, whose version is another one
 * in rank 1: the three functions of base/version.c are defined here and so not taken from the
 * archive. What must hold: every rank is told both versions, at once.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_RANKS = 3, TOLD = 0, NOT_TOLD = 4 };

static const char *version = "0.1.0";

const char *hp_version(void) {
    return version;
}
const char *hp_version_build(void) {
    return "a test";
}
hp_status hp_version_check(uint32_t headers) {
    return headers <= HP_VERSION_NUMBER
               ? HP_OK
               : HPI_FAIL(HP_ERR_VERSION, "expected %s, given headers of %u", version, headers);
}

static int body(void *argument) {
    const char *rank = getenv("RANK");
    hp_world *world;
    const uint64_t begin_ns = hpi_now_ns();
    (void)argument;
    if (rank && !strcmp(rank, "1"))
        version = "0.9.7";
    if (hp_world_create(NULL, &world) != HP_ERR_VERSION)
        return NOT_TOLD;
    hp_error error;
    hp_last_error_get(&error);
    return error.world_rank == 1 && strstr(error.message, "0.9.7") &&
                   strstr(error.message, "0.1.0") && hpi_now_ns() - begin_ns < 5000000000
               ? TOLD
               : NOT_TOLD;
}

static void test_another_library(void **state) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int status = -1;
    (void)state;
    config.n_ranks = N_RANKS;
    config.body = body;
    config.deadline_ms = 20000;
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    assert_int_equal(status, TOLD);
}

static void test_newer_headers(void **state) {
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *world;
    (void)state;
    assert_int_equal(config.version, HP_VERSION_NUMBER);
    config.version++;
    assert_int_equal(hp_world_create(&config, &world), HP_ERR_VERSION);
    config.version = 0; /* not told: not checked */
    assert_int_equal(hp_world_create(&config, &world), HP_OK);
    hp_world_destroy(world);
    config.version = HP_VERSION_NUMBER;
    /* a program of before the field existed */
    config.size = offsetof(hp_world_config, version);
    assert_int_equal(hp_world_create(&config, &world), HP_OK);
    hp_world_destroy(world);
}

/* A segment of another layout is not used. */
static void test_another_layout(void **state) {
    hpi_segment own, seen;
    (void)state;
    assert_int_equal(hpi_segment_create(1 << 20, 0, &own), HP_OK);
    assert_int_equal(hpi_segment_map(own.fd, 0, &seen), HP_OK);
    hpi_segment_close(&seen);
    hpi_segment_control(&own)->layout_version++;
    assert_int_equal(hpi_segment_map(own.fd, 0, &seen), HP_ERR_VERSION);
    assert_non_null(strstr(hp_last_error(), "layout"));
    hpi_segment_close(&own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_library),
        cmocka_unit_test(test_newer_headers),
        cmocka_unit_test(test_another_layout),
    };
    return cmocka_run_group_tests_name("versions", tests, NULL, NULL);
}
