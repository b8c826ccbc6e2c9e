/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/overlap.c - hpperf overlap: measure all cases, print a row for each.
 */
#include "overlap.h"
#include "../fail.h"

/* Virtual time needs nobody: every rank finds the same. */
static hp_status measure(hp_world *world, const overlap_options *o, const overlap_case *cases,
                         int n, overlap_result *out_results) {
    if (!o->is_virtual)
        return overlap_run(world, o, cases, n, out_results);
    return agree(world, overlap_virtual(o, cases, n, out_results));
}

hp_status overlap(hp_world *world, const overlap_options *o, uint64_t *out_wrong) {
    overlap_case cases[OVERLAP_MOST * OVERLAP_MOST * OVERLAP_MOST];
    overlap_result results[sizeof cases / sizeof *cases] = {0};
    const int n = overlap_n_cases(o);
    const bool speaks = hp_world_rank(world) == 0;
    *out_wrong = 0;
    if (o->preset)
        return overlap_preset(world, o, out_wrong);
    for (int i = 0; i < n; i++)
        cases[i] = overlap_case_at(o, i);
    if (speaks)
        overlap_print_head(o, NULL);
    TRY(measure(world, o, cases, n, results));
    for (int i = 0; i < n; i++) {
        *out_wrong += results[i].is_wrong;
        if (speaks)
            overlap_print_row(o, NULL, &cases[i], &results[i]);
    }
    return HP_OK;
}
