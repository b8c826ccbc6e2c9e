/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/figures.c - all figures, one part after the other: each rests on those before it.
 */
#include "figures.h"

#include <stdlib.h>

void figures_compute(figures *f) {
    passes_compute(f);
    exposed_compute(f);
    memory_compute(f);
    skew_compute(f);
    summary_compute(f);
}

void figures_release(figures *f) {
    for (int i = 0; i < f->run->n_ranks; i++)
        free(f->memory[i].points);
    for (int i = 0; i < f->n_summary; i++)
        free(f->summary[i]);
    free(f->memory);
    free(f->passes);
    free(f->units);
    free(f->arrivals);
    free(f->rank_skews);
    free(f->skew_rows);
}
