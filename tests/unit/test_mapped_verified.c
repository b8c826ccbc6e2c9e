/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mapped_verified.c - mode mapped before the verifier: each of its two barriers is needed.
 *
 * A planned job is proved sound; then a barrier is taken out of it, on all ranks, and what it kept
 * apart is found: a rank that writes its part of the weights, and a peer that reads it.
 */
#include "base/base.h"
#include "fsdp/plan/plan.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_RANKS = 4, WIDTH = 40 };

struct job {
    int n_replicas;
    bool has_frozen_unit; /* one that no reduction goes through */
    bool is_half;         /* bf16 of fp32: shards are private, casts are shared */
    uint32_t comm;        /* of the barriers that are taken out; 0: none are */
};

typedef struct model {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[3];
    int n_units;
} model;

static hp_param param(const char *name, hp_dtype dtype, int is_frozen) {
    hp_param p = HP_PARAM_INIT;
    p.name = name;
    p.n_dims = 2;
    p.shape[0] = WIDTH;
    p.shape[1] = WIDTH + 1;
    p.dtype = dtype;
    p.is_frozen = is_frozen;
    return p;
}

static void make_model(hp_world *world, const struct job *job, model *m) {
    const int sizes[] = {job->n_replicas, N_RANKS / job->n_replicas};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = HP_MAPPED;
    config.record = 1;
    config.param_dtype = job->is_half ? HP_BF16 : HP_OWN_DTYPE;
    RANK_OK(hp_mesh_create(world, sizes, 2, &m->mesh));
    RANK_OK(hp_fsdp_create(m->mesh, &config, &m->fsdp));
    hp_param a[] = {param("a.w", HP_FP32, 0), param("a.v", HP_BF16, 0), param("a.f", HP_FP64, 1)};
    hp_param b[] = {param("b.w", HP_FP64, 0), param("b.r", HP_FP32, 0)};
    hp_param f[] = {param("f.w", HP_FP32, 1)};
    b[1].shard_dim = HP_REPLICATED;
    m->n_units = 0;
    if (job->has_frozen_unit) /* first, so that its backward comes after all reductions */
        RANK_OK(hp_unit_create(m->fsdp, "f", f, 1, NULL, &m->units[m->n_units++]));
    RANK_OK(hp_unit_create(m->fsdp, "a", a, 3, NULL, &m->units[m->n_units++]));
    RANK_OK(hp_unit_create(m->fsdp, "b", b, 2, NULL, &m->units[m->n_units++]));
    RANK_OK(hp_fsdp_commit(m->fsdp));
}

static void drop_model(model *m) {
    hp_fsdp_destroy(m->fsdp);
    hp_mesh_destroy(m->mesh);
}

/* ---- planned --------------------------------------------------------------------------------- */

/* Barriers on `comm` become operations that do nothing. Lists may be the same for several ranks. */
static uint64_t take_out_barriers(hp_job *job, uint32_t comm) {
    uint64_t n_found = 0;
    for (uint64_t i = 0; i < (uint64_t)job->n_steps * job->n_ranks; i++) {
        hp_op *ops = (hp_op *)(uintptr_t)job->lists[i].ops;
        for (uint64_t k = 0; k < job->lists[i].n; k++) {
            if (ops[k].kind != HPI_OP_BARRIER || ops[k].comm != comm)
                continue;
            ops[k].kind = HPI_OP_WAIT;
            ops[k].comm = ops[k].seq = 0;
            n_found++;
        }
    }
    return n_found;
}

/* What follows on the reduce communicator moves up. */
static void renumber(hp_job *job, uint32_t comm) {
    for (uint64_t i = 0; i < (uint64_t)job->n_steps * job->n_ranks; i++) {
        hp_op *ops = (hp_op *)(uintptr_t)job->lists[i].ops;
        uint32_t seq = 0;
        for (uint64_t k = 0; k < job->lists[i].n; k++)
            if (ops[k].comm == comm)
                ops[k].seq = seq++;
    }
}

static bool is_kind(const hp_op *op, uint16_t kind) {
    return op->kind == kind;
}

static void planned_body(hp_world *world, void *argument) {
    const struct job *job = argument;
    model m;
    hp_job plan = HP_JOB_INIT;
    hp_verdict verdict;
    make_model(world, job, &m);
    RANK_OK(hp_fsdp_verify(m.fsdp, HP_VERIFY_PLAN, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE && verdict.n_ops > 0);
    RANK_OK(hp_fsdp_job_create(m.fsdp, &plan));
    if (job->comm) {
        RANK_CHECK(take_out_barriers(&plan, job->comm) > 0);
        renumber(&plan, job->comm);
        RANK_FAILS(hp_verify(&plan, &verdict), HP_ERR_UNSOUND);
        RANK_CHECK(verdict.rule == HP_RULE_RACE && verdict.at[0].rank != verdict.at[1].rank);
        const hp_op *x = &verdict.at[0].op, *y = &verdict.at[1].op;
        RANK_CHECK(is_kind(x, HPI_OP_UPDATE) || is_kind(y, HPI_OP_UPDATE));
        RANK_CHECK(is_kind(x, HPI_OP_FORWARD_BEGIN) || is_kind(y, HPI_OP_FORWARD_BEGIN) ||
                   is_kind(x, HPI_OP_BACKWARD_BEGIN) || is_kind(y, HPI_OP_BACKWARD_BEGIN));
    } else {
        RANK_OK(hp_verify(&plan, &verdict));
        /* where all units are reduced, that is enough */
        RANK_CHECK((take_out_barriers(&plan, HPI_COMM_REDUCE) > 0) == job->has_frozen_unit);
    }
    hp_fsdp_job_destroy(&plan);
    drop_model(&m);
}

static void try_planned(bool has_frozen_unit, uint32_t comm) {
    for (int k = 0; k < 4; k++) {
        struct job job = {1 + k % 2, has_frozen_unit, k / 2, comm};
        ranks_run(N_RANKS, RANKS_THREADS, planned_body, &job);
    }
}

static void test_plans_are_sound(void **state) {
    (void)state;
    try_planned(false, 0);
    try_planned(true, 0);
}

static void test_without_the_barrier_before_reading(void **state) {
    (void)state;
    try_planned(false, HPI_COMM_UNSHARD);
    try_planned(true, HPI_COMM_UNSHARD);
}

static void test_without_the_barrier_before_writing(void **state) {
    (void)state;
    try_planned(true, HPI_COMM_REDUCE);
}

/* ---- recorded -------------------------------------------------------------------------------- */

static void pass_over(const model *m, hp_pass pass, bool holds) {
    RANK_OK(hp_fsdp_begin(m->fsdp, pass));
    for (int i = 0; holds && i < m->n_units; i++) /* to the end of the pass */
        RANK_OK(hp_unit_unshard(m->units[i], i % 2));
    for (int i = 0; i < m->n_units; i++) {
        RANK_OK(hp_forward_begin(m->units[i]));
        RANK_OK(hp_forward_end(m->units[i]));
    }
    for (int i = m->n_units; pass != HP_EVALUATE && i-- > 0;) {
        RANK_OK(hp_backward_begin(m->units[i]));
        RANK_OK(hp_backward_end(m->units[i]));
    }
    RANK_OK(hp_fsdp_end(m->fsdp));
}

/* Every order of passes and updates in which somebody could read too late or write too early. */
static void recorded_body(hp_world *world, void *argument) {
    static const struct {
        hp_pass pass;
        bool clips, updates, holds;
    } rows[] = {
        {HP_SYNC, true, true, false},       {HP_SYNC, false, true, true},
        {HP_EVALUATE, false, false, false}, {HP_EVALUATE, false, false, true},
        {HP_NO_SYNC, false, false, false},  {HP_SYNC, true, true, false},
        {HP_NO_SYNC, false, false, false},  {HP_DEFER_REPLICATE, false, false, false},
        {HP_SYNC, false, false, false},     {HP_SYNC, false, true, true},
        {HP_SYNC, false, true, false},
    };
    const struct job *job = argument;
    model m;
    hp_optimizer *o;
    hp_verdict verdict;
    double norm;
    make_model(world, job, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "sgd", NULL, &o));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pass_over(&m, rows[i].pass, rows[i].holds);
        if (rows[i].clips)
            RANK_OK(hp_clip_grad_norm(m.fsdp, 1.0, 2.0, &norm));
        if (rows[i].updates)
            RANK_OK(hp_optimizer_step(o, 0.1));
        RANK_OK(hp_fsdp_verify(m.fsdp, HP_VERIFY_RECORDED, &verdict));
        RANK_CHECK(verdict.rule == HP_RULE_NONE);
    }
    hp_optimizer_destroy(o);
    drop_model(&m);
}

static void test_what_was_done_is_sound(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct job job = {1 + k % 2, k / 2, k == 1, 0};
        ranks_run(N_RANKS, RANKS_THREADS, recorded_body, &job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_are_sound),
        cmocka_unit_test(test_without_the_barrier_before_reading),
        cmocka_unit_test(test_without_the_barrier_before_writing),
        cmocka_unit_test(test_what_was_done_is_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
