/* SPDX-License-Identifier: Apache-2.0
 *
 * random_reset.h - training steps, and between them resets at random places by random ranks.
 *
 * From one seed: a mesh, a mode, a schedule, an executor and delays; for each reset who leaves the
 * pass after which of its calls, and what the others do until they are told. After each reset the
 * next step must go well; the weights of every step must have the bits of a job that never reset,
 * and what was recorded must be sound. Passes use their units in any order, some of them twice,
 * some gathered by hand or computed again.
 */
#ifndef RANDOM_RESET_H
#define RANDOM_RESET_H

#include "fault/random_plan.h"
#include "support/ranks.h"
#include "unit/scratch.h"

#include <hyperparallel/hyperparallel.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

enum { RESET_RANKS = 4, RESET_UNITS = 4, RESET_CALLS = 64, RESET_MOST = 64 };

/* ---- what is drawn --------------------------------------------------------------------------- */

typedef struct reset_job {
    uint64_t seed;
    int sizes[2], n_resets;
    hp_fsdp_config config;
    char delay[64];
} reset_job;

static inline void reset_job_draw(reset_job *job, uint64_t seed, int n_resets) {
    static const int meshes[][2] = {{1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {1, 3}};
    uint64_t random = seed;
    const int m = (int)random_below(&random, 6);
    const hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    *job = (reset_job){.seed = seed, .n_resets = n_resets, .config = config};
    memcpy(job->sizes, meshes[m], sizeof job->sizes);
    job->config.mode = (hp_mode)random_below(&random, HP_AUTO);
    job->config.schedule = (hp_schedule)random_below(&random, 3);
    job->config.prefetch = 1 + (int)random_below(&random, 2);
    job->config.reshard_after_forward = random_below(&random, 4) != 0;
    job->config.executor = random_below(&random, 4) ? HP_EXECUTOR_THREAD : HP_EXECUTOR_INLINE;
    job->config.record = (int)random_below(&random, 2);
    job->config.poison = (int)random_below(&random, 2);
    if (random_below(&random, 2))
        snprintf(job->delay, sizeof job->delay, "kind=*,rank=%d,us=%u,seed=%u",
                 (int)random_below(&random, (uint64_t)(job->sizes[0] * job->sizes[1])),
                 1 + (unsigned)random_below(&random, 200), (unsigned)random_below(&random, 1000));
}

static inline void reset_job_print(const reset_job *job) {
    fprintf(stderr,
            "HP_TEST_SEED=%llu: %dx%d, %s, %s, prefetch %d, executor %d, record %d, "
            "delay \"%s\"\n",
            (unsigned long long)job->seed, job->sizes[0], job->sizes[1],
            hp_mode_name(job->config.mode), hp_schedule_name(job->config.schedule),
            job->config.prefetch, (int)job->config.executor, job->config.record, job->delay);
}

typedef enum reset_what {
    FORWARD_BEGIN,
    FORWARD_END,
    BACKWARD_BEGIN,
    BACKWARD_END,
    RECOMPUTE_BEGIN,
    RECOMPUTE_END,
    UNSHARD,
    RESHARD,
    PASS_END
} reset_what;

typedef struct reset_call {
    reset_what what;
    int unit;
} reset_call;

/* The calls of one pass behind hp_fsdp_begin. */
typedef struct reset_pass {
    hp_pass pass;
    reset_call calls[RESET_CALLS];
    int n;
} reset_pass;

static inline void pass_add(reset_pass *p, reset_what what, int unit) {
    p->calls[p->n++] = (reset_call){what, unit};
}

static inline void pass_add_backward(reset_pass *p, int unit, uint64_t *random) {
    if (random_below(random, 8) == 0) {
        pass_add(p, RECOMPUTE_BEGIN, unit);
        pass_add(p, RECOMPUTE_END, unit);
    }
    pass_add(p, BACKWARD_BEGIN, unit);
    pass_add(p, BACKWARD_END, unit);
}

static inline void pass_draw(reset_pass *p, hp_pass pass, uint64_t *random) {
    int uses[RESET_UNITS + 1], n = 0;
    *p = (reset_pass){.pass = pass};
    for (int u = 0; u < RESET_UNITS; u++) { /* a random order, by insertion; one may be missing */
        const int at = (int)random_below(random, (uint64_t)n + 1);
        memmove(uses + at + 1, uses + at, (size_t)(n - at) * sizeof *uses);
        uses[at] = u;
        n++;
    }
    n -= random_below(random, 6) == 0;
    if (random_below(random, 3) == 0) {
        uses[n] = uses[0];
        n++;
    }
    if (random_below(random, 6) == 0) {
        pass_add(p, UNSHARD, uses[0]);
        pass_add(p, RESHARD, uses[0]);
    }
    for (int i = 0; i < n; i++) {
        pass_add(p, FORWARD_BEGIN, uses[i]);
        pass_add(p, FORWARD_END, uses[i]);
    }
    for (int i = n; pass != HP_EVALUATE && i-- > 0;)
        pass_add_backward(p, uses[i], random);
    pass_add(p, PASS_END, 0);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

typedef struct reset_rank {
    const reset_job *job;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_optimizer *optimizer;
    int rank, n;
    uint64_t pace; /* state of this rank's own sequence */
} reset_rank;

static inline void reset_pause(reset_rank *r) {
    const uint64_t x = random_below(&r->pace, 64);
    if (x < 2)
        nanosleep(&(struct timespec){.tv_nsec = (long)random_below(&r->pace, 300000)}, NULL);
}

static inline void reset_fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    (void)context;
    for (uint64_t k = begin; k < end; k++)
        ((float *)out_elements)[k - begin] = (float)k;
}

/* The last unit is frozen, and has no gradients. */
static inline int64_t reset_width(int unit) {
    return 8 + 3 * unit;
}
static inline bool reset_is_frozen(int unit) {
    return unit == RESET_UNITS - 1;
}

static inline void reset_set_up(reset_rank *r, hp_world *world, const reset_job *job,
                                const hp_fsdp_config *config) {
    static const char *const names[RESET_UNITS] = {"a", "b", "c", "d"};
    const int rank = hp_world_rank(world);
    *r = (reset_rank){.job = job, .rank = rank, .n = hp_world_size(world)};
    r->pace = job->seed * 8 + (uint64_t)rank;
    RANK_OK(hp_mesh_create(world, job->sizes, 2, &r->mesh));
    RANK_OK(hp_fsdp_create(r->mesh, config, &r->fsdp));
    for (int i = 0; i < RESET_UNITS; i++) {
        hp_unit *unit;
        hp_param p = HP_PARAM_INIT;
        p.name = names[i];
        p.n_dims = 1;
        p.shape[0] = reset_width(i);
        p.fill = reset_fill;
        p.is_frozen = reset_is_frozen(i);
        RANK_OK(hp_unit_create(r->fsdp, names[i], &p, 1, NULL, &unit));
    }
    RANK_OK(hp_fsdp_commit(r->fsdp));
    RANK_OK(hp_optimizer_create(r->fsdp, "adamw", NULL, &r->optimizer));
}

static inline void reset_tear_down(reset_rank *r) {
    hp_optimizer_destroy(r->optimizer);
    hp_fsdp_destroy(r->fsdp);
    hp_mesh_destroy(r->mesh);
}

/* Any difference of weights stays in it. */
static inline void reset_gradient(const reset_rank *r, int i, int seed) {
    hp_unit *unit = hp_fsdp_unit(r->fsdp, i);
    const float *w = hp_param_data(unit, 0);
    float *g = hp_param_grad(unit, 0);
    RANK_CHECK(w && !g == reset_is_frozen(i));
    for (int k = 0; g && k < reset_width(i); k++)
        g[k] = w[k] * 0.125F + (float)((seed * 7 + r->rank * 3 + k) % 11);
}

static inline hp_status reset_make(reset_rank *r, const reset_call *c, int seed) {
    hp_unit *unit = hp_fsdp_unit(r->fsdp, c->unit);
    switch (c->what) {
    case FORWARD_BEGIN:
        return hp_forward_begin(unit);
    case FORWARD_END:
        return hp_forward_end(unit);
    case BACKWARD_BEGIN:
        return hp_backward_begin(unit);
    case BACKWARD_END:
        reset_gradient(r, c->unit, seed);
        return hp_backward_end(unit);
    case RECOMPUTE_BEGIN:
        return hp_recompute_begin(unit);
    case RECOMPUTE_END:
        return hp_recompute_end(unit);
    case UNSHARD:
        return hp_unit_unshard(unit, 1);
    case RESHARD:
        return hp_unit_reshard(unit);
    case PASS_END:
        return hp_fsdp_end(r->fsdp);
    }
    return HP_ERR_ARGUMENT;
}

/* hp_fsdp_begin, and the first n_calls calls of a pass. */
static inline hp_status reset_play(reset_rank *r, const reset_pass *p, int n_calls, int seed) {
    hp_status status = hp_fsdp_begin(r->fsdp, p->pass);
    for (int k = 0; k < n_calls && status >= 0; k++) {
        reset_pause(r);
        status = reset_make(r, &p->calls[k], seed);
    }
    return status;
}

/* One or two passes, clipped, and an update; the same whatever went before. */
static inline void reset_step(reset_rank *r, int step) {
    uint64_t random = r->job->seed * 1000 + (uint64_t)step;
    reset_pass p;
    double norm;
    const uint64_t before = random_below(&random, 3);
    if (before) {
        pass_draw(&p, before == 1 ? HP_NO_SYNC : HP_DEFER_REPLICATE, &random);
        RANK_OK(reset_play(r, &p, p.n, step));
    }
    pass_draw(&p, HP_SYNC, &random);
    RANK_OK(reset_play(r, &p, p.n, step));
    RANK_OK(hp_clip_grad_norm(r->fsdp, 4.0, 2.0, &norm));
    RANK_OK(hp_optimizer_step(r->optimizer, 1e-2));
}

static inline uint64_t reset_digest(const reset_rank *r) {
    uint64_t sum = 0;
    for (int i = 0; i < RESET_UNITS; i++) {
        hp_shard shard;
        RANK_OK(hp_param_shard(hp_fsdp_unit(r->fsdp, i), 0, &shard));
        sum = sum * 31 + hpi_checksum(shard.values, shard.n_elements * sizeof(float));
    }
    return sum;
}

/* ---- one reset ------------------------------------------------------------------------------- */

static inline bool reset_is_told(const reset_rank *r, hp_status status) {
    hp_error error;
    if (status >= 0)
        return false;
    hp_last_error_get(&error);
    if (status != HP_ERR_FAILED || error.world_rank < 0 || error.world_rank == r->rank ||
        !strstr(error.message, "reset"))
        ranks_fail(__FILE__, __LINE__, "to be told FAILED by a rank that has reset", 1);
    return true;
}

/* What a rank that goes on does behind the pass: any call of all ranks, until it is told. */
static inline hp_status reset_go_on(reset_rank *r, const reset_pass *p, uint64_t *random) {
    double norm;
    hp_verdict verdict;
    switch (random_below(random, 4)) {
    case 0:
        return hp_checkpoint_save(r->fsdp, r->optimizer, scratch, 1);
    case 1:
        return hp_fsdp_verify(r->fsdp, HP_VERIFY_PLAN, &verdict);
    case 2:
        if (p->pass == HP_SYNC)
            return hp_clip_grad_norm(r->fsdp, 4.0, 2.0, &norm);
        return hp_checkpoint_save(r->fsdp, r->optimizer, scratch, 2);
    default:
        return reset_play(r, p, p->n, 0);
    }
}

static inline void reset_once(reset_rank *r, uint64_t *random) {
    static const hp_pass passes[] = {HP_SYNC, HP_SYNC, HP_EVALUATE, HP_NO_SYNC, HP_DEFER_REPLICATE};
    reset_pass p;
    const uint64_t leavers = 1 + random_below(random, (UINT64_C(1) << r->n) - 1);
    int n_calls[RESET_RANKS];
    hp_status status;
    pass_draw(&p, passes[random_below(random, 5)], random);
    for (int i = 0; i < r->n; i++)
        n_calls[i] = (int)random_below(random, (uint64_t)p.n + 1);
    if (leavers >> r->rank & 1) {
        if (random_below(&r->pace, 8))
            (void)reset_is_told(r, reset_play(r, &p, n_calls[r->rank], 99));
    } else {
        status = reset_play(r, &p, p.n, 99);
        while (!reset_is_told(r, status))
            status = reset_go_on(r, &p, random);
    }
    reset_pause(r);
    RANK_OK(hp_fsdp_reset(r->fsdp));
}

static inline void reset_verify(reset_rank *r) {
    hp_verdict verdict;
    if (r->job->config.record)
        RANK_OK(hp_fsdp_verify(r->fsdp, HP_VERIFY_RECORDED, &verdict));
}

static inline void reset_body(hp_world *world, void *argument) {
    const reset_job *job = argument;
    uint64_t expected[RESET_MOST + 1], random;
    reset_rank r;
    hp_fsdp_config config = job->config;
    config.record = 0;
    reset_set_up(&r, world, job, &config);
    for (int k = 0; k < job->n_resets; k++) {
        reset_step(&r, k);
        expected[k] = reset_digest(&r);
    }
    reset_tear_down(&r);
    config = job->config;
    config.delay = *job->delay ? job->delay : NULL;
    reset_set_up(&r, world, job, &config);
    for (int k = 0; k < job->n_resets; k++) {
        random = job->seed * 77 + (uint64_t)k;
        reset_once(&r, &random);
        reset_step(&r, k);
        RANK_CHECK(reset_digest(&r) == expected[k]);
        if (k % 4 == 3)
            reset_verify(&r);
    }
    reset_tear_down(&r);
}

static inline void reset_run_seeds(uint64_t first, int n_jobs, int n_resets) {
    const char *chosen = getenv("HP_TEST_SEED");
    for (int i = 0; i < (chosen ? 1 : n_jobs); i++) {
        reset_job job;
        char text[512] = "";
        reset_job_draw(&job, chosen ? strtoull(chosen, NULL, 10) : first + (uint64_t)i, n_resets);
        const int n = job.sizes[0] * job.sizes[1];
        if (!ranks_try(n, RANKS_THREADS, reset_body, &job, text, sizeof text))
            continue;
        reset_job_print(&job);
        fail_msg("%s", text);
    }
}

#endif
