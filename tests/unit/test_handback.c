/* SPDX-License-Identifier: Apache-2.0
 *
 * test_handback.c - what came from afar: three slow samples behind each other say so, one from near
 * takes it back, and what is handed back keeps its content.
 */
#include "../../src/coll/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* after those */
#include <cmocka.h>

enum { SAMPLE = 16 << 10 };
#define SLOW_NS UINT64_C(1000000)

static hpi_coll_state make_state(bool can_hand_back) {
    return (hpi_coll_state){
        .can_hand_back = can_hand_back,
        .thresholds = {[HPI_FROM_HAND_BACK] = 1 << 10, [HPI_FROM_KEEP] = 1 << 20}};
}

static hpi_run make_run(hpi_coll_state *state, uint64_t bytes) {
    return (hpi_run){.state = state, .what = HP_ALL_GATHER, .n = 2, .out_bytes = bytes};
}

/* A call whose first piece took a millisecond, for as many bytes: few are slow. */
static hpi_reading read_first(hpi_coll_state *state, uint64_t bytes) {
    const hpi_run run = make_run(state, 1 << 19);
    hpi_reading reading = hpi_reading_begin(&run);
    assert_int_equal(hpi_reading_step(&reading), SAMPLE);
    assert_false(hpi_is_from_afar(&reading)); /* before it is judged */
    reading.begin_ns -= SLOW_NS;
    hpi_reading_judge(&reading, bytes);
    return reading;
}

static void three_slow_samples_are_afar(void **state) {
    (void)state;
    hpi_coll_state s = make_state(true);
    hpi_reading reading = read_first(&s, SAMPLE);
    assert_int_equal(hpi_reading_step(&reading), UINT64_MAX);
    (void)read_first(&s, SAMPLE);
    reading = read_first(&s, SAMPLE);
    assert_true(hpi_is_from_afar(&reading));
    assert_true(hpi_reading_step(&reading) < UINT64_MAX);
    reading = read_first(&s, SAMPLE);
    assert_true(hpi_is_from_afar(&reading));
    reading = read_first(&s, UINT64_C(1) << 50);
    assert_false(hpi_is_from_afar(&reading));
    reading = read_first(&s, SAMPLE);
    assert_false(hpi_is_from_afar(&reading)); /* from the beginning */
}

/* Too small, too large, a processor that gains nothing; a piece that is too short to tell. */
static void others_are_not_judged(void **state) {
    (void)state;
    hpi_coll_state able = make_state(true), unable = make_state(false);
    const hpi_run runs[] = {make_run(&able, 1 << 9), make_run(&able, 1 << 20),
                            make_run(&unable, 1 << 19)};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        hpi_reading reading = hpi_reading_begin(&runs[i]);
        assert_int_equal(hpi_reading_step(&reading), UINT64_MAX);
        for (int k = 0; k < 5; k++)
            hpi_reading_judge(&reading, SAMPLE);
        assert_false(hpi_is_from_afar(&reading));
    }
    const hpi_run run = make_run(&able, 1 << 19);
    hpi_reading reading = hpi_reading_begin(&run);
    reading.begin_ns -= SLOW_NS;
    hpi_reading_judge(&reading, SAMPLE - 1);
    assert_int_equal(hpi_reading_step(&reading), SAMPLE);
}

static void content_stays(void **state) {
    (void)state;
    enum { BYTES = 4096, MARGIN = 64 };
    if (!hpi_can_hand_back())
        skip(); /* not AMD, or no clflushopt */
    hpi_coll_state s = make_state(true);
    unsigned char *memory = malloc(BYTES + MARGIN);
    assert_non_null(memory);
    (void)read_first(&s, SAMPLE);
    (void)read_first(&s, SAMPLE);
    const hpi_reading last = read_first(&s, SAMPLE);
    assert_true(hpi_is_from_afar(&last));
    for (int i = 0; i < BYTES + MARGIN; i++)
        memory[i] = (unsigned char)(i * 7);
    for (int skip_bytes = 0; skip_bytes < MARGIN; skip_bytes += 13)
        hpi_hand_back(&last, memory + skip_bytes, BYTES);
    for (int i = 0; i < BYTES + MARGIN; i++)
        assert_int_equal(memory[i], (unsigned char)(i * 7));
    free(memory);
}

/* Eight fast samples, until a slow one; and in place nothing passes through cells. */
static void fast_samples_are_near(void **state) {
    (void)state;
    enum { FAST = 8, CALLS = 32 };
    hpi_coll_state s = make_state(true);
    hpi_run run = make_run(&s, 1 << 19);
    for (int i = 0; i < FAST; i++) {
        assert_false(hpi_found_near(&run));
        (void)read_first(&s, UINT64_C(1) << 50);
    }
    assert_true(hpi_found_near(&run));
    for (int i = 0; i < CALLS; i++) {
        assert_true(hpi_found_near(&run));
        hpi_near_ran(&run);
    }
    assert_false(hpi_found_near(&run)); /* the next call samples */
    (void)read_first(&s, UINT64_C(1) << 50);
    assert_true(hpi_found_near(&run));
    run.what = HP_ALL_REDUCE;
    assert_true(hpi_found_near(&run));
    run.is_in_place = true;
    assert_false(hpi_found_near(&run));
    run.is_in_place = false;
    (void)read_first(&s, SAMPLE);
    assert_false(hpi_found_near(&run));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_slow_samples_are_afar), cmocka_unit_test(others_are_not_judged),
        cmocka_unit_test(fast_samples_are_near), cmocka_unit_test(content_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
