/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_overlap.c - communication hides behind compute.
 *
 * Six units whose forward and backward sleep 20 ms each, 20 ms put before every collective, mesh
 * (1, 2): a step takes at most 0.7 times as long as under the serial schedule. Both models live in
 * one world and take turns, and only their ratio is looked at.
 */
#include "base/base.h"
#include "support/ranks.h"
#include "support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_ROUNDS = 3 };

static tiny *make(hp_world *world, hp_schedule schedule) {
    tiny *t = NULL;
    tiny_config config = TINY_CONFIG_INIT;
    config.n_units = 6;
    config.n_shards = 2;
    config.compute_ns = 20 * 1000 * 1000;
    config.fsdp.schedule = schedule;
    config.fsdp.delay = "kind=all_gather,rank=*,us=20000;kind=reduce_scatter,rank=*,us=20000;"
                        "kind=all_reduce,rank=*,us=20000";
    RANK_OK(tiny_create(world, &config, &t));
    return t;
}

static uint64_t time_step(tiny *t, int step) {
    double loss;
    const uint64_t began = hpi_now_ns();
    RANK_OK(tiny_step(t, step, &loss));
    return hpi_now_ns() - began;
}

static int compare_times(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void overlap_body(hp_world *world, void *argument) {
    (void)argument;
    uint64_t serial_ns[N_ROUNDS], overlap_ns[N_ROUNDS];
    hp_fsdp_stats stats;
    tiny *serial = make(world, HP_SERIAL), *overlap = make(world, HP_OVERLAP);
    for (int round = 0; round < N_ROUNDS; round++) {
        serial_ns[round] = time_step(serial, round);
        overlap_ns[round] = time_step(overlap, round);
    }
    qsort(serial_ns, N_ROUNDS, sizeof *serial_ns, compare_times);
    qsort(overlap_ns, N_ROUNDS, sizeof *overlap_ns, compare_times);
    const double ratio = (double)overlap_ns[N_ROUNDS / 2] / (double)serial_ns[N_ROUNDS / 2];
    RANK_OK(hp_fsdp_stats_get(tiny_fsdp(overlap), &stats));
    if (hp_world_rank(world) == 0)
        printf("serial %.1f ms, overlapped %.1f ms, ratio %.3f; exposed unshard %.1f ms, reduce "
               "%.1f ms a step\n",
               (double)serial_ns[N_ROUNDS / 2] / 1e6, (double)overlap_ns[N_ROUNDS / 2] / 1e6, ratio,
               (double)stats.exposed_unshard_ns / 1e6 / N_ROUNDS,
               (double)stats.exposed_reduce_ns / 1e6 / N_ROUNDS);
    RANK_CHECK(ratio <= 0.7);
    tiny_destroy(overlap);
    tiny_destroy(serial);
}

static void test_overlap(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, overlap_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
