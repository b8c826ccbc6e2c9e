/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fused_full.c - slots that are used again 10^5 times and more.
 *
 * Each call has operands of its own, so a tile of an earlier call, or of another rank, shows.
 */
#include "fused_cases.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_CALLS = 30000 }; /* of 15 tiles each, in 4 slots: 112,000 rounds */

static void slots_body(hp_world *world, void *argument) {
    const fused_case c = {.kind = SCATTER,
                          .rows = {9, 4, 0},
                          .n = 24,
                          .k = 2,
                          .dtype = HP_FP32,
                          .out_dtype = HP_FP32,
                          .cut = {1, 3, 8, 0}};
    hp_group *group = hp_world_group(world);
    hp_matmul *engine;
    fused f;
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    fused_open(&f, group, engine, &c);
    RANK_OK(hpi_fused_set_cut(group, &c.cut));
    for (int call = 0; call < N_CALLS; call++) {
        float *a = f.a, *b = f.b;
        const int64_t begin = case_before(&f, f.rank);
        for (int64_t i = 0; i < f.m; i++)
            a[i * f.args.lda] = (float)(call % 1000 + i + f.rank), a[i * f.args.lda + 1] = 1;
        for (int64_t j = 0; j < c.n; j++)
            b[j] = 1, b[c.n + j] = (float)j;
        RANK_OK(fused_run(&f));
        for (int64_t i = 0; i < f.c_rows; i++)
            for (int64_t j = 0; j < c.n; j++) /* whole numbers: exact */
                RANK_CHECK(((float *)f.c)[i * c.n + j] ==
                           (float)(f.n_ranks * (call % 1000 + begin + i + j) + 3));
    }
    fused_close(&f);
    hp_matmul_close(engine);
}

static void test_slots(void **state) {
    (void)state;
    ranks_set_deadline_ms(600000);
    ranks_run(3, RANKS_THREADS, slots_body, NULL);
    ranks_run(3, RANKS_PROCESSES, slots_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
