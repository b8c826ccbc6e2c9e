/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/exposed.c - communication, and how much of it compute stood still for.
 *
 * Busy is what the spans of a communication stream take, those inside others apart. Exposed is what
 * the spans `wait` and `drain` of compute take, by the stream and unit of what is waited for: the
 * library's own count (hp_fsdp_stats) is the same sum.
 */
#include "die.h"
#include "figures.h"

#include <stdlib.h>
#include <string.h>

/* The comm kind that a wait is for, or N_COMM_KINDS. */
static int waited_for(const span *s) {
    return s->kind >= KIND_WAIT_UNSHARD && s->kind <= KIND_WAIT_REPLICATE
               ? s->kind - KIND_WAIT_UNSHARD
               : N_COMM_KINDS;
}

static void count(figures *f, const span *s) {
    const bool is_busy = s->kind < N_COMM_KINDS && s->depth == 0;
    const int comm = is_busy ? s->kind : waited_for(s);
    if (comm == N_COMM_KINDS)
        return;
    const uint64_t ns = s->end_ns - s->begin_ns;
    pass *p = pass_of(f, s->step);
    (is_busy ? p->busy_ns : p->exposed_ns)[comm] += ns;
    if (p->kind == PASS_EVALUATE)
        return;
    const uint16_t no_unit = names_count(f->run->names);
    unit_figures *unit = &f->units[s->unit == NO_NAME ? no_unit : s->unit];
    (is_busy ? unit->busy_ns : unit->exposed_ns)[comm] += ns;
}

static void add_up(figures *f) {
    for (size_t i = 0; i < f->n_passes; i++) {
        const pass *p = &f->passes[i];
        const bool is_evaluate = p->kind == PASS_EVALUATE;
        for (int comm = 0; comm < N_COMM_KINDS; comm++) {
            (is_evaluate ? f->evaluate_busy_ns : f->busy_ns)[comm] += p->busy_ns[comm];
            (is_evaluate ? f->evaluate_exposed_ns : f->exposed_ns)[comm] += p->exposed_ns[comm];
        }
    }
    for (int comm = 0; comm < N_COMM_KINDS; comm++) {
        f->total_busy_ns += f->busy_ns[comm];
        f->total_exposed_ns += f->exposed_ns[comm];
    }
}

static uint64_t sum_of(const uint64_t *ns) {
    return ns[KIND_UNSHARD] + ns[KIND_REDUCE] + ns[KIND_REPLICATE];
}

/* The most exposed first; then the busiest; then the first that the traces name. */
static int compare_units(const void *left, const void *right) {
    const unit_figures *a = left, *b = right;
    const uint64_t exposed_a = sum_of(a->exposed_ns), exposed_b = sum_of(b->exposed_ns);
    const uint64_t busy_a = sum_of(a->busy_ns), busy_b = sum_of(b->busy_ns);
    if (exposed_a != exposed_b)
        return exposed_a > exposed_b ? -1 : 1;
    if (busy_a != busy_b)
        return busy_a > busy_b ? -1 : 1;
    return (a->unit > b->unit) - (a->unit < b->unit);
}

double hidden_percent(uint64_t busy_ns, uint64_t exposed_ns) {
    return busy_ns == 0            ? 100.0
           : exposed_ns >= busy_ns ? 0.0
                                   : 100.0 * (double)(busy_ns - exposed_ns) / (double)busy_ns;
}

void exposed_compute(figures *f) {
    const size_t n_names = names_count(f->run->names);
    f->units = take(n_names + 1, sizeof *f->units);
    for (size_t i = 0; i <= n_names; i++)
        f->units[i].unit = (uint16_t)(i < n_names ? i : NO_NAME);
    for (int i = 0; i < f->run->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++) {
            const stream *s = &f->run->ranks[i].streams[j];
            for (size_t k = 0; k < s->n; k++)
                count(f, &s->spans[k]);
        }
    for (size_t i = 0; i <= n_names; i++)
        if (sum_of(f->units[i].busy_ns) || sum_of(f->units[i].exposed_ns))
            f->units[f->n_units++] = f->units[i];
    qsort(f->units, f->n_units, sizeof *f->units, compare_units);
    add_up(f);
}
