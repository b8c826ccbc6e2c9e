/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/summary.c - the run in sentences.
 */
#include "die.h"
#include "figures.h"

#include <stdarg.h>
#include <stdio.h>

enum { SENTENCE = 600 };

__attribute__((format(printf, 2, 3))) static void say(figures *f, const char *format, ...) {
    char *sentence = take(SENTENCE, 1);
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, SENTENCE, format, args);
    va_end(args);
    f->summary[f->n_summary++] = sentence;
}

typedef struct words {
    char s[48];
} words;

/* Three digits that count: 83.5 ms. */
static words time_of(double ns) {
    words w;
    const double value = ns >= 1e9 ? ns / 1e9 : ns >= 1e6 ? ns / 1e6 : ns / 1e3;
    const int digits = value >= 100 || ns == 0 ? 0 : value >= 10 ? 1 : 2;
    snprintf(w.s, sizeof w.s, "%.*f %s", digits, value, ns >= 1e9 ? "s" : ns >= 1e6 ? "ms" : "µs");
    return w;
}

static words bytes_of(double bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    words w;
    int i = 0;
    for (; bytes >= 1024 && i < 4; i++)
        bytes /= 1024;
    snprintf(w.s, sizeof w.s, "%.*f %s", i && bytes < 100 ? 1 : 0, bytes, units[i]);
    return w;
}

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

static void say_size(figures *f) {
    static const char *const names[N_PASS_KINDS][2] = {
        [PASS_NO_SYNC] = {"pass without reduction", "passes without reduction"},
        [PASS_DEFER_REPLICATE] = {"pass without all-reduce", "passes without all-reduce"},
        [PASS_EVALUATE] = {"evaluation", "evaluations"}};
    const run *r = f->run;
    char ranks[64], passes[200] = "";
    size_t used = 0;
    if (r->mesh[0])
        snprintf(ranks, sizeof ranks, "%d rank%s (mesh %llu x %llu)", r->world_size,
                 plural((uint64_t)r->world_size), (unsigned long long)r->mesh[0],
                 (unsigned long long)r->mesh[1]);
    else
        snprintf(ranks, sizeof ranks, "%d rank%s", r->world_size, plural((uint64_t)r->world_size));
    for (int k = PASS_NO_SYNC; k < N_PASS_KINDS; k++)
        if (f->n_of[k])
            used += (size_t)snprintf(passes + used, sizeof passes - used, ", %zu %s", f->n_of[k],
                                     names[k][f->n_of[k] != 1]);
    say(f, "%s, %zu training step%s%s in %s.", ranks, f->n_of[PASS_TRAIN],
        plural(f->n_of[PASS_TRAIN]), passes, time_of((double)(r->end_ns - r->begin_ns)).s);
    if (f->n_of[PASS_TRAIN])
        say(f, "A step took %s in the median, from %s to %s.", time_of((double)f->median_ns).s,
            time_of((double)f->min_ns).s, time_of((double)f->max_ns).s);
}

static void say_exposed(figures *f) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_passes; i++)
        n += f->passes[i].kind != PASS_EVALUATE;
    const double parts = (double)(n ? n : 1) * f->run->n_ranks;
    if (f->total_busy_ns + f->total_exposed_ns == 0) {
        say(f, "There was no communication.");
        return;
    }
    say(f,
        "%.0f%% of communication was hidden: per step and rank it took %s, and compute stood still "
        "for %s (unshard %s, reduce %s, replicate %s).",
        hidden_percent(f->total_busy_ns, f->total_exposed_ns),
        time_of((double)f->total_busy_ns / parts).s, time_of((double)f->total_exposed_ns / parts).s,
        time_of((double)f->exposed_ns[KIND_UNSHARD] / parts).s,
        time_of((double)f->exposed_ns[KIND_REDUCE] / parts).s,
        time_of((double)f->exposed_ns[KIND_REPLICATE] / parts).s);
}

static void say_skew(figures *f) {
    const run *r = f->run;
    int worst = -1;
    double share = 0;
    for (int i = 0; i < r->n_ranks; i++) {
        const rank_skew *s = &f->rank_skews[i];
        if (s->n && (double)s->n_last / (double)s->n > share) {
            share = (double)s->n_last / (double)s->n;
            worst = i;
        }
    }
    if (worst >= 0)
        say(f,
            "Rank %d came last in %.0f%% of its collectives, by %s in the median and %s at most.",
            r->ranks[worst].rank, 100 * share, time_of((double)f->rank_skews[worst].median_ns).s,
            time_of((double)f->rank_skews[worst].max_ns).s);
    else if (f->n_arrivals)
        say(f, "No rank was ever late: all came to each collective at the same time.");
    if (f->n_arrivals && !r->mesh[0])
        say(f, "The mesh is not known (a verdict says it, or --mesh): arrivals are compared over "
               "all ranks.");
}

static void say_memory(figures *f) {
    const verdict *v = &f->run->verdict;
    int most = 0;
    for (int i = 1; i < f->run->n_ranks; i++)
        if (f->memory[i].peak_bytes > f->memory[most].peak_bytes)
            most = i;
    const double peak = (double)f->memory[most].peak_bytes;
    const words held = bytes_of(peak), bound = bytes_of((double)v->bound_bytes);
    const int rank = f->run->ranks[most].rank;
    if (f->memory[most].n == 0)
        return;
    if (!v->bound_bytes)
        say(f, "What steps take and give back reached %s (rank %d).", held.s, rank);
    else if (!v->steady_bytes) /* of the bound, which is on all memory, only a part is seen */
        say(f, "What steps take and give back reached %s (rank %d); the bound on all memory is %s.",
            held.s, rank, bound.s);
    else
        say(f, "Memory reached %s (rank %d), %.0f%% of its bound of %s.", held.s, rank,
            100 * peak / (double)v->bound_bytes, bound.s);
}

static void say_verdict(figures *f) {
    const verdict *v = &f->run->verdict;
    if (!v->is_there)
        say(f, "The run was not verified (hptrain --verify).");
    else if (v->is_sound)
        say(f,
            "The verifier found no race, no use outside a life, no disagreement and no deadlock "
            "in %llu operations.",
            (unsigned long long)v->n_operations);
    else
        say(f, "The verifier found the run unsound.");
}

/* What makes the report less than whole. */
static void say_gaps(figures *f) {
    const run *r = f->run;
    if (r->n_ranks < r->world_size)
        say(f, "Traces of %d of %d ranks are missing.", r->world_size - r->n_ranks, r->world_size);
    if (r->n_dropped)
        say(f,
            "The traces are not whole: %llu spans did not fit and were dropped, and the times of "
            "their kinds are too small.",
            (unsigned long long)r->n_dropped);
}

void summary_compute(figures *f) {
    say_gaps(f);
    say_size(f);
    say_exposed(f);
    say_skew(f);
    say_memory(f);
    say_verdict(f);
}
