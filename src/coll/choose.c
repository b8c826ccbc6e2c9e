/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.c - which algorithm a collective runs: the first row of algorithms.def whose needs are
 * met.
 */
#include "inside.h"

static const struct {
    uint64_t roomy, crowded;
} thresholds[] = {
#define X(NAME, name, roomy, crowded, meaning) {roomy, crowded},
#include "thresholds.def"
#undef X
};

void hpi_thresholds_set(hpi_coll_state *s) {
    const bool is_crowded = !hpi_world_can_spin(hp_group_world(s->group));
    for (int i = 0; i < HPI_N_THRESHOLDS; i++)
        s->thresholds[i] = is_crowded ? thresholds[i].crowded : thresholds[i].roomy;
}

/* Of the larger operand, and the same on every rank. */
static uint64_t bytes_of(const hpi_run *run) {
    if (run->what == HP_ALL_TO_ALL_V)
        return run->longest * (uint64_t)run->n * run->in_size;
    if (hpi_is_v(run->what))
        return hpi_part_longest(run) * (uint64_t)run->n * run->in_size;
    return hpi_max(run->in_bytes, run->out_bytes);
}

bool hpi_is_from(const hpi_run *run, hpi_threshold threshold) {
    return threshold == HPI_FROM_ANY || bytes_of(run) >= run->state->thresholds[threshold];
}

static bool is_in_range(const hpi_run *run, const hpi_algorithm *a) {
    return hpi_is_from(run, a->from) && (a->to == HPI_FROM_ANY || !hpi_is_from(run, a->to));
}

/* The number of the forced row, from 1; 0: none. */
unsigned hpi_only_of(const hpi_run *run) {
    for (int i = 0; run->state->only && i < hpi_n_algorithms; i++)
        if (hpi_algorithms[i].what == run->what &&
            strcmp(hpi_algorithms[i].name, run->state->only) == 0)
            return (unsigned)i + 1;
    return 0;
}

static bool needs_met(const hpi_run *run, hpi_needs needs) {
    if (run->wire != HP_WIRE_FULL)
        return needs == HPI_NEEDS_WIRE;
    switch (needs) {
    case HPI_NEEDS_WORDS:
        return run->is_small;
    case HPI_NEEDS_INPUTS:
        return run->inputs_placed;
    case HPI_NEEDS_OUTPUTS:
        return run->inputs_placed && run->outputs_placed;
    case HPI_NEEDS_READABLE:
        return run->is_readable;
    case HPI_NEEDS_WIRE:
        return false;
    default:
        return true;
    }
}

hp_status hpi_choose(hpi_run *run) {
    const unsigned only = hpi_only_of(run);
    for (int i = 0; i < hpi_n_algorithms && !run->algorithm; i++) {
        const hpi_algorithm *a = &hpi_algorithms[i];
        if (a->what == run->what && (only ? only == (unsigned)i + 1 : is_in_range(run, a)) &&
            needs_met(run, a->needs))
            run->algorithm = a;
    }
    if (!run->algorithm)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "%s: expected operands that algorithm \"%s\" can take",
                        run->name, run->state->only);
    return HP_OK;
}
