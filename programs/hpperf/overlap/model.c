/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/model.c - units, their compute, and a step through them, as a user writes it.
 *
 * Every parameter holds a number of its own and every gradient one that follows from unit and rank,
 * whole and small: sums are exact, and each element is compared. Reading and writing them is part
 * of the compute, whose work is a chain of multiplications of a length that is found once.
 */
#include "model.h"
#include "../fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- compute ---- */

static uint64_t work(uint64_t x, uint64_t n_loops) {
    for (uint64_t i = 0; i < n_loops; i++)
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return x;
}

/* The best of several: what the machine does when nobody disturbs it. */
hp_status overlap_calibrate(hp_world *world, uint64_t *out_loops_per_ms) {
    enum { N = 20, LOOPS = 400000 };
    double least_ns = INFINITY;
    volatile uint64_t sink = 1;
    for (int i = 0; i < N; i++) {
        const double begin = now_ns();
        sink = work(sink, LOOPS);
        least_ns = fmin(least_ns, now_ns() - begin);
    }
    TRY(hp_all_reduce(hp_world_group(world), &least_ns, &least_ns, 1, HP_FP64, HP_MIN));
    *out_loops_per_ms = (uint64_t)(LOOPS * 1e6 / least_ns);
    return HP_OK;
}

static void sleep_until(double ns) {
    const struct timespec t = {.tv_sec = (time_t)(ns / 1e9), .tv_nsec = (long)fmod(ns, 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {
    }
}

/* The rest of a compute that began at `begin`. */
static void compute(model *m, double begin, double ms) {
    if (m->o->is_busy)
        m->sink = work(m->sink, (uint64_t)(ms * (double)m->loops_per_ms));
    else
        sleep_until(begin + ms * 1e6);
}

/* ---- values ---- */

static uint64_t n_elements(const overlap_options *o) {
    return o->width_bytes / sizeof(float) / (uint64_t)o->n_params;
}

static float param_value(int unit, int param) {
    return (float)(unit * 64 + param);
}

static float grad_value(int unit, int rank) {
    return (float)(unit + rank + 1);
}

/* The mean over all ranks. */
static float grad_mean(int unit, int n_ranks) {
    return (float)unit + (float)(n_ranks + 1) / 2;
}

static uint64_t count_others(const float *x, uint64_t n, float value) {
    uint32_t n_others = 0; /* n is less: a unit's bytes are */
    for (uint64_t i = 0; i < n; i++)
        n_others += x[i] != value;
    return n_others;
}

static void fill_constant(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    for (uint64_t i = begin; i < end; i++)
        ((float *)out_elements)[i - begin] = (float)(uintptr_t)context; /* the number itself */
}

static hp_status read_params(model *m, int unit, uint64_t *wrong) {
    for (int j = 0; j < m->o->n_params; j++) {
        const float *data = hp_param_data(m->units[unit], j);
        if (!data)
            return HP_ERR_STATE; /* with the record */
        *wrong += count_others(data, n_elements(m->o), param_value(unit, j));
    }
    return HP_OK;
}

static hp_status write_grads(model *m, int unit) {
    const float value = grad_value(unit, hp_world_rank(m->world));
    for (int j = 0; j < m->o->n_params; j++) {
        float *grad = hp_param_grad(m->units[unit], j);
        if (!grad)
            return HP_ERR_STATE;
        for (uint64_t i = 0; i < n_elements(m->o); i++)
            grad[i] = value;
    }
    return HP_OK;
}

static hp_status check_grads(model *m, uint64_t *wrong) {
    for (int i = 0; i < m->o->n_units; i++)
        for (int j = 0; j < m->o->n_params; j++) {
            hp_shard shard;
            TRY(hp_param_shard(m->units[i], j, &shard));
            *wrong +=
                count_others(shard.grad, shard.n_elements, grad_mean(i, hp_world_size(m->world)));
        }
    return HP_OK;
}

/* ---- a step ---- */

static hp_status forward(model *m, double *compute_ns, uint64_t *wrong) {
    for (int i = 0; i < m->o->n_units; i++) {
        TRY(hp_forward_begin(m->units[i]));
        const double begin = now_ns();
        TRY(read_params(m, i, wrong));
        compute(m, begin, m->o->times.forward_ms);
        *compute_ns += now_ns() - begin;
        TRY(hp_forward_end(m->units[i]));
    }
    return HP_OK;
}

static hp_status backward(model *m, double *compute_ns) {
    for (int i = m->o->n_units; i-- > 0;) {
        TRY(hp_backward_begin(m->units[i]));
        const double begin = now_ns();
        TRY(write_grads(m, i));
        compute(m, begin, m->o->times.backward_ms);
        *compute_ns += now_ns() - begin;
        TRY(hp_backward_end(m->units[i]));
    }
    return HP_OK;
}

static void exposed(const hp_fsdp_stats *before, const hp_fsdp_stats *after, double *out_ms) {
    out_ms[0] = (double)(after->exposed_unshard_ns - before->exposed_unshard_ns) / 1e6;
    out_ms[1] = (double)(after->exposed_reduce_ns - before->exposed_reduce_ns) / 1e6;
    out_ms[2] = (double)(after->exposed_replicate_ns - before->exposed_replicate_ns) / 1e6;
}

hp_status model_step(model *m, double metrics[N_METRICS]) {
    hp_fsdp_stats before, after;
    double compute_ns[2] = {0};
    uint64_t wrong = 0;
    TRY(hp_fsdp_stats_get(m->fsdp, &before));
    TRY(hp_barrier(hp_world_group(m->world)));
    const double begin = now_ns();
    TRY(hp_fsdp_begin(m->fsdp, HP_SYNC));
    TRY(forward(m, &compute_ns[0], &wrong));
    m->forward_end_ns = now_ns();
    TRY(backward(m, &compute_ns[1]));
    TRY(hp_fsdp_end(m->fsdp));
    const double end = now_ns();
    TRY(hp_fsdp_stats_get(m->fsdp, &after));
    TRY(check_grads(m, &wrong));
    metrics[M_FORWARD] = (m->forward_end_ns - begin) / 1e6;
    metrics[M_BACKWARD] = (end - m->forward_end_ns) / 1e6;
    metrics[M_STEP] = (end - begin) / 1e6;
    exposed(&before, &after, &metrics[M_EXPOSED_UNSHARD]);
    metrics[M_FORWARD_COMPUTE] = compute_ns[0] / 1e6;
    metrics[M_BACKWARD_COMPUTE] = compute_ns[1] / 1e6;
    metrics[M_WRONG] = (double)wrong;
    return HP_OK;
}

/* ---- delays ---- */

/* The rules for all collectives of this rank, unit by unit where they differ. Owns: the caller. */
static char *make_delay(const model *m) {
    enum { RULE = 96 };
    const int n_units = m->o->injects ? m->o->n_units : 1;
    const size_t size = (size_t)n_units * (HP_N_STREAMS - 1) * RULE;
    char *text = malloc(size);
    size_t length = 0;
    for (int i = 0; text && i < n_units; i++)
        for (unsigned s = HP_STREAM_UNSHARD; s < HP_N_STREAMS; s++) {
            const uint64_t us = overlap_delay_us(m->o, s, hp_world_rank(m->world), i,
                                                 overlap_n_collectives(m->o, m->mode, s));
            char unit[32] = "";
            if (m->o->injects)
                snprintf(unit, sizeof unit, ",unit=unit%d", i);
            length += (size_t)snprintf(
                text + length, size - length, "%skind=%s,stream=%s,us=%llu%s", length ? ";" : "",
                overlap_collective(m->mode, s), hp_stream_id_name(s), (unsigned long long)us, unit);
        }
    return text;
}

/* ---- creation ---- */

static hp_status make_unit(model *m, int i) {
    hp_param params[OVERLAP_MOST_PARAMS];
    char names[OVERLAP_MOST_PARAMS][24], name[16];
    for (int j = 0; j < m->o->n_params; j++) {
        params[j] = (hp_param)HP_PARAM_INIT;
        snprintf(names[j], sizeof names[j], "unit%d.%d", i, j);
        params[j].name = names[j];
        params[j].n_dims = 1;
        params[j].shape[0] = (int64_t)n_elements(m->o);
        params[j].fill = fill_constant;
        params[j].fill_context = (void *)(uintptr_t)param_value(i, j);
    }
    snprintf(name, sizeof name, "unit%d", i);
    return hp_unit_create(m->fsdp, name, params, m->o->n_params, NULL, &m->units[i]);
}

static hp_status make_fsdp(model *m, const char *delay) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = m->mode;
    config.schedule = m->what.schedule;
    config.prefetch = m->o->prefetch;
    config.trace = m->trace;
    config.delay = delay;
    TRY(hp_fsdp_create(m->mesh, &config, &m->fsdp));
    for (int i = 0; i < m->o->n_units; i++)
        TRY(make_unit(m, i));
    return hp_fsdp_commit(m->fsdp);
}

/* What auto is. The delays depend on it, so it is asked before they are made. */
static hp_status learn_mode(model *m) {
    if (m->mode != HP_AUTO)
        return HP_OK;
    TRY(make_fsdp(m, ""));
    m->mode = hp_fsdp_mode(m->fsdp);
    hp_fsdp_destroy(m->fsdp);
    m->fsdp = NULL;
    return HP_OK;
}

/* As many spans as a stream can get, and more. */
static uint64_t most_spans(const overlap_options *o) {
    const uint64_t in_step = (uint64_t)o->n_units * (uint64_t)(32 + 8 * o->n_params) + 64;
    return in_step * (uint64_t)(o->n_runs + o->n_warmup);
}

static hp_status make_trace(model *m) {
    TRY(hp_trace_create(hp_world_rank(m->world), most_spans(m->o), &m->trace));
    for (unsigned s = 0; s < HP_N_STREAMS; s++)
        TRY(hp_trace_name_stream(m->trace, s, hp_stream_id_name(s)));
    return HP_OK;
}

hp_status model_create(hp_world *world, const overlap_options *o, const overlap_case *what,
                       uint64_t loops_per_ms, model *m) {
    m->world = world;
    m->o = o;
    m->what = *what;
    m->mode = what->mode;
    m->loops_per_ms = loops_per_ms;
    TRY(hp_mesh_create(world, (int[]){what->mesh.n_replicas, what->mesh.n_shards}, 2, &m->mesh));
    TRY(learn_mode(m));
    char *delay = make_delay(m);
    hp_status status = agree(world, delay ? make_trace(m) : fail(HP_ERR_MEMORY, "expected memory"));
    if (status >= 0)
        status = make_fsdp(m, delay);
    free(delay);
    return status;
}

void model_destroy(model *m) {
    hp_fsdp_destroy(m->fsdp);
    hp_trace_destroy(m->trace);
    hp_mesh_destroy(m->mesh);
}
