/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/passes.c - the passes of a run: what kind each was and how long it took.
 *
 * A pass lasts from the first rank's begin of its span "step" to the last rank's end of what it
 * computed under that number: after the pass itself clipping and the update, a checkpoint apart.
 */
#include "die.h"
#include "figures.h"

#include <stdlib.h>

static int compare_passes(const void *left, const void *right) {
    const pass *a = left, *b = right;
    return (a->step > b->step) - (a->step < b->step);
}

pass *pass_of(const figures *f, uint32_t step) {
    const pass wanted = {.step = step};
    pass *found = bsearch(&wanted, f->passes, f->n_passes, sizeof *f->passes, compare_passes);
    if (!found)
        die("expected a pass for step %u, there is none", step);
    return found;
}

/* Every step that a span names, once. */
static void collect_steps(figures *f) {
    size_t n = 0, capacity = 0, n_unique = 0;
    for (int i = 0; i < f->run->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++) {
            const stream *s = &f->run->ranks[i].streams[j];
            for (size_t k = 0; k < s->n; k++) {
                if (k && s->spans[k].step == s->spans[k - 1].step)
                    continue;
                f->passes = grow(f->passes, n, &capacity, sizeof *f->passes);
                f->passes[n++] =
                    (pass){.step = s->spans[k].step, .begin_ns = UINT64_MAX, .last_rank = -1};
            }
        }
    qsort(f->passes, n, sizeof *f->passes, compare_passes);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || f->passes[i].step != f->passes[n_unique - 1].step)
            f->passes[n_unique++] = f->passes[i];
    f->n_passes = n_unique;
}

static pass_kind kind_of(const run *r, const span *s) {
    return name_is(r, s->unit, "evaluate")          ? PASS_EVALUATE
           : name_is(r, s->unit, "no_sync")         ? PASS_NO_SYNC
           : name_is(r, s->unit, "defer_replicate") ? PASS_DEFER_REPLICATE
                                                    : PASS_TRAIN;
}

static void look_at(figures *f, const span *s) {
    pass *p = pass_of(f, s->step);
    if (s->kind == KIND_STEP) {
        p->kind = kind_of(f->run, s);
        p->n_ranks++;
        p->begin_ns = s->begin_ns < p->begin_ns ? s->begin_ns : p->begin_ns;
    }
    if (s->kind != KIND_CHECKPOINT)
        p->end_ns = s->end_ns > p->end_ns ? s->end_ns : p->end_ns;
}

static void take_times(figures *f) {
    uint64_t *times = take(f->n_passes, sizeof *times);
    size_t n = 0;
    for (size_t i = 0; i < f->n_passes; i++) {
        pass *p = &f->passes[i];
        p->is_whole = p->n_ranks >= f->run->n_ranks;
        f->n_of[p->kind] += p->is_whole;
        if (p->is_whole && p->kind == PASS_TRAIN)
            times[n++] = p->end_ns - p->begin_ns;
    }
    f->median_ns = median_of(times, n);
    f->min_ns = n ? times[0] : 0;
    f->max_ns = n ? times[n - 1] : 0;
    free(times);
}

void passes_compute(figures *f) {
    collect_steps(f);
    for (int i = 0; i < f->run->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++) {
            const stream *s = &f->run->ranks[i].streams[j];
            for (size_t k = 0; s->comm == N_COMM_KINDS && k < s->n; k++)
                look_at(f, &s->spans[k]);
        }
    take_times(f);
}
