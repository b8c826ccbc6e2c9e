/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/run.c - all cases in turns on real ranks, and the medians.
 *
 * Each mode and mesh is also run under the serial schedule, asked for or not: there nothing lies
 * beside anything, so its times are what compute and collectives need alone. A run is a step of
 * each model; every second run goes through them the other way, so that none always comes first.
 */
#include "../../perf/median.h"
#include "../fail.h"
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct series {
    overlap_case what;
    model *model;
    double (*samples)[N_METRICS]; /* [n_runs] */
} series;

typedef struct campaign {
    hp_world *world;
    const overlap_options *o;
    series *all; /* the cases, then serial ones that were not asked for */
    int n, n_cases;
    double *column; /* [n_runs] */
} campaign;

/* ---- which ---- */

/* The serial case of the same mode and mesh; n when there is none yet. */
static int find_serial(const campaign *c, const overlap_case *what) {
    for (int i = 0; i < c->n; i++) {
        const overlap_case *w = &c->all[i].what;
        if (w->schedule == HP_SERIAL && w->mode == what->mode &&
            w->mesh.n_shards == what->mesh.n_shards && w->mesh.n_replicas == what->mesh.n_replicas)
            return i;
    }
    return c->n;
}

static void add_serial(campaign *c, const overlap_case *what) {
    if (find_serial(c, what) < c->n)
        return;
    c->all[c->n].what = *what;
    c->all[c->n++].what.schedule = HP_SERIAL;
}

/* ---- runs ---- */

/* The needs of collectives stay those of this rank, which belong together. */
static hp_status one_step(campaign *c, int i, double metrics[N_METRICS]) {
    series *s = &c->all[i];
    TRY(model_step(s->model, metrics));
    TRY(model_look(s->model, s->what.schedule == HP_SERIAL, metrics));
    return hp_all_reduce(hp_world_group(c->world), metrics, metrics, N_OF_SLOWEST, HP_FP64, HP_MAX);
}

static hp_status one_run(campaign *c, int run) {
    for (int k = 0; k < c->n; k++) {
        const int i = run % 2 ? c->n - 1 - k : k;
        TRY(one_step(c, i, c->all[i].samples[run]));
    }
    return HP_OK;
}

static hp_status warm_up(campaign *c) {
    double metrics[N_METRICS] = {0};
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < c->o->n_warmup; k++)
            TRY(one_step(c, i, metrics));
    return HP_OK;
}

/* ---- medians ---- */

static double median_of(const campaign *c, const series *s, metric which) {
    for (int run = 0; run < c->o->n_runs; run++)
        c->column[run] = s->samples[run][which];
    return median(c->column, c->o->n_runs);
}

static double over_serial(const campaign *c, const series *s, const series *serial) {
    for (int run = 0; run < c->o->n_runs; run++)
        c->column[run] = s->samples[run][M_STEP] / serial->samples[run][M_STEP];
    return median(c->column, c->o->n_runs);
}

/* Compute: where it took less, so that a serial run that was disturbed allows nothing. */
static double compute_of(const campaign *c, const series *s, const series *serial, metric which) {
    return fmin(median_of(c, serial, which), median_of(c, s, which));
}

static overlap_needs needs_of(const campaign *c, const series *s, const series *serial) {
    return (overlap_needs){.n_units = c->o->n_units,
                           .prefetch = c->o->prefetch,
                           .forward_ms = compute_of(c, s, serial, M_FORWARD_COMPUTE),
                           .backward_ms = compute_of(c, s, serial, M_BACKWARD_COMPUTE),
                           .forward_gathers_ms = median_of(c, serial, M_FORWARD_GATHERS),
                           .backward_gathers_ms = median_of(c, serial, M_BACKWARD_GATHERS),
                           .first_gather_ms = median_of(c, serial, M_FIRST_GATHER),
                           .reduces_ms = median_of(c, serial, M_REDUCES),
                           .first_reduce_ms = median_of(c, serial, M_FIRST_REDUCE),
                           .last_reduce_ms = median_of(c, serial, M_LAST_REDUCE),
                           .replicates_ms = median_of(c, serial, M_REPLICATES),
                           .last_replicate_ms = median_of(c, serial, M_LAST_REPLICATE)};
}

/* Ranks that work and share cores stand in each other's way: what one needs alone is not known. */
static bool has_bound(const campaign *c) {
    return !c->o->is_busy || hp_world_local_size(c->world) <= (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* The ranks' own needs and bounds become the largest of each. Collective. */
static hp_status take_largest(const campaign *c, overlap_result *r) {
    overlap_needs *n = &r->needs;
    double *const all[] = {&n->forward_gathers_ms, &n->backward_gathers_ms, &n->first_gather_ms,
                           &n->reduces_ms,         &n->first_reduce_ms,     &n->last_reduce_ms,
                           &n->replicates_ms,      &n->last_replicate_ms,   &r->bound.forward_ms,
                           &r->bound.backward_ms,  &r->bound.step_ms};
    enum { N = sizeof all / sizeof *all };
    double largest[N];
    for (int i = 0; i < N; i++)
        largest[i] = *all[i];
    TRY(hp_all_reduce(hp_world_group(c->world), largest, largest, N, HP_FP64, HP_MAX));
    for (int i = 0; i < N; i++)
        *all[i] = largest[i];
    return HP_OK;
}

static hp_status result_of(const campaign *c, const series *s, overlap_result *out_result) {
    const series *serial = &c->all[find_serial(c, &s->what)];
    overlap_result r = {.mode = s->model->mode,
                        .forward_ms = median_of(c, s, M_FORWARD),
                        .backward_ms = median_of(c, s, M_BACKWARD),
                        .step_ms = median_of(c, s, M_STEP),
                        .needs = needs_of(c, s, serial),
                        .exposed_unshard_ms = median_of(c, s, M_EXPOSED_UNSHARD),
                        .exposed_reduce_ms = median_of(c, s, M_EXPOSED_REDUCE),
                        .exposed_replicate_ms = median_of(c, s, M_EXPOSED_REPLICATE),
                        .pack_ms = median_of(c, s, M_PACK),
                        .collective_ms = median_of(c, s, M_COLLECTIVE),
                        .wait_ms = median_of(c, s, M_EXPOSED_UNSHARD),
                        .over_serial = over_serial(c, s, serial)};
    r.bound = overlap_bound_of(&r.needs);
    TRY(take_largest(c, &r));
    if (!has_bound(c))
        r.bound = (overlap_bound){NAN, NAN, NAN};
    for (int run = 0; run < c->o->n_runs; run++)
        r.is_wrong |= s->samples[run][M_WRONG] > 0;
    *out_result = r;
    return HP_OK;
}

/* ---- all of it ---- */

static hp_status take_memory(campaign *c) {
    c->all = calloc(2 * (size_t)c->n_cases, sizeof *c->all);
    c->column = calloc((size_t)c->o->n_runs, sizeof *c->column);
    return c->all && c->column ? HP_OK : fail(HP_ERR_MEMORY, "expected memory for the cases");
}

static hp_status open_series(campaign *c, series *s, uint64_t loops_per_ms) {
    s->samples = calloc((size_t)c->o->n_runs, sizeof *s->samples);
    s->model = calloc(1, sizeof *s->model);
    TRY(agree(c->world, s->samples && s->model
                            ? HP_OK
                            : fail(HP_ERR_MEMORY, "expected memory for %d runs", c->o->n_runs)));
    return model_create(c->world, c->o, &s->what, loops_per_ms, s->model);
}

static hp_status write_trace(const campaign *c) {
    char path[4096];
    const model *first = c->all[0].model; /* there is one case at least */
    if (!c->o->trace || !first)
        return HP_OK;
    snprintf(path, sizeof path, "%s/trace-%d.json", c->o->trace, hp_world_rank(c->world));
    return agree(c->world, hp_trace_write(first->trace, path));
}

static hp_status measure(campaign *c, const overlap_case *cases, overlap_result *out_results) {
    uint64_t loops_per_ms;
    for (int i = 0; i < c->n_cases; i++)
        c->all[c->n++].what = cases[i];
    for (int i = 0; i < c->n_cases; i++)
        add_serial(c, &cases[i]);
    TRY(overlap_calibrate(c->world, &loops_per_ms));
    for (int i = 0; i < c->n; i++)
        TRY(open_series(c, &c->all[i], loops_per_ms));
    TRY(warm_up(c));
    for (int run = 0; run < c->o->n_runs; run++)
        TRY(one_run(c, run));
    for (int i = 0; i < c->n_cases; i++)
        TRY(result_of(c, &c->all[i], &out_results[i]));
    return write_trace(c);
}

static void release(campaign *c) {
    for (int i = 0; i < c->n; i++) {
        if (c->all[i].model)
            model_destroy(c->all[i].model);
        free(c->all[i].model);
        free(c->all[i].samples);
    }
    free(c->all);
    free(c->column);
}

/* Sleeps stand for an accelerator and a network: they end when they should, not 50 us later. */
hp_status overlap_run(hp_world *world, const overlap_options *o, const overlap_case *cases, int n,
                      overlap_result *out_results) {
    campaign c = {.world = world, .o = o, .n_cases = n};
    prctl(PR_SET_TIMERSLACK, 1UL);
    hp_status status = agree(world, take_memory(&c));
    if (status >= 0)
        status = measure(&c, cases, out_results);
    release(&c);
    return status;
}
