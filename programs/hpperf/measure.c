/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/measure.c - one size: check, warm up, time, check, count the bytes.
 *
 * An iteration is a barrier and then `batch` calls, whose mean is one sample; a batch hides that
 * the ranks leave the barrier apart, which for the smallest sizes is as long as the call. Touched,
 * a call is fill, call, read, and the median of the same without the call is taken off. That loop
 * runs by itself, before each 25 iterations, so that both see the same machine; right between calls
 * it would take over the cost of lines that peers hold, which is the call's.
 * Source: the touched mode of DESIGN's reference measurements; nccl-tests for the rest.
 */
#include "../perf/median.h"
#include "bench.h"
#include "fail.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* How often, unless the options say. */
static const double budget_ns = 250e6, batch_ns = 20e3;
enum { LEAST = 5, MOST = 400, MOST_BATCH = 64, STREAM_BATCH = 4, ROUND = 25, BASE = 5 };

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static hp_status meet(const bench *b) {
    return hp_barrier(hp_world_group(b->world));
}

static hp_status across(const bench *b, double *x, uint64_t n, hp_reduce reduce) {
    return hp_all_reduce(hp_world_group(b->world), x, x, n, HP_FP64, reduce);
}

/* ---- one iteration ---- */

/* Nobody tells the reader of a get that the data are there: they are written before the barrier. */
static bool fills_before(const bench *b) {
    return b->op->is_one_sided && !b->o->is_classic;
}

static hp_status one_call(bench *b, bool calls) {
    const bool touches = !b->o->is_classic;
    if (touches && !fills_before(b))
        TRY(bench_do(b, bench_fill));
    if (calls)
        TRY(b->op->call(b));
    if (touches && !(calls && b->op->reads_itself))
        TRY(bench_do(b, bench_read));
    return HP_OK;
}

/* calls: false leaves the call out. */
static hp_status iteration(bench *b, int batch, bool calls, double *out_ns) {
    TRY(meet(b));
    if (fills_before(b)) {
        TRY(bench_fill(b));
        TRY(meet(b));
    }
    const double begin = now_ns();
    for (int i = 0; i < batch; i++)
        TRY(one_call(b, calls));
    if (b->stream)
        TRY(hp_stream_synchronize(b->stream));
    *out_ns = (now_ns() - begin) / batch;
    return HP_OK;
}

/* ---- statistics ---- */

/* The smallest of which 99 of 100 are not above it. */
static double percentile_99(const double *sorted, int n) {
    return sorted[(n * 99 + 99) / 100 - 1];
}

/* ---- how often ---- */

typedef struct amounts {
    int n, batch;
} amounts;

static int clamp(double x, int least, int most) {
    return x < least ? least : x > most ? most : (int)x;
}

/* The slowest rank decides, and the same on all. */
static hp_status choose_amounts(bench *b, double call_ns, amounts *out) {
    const options *o = b->o;
    TRY(across(b, &call_ns, 1, HP_MAX));
    call_ns = call_ns > 1 ? call_ns : 1;
    out->batch = o->batch ? o->batch : clamp(batch_ns / call_ns, 1, MOST_BATCH);
    if (!o->batch && b->stream && out->batch < STREAM_BATCH)
        out->batch = STREAM_BATCH;
    if (fills_before(b))
        out->batch = 1;
    out->n =
        o->n_iterations ? o->n_iterations : clamp(budget_ns / (call_ns * out->batch), LEAST, MOST);
    return HP_OK;
}

/* ---- checking ---- */

/* A call on fresh values into a spoilt output. */
static hp_status check(bench *b, uint64_t *wrong) {
    TRY(meet(b));
    bench_spoil(b);
    TRY(bench_fill(b));
    TRY(meet(b));
    TRY(b->op->call(b));
    if (b->stream)
        TRY(hp_stream_synchronize(b->stream));
    *wrong += bench_wrong(b);
    return HP_OK;
}

/* ---- bytes ---- */

static hp_status traffic_of(const bench *b, hp_collective what, double *sum) {
    hp_coll_call call = b->call;
    hp_coll_traffic traffic;
    call.what = what;
    TRY(hp_coll_traffic_get(&call, &traffic));
    *sum += (double)traffic.read_bytes + (double)traffic.written_bytes;
    return HP_OK;
}

/* Of this rank, in one call. */
static hp_status moved_bytes(const bench *b, double *out_bytes) {
    *out_bytes = 0;
    if (!b->op->bound || (b->op->is_pairs && b->partner < 0))
        return HP_OK;
    TRY(traffic_of(b, b->op->what, out_bytes));
    return b->op->what == HP_SEND ? traffic_of(b, HP_RECV, out_bytes) : HP_OK;
}

static double bound_bytes(const bench *b) {
    const double part = (double)b->bytes / (double)bench_parts(b);
    const double keep = b->o->is_in_place && b->op->has_in_place ? part : 0;
    return b->op->bound ? b->o->n_groups * b->op->bound(b->n, (double)b->bytes, keep) : 0;
}

/* ---- one size ---- */

static hp_status summarise(bench *b, double *samples, int n, uint64_t wrong, result *out) {
    const double scale = 1e-3 / (b->op->is_pairs ? 2 : 1), bound = bound_bytes(b);
    double sums[2] = {(double)wrong, 0};
    for (int i = 0; i < n; i++)
        samples[i] *= scale;
    /* A copy behind them is sorted for the own median, which then stands in place n. */
    for (int i = 0; i < n; i++)
        samples[n + i] = samples[i];
    samples[n] = median(samples + n, n);
    TRY(across(b, samples, (uint64_t)n + 1, HP_MAX));
    TRY(moved_bytes(b, &sums[1]));
    TRY(across(b, sums, 2, HP_SUM));
    out->time_us = median(samples, n);
    out->p99_us = percentile_99(samples, n);
    out->slowest_us = samples[n];
    out->moved_over_bound = bound > 0 ? sums[1] / bound : NAN;
    out->wrong = (uint64_t)sums[0];
    return HP_OK;
}

/* The same loop without the call; the first iteration takes back the lines that peers hold. */
static hp_status time_base(bench *b, int batch, double *out_base) {
    double base[1 + BASE];
    *out_base = 0;
    if (b->o->is_classic)
        return HP_OK;
    for (int i = 0; i <= BASE; i++)
        TRY(iteration(b, batch, false, &base[i]));
    *out_base = median(base + 1, BASE);
    return iteration(b, batch, true, &base[0]); /* and now they hold them again */
}

static hp_status time_round(bench *b, int n, int batch, double *samples) {
    double base;
    TRY(time_base(b, batch, &base));
    for (int i = 0; i < n; i++) {
        TRY(iteration(b, batch, true, &samples[i]));
        samples[i] = samples[i] > base ? samples[i] - base : 0;
    }
    return HP_OK;
}

static hp_status time_it(bench *b, const amounts *a, double *samples) {
    for (int at = 0; at < a->n; at += ROUND)
        TRY(time_round(b, a->n - at < ROUND ? a->n - at : ROUND, a->batch, samples + at));
    return HP_OK;
}

static hp_status run(bench *b, const amounts *a, double *samples, uint64_t wrong,
                     result *out_result) {
    TRY(time_it(b, a, samples));
    if (b->o->checks && !b->o->is_classic && !b->op->reads_itself)
        wrong += bench_wrong(b); /* of the last call that was timed */
    if (b->o->checks)
        TRY(check(b, &wrong));
    return summarise(b, samples, a->n, wrong, out_result);
}

hp_status measure(bench *b, result *out_result) {
    uint64_t wrong = 0;
    double ns = 0;
    amounts a;
    if (b->o->checks)
        TRY(check(b, &wrong));
    for (int i = 0; i < b->o->n_warmup; i++)
        TRY(iteration(b, 1, true, &ns));
    TRY(iteration(b, 2, true, &ns));
    TRY(choose_amounts(b, ns, &a));
    double *samples = calloc(2 * (size_t)a.n, sizeof *samples);
    hp_status status =
        agree(b->world, samples ? HP_OK : fail(HP_ERR_MEMORY, "expected memory for %d times", a.n));
    if (samples && status >= 0)
        status = run(b, &a, samples, wrong, out_result);
    free(samples);
    return status;
}
