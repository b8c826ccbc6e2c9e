/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/virtual.c - the same cases in virtual time: all ranks of a mesh, on one.
 *
 * A virtual fsdp plans what every rank would do; hp_simulate runs these lists with the times that
 * were asked for. Three steps are planned and the third is looked at, when the order of the units
 * has been learnt. There is nothing to repeat: a run is the same whenever it is made. What compute
 * and collectives need alone is taken from the serial schedule, as on real ranks.
 */
#include "../fail.h"
#include "overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct virtual_case {
    const overlap_options *o;
    overlap_case what;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_job job;
    hp_cost *costs; /* [n_kinds][n_comms] */
    char *delay;
    hp_moment **moments;                /* [n_steps][n_ranks]; NULL but in the last step */
    hp_executor_stats *stats, *earlier; /* [n_ranks]: of all steps, and of all but the last */
    uint64_t *latest_ns;                /* [n_ranks] when the last of a group has come, by color */
    overlap_result result;
} virtual_case;

/* ---- the plan ---------------------------------------------------------------------------------
 */

static hp_status add_unit(const virtual_case *v, int i) {
    hp_param params[OVERLAP_MOST_PARAMS];
    char names[OVERLAP_MOST_PARAMS][24], name[16];
    hp_unit *unit;
    for (int j = 0; j < v->o->n_params; j++) {
        params[j] = (hp_param)HP_PARAM_INIT;
        snprintf(names[j], sizeof names[j], "unit%d.%d", i, j);
        params[j].name = names[j];
        params[j].n_dims = 1;
        params[j].shape[0] =
            (int64_t)(v->o->width_bytes / sizeof(float) / (unsigned)v->o->n_params);
    }
    snprintf(name, sizeof name, "unit%d", i);
    return hp_unit_create(v->fsdp, name, params, v->o->n_params, NULL, &unit);
}

static hp_status make_plan(virtual_case *v) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = v->what.mode;
    config.schedule = v->what.schedule;
    config.prefetch = v->o->prefetch;
    config.executor = HP_EXECUTOR_VIRTUAL;
    TRY(hp_mesh_create_virtual((int[]){v->what.mesh.n_replicas, v->what.mesh.n_shards}, 2, 0,
                               &v->mesh));
    TRY(hp_fsdp_create(v->mesh, &config, &v->fsdp));
    for (int i = 0; i < v->o->n_units; i++)
        TRY(add_unit(v, i));
    TRY(hp_fsdp_commit(v->fsdp));
    v->result.mode = hp_fsdp_mode(v->fsdp);
    return hp_fsdp_job_create(v->fsdp, &v->job);
}

/* ---- times ------------------------------------------------------------------------------------
 */

static bool is_kind(const virtual_case *v, const hp_op *op, const char *name) {
    return strcmp(v->job.kinds[op->kind].name, name) == 0;
}

static int n_collectives(const virtual_case *v, unsigned stream) {
    return overlap_n_collectives(v->o, v->result.mode, stream);
}

static double local_ms(const virtual_case *v, const hp_op *op) {
    const overlap_times *t = &v->o->times;
    return is_kind(v, op, "forward_end")    ? t->forward_ms
           : is_kind(v, op, "backward_end") ? t->backward_ms
           : is_kind(v, op, "copy")         ? t->copy_ms
                                            : 0;
}

static const hp_list *last_list(const virtual_case *v, uint32_t rank) {
    return &v->job.lists[(size_t)(v->job.n_steps - 1) * v->job.n_ranks + rank];
}

/* Every operation of a kind on a communicator takes the same time, whatever its bytes. */
static void set_costs(const virtual_case *v) {
    const hp_list *list = last_list(v, 0);
    for (uint64_t i = 0; i < list->n; i++) {
        const hp_op *op = &list->ops[i];
        const double ms =
            op->comm ? overlap_stream_ms(&v->o->times, op->stream) / n_collectives(v, op->stream)
                     : local_ms(v, op);
        v->costs[(size_t)op->kind * v->job.n_comms + op->comm].fixed_ns =
            (uint64_t)(ms * 1e6 + 0.5);
    }
}

/* What --inject adds for a rank before each collective of a unit, in us. */
static unsigned long long injected_us(const virtual_case *v, unsigned stream, int rank, int unit) {
    overlap_options without = *v->o;
    const int n = n_collectives(v, stream);
    without.injects = false;
    return overlap_delay_us(v->o, stream, rank, unit, n) -
           overlap_delay_us(&without, stream, rank, unit, n);
}

/* A rule for each stream, unit and rank. */
static hp_status make_delay(virtual_case *v) {
    enum { RULE = 112, MOST_INJECTED = 64 }; /* each rank reads the rules of all */
    const size_t n = (size_t)v->job.n_ranks * (size_t)v->o->n_units * (HP_N_STREAMS - 1);
    size_t length = 0;
    if (!v->o->injects)
        return HP_OK;
    if (v->job.n_ranks > MOST_INJECTED)
        return fail(HP_ERR_ARGUMENT,
                    "expected at most %d ranks with --virtual and --inject, given %u",
                    MOST_INJECTED, v->job.n_ranks);
    if (!(v->delay = malloc(n * RULE)))
        return fail(HP_ERR_MEMORY, "expected memory for %zu delays", n);
    for (int rank = 0; rank < (int)v->job.n_ranks; rank++)
        for (int unit = 0; unit < v->o->n_units; unit++)
            for (unsigned s = HP_STREAM_UNSHARD; s < HP_N_STREAMS; s++)
                length += (size_t)snprintf(v->delay + length, n * RULE - length,
                                           "%skind=%s,stream=%s,rank=%d,unit=unit%d,us=%llu",
                                           length ? ";" : "", overlap_collective(v->result.mode, s),
                                           hp_stream_id_name(s), rank, unit,
                                           injected_us(v, s, rank, unit));
    return HP_OK;
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static hp_status take_memory(virtual_case *v) {
    const hp_job *job = &v->job;
    const size_t n_lists = (size_t)job->n_steps * job->n_ranks, last = n_lists - job->n_ranks;
    v->costs = calloc((size_t)job->n_kinds * job->n_comms, sizeof *v->costs);
    v->moments = calloc(n_lists, sizeof *v->moments);
    v->stats = calloc(job->n_ranks, sizeof *v->stats);
    v->earlier = calloc(job->n_ranks, sizeof *v->earlier);
    v->latest_ns = calloc(job->n_ranks, sizeof *v->latest_ns);
    bool has_all = v->costs && v->moments && v->stats && v->earlier && v->latest_ns;
    for (size_t i = last; has_all && i < n_lists; i++)
        has_all = (v->moments[i] = calloc(job->lists[i].n + 1, sizeof **v->moments));
    return has_all ? HP_OK : fail(HP_ERR_MEMORY, "expected memory for %u ranks", job->n_ranks);
}

static hp_status simulate(virtual_case *v) {
    hp_cost_model model = HP_COST_MODEL_INIT;
    hp_job earlier = v->job;
    uint64_t end_ns;
    TRY(take_memory(v));
    set_costs(v);
    TRY(make_delay(v));
    model.costs = v->costs;
    model.n_kinds = v->job.n_kinds;
    model.n_comms = v->job.n_comms;
    earlier.n_steps--;
    TRY(hp_simulate(&earlier, &model, v->delay, NULL, v->earlier, &end_ns));
    return hp_simulate(&v->job, &model, v->delay, v->moments, v->stats, &end_ns);
}

/* ---- what it says -----------------------------------------------------------------------------
 */

static const hp_moment *last_moments(const virtual_case *v, uint32_t rank) {
    return v->moments[(size_t)(v->job.n_steps - 1) * v->job.n_ranks + rank];
}

/* The operations of the pass, which those of the update follow. */
static uint64_t pass_length(const virtual_case *v, const hp_list *list) {
    uint64_t n = 0;
    while (n < list->n && !is_kind(v, &list->ops[n], "update"))
        n++;
    return n;
}

static double max(double a, double b) {
    return a > b ? a : b;
}

static double waited_ms(const virtual_case *v, uint32_t rank, unsigned stream) {
    return (double)(v->stats[rank].waited_ns[stream] - v->earlier[rank].waited_ns[stream]) / 1e6;
}

/* Of one rank; the slowest counts. */
static void look_at_times(virtual_case *v, uint32_t rank) {
    const hp_list *list = last_list(v, rank);
    const hp_moment *m = last_moments(v, rank);
    const uint64_t n = pass_length(v, list);
    uint64_t begin_ns = UINT64_MAX, end_ns = 0, forwarded_ns = 0;
    double pack_ms = 0, collective_ms = 0;
    for (uint64_t i = 0; i < n; i++) {
        const hp_op *op = &list->ops[i];
        begin_ns = m[i].begin_ns < begin_ns ? m[i].begin_ns : begin_ns;
        end_ns = m[i].done_ns > end_ns ? m[i].done_ns : end_ns;
        if (is_kind(v, op, "forward_end"))
            forwarded_ns = m[i].done_ns;
        if (op->stream == HP_STREAM_UNSHARD)
            *(op->comm ? &collective_ms : &pack_ms) += (double)(m[i].done_ns - m[i].begin_ns) / 1e6;
    }
    overlap_result *r = &v->result;
    r->forward_ms = max(r->forward_ms, (double)(forwarded_ns - begin_ns) / 1e6);
    r->backward_ms = max(r->backward_ms, (double)(end_ns - forwarded_ns) / 1e6);
    r->step_ms = max(r->step_ms, (double)(end_ns - begin_ns) / 1e6);
    r->pack_ms = max(r->pack_ms, pack_ms);
    r->collective_ms = max(r->collective_ms, collective_ms);
    r->exposed_unshard_ms = max(r->exposed_unshard_ms, waited_ms(v, rank, HP_STREAM_UNSHARD));
    r->exposed_reduce_ms = max(r->exposed_reduce_ms, waited_ms(v, rank, HP_STREAM_REDUCE));
    r->exposed_replicate_ms = max(r->exposed_replicate_ms, waited_ms(v, rank, HP_STREAM_REPLICATE));
    r->wait_ms = r->exposed_unshard_ms;
}

static const int *colors_of(const virtual_case *v, const hp_op *op) {
    return v->job.colors + (size_t)op->comm * v->job.n_ranks;
}

/* What operation i needs on this rank, without waiting for others of its group. */
static double need_ms(const virtual_case *v, uint64_t i, uint32_t rank) {
    const hp_op *op = &last_list(v, rank)->ops[i];
    const hp_moment *m = &last_moments(v, rank)[i];
    const uint64_t begin_ns = op->comm ? v->latest_ns[colors_of(v, op)[rank]] : m->begin_ns;
    return (double)(m->done_ns - begin_ns) / 1e6;
}

/* When the last member of each group begins operation i, by color. */
static void find_latest(const virtual_case *v, uint64_t i) {
    const hp_op *op = &last_list(v, 0)->ops[i];
    const int *colors = colors_of(v, op);
    if (!op->comm)
        return;
    memset(v->latest_ns, 0, v->job.n_ranks * sizeof *v->latest_ns);
    for (uint32_t rank = 0; rank < v->job.n_ranks; rank++) {
        uint64_t *latest = &v->latest_ns[colors[rank]];
        const uint64_t begin_ns = last_moments(v, rank)[i].begin_ns;
        *latest = begin_ns > *latest ? begin_ns : *latest;
    }
}

static void add_need(overlap_needs *n, const hp_op *op, bool is_forward, bool is_first, double ms) {
    const bool is_last = op->unit == 0; /* of the backward, which the last unit begins */
    const bool is_first_of_backward = op->unit + 1 == (uint32_t)n->n_units;
    switch (op->stream) {
    case HP_STREAM_UNSHARD:
        *(is_forward ? &n->forward_gathers_ms : &n->backward_gathers_ms) += ms;
        n->first_gather_ms += is_first ? ms : 0;
        break;
    case HP_STREAM_REDUCE:
        n->reduces_ms += ms;
        n->first_reduce_ms += is_first_of_backward ? ms : 0;
        n->last_reduce_ms += is_last ? ms : 0;
        break;
    case HP_STREAM_REPLICATE:
        n->replicates_ms += ms;
        n->last_replicate_ms += is_last ? ms : 0;
        break;
    default:
        break;
    }
}

/* Each from the rank that needs most. */
static void take_worst(overlap_needs *worst, const overlap_needs *n) {
    worst->forward_gathers_ms = max(worst->forward_gathers_ms, n->forward_gathers_ms);
    worst->backward_gathers_ms = max(worst->backward_gathers_ms, n->backward_gathers_ms);
    worst->first_gather_ms = max(worst->first_gather_ms, n->first_gather_ms);
    worst->reduces_ms = max(worst->reduces_ms, n->reduces_ms);
    worst->first_reduce_ms = max(worst->first_reduce_ms, n->first_reduce_ms);
    worst->last_reduce_ms = max(worst->last_reduce_ms, n->last_reduce_ms);
    worst->replicates_ms = max(worst->replicates_ms, n->replicates_ms);
    worst->last_replicate_ms = max(worst->last_replicate_ms, n->last_replicate_ms);
}

/* From a case under the serial schedule: nothing lies beside anything there. All ranks have the
 * same operations in the same places. */
static void add_up_needs(const virtual_case *v, overlap_needs *needs) {
    const hp_list *list = last_list(v, 0);
    const uint64_t n = pass_length(v, list);
    uint32_t first_unit = UINT32_MAX;
    int n_forwards = 0;
    bool has_first = false;
    for (uint64_t i = 0; i < n; i++) {
        const hp_op *op = &list->ops[i];
        const bool is_forward = n_forwards < v->o->n_units;
        n_forwards += is_kind(v, op, "forward_end");
        if (op->stream == HP_STREAM_COMPUTE)
            continue;
        if (!has_first)
            first_unit = op->unit;
        has_first = true;
        find_latest(v, i);
        for (uint32_t rank = 0; rank < v->job.n_ranks; rank++)
            add_need(&needs[rank], op, is_forward, is_forward && op->unit == first_unit,
                     need_ms(v, i, rank));
    }
}

static void take_larger(overlap_bound *bound, const overlap_bound *of_rank) {
    bound->forward_ms = max(bound->forward_ms, of_rank->forward_ms);
    bound->backward_ms = max(bound->backward_ms, of_rank->backward_ms);
    bound->step_ms = max(bound->step_ms, of_rank->step_ms);
}

static hp_status find_needs(virtual_case *v) {
    const overlap_needs compute = {.n_units = v->o->n_units,
                                   .prefetch = v->o->prefetch,
                                   .forward_ms = v->o->times.forward_ms * v->o->n_units,
                                   .backward_ms = v->o->times.backward_ms * v->o->n_units};
    overlap_needs *needs = calloc(v->job.n_ranks + (size_t)1, sizeof *needs);
    if (!needs)
        return fail(HP_ERR_MEMORY, "expected memory for %u ranks", v->job.n_ranks);
    for (uint32_t rank = 0; rank < v->job.n_ranks; rank++)
        needs[rank] = compute;
    add_up_needs(v, needs);
    v->result.needs = compute;
    for (uint32_t rank = 0; rank < v->job.n_ranks; rank++) {
        const overlap_bound bound = overlap_bound_of(&needs[rank]);
        take_worst(&v->result.needs, &needs[rank]);
        take_larger(&v->result.bound, &bound);
    }
    free(needs);
    return HP_OK;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

static void release(virtual_case *v) {
    const size_t n_lists = (size_t)v->job.n_steps * v->job.n_ranks;
    for (size_t i = 0; v->moments && i < n_lists; i++)
        free(v->moments[i]);
    free(v->moments);
    free(v->latest_ns);
    free(v->earlier);
    free(v->stats);
    free(v->costs);
    free(v->delay);
    hp_fsdp_job_destroy(&v->job);
    hp_fsdp_destroy(v->fsdp);
    hp_mesh_destroy(v->mesh);
}

static hp_status run(const overlap_options *o, const overlap_case *what,
                     overlap_result *out_result) {
    virtual_case v = {.o = o, .what = *what, .job = HP_JOB_INIT};
    hp_status status = make_plan(&v);
    if (status >= 0)
        status = simulate(&v);
    for (uint32_t rank = 0; status >= 0 && rank < v.job.n_ranks; rank++)
        look_at_times(&v, rank);
    if (status >= 0)
        status = find_needs(&v);
    if (status >= 0)
        *out_result = v.result;
    release(&v);
    return status;
}

hp_status overlap_virtual(const overlap_options *o, const overlap_case *cases, int n,
                          overlap_result *out_results) {
    for (int i = 0; i < n; i++) {
        overlap_case serial_case = cases[i];
        overlap_result serial = {0}, result = {0};
        serial_case.schedule = HP_SERIAL;
        TRY(run(o, &serial_case, &serial));
        TRY(run(o, &cases[i], &result));
        result.needs = serial.needs;
        result.bound = serial.bound;
        result.over_serial = result.step_ms / serial.step_ms;
        out_results[i] = result;
    }
    return HP_OK;
}
