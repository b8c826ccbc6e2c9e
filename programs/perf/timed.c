/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/timed.c - see timed.h.
 */
#include "timed.h"
#include "median.h"

#include <stddef.h>
#include <time.h>

#define TRY_INT(expression)                                                                        \
    do {                                                                                           \
        const int try_int_ = (expression);                                                         \
        if (try_int_ < 0)                                                                          \
            return try_int_;                                                                       \
    } while (0)

/* Ranks leave a barrier some 100 ns apart: a batch hides that. A root waits for its readers. */
static const double batch_ns = 20e3, head_start_ns = 1e3;
static const double never_ns = 1e300;
enum { ROUND = 25, BASE = 5 };

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int call_if(int (*function)(void *self), void *self) {
    return function ? function(self) : 0;
}

/* ---- how often ---- */

static int clamp(double x, int least, int most) {
    return x < least ? least : x > most ? most : (int)x;
}

int timed_batch(double whole_ns) {
    return clamp(batch_ns / (whole_ns > 1 ? whole_ns : 1), 1, TIMED_MOST_BATCH);
}

int timed_count(double whole_ns, int batch, double budget_ns, int least, int most) {
    return clamp(budget_ns / ((whole_ns > 1 ? whole_ns : 1) * batch), least, most);
}

/* ---- calls behind each other ---- */

int timed_iteration(const timed *t, int batch, bool calls, double *out_ns) {
    TRY_INT(t->begin(t->self));
    const double begin = now_ns();
    for (int i = 0; i < batch; i++) {
        TRY_INT(call_if(t->fill, t->self));
        if (calls)
            TRY_INT(t->call(t->self));
        if (!calls || !t->call_reads)
            TRY_INT(call_if(t->read, t->self));
    }
    TRY_INT(call_if(t->end, t->self));
    *out_ns = (now_ns() - begin) / batch;
    return 0;
}

/* As often as there are samples to take it off: what is taken off is as sure as what is left. */
static int base_count(int n) {
    return n < BASE ? n : BASE;
}

/* The same loop without the call; the first iteration takes back the lines that peers hold. */
static int time_base(const timed *t, int n, int batch, double *out_ns) {
    double base[1 + BASE];
    *out_ns = 0;
    if (!t->fill && !t->read)
        return 0;
    for (int i = 0; i <= n; i++)
        TRY_INT(timed_iteration(t, batch, false, &base[i]));
    *out_ns = median(base + 1, n);
    return timed_iteration(t, batch, true, &base[0]); /* and now they hold them again */
}

static int run_round(const timed *t, int n, int batch, double *samples) {
    double base_ns;
    TRY_INT(time_base(t, base_count(n), batch, &base_ns));
    for (int i = 0; i < n; i++) {
        TRY_INT(timed_iteration(t, batch, true, &samples[i]));
        samples[i] = samples[i] > base_ns ? samples[i] - base_ns : 0;
    }
    return 0;
}

static int run_batches(const timed *t, int n, int batch, double *samples, double *out_own_ns) {
    for (int at = 0; at < n; at += ROUND)
        TRY_INT(run_round(t, n - at < ROUND ? n - at : ROUND, batch, samples + at));
    for (int i = 0; i < n; i++)
        samples[n + i] = samples[i]; /* median() sorts */
    *out_own_ns = median(samples + n, n);
    return t->most(t->self, samples, n);
}

/* ---- one way ---- */

typedef struct stamps {
    double begin, filled, end; /* ns of the node's clock */
} stamps;

static void give_head_start(const timed *t) {
    const double until = now_ns() + head_start_ns;
    while (t->is_root && now_ns() < until)
        continue;
}

static int one_way(const timed *t, bool calls, stamps *out) {
    TRY_INT(t->begin(t->self));
    give_head_start(t);
    out->begin = now_ns();
    TRY_INT(call_if(t->fill, t->self));
    if (!calls) {
        TRY_INT(call_if(t->end, t->self));
        out->filled = now_ns();
    } else {
        TRY_INT(t->call(t->self));
    }
    TRY_INT(call_if(t->read, t->self));
    TRY_INT(call_if(t->end, t->self));
    out->end = now_ns();
    return 0;
}

/* What filling and reading take by themselves. */
static int time_one_way_base(const timed *t, int n, double *out_fill_ns, double *out_read_ns) {
    double fill[1 + BASE], read[1 + BASE];
    stamps s = {0};
    *out_fill_ns = *out_read_ns = 0;
    if (!t->fill && !t->read)
        return 0;
    for (int i = 0; i <= n; i++) {
        TRY_INT(one_way(t, false, &s));
        fill[i] = s.filled - s.begin;
        read[i] = s.end - s.filled;
    }
    *out_fill_ns = median(fill + 1, n);
    *out_read_ns = median(read + 1, n);
    return one_way(t, true, &s);
}

/* ends: when this rank had it; begins: minus when the root began, so that the largest is that. */
static int one_way_round(const timed *t, int n, double *ends, double *begins) {
    double fill_ns, read_ns;
    TRY_INT(time_one_way_base(t, base_count(n), &fill_ns, &read_ns));
    for (int i = 0; i < n; i++) {
        stamps s = {0};
        TRY_INT(one_way(t, true, &s));
        ends[i] = s.end - read_ns;
        begins[i] = t->is_root ? -(s.begin + fill_ns) : -never_ns;
    }
    return 0;
}

static int run_one_way(const timed *t, int n, double *samples, double *out_own_ns) {
    double *begins = samples + n;
    for (int at = 0; at < n; at += ROUND)
        TRY_INT(one_way_round(t, n - at < ROUND ? n - at : ROUND, samples + at, begins + at));
    TRY_INT(t->most(t->self, samples, 2 * n));
    for (int i = 0; i < n; i++) {
        const double ns = samples[i] + begins[i];
        samples[i] = begins[i] = ns > 0 ? ns : 0;
    }
    *out_own_ns = median(begins, n);
    return 0;
}

/* ---- together ---- */

int timed_run(const timed *t, int n, int batch, double *samples, double *out_own_ns) {
    return t->is_one_way ? run_one_way(t, n, samples, out_own_ns)
                         : run_batches(t, n, batch, samples, out_own_ns);
}

int timed_turn(const timed *t, int n, int batch, double *samples, timed_result *out_result) {
    double own_ns, whole_ns = 0;
    for (int i = 0; i < 2; i++)
        TRY_INT(timed_iteration(t, batch, true, &whole_ns));
    TRY_INT(t->most(t->self, &whole_ns, 1));
    TRY_INT(timed_run(t, n, batch, samples, &own_ns));
    for (int i = 0; i < n; i++)
        samples[n + i] = samples[i];
    out_result->call_ns = median(samples + n, n);
    out_result->whole_ns = whole_ns;
    return 0;
}
