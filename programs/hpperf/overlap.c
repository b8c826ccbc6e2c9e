/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap.c - hpperf overlap: measure all cases, print a row for each.
 */
#include "overlap.h"
#include "fail.h"

hp_status overlap(hp_world *world, const overlap_options *o, uint64_t *out_wrong) {
    overlap_case cases[OVERLAP_MOST * OVERLAP_MOST * OVERLAP_MOST];
    overlap_result results[sizeof cases / sizeof *cases] = {0};
    const int n = overlap_n_cases(o);
    const bool speaks = hp_world_rank(world) == 0;
    *out_wrong = 0;
    for (int i = 0; i < n; i++)
        cases[i] = overlap_case_at(o, i);
    if (speaks)
        overlap_print_head(o, NULL);
    TRY(overlap_run(world, o, cases, n, results));
    for (int i = 0; i < n; i++) {
        *out_wrong += results[i].is_wrong;
        if (speaks)
            overlap_print_row(o, NULL, &cases[i], &results[i]);
    }
    return HP_OK;
}
