/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_full.c - the whole product that test_wire.c samples.
 *
 * Every reduction, wire, dtype and op, in every memory, in place and not, with results in either
 * precision, at every size around a block; and around what a chunk and a cell hold. In groups of 1
 * to 9, as threads and as processes.
 */
#include "wire_cases.h"

/* ---- the product ---- */

static void run_counts(bench *b, wire_case c) {
    static const uint64_t counts[] = {0, 1, 127, 128, 129, 257};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        c.count = counts[k];
        run_case(b, &c);
    }
}

static void run_memories(bench *b, wire_case c) {
    for (int where = 0; where < N_MEMORIES; where++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int result = 0; result < (c.what == HP_ALL_REDUCE ? 2 : 1); result++) {
                c.where = (whereabouts)where;
                c.in_place = in_place;
                c.wire_result = result;
                run_counts(b, c);
            }
}

static void product_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, MAX_RANKS * 300);
    for (int r = 0; r < 3; r++)
        for (hp_wire wire = HP_WIRE_FP16; wire <= HP_WIRE_FP8_E5M2; wire++)
            for (unsigned d = 0; d < 3; d++)
                for (hp_reduce op = HP_SUM; op <= HP_MIN; op++)
                    run_memories(&b, (wire_case){.what = reductions[r],
                                                 .wire = wire,
                                                 .dtype = dtype_at(d),
                                                 .op = op});
    bench_close(&b);
}

/* ---- around what a chunk and a cell hold ---- */

enum { CELL = 128 * 1024, CHUNK = 2048 };

/* Elements that travel in so many bytes: whole blocks. */
static uint64_t elements_in(hp_wire wire, uint64_t bytes) {
    const bool is_fp8 = wire == HP_WIRE_FP8_E4M3 || wire == HP_WIRE_FP8_E5M2;
    return bytes / (is_fp8 ? 132 : 256) * 128;
}

/* Of a part, or of the vector, whose results take no more than a cell of each rank either. */
static uint64_t in_a_cell(const bench *b, const wire_case *c) {
    const uint64_t n = (uint64_t)b->n;
    if (c->what != HP_ALL_REDUCE)
        return elements_in(c->wire, CELL / n / 64 * 64);
    return hpi_min(elements_in(c->wire, CELL), n * (CELL / hp_dtype_size(c->dtype)));
}

/* The dtype is another one in each group. */
static void run_thresholds(bench *b, wire_case c) {
    const uint64_t marks[] = {CHUNK, in_a_cell(b, &c), 2 * in_a_cell(b, &c)};
    for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
        for (int beside = -1; beside <= 1; beside++) {
            c.count = (uint64_t)((int64_t)marks[k] + beside);
            c.op = b->n_cases % 2 ? HP_AVG : HP_MAX;
            c.where = (whereabouts)(b->n_cases % N_MEMORIES);
            c.in_place = b->n_cases / 2 % 2;
            c.wire_result = c.what == HP_ALL_REDUCE && b->n_cases / 4 % 2;
            run_case(b, &c);
        }
}

static void thresholds_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, 2 * CELL + 4096);
    for (unsigned r = 0; r < 3; r++)
        for (hp_wire wire = HP_WIRE_FP16; wire <= HP_WIRE_FP8_E5M2; wire++)
            run_thresholds(&b, (wire_case){.what = reductions[r],
                                           .wire = wire,
                                           .dtype = dtype_at(r + wire + (unsigned)b.n)});
    bench_close(&b);
}

/* ---- the tests ---- */

static void in_every_group(ranks_kind kind, ranks_body body) {
    for (int n = 1; n <= MAX_RANKS; n++)
        ranks_run(n, kind, body, NULL);
}

static void N4_the_whole_product_as_threads(void **state) {
    (void)state;
    in_every_group(RANKS_THREADS, product_body);
}
static void N4_the_whole_product_as_processes(void **state) {
    (void)state;
    in_every_group(RANKS_PROCESSES, product_body);
}
static void N10_every_threshold_as_threads(void **state) {
    (void)state;
    in_every_group(RANKS_THREADS, thresholds_body);
}
static void N10_every_threshold_as_processes(void **state) {
    (void)state;
    in_every_group(RANKS_PROCESSES, thresholds_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N10_every_threshold_as_threads),
        cmocka_unit_test(N10_every_threshold_as_processes),
        cmocka_unit_test(N4_the_whole_product_as_threads),
        cmocka_unit_test(N4_the_whole_product_as_processes),
    };
    ranks_set_deadline_ms(1000 * 1000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
