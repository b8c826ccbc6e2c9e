/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - hp_fsdp_verify: the lists of all ranks, planned or recorded, before hp_verify.
 *
 * Rank 0 is the judge. It plans for all ranks, or gets from each what it recorded, and tells
 * everybody its verdict, so all ranks go on or fail together.
 */
#include "../together/agree.h"
#include "../together/between.h"
#include "job.h"

#include <hyperparallel/coll.h>

/* ---- what was recorded ----------------------------------------------------------------------- */

enum { MAX_RECORDED = 2 }; /* passes */

struct recorded {
    hp_list lists[MAX_RECORDED]; /* the last one last */
    uint32_t n;
};

static hp_status read_recorded(const hp_fsdp *fsdp, struct recorded *out) {
    if (!fsdp->config.record)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_config.record, given 0");
    hp_list last = {NULL, 0}, before = {NULL, 0};
    HP_TRY(hp_recorder_ops(fsdp->executor, &last.ops, &last.n));
    hpi_recorder_before(fsdp->executor, &before.ops, &before.n);
    out->n = 0;
    if (before.n)
        out->lists[out->n++] = before;
    if (last.n)
        out->lists[out->n++] = last;
    if (!out->n)
        return HPI_FAIL(HP_ERR_STATE, "expected a pass that was recorded, given none");
    return HP_OK;
}

/* The lists of all ranks, on rank 0; out_job is left alone on the others. */
struct meeting {
    const hp_fsdp *fsdp;
    hp_group *world;
    int rank, n_ranks;
    uint64_t *counts; /* [n_ranks][MAX_RECORDED] */
};

static hp_status count_lists(struct meeting *m, const struct recorded *mine) {
    uint64_t counts[MAX_RECORDED] = {0};
    for (uint32_t k = 0; k < mine->n; k++)
        counts[k] = mine->lists[k].n;
    m->counts = hpi_alloc((size_t)m->n_ranks * MAX_RECORDED, sizeof *m->counts);
    HP_TRY(hpi_agree(m->fsdp, m->counts ? HP_OK : HP_ERR_MEMORY));
    HP_TRY(hp_all_gather(m->world, counts, m->counts, MAX_RECORDED, HP_INT64));
    for (int r = 0; r < m->n_ranks; r++)
        for (uint32_t k = 0; k < MAX_RECORDED; k++)
            if (!m->counts[r * MAX_RECORDED + k] != !m->counts[k])
                return HPI_FAIL_RANK(HP_ERR_MISMATCH, r,
                                     "expected as many recorded passes on rank %d as on rank 0", r);
    return HP_OK;
}

static hp_status take_lists(const struct meeting *m, uint32_t n_steps, hp_job *job) {
    if (m->rank)
        return HP_OK;
    HP_TRY(hpi_job_frame(m->fsdp, n_steps, job));
    hp_list *lists = (hp_list *)job->lists;
    for (uint32_t k = 0; k < n_steps; k++)
        for (int r = 0; r < m->n_ranks; r++) {
            const uint64_t n = m->counts[r * MAX_RECORDED + k];
            hp_op *ops = hpi_alloc(n, sizeof *ops);
            if (!ops)
                return HP_ERR_MEMORY;
            lists[(size_t)k * job->n_ranks + (size_t)r] = (hp_list){ops, n};
        }
    return HP_OK;
}

static hp_status move_list(const struct meeting *m, int from, const hp_list *mine, hp_list *to) {
    if (m->rank == 0 && from == 0) {
        memcpy((void *)to->ops, mine->ops, mine->n * sizeof *mine->ops);
        return HP_OK;
    }
    if (m->rank == 0)
        return hp_recv(m->world, (void *)to->ops, to->n * sizeof *to->ops, HP_UINT8, from);
    return m->rank == from ? hp_send(m->world, mine->ops, mine->n * sizeof *mine->ops, HP_UINT8, 0)
                           : HP_OK;
}

static hp_status gather_lists(struct meeting *m, hp_job *job) {
    struct recorded mine = {.n = 0};
    HP_TRY(hpi_agree(m->fsdp, read_recorded(m->fsdp, &mine)));
    HP_TRY(count_lists(m, &mine));
    HP_TRY(hpi_agree(m->fsdp, take_lists(m, mine.n, job)));
    for (uint32_t k = 0; k < mine.n; k++)
        for (int r = 0; r < m->n_ranks; r++) {
            hp_list *to = m->rank ? NULL : (hp_list *)job->lists + (size_t)k * job->n_ranks + r;
            HP_TRY(move_list(m, r, &mine.lists[k], to));
        }
    return HP_OK;
}

static hp_status gather_job(const hp_fsdp *fsdp, hp_job *out_job) {
    struct meeting m = {.fsdp = fsdp,
                        .world = hp_world_group(fsdp->world),
                        .rank = hp_world_rank(fsdp->world),
                        .n_ranks = hp_world_size(fsdp->world)};
    const hp_status status = gather_lists(&m, out_job);
    hpi_free(m.counts);
    return status;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

struct judgement {
    hp_status status;
    hp_error error;
    hp_verdict verdict;
};

static void judge(const hp_job *job, struct judgement *out) {
    out->status = hp_verify(job, &out->verdict);
    if (out->status)
        hp_last_error_get(&out->error);
}

static void judge_plan(const hp_fsdp *fsdp, struct judgement *out) {
    hp_job job;
    out->status = hpi_job_plan(fsdp, &job);
    if (out->status) {
        hp_last_error_get(&out->error);
        return;
    }
    judge(&job, out);
    hpi_job_free(&job);
}

static hp_status hand_out(const struct judgement *j, hp_verdict *out_verdict) {
    *out_verdict = j->verdict;
    return j->status ? hpi_error_set(&j->error) : HP_OK;
}

static hp_status verify_together(const hp_fsdp *fsdp, hp_verify_what what,
                                 hp_verdict *out_verdict) {
    struct judgement judgement = {.status = HP_OK};
    hp_job job = HP_JOB_INIT;
    hp_status status = HP_OK;
    if (what == HP_VERIFY_RECORDED)
        status = gather_job(fsdp, &job);
    if (!status && hp_world_rank(fsdp->world) == 0 && what == HP_VERIFY_RECORDED)
        judge(&job, &judgement);
    if (!status && hp_world_rank(fsdp->world) == 0 && what == HP_VERIFY_PLAN)
        judge_plan(fsdp, &judgement);
    hpi_job_free(&job);
    HP_TRY(status);
    HP_TRY(hpi_tell(fsdp, &judgement, sizeof judgement, 0));
    return hand_out(&judgement, out_verdict);
}

hp_status hp_fsdp_verify(hp_fsdp *fsdp, hp_verify_what what, hp_verdict *out_verdict) {
    if (!out_verdict || (what != HP_VERIFY_PLAN && what != HP_VERIFY_RECORDED))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected HP_VERIFY_PLAN or HP_VERIFY_RECORDED and a place for the "
                        "verdict, given %d and %s",
                        (int)what, out_verdict ? "one" : "NULL");
    HP_TRY(hpi_fsdp_check_idle(fsdp, "hp_fsdp_verify"));
    if (fsdp->world)
        return verify_together(fsdp, what, out_verdict);
    if (what != HP_VERIFY_PLAN)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected HP_VERIFY_PLAN of a virtual fsdp: nobody else has recorded");
    struct judgement judgement = {.status = HP_OK};
    judge_plan(fsdp, &judgement);
    return hand_out(&judgement, out_verdict);
}
