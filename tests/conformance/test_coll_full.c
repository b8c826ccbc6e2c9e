/* SPDX-License-Identifier: Apache-2.0
 *
 * test_coll_full.c - the whole product that test_coll.c samples.
 *
 * Every collective, dtype and op, in every memory, in place and not, every shape of parts, at every
 * size around the thresholds, in groups of 1 to 9, as threads and as processes; and one reduction
 * of more than 2^31 elements.
 */
#include "support/coll_bench.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ---- the product ---- */

static void run_counts(bench *b, coll_case c) {
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 67, 300};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        c.count = counts[k];
        bench_run(b, &c);
    }
}

static void run_shapes(bench *b, coll_case c) {
    const int n_shapes = hpi_is_v(c.what) ? 9 : 1;
    for (int shape = 0; shape < n_shapes; shape++) {
        c.skew = (skew)(shape % 3);
        c.layout = (layout)(shape / 3);
        run_counts(b, c);
    }
}

static void run_product(bench *b, coll_case c) {
    for (int where = 0; where < N_MEMORIES; where++)
        for (int in_place = 0; in_place < (bench_can_be_in_place(&c) ? 2 : 1); in_place++) {
            c.where = (whereabouts)where;
            c.in_place = in_place;
            c.root = (int)(b->n_cases % (uint64_t)b->n);
            run_shapes(b, c);
        }
}

static void product_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), BENCH_MAX_RANKS * 2 * 300 * 8);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run_product);
    bench_close(&b);
}

/* ---- thresholds, in bytes ---- */

enum { CELL = 128 * 1024 };

static void run_thresholds(bench *b, coll_case c) {
    const uint64_t size = hp_dtype_size(c.dtype), n = (uint64_t)b->n, room = CELL / n / 64 * 64;
    const uint64_t marks[] = {HPI_SMALL_BYTES, HPI_POCKET_BYTES, HPI_CHUNK_BYTES, room, CELL,
                              2 * CELL};
    if (c.op == HP_MIN)
        return; /* the kernels of max and min differ in one comparison */
    for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
        for (int beside = -1; beside <= 1; beside++)
            for (int where = SYMMETRIC; where <= ORDINARY; where++) {
                c.count = (uint64_t)((int64_t)(marks[k] / size) + beside);
                c.where = (whereabouts)where;
                c.skew = (skew)(b->n_cases % 3);
                c.in_place = b->n_cases % 2 && bench_can_be_in_place(&c);
                bench_run(b, &c);
            }
    c.count = 10 * CELL / size;
    c.where = ORDINARY;
    c.skew = ZEROS;
    c.in_place = bench_can_be_in_place(&c);
    bench_run(b, &c);
}

/* Others in each group: nothing but the meeting differs from threads. */
static void run_some_thresholds(bench *b, coll_case c) {
    if (((int)c.what + (int)c.dtype + (int)c.op + b->n) % 4 == 0)
        run_thresholds(b, c);
}

static void each_threshold(hp_world *world, void (*run)(bench *b, coll_case c)) {
    bench b;
    bench_open(&b, world, hp_world_group(world), (uint64_t)hp_world_size(world) * 22 * CELL);
    bench_each_kind(&b, (coll_case){.blocks = 1}, run);
    bench_close(&b);
}
static void thresholds_body(hp_world *world, void *argument) {
    (void)argument;
    each_threshold(world, run_thresholds);
}
static void some_thresholds_body(hp_world *world, void *argument) {
    (void)argument;
    each_threshold(world, run_some_thresholds);
}

/* ---- more than 2^31 elements ---- */

static const uint64_t many = (UINT64_C(1) << 31) + 4097;

/* A few elements hold a value, the rest is 0. */
enum { N_MARKS = 9 };
static uint64_t mark_at(int i) {
    return i == N_MARKS - 1 ? many - 1 : ((uint64_t)i << 28) + 5;
}

static bool is_zero(const signed char *data, uint64_t bytes) {
    static const signed char zeros[1 << 16];
    for (uint64_t at = 0; at < bytes; at += sizeof zeros)
        if (memcmp(data + at, zeros, hpi_min(sizeof zeros, bytes - at)) != 0)
            return false;
    return true;
}

/* In place, in ordinary memory: everything passes through the cells. */
static void many_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    (void)argument;
    signed char *data = mmap(NULL, many, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RANK_CHECK(data != MAP_FAILED);
    for (int i = 0; i < N_MARKS; i++)
        data[mark_at(i)] = (signed char)(rank + 1);
    RANK_OK(hp_all_reduce(group, data, data, many, HP_INT8, HP_SUM));
    for (int i = 0; i < N_MARKS; i++) {
        RANK_CHECK(data[mark_at(i)] == n * (n + 1) / 2);
        data[mark_at(i)] = 0;
    }
    RANK_CHECK(is_zero(data, many));
    munmap(data, many);
}

static uint64_t available_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

/* ---- the tests ---- */

static void N4_the_whole_product_as_threads(void **state) {
    (void)state;
    for (int n = 1; n <= BENCH_MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, product_body, NULL);
}
static void N4_the_whole_product_as_processes(void **state) {
    (void)state;
    for (int n = 1; n <= BENCH_MAX_RANKS; n++)
        ranks_run(n, RANKS_PROCESSES, product_body, NULL);
}
/* What a rank checks grows with the square of the group: above 4 ranks each kind meets its
 * thresholds in every fourth size of group. */
static void N10_every_threshold(void **state) {
    (void)state;
    for (int n = 1; n <= BENCH_MAX_RANKS; n++) {
        ranks_run(n, RANKS_THREADS, n <= 4 ? thresholds_body : some_thresholds_body, NULL);
        ranks_run(n, RANKS_PROCESSES, some_thresholds_body, NULL);
    }
}
static void N13_more_than_2_to_31_elements(void **state) {
    (void)state;
    if (available_bytes() < 3 * many) {
        print_message("needs %llu bytes of memory, %llu are available\n",
                      (unsigned long long)(3 * many), (unsigned long long)available_bytes());
        skip();
    }
    ranks_run(2, RANKS_THREADS, many_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N13_more_than_2_to_31_elements),
        cmocka_unit_test(N4_the_whole_product_as_threads),
        cmocka_unit_test(N4_the_whole_product_as_processes),
        cmocka_unit_test(N10_every_threshold),
    };
    ranks_set_deadline_ms(1000 * 1000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
