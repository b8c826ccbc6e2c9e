/* SPDX-License-Identifier: Apache-2.0
 *
 * test_handback.c - what came from afar: three slow samples behind each other say so, one from near
 * takes it back, one that our own memory slows says nothing; what is handed back keeps its content.
 */
#include "../../src/coll/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* after those */
#include <cmocka.h>

enum { SAMPLE = 16 << 10 };
#define NEAR_NS UINT64_C(700)
#define SLOW_NS UINT64_C(1300)

static hpi_coll_state make_state(bool are_lines_dear) {
    return (hpi_coll_state){
        .are_lines_dear = are_lines_dear,
        .thresholds = {[HPI_FROM_HAND_BACK] = 1 << 10, [HPI_FROM_KEEP] = 1 << 20}};
}

static hpi_run make_run(hpi_coll_state *state, uint64_t bytes) {
    return (hpi_run){.state = state, .what = HP_ALL_GATHER, .n = 2, .out_bytes = bytes};
}

static hpi_reading begin(hpi_coll_state *state, uint64_t bytes) {
    const hpi_run run = make_run(state, bytes);
    return hpi_reading_begin(&run, NULL, NULL, 0);
}

static bool is_afar_behind(hpi_coll_state *state, uint64_t own_ns, uint64_t peer_ns) {
    const hpi_reading reading = begin(state, 1 << 19);
    hpi_reading_judge(&reading, own_ns, peer_ns);
    assert_int_equal(hpi_is_from_afar(&reading), hpi_reading_step(&reading) < UINT64_MAX);
    return hpi_is_from_afar(&reading);
}

static void three_slow_samples_are_afar(void **state) {
    (void)state;
    hpi_coll_state s = make_state(true);
    assert_false(is_afar_behind(&s, NEAR_NS, SLOW_NS));
    assert_false(is_afar_behind(&s, NEAR_NS, SLOW_NS));
    assert_true(is_afar_behind(&s, NEAR_NS, SLOW_NS));
    assert_true(is_afar_behind(&s, NEAR_NS, SLOW_NS));
    assert_false(is_afar_behind(&s, NEAR_NS, NEAR_NS));
    assert_false(is_afar_behind(&s, NEAR_NS, SLOW_NS)); /* from the beginning */
}

/* Where our own input is as slow, a sample says nothing, neither this nor that. */
static void memory_is_not_afar(void **state) {
    (void)state;
    hpi_coll_state s = make_state(true);
    for (int k = 0; k < 5; k++)
        assert_false(is_afar_behind(&s, SLOW_NS, SLOW_NS));
    for (int k = 0; k < 3; k++)
        (void)is_afar_behind(&s, NEAR_NS, SLOW_NS);
    assert_true(is_afar_behind(&s, SLOW_NS, SLOW_NS));
    assert_true(is_afar_behind(&s, SLOW_NS, NEAR_NS));
}

/* Too small, too large, a processor that gains nothing. */
static void others_are_not_judged(void **state) {
    (void)state;
    hpi_coll_state able = make_state(true), unable = make_state(false);
    for (int k = 0; k < 3; k++)
        (void)is_afar_behind(&able, NEAR_NS, SLOW_NS);
    const hpi_reading readings[] = {begin(&able, 1 << 9), begin(&able, 1 << 20),
                                    begin(&unable, 1 << 19)};
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
        assert_false(hpi_is_from_afar(&readings[i]));
        assert_int_equal(hpi_reading_step(&readings[i]), UINT64_MAX);
    }
}

/* NULL would be read. */
static void short_ones_are_not_timed(void **state) {
    (void)state;
    static unsigned char memory[2 * SAMPLE];
    hpi_coll_state s = make_state(true);
    const hpi_run run = make_run(&s, 1 << 19);
    (void)hpi_reading_begin(&run, NULL, NULL, SAMPLE - 1);
    assert_int_equal(s.n_readings, 0);
    (void)hpi_reading_begin(&run, memory, memory + SAMPLE, SAMPLE);
    assert_int_equal(s.n_readings, 1);
}

static void content_stays(void **state) {
    (void)state;
    enum { BYTES = 4096, MARGIN = 64 };
    if (!hpi_are_lines_dear()) {
        print_message("skipped: lines go back on AMD alone, with clflushopt\n");
        skip();
    }
    hpi_coll_state s = make_state(true);
    unsigned char *memory = malloc(BYTES + MARGIN);
    assert_non_null(memory);
    for (int k = 0; k < 3; k++)
        (void)is_afar_behind(&s, NEAR_NS, SLOW_NS);
    const hpi_reading last = begin(&s, 1 << 19);
    assert_true(hpi_is_from_afar(&last));
    for (int i = 0; i < BYTES + MARGIN; i++)
        memory[i] = (unsigned char)(i * 7);
    for (int skip_bytes = 0; skip_bytes < MARGIN; skip_bytes += 13)
        hpi_hand_back(&last, memory + skip_bytes, BYTES);
    for (int i = 0; i < BYTES + MARGIN; i++)
        assert_int_equal(memory[i], (unsigned char)(i * 7));
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_slow_samples_are_afar), cmocka_unit_test(memory_is_not_afar),
        cmocka_unit_test(others_are_not_judged), cmocka_unit_test(short_ones_are_not_timed),
        cmocka_unit_test(content_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
