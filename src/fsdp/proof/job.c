/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - the planned job of a whole mesh, on one rank.
 *
 * The plan is pure and needs nobody, so any rank can plan for all: a plan of its own for each
 * shard, with the ranges that are that shard's. What depends on the shard is where its own part of
 * a group's memory begins; sizes and ids are the same on all ranks.
 */
#include "job.h"

#include <assert.h>

enum { N_STEPS = 3 }; /* the order is learnt in the first; from the second on they are alike */

/* ---- the frame ------------------------------------------------------------------------------- */

static void describe_buffers(const hp_fsdp *fsdp, hp_buffer *buffers) {
    for (uint32_t b = 1; b < fsdp->bindings.n_buffers; b++)
        buffers[b].bytes = fsdp->bindings.buffer_bytes[b];
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        if (fsdp->plan_units[i].shared.buffer)
            buffers[fsdp->plan_units[i].shared.buffer].shared_by = HPI_COMM_UNSHARD;
}

static void color(const hp_fsdp *fsdp, uint32_t n_ranks, int *colors) {
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        const int shard = (int)rank % fsdp->n_shards, replica = (int)rank / fsdp->n_shards;
        colors[HPI_COMM_UNSHARD * n_ranks + rank] = replica;
        colors[HPI_COMM_REDUCE * n_ranks + rank] = replica;
        colors[HPI_COMM_REPLICATE * n_ranks + rank] = shard;
    }
}

hp_status hpi_job_frame(const hp_fsdp *fsdp, uint32_t n_steps, hp_job *out_job) {
    static const hp_job empty = HP_JOB_INIT;
    const uint32_t n_ranks = (uint32_t)fsdp->n_shards * (uint32_t)fsdp->n_replicas;
    hp_buffer *buffers = hpi_alloc(fsdp->bindings.n_buffers, sizeof *buffers);
    int *colors = hpi_alloc((size_t)HPI_N_COMMS * n_ranks, sizeof *colors);
    hp_list *lists = hpi_alloc((size_t)n_steps * n_ranks, sizeof *lists);
    *out_job = empty;
    out_job->lists = lists;
    out_job->buffers = buffers;
    out_job->colors = colors;
    out_job->n_ranks = n_ranks;
    out_job->n_steps = n_steps;
    out_job->kinds = fsdp->kinds;
    out_job->n_kinds = HPI_OP_N_KINDS;
    out_job->n_buffers = fsdp->bindings.n_buffers;
    out_job->n_comms = HPI_N_COMMS;
    out_job->units = fsdp->unit_names;
    out_job->n_units = fsdp->n_units;
    if (!buffers || !colors || !lists) {
        hpi_job_free(out_job);
        return HP_ERR_MEMORY;
    }
    describe_buffers(fsdp, buffers);
    color(fsdp, n_ranks, colors);
    return HP_OK;
}

/* Is it a list that an earlier one has too? Those stand in the same step. */
static bool is_shared_list(const hp_job *job, uint64_t index) {
    for (uint64_t i = index - index % job->n_ranks; i < index; i++)
        if (job->lists[i].ops == job->lists[index].ops)
            return true;
    return false;
}

void hpi_job_free(hp_job *job) {
    const uint64_t n = job->lists ? (uint64_t)job->n_steps * job->n_ranks : 0;
    for (uint64_t i = n; i-- > 0;)
        if (!is_shared_list(job, i))
            hpi_free((void *)job->lists[i].ops);
    hpi_free((void *)job->lists);
    hpi_free((void *)job->buffers);
    hpi_free((void *)job->colors);
    *job = (hp_job)HP_JOB_INIT;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* The plan of one shard, and the operations of its step. */
struct planner {
    hpi_plan_config config;
    hpi_plan_unit *units;
    hpi_plan_param *params;
    hpi_plan *plan;
    hp_op *ops;
    uint64_t n_ops, capacity;
};

/* Each shard's own part of what the group has together, gathered or shared, is equally long, and
 * they lie in the order of the shards. */
static void move(uint64_t *begin, uint64_t *end, uint64_t mine, uint64_t shard) {
    const uint64_t bytes = *end - *begin;
    *begin += (shard - mine) * bytes; /* modulo 2^64: `mine` may be larger */
    *end = *begin + bytes;
}

static void move_unit(hpi_plan_unit *unit, hpi_plan_param *params, uint64_t mine, uint64_t shard) {
    for (uint32_t i = 0; i < unit->n_gathers; i++)
        move(&unit->gathers[i].own_begin, &unit->gathers[i].own_end, mine, shard);
    for (uint32_t j = 0; unit->shared.buffer && j < unit->n_params; j++)
        if (params[j].source.buffer == unit->shared.buffer)
            move(&params[j].source.begin, &params[j].source.end, mine, shard);
}

static hp_status describe_shard(const hp_fsdp *fsdp, uint32_t shard, struct planner *p) {
    size_t n_params = 0;
    p->config = fsdp->plan_config;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        n_params += fsdp->plan_units[i].n_params;
    p->units = hpi_alloc(fsdp->n_units, sizeof *p->units);
    p->params = hpi_alloc(n_params, sizeof *p->params);
    if (!p->units || !p->params)
        return HP_ERR_MEMORY;
    hpi_plan_param *next = p->params;
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        hpi_plan_unit *unit = &p->units[i];
        *unit = fsdp->plan_units[i];
        if (unit->n_params)
            memcpy(next, unit->params, unit->n_params * sizeof *next);
        move_unit(unit, next, (uint64_t)fsdp->shard_rank, shard);
        unit->params = next;
        next += unit->n_params;
    }
    p->config.units = p->units;
    return hpi_plan_create(&p->config, &p->plan);
}

static void give_back(struct planner *p) {
    hpi_plan_destroy(p->plan);
    hpi_free(p->params);
    hpi_free(p->units);
    hpi_free(p->ops);
}

/* Append what a call of the plan brought; `planned` is what it returned. */
static hp_status take(struct planner *p, hp_status planned, hpi_burst burst) {
    HP_TRY(planned);
    if (p->n_ops + burst.n > p->capacity) {
        const uint64_t capacity = 2 * (p->n_ops + burst.n);
        hp_op *grown = hpi_alloc(capacity, sizeof *grown);
        if (!grown)
            return HP_ERR_MEMORY;
        if (p->n_ops)
            memcpy(grown, p->ops, p->n_ops * sizeof *grown);
        hpi_free(p->ops);
        p->ops = grown;
        p->capacity = capacity;
    }
    if (burst.n)
        memcpy(p->ops + p->n_ops, burst.ops, burst.n * sizeof *p->ops);
    p->n_ops += burst.n;
    return HP_OK;
}

typedef hp_status unit_hook(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);

static hp_status around(struct planner *p, uint32_t unit, unit_hook *begin, unit_hook *end) {
    hpi_burst burst = {NULL, 0};
    hp_status status = begin(p->plan, unit, &burst);
    HP_TRY(take(p, status, burst));
    status = end(p->plan, unit, &burst);
    return take(p, status, burst);
}

/* The loop of fsdp.h, then an update. */
static hp_status plan_step(struct planner *p) {
    const uint32_t n_units = p->config.n_units;
    hpi_burst burst = {NULL, 0};
    p->n_ops = 0;
    hpi_plan_begin(p->plan, HP_SYNC);
    for (uint32_t i = 0; i < n_units; i++)
        HP_TRY(around(p, i, hpi_plan_forward_begin, hpi_plan_forward_end));
    for (uint32_t i = n_units; i-- > 0;)
        HP_TRY(around(p, i, hpi_plan_backward_begin, hpi_plan_backward_end));
    hp_status status = hpi_plan_end(p->plan, &burst);
    HP_TRY(take(p, status, burst));
    status = hpi_plan_apply(p->plan, HPI_OP_UPDATE, &burst);
    return take(p, status, burst);
}

/* The step's list; the first shard's when that is the same. */
static hp_status keep_list(const struct planner *p, hp_list *lists, uint32_t shard) {
    if (shard && p->n_ops == lists[0].n &&
        memcmp(p->ops, lists[0].ops, p->n_ops * sizeof *p->ops) == 0) {
        lists[shard] = lists[0];
        return HP_OK;
    }
    hp_op *ops = hpi_alloc(p->n_ops, sizeof *ops);
    if (!ops)
        return HP_ERR_MEMORY;
    if (p->n_ops)
        memcpy(ops, p->ops, p->n_ops * sizeof *ops);
    lists[shard] = (hp_list){ops, p->n_ops};
    return HP_OK;
}

static hp_status plan_shard(const hp_fsdp *fsdp, uint32_t shard, struct planner *p, hp_job *job) {
    HP_TRY(describe_shard(fsdp, shard, p));
    for (uint32_t step = 0; step < job->n_steps; step++) {
        HP_TRY(plan_step(p));
        HP_TRY(keep_list(p, (hp_list *)job->lists + (size_t)step * job->n_ranks, shard));
    }
    return HP_OK;
}

hp_status hpi_job_plan(const hp_fsdp *fsdp, hp_job *job) {
    HP_TRY(hpi_job_frame(fsdp, N_STEPS, job));
    const uint32_t n_shards = (uint32_t)fsdp->n_shards;
    hp_status status = HP_OK;
    assert(n_shards);
    for (uint32_t shard = 0; shard < n_shards && !status; shard++) {
        struct planner planner = {0};
        status = plan_shard(fsdp, shard, &planner, job);
        give_back(&planner);
    }
    hp_list *lists = (hp_list *)job->lists;
    for (uint64_t i = 0; i < (uint64_t)job->n_steps * job->n_ranks; i++) {
        const uint64_t rank = i % job->n_ranks;
        lists[i] = lists[i - rank + rank % n_shards];
    }
    if (status)
        hpi_job_free(job);
    return status;
}

hp_status hp_fsdp_job_create(hp_fsdp *fsdp, hp_job *out_job) {
    if (!out_job)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the job, given NULL");
    HP_TRY(hpi_fsdp_check_usable(fsdp, "hp_fsdp_job_create"));
    return hpi_job_plan(fsdp, out_job);
}

void hp_fsdp_job_destroy(hp_job *job) {
    if (job)
        hpi_job_free(job);
}
