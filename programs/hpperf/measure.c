/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/measure.c - one size: check, warm up, time, check, count the bytes.
 *
 * How a call is timed stands in perf/timed.h, which peers share; here is what this library's calls
 * need of it, how often, and what comes out.
 */
#include "../perf/median.h"
#include "bench.h"
#include "fail.h"

#include <math.h>
#include <stdlib.h>

/* How often, unless the options say. */
static const double budget_ns = 250e6;
enum { LEAST = 5, MOST = 400, STREAM_BATCH = 4 };

static hp_status meet(const bench *b) {
    return hp_barrier(hp_world_group(b->world));
}

static hp_status across(const bench *b, double *x, uint64_t n, hp_reduce reduce) {
    return hp_all_reduce(hp_world_group(b->world), x, x, n, HP_FP64, reduce);
}

/* ---- an iteration: see timed.h ---- */

/* Nobody tells the reader of a get that the data are there: they are written before the barrier. */
static bool fills_before(const bench *b) {
    return b->op->is_one_sided && !b->o->is_classic;
}

static int begin(void *self) {
    bench *b = self;
    TRY(meet(b));
    if (!fills_before(b))
        return HP_OK;
    TRY(bench_fill(b));
    return meet(b);
}

static int fill(void *self) {
    return bench_do(self, bench_fill);
}

static int call(void *self) {
    bench *b = self;
    return b->op->call(b);
}

static int read(void *self) {
    return bench_do(self, bench_read);
}

static int end(void *self) {
    bench *b = self;
    return hp_stream_synchronize(b->stream);
}

static int most(void *self, double *x, int n) {
    return across(self, x, (uint64_t)n, HP_MAX);
}

timed bench_timed(bench *b) {
    const bool touches = !b->o->is_classic;
    return (timed){.self = b,
                   .begin = begin,
                   .fill = touches && !fills_before(b) ? fill : NULL,
                   .call = call,
                   .read = touches ? read : NULL,
                   .end = b->stream ? end : NULL,
                   .most = most,
                   .call_reads = b->op->reads_itself,
                   .is_one_way = b->op->source == FROM_ROOT,
                   .is_root = b->rank == b->o->root};
}

/* ---- how often ---- */

typedef struct amounts {
    int n, batch;
} amounts;

int bench_batch(const bench *b, double whole_ns) {
    int batch = b->o->batch ? b->o->batch : timed_batch(whole_ns);
    if (!b->o->batch && b->stream && batch < STREAM_BATCH)
        batch = STREAM_BATCH;
    return fills_before(b) ? 1 : batch;
}

/* The slowest rank decides, and the same on all. */
static hp_status choose_amounts(bench *b, double whole_ns, amounts *out) {
    TRY(across(b, &whole_ns, 1, HP_MAX));
    out->batch = bench_batch(b, whole_ns);
    out->n = b->o->n_iterations ? b->o->n_iterations
                                : timed_count(whole_ns, out->batch, budget_ns, LEAST, MOST);
    return HP_OK;
}

/* ---- checking ---- */

/* A call on fresh values into a spoilt output. */
hp_status bench_check(bench *b, uint64_t *wrong) {
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

uint64_t bench_wrong_timed(const bench *b) {
    return b->o->checks && !b->o->is_classic && !b->op->reads_itself ? bench_wrong(b) : 0;
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

/* ---- two kinds of calls ---- */

static hp_status one_turn(const timed *t, int n, int batch, double *samples, double *out_ns) {
    double own_ns;
    TRY((hp_status)timed_run(t, n, batch, samples, &own_ns));
    *out_ns = median(samples, n);
    return HP_OK;
}

hp_status bench_turns(const timed *a, const timed *b, int n, int batch, double *samples,
                      double *out_a_ns, double *out_b_ns, double *out_ratio) {
    enum { ROUNDS = 5 };
    double a_ns[ROUNDS], b_ns[ROUNDS], ratios[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        TRY(one_turn(a, 1 + n / ROUNDS, batch, samples, &a_ns[k]));
        TRY(one_turn(b, 1 + n / ROUNDS, batch, samples, &b_ns[k]));
        ratios[k] = b_ns[k] > 0 ? a_ns[k] / b_ns[k] : NAN;
    }
    *out_a_ns = median(a_ns, ROUNDS);
    *out_b_ns = median(b_ns, ROUNDS);
    *out_ratio = median(ratios, ROUNDS);
    return HP_OK;
}

/* ---- one size ---- */

/* The smallest of which 99 of 100 are not above it. */
static double percentile_99(const double *sorted, int n) {
    return sorted[(n * 99 + 99) / 100 - 1];
}

hp_status bench_summarise(bench *b, double *samples, int n, double own_ns, uint64_t wrong,
                          result *out) {
    const double scale = 1e-3 / (b->op->is_pairs ? 2 : 1), bound = bound_bytes(b);
    double sums[2] = {(double)wrong, 0};
    TRY(moved_bytes(b, &sums[1]));
    TRY(across(b, sums, 2, HP_SUM));
    TRY(across(b, &own_ns, 1, HP_MAX));
    out->time_us = median(samples, n) * scale;
    out->p99_us = percentile_99(samples, n) * scale;
    out->slowest_us = own_ns * scale;
    out->moved_over_bound = bound > 0 ? sums[1] / bound : NAN;
    out->wrong = (uint64_t)sums[0];
    return HP_OK;
}

static hp_status run(bench *b, const amounts *a, double *samples, uint64_t wrong,
                     result *out_result) {
    const timed t = bench_timed(b);
    double own_ns;
    TRY((hp_status)timed_run(&t, a->n, a->batch, samples, &own_ns));
    wrong += bench_wrong_timed(b);
    if (b->o->checks)
        TRY(bench_check(b, &wrong));
    TRY(bench_summarise(b, samples, a->n, own_ns, wrong, out_result));
    TRY(measure_backward(b, a->n, a->batch, samples, out_result));
    return measure_plain(b, a->n, a->batch, samples, out_result);
}

hp_status measure(bench *b, result *out_result) {
    const timed t = bench_timed(b);
    uint64_t wrong = 0;
    double ns = 0;
    amounts a;
    if (b->o->checks)
        TRY(bench_check(b, &wrong));
    for (int i = 0; i < b->o->n_warmup; i++)
        TRY((hp_status)timed_iteration(&t, 1, true, &ns));
    TRY((hp_status)timed_iteration(&t, 2, true, &ns));
    TRY(choose_amounts(b, ns, &a));
    double *samples = calloc(2 * (size_t)a.n, sizeof *samples);
    hp_status status =
        agree(b->world, samples ? HP_OK : fail(HP_ERR_MEMORY, "expected memory for %d times", a.n));
    if (samples && status >= 0)
        status = run(b, &a, samples, wrong, out_result);
    free(samples);
    return status;
}
