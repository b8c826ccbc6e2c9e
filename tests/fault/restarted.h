/* SPDX-License-Identifier: Apache-2.0
 *
 * restarted.h - one training in many tries, each on its own mesh, in its own mode, cut off
 * somewhere.
 *
 * A try loads the newest checkpoint and trains on, saving as it goes, until its last step or until
 * a rank is killed. However the tries were cut, every step that any of them makes must have the
 * loss, and the weights that are loaded the digest, that an undisturbed run has there: it is made
 * first. Ranks are processes, or threads, of which none can be killed and a rank leaves instead.
 * What they tell is in memory that all share.
 */
#ifndef RESTARTED_H
#define RESTARTED_H

#include "fault/random_plan.h"
#include "support/ranks.h"
#include "support/tiny.h"
#include "unit/scratch.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

enum { JOB_RANKS = 4, JOB_UNITS = 3, JOB_MOST_STEPS = 2048 };

/* ---- how a try computes -----------------------------------------------------------------------
 */

typedef struct way {
    int n_replicas, n_shards;
    hp_fsdp_config fsdp;
    char delay[64];
} way;

static inline void way_set(way *w, int n_replicas, int n_shards, hp_mode mode) {
    const hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    *w = (way){.n_replicas = n_replicas, .n_shards = n_shards, .fsdp = config};
    w->fsdp.mode = mode;
}

/* Any way of n ranks, a power of two; delays are up to max_us before each operation of one rank. */
static inline void way_draw(way *w, uint64_t *random, int n, unsigned max_us) {
    int n_shards = 1;
    while (n_shards < n && random_below(random, 3))
        n_shards *= 2;
    way_set(w, n / n_shards, n_shards, (hp_mode)random_below(random, HP_AUTO + 1));
    w->fsdp.schedule = (hp_schedule)random_below(random, 3);
    w->fsdp.prefetch = (int)random_below(random, 3);
    w->fsdp.reshard_after_forward = (int)random_below(random, 2);
    w->fsdp.executor = random_below(random, 4) ? HP_EXECUTOR_THREAD : HP_EXECUTOR_INLINE;
    if (max_us)
        snprintf(w->delay, sizeof w->delay, "kind=*,rank=%d,us=%u,seed=%u",
                 (int)random_below(random, (uint64_t)n), max_us,
                 (unsigned)random_below(random, 1000));
}

static inline void way_print(const way *w) {
    fprintf(stderr, "  %dx%d, %s, %s, prefetch %d, reshard %d, executor %d, delay \"%s\"\n",
            w->n_replicas, w->n_shards, hp_mode_name(w->fsdp.mode),
            hp_schedule_name(w->fsdp.schedule), w->fsdp.prefetch, w->fsdp.reshard_after_forward,
            (int)w->fsdp.executor, w->delay);
}

static inline tiny *make_model(hp_world *world, const way *w) {
    tiny_config config = TINY_CONFIG_INIT;
    tiny *model = NULL;
    config.n_units = JOB_UNITS;
    config.fsdp = w->fsdp;
    config.fsdp.delay = *w->delay ? w->delay : NULL;
    config.n_replicas = w->n_replicas;
    config.n_shards = w->n_shards;
    config.is_mixed = 1;
    RANK_OK(tiny_create(world, &config, &model));
    return model;
}

/* ---- the undisturbed run ----------------------------------------------------------------------
 */

static struct {
    int n_steps;
    double losses[JOB_MOST_STEPS];
    uint64_t digests[JOB_MOST_STEPS + 1]; /* of the weights after so many steps */
} undisturbed;

/* Clipped, as a norm goes over all ranks. */
static inline hp_status step_of(tiny *model, uint64_t step, double *out_loss) {
    double norm;
    HP_TRY(tiny_step(model, (int)step, out_loss));
    HP_TRY(hp_clip_grad_norm(tiny_fsdp(model), 0.5, 2.0, &norm));
    return hp_optimizer_step(tiny_optimizer(model), 1e-3);
}

static inline void train_undisturbed(hp_world *world, void *argument) {
    way w;
    uint64_t digest;
    (void)argument;
    way_set(&w, 1, JOB_RANKS, HP_PER_PARAM);
    w.fsdp.schedule = HP_SERIAL;
    w.fsdp.executor = HP_EXECUTOR_INLINE;
    tiny *model = make_model(world, &w);
    for (int step = 0; step <= undisturbed.n_steps; step++) {
        double loss = 0;
        RANK_OK(tiny_digest(model, 0, &digest));
        if (step < undisturbed.n_steps)
            RANK_OK(step_of(model, (uint64_t)step, &loss));
        if (hp_world_rank(world) != 0)
            continue;
        undisturbed.digests[step] = digest;
        if (step < undisturbed.n_steps)
            undisturbed.losses[step] = loss;
    }
    tiny_destroy(model);
}

static inline void make_undisturbed(int n_steps) {
    assert_true(n_steps < JOB_MOST_STEPS);
    undisturbed.n_steps = n_steps;
    ranks_run(JOB_RANKS, RANKS_THREADS, train_undisturbed, NULL);
    for (int i = 0; i < n_steps; i++) /* else a load that loads nothing would pass */
        assert_true(undisturbed.digests[i] != undisturbed.digests[i + 1]);
}

/* ---- a try ------------------------------------------------------------------------------------
 */

/* What ranks tell the test. */
typedef struct told {
    _Atomic uint64_t begun, made,
        saved;                /* steps: at the start, the last one, the last checkpoint */
    _Atomic uint64_t save_ns; /* what a save took */
    _Atomic uint64_t n_made;  /* steps of all tries */
    _Atomic int n_killed_in_save;
    _Atomic int n_wrong; /* what a kill does not explain */
} told;

typedef enum cut { CUT_NOT, CUT_IN_SAVE, CUT_ANYWHERE } cut;

typedef struct attempt {
    way way;
    told *told;
    uint64_t last_step, save_every;
    cut cut;
    int victim;        /* -1: all ranks */
    uint64_t cut_save; /* CUT_IN_SAVE: in the save of this number, from 0; */
    uint64_t cut_step; /* CUT_ANYWHERE: in the step of this number of the try */
    double share;      /* of a save, or a step, that is done then, from 0 to 1 */
    ranks_kind kind;
    bool has_checkpoint; /* there is one when it begins */
} attempt;

/* Of ranks whose peer is killed nothing else is excused than the death of a peer. */
static inline void must(const attempt *a, hp_status status, const char *file, int line,
                        const char *what) {
    if (status >= 0)
        return;
    if (a->cut == CUT_NOT || (status != HP_ERR_PEER && status != HP_ERR_FAILED))
        a->told->n_wrong++;
    ranks_fail(file, line, what, 1);
}
#define MUST(a, call) must(a, call, __FILE__, __LINE__, #call)

/* Bits are never excused. */
static inline void must_equal(const attempt *a, const void *x, const void *y, size_t n,
                              const char *what) {
    if (memcmp(x, y, n) == 0)
        return;
    a->told->n_wrong++;
    ranks_fail(__FILE__, __LINE__, what, 0);
}

/* How far this process is with its saves, for the thread that kills it; it outlives a body. */
static _Atomic int n_saves_begun, n_saves_done;

static inline void sleep_ns(uint64_t ns) {
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

/* In the middle of a save, if it is not over before; else in the next one that begins. */
static inline void *kill_in_save(void *argument) {
    const attempt *a = argument;
    int saves = (int)a->cut_save;
    for (;; saves = n_saves_begun) {
        while (n_saves_begun <= saves)
            sched_yield();
        saves = n_saves_begun;
        const uint64_t save_ns = a->told->save_ns ? a->told->save_ns : 1000000;
        sleep_ns((uint64_t)(a->share * (double)save_ns));
        if (n_saves_done < saves)
            break;
    }
    a->told->n_killed_in_save++;
    raise(SIGKILL);
    return NULL;
}

static inline bool is_victim(const attempt *a, int rank) {
    return a->cut != CUT_NOT && (a->victim < 0 || a->victim == rank);
}

static inline void save(tiny *model, const attempt *a, uint64_t step, int rank) {
    const uint64_t begin_ns = hpi_now_ns();
    n_saves_begun++;
    MUST(a, hp_checkpoint_save(tiny_fsdp(model), tiny_optimizer(model), scratch, step));
    n_saves_done++;
    if (rank == 0)
        a->told->save_ns = hpi_now_ns() - begin_ns;
    a->told->saved = step;
}

/* The newest checkpoint, or the first weights. */
static inline uint64_t load_newest(tiny *model, const attempt *a) {
    uint64_t step = 0, digest;
    if (a->has_checkpoint)
        MUST(a, hp_checkpoint_load(tiny_fsdp(model), tiny_optimizer(model), scratch, &step));
    MUST(a, tiny_digest(model, 0, &digest));
    must_equal(a, &digest, &undisturbed.digests[step], sizeof digest, "the weights of that step");
    return step;
}

/* Before a step, while the others begin it. */
static inline void end_here(const attempt *a) {
    if (a->kind == RANKS_THREADS)
        ranks_die();
    raise(SIGKILL);
}

static inline void make_step(tiny *model, const attempt *a, uint64_t step, int rank) {
    double loss;
    MUST(a, step_of(model, step, &loss));
    must_equal(a, &loss, &undisturbed.losses[step], sizeof loss, "the loss of that step");
    if (rank == 0) {
        a->told->made = step + 1;
        a->told->n_made++;
    }
}

/* What a thread that is cut leaves behind is lost on purpose, and no leak to a sanitizer. */
static inline void remember(tiny *model) {
    static tiny *models[4096];
    static _Atomic unsigned n_models;
    models[atomic_fetch_add(&n_models, 1) % (sizeof models / sizeof *models)] = model;
}

static inline void try_body(hp_world *world, void *argument) {
    attempt *a = argument;
    const int rank = hp_world_rank(world);
    pthread_t killer;
    tiny *model = make_model(world, &a->way);
    remember(model);
    const uint64_t begun = load_newest(model, a);
    a->told->begun = begun;
    if (is_victim(a, rank) && a->cut == CUT_IN_SAVE)
        RANK_CHECK(pthread_create(&killer, NULL, kill_in_save, a) == 0);
    for (uint64_t step = begun; step < a->last_step; step++) {
        if (is_victim(a, rank) && a->cut == CUT_ANYWHERE && step - begun == a->cut_step)
            end_here(a);
        make_step(model, a, step, rank);
        if ((step + 1) % a->save_every == 0)
            save(model, a, step + 1, rank);
    }
    tiny_destroy(model);
}

/* What the ranks of killed ones say fills pages: it is shown where it was not what is expected. */
static inline int try_quietly(attempt *a, int n, ranks_body body) {
    char text[512] = "";
    const int stderr_fd = dup(STDERR_FILENO);
    a->has_checkpoint = scratch_has("latest");
    FILE *said = freopen(scratch_path("said"), "w", stderr);
    assert_true(stderr_fd >= 0 && said != NULL);
    const int n_failed = ranks_try(n, a->kind, body, a, text, sizeof text);
    fflush(stderr);
    dup2(stderr_fd, STDERR_FILENO);
    close(stderr_fd);
    const bool is_killed = a->kind == RANKS_THREADS || strstr(text, "was killed by SIGKILL");
    const bool is_expected = a->cut == CUT_NOT ? n_failed == 0 : n_failed > 0 && is_killed;
    if (is_expected && !a->told->n_wrong)
        return n_failed;
    way_print(&a->way);
    FILE *file = fopen(scratch_path("said"), "r");
    for (int c; file && (c = getc(file)) != EOF;)
        putc(c, stderr);
    if (file)
        fclose(file);
    fail_msg("%d ranks failed, which is not what was expected; first: %s", n_failed, text);
    return n_failed;
}

/* A try that is not cut ends at its last step. */
static inline void run_try(attempt *a, ranks_kind kind) {
    a->kind = kind;
    try_quietly(a, JOB_RANKS, try_body);
}

/* ---- loading ----------------------------------------------------------------------------------
 */

/* And last_step more steps. */
static inline void load_body(hp_world *world, void *argument) {
    attempt *a = argument;
    tiny *model = make_model(world, &a->way);
    const uint64_t begun = load_newest(model, a);
    for (uint64_t step = begun; step < begun + a->last_step; step++)
        make_step(model, a, step, -1);
    if (hp_world_rank(world) == 0)
        a->told->begun = begun;
    tiny_destroy(model);
}

/* On thread ranks; the step that was loaded. */
static inline uint64_t load_in(const way *w, told *t, uint64_t n_more) {
    attempt a = {.way = *w, .told = t, .last_step = n_more, .kind = RANKS_THREADS};
    try_quietly(&a, w->n_replicas * w->n_shards, load_body);
    return t->begun;
}

/* ---- around a test ----------------------------------------------------------------------------
 */

static inline int restarted_setup(void **state) {
    void *shared =
        mmap(NULL, sizeof(told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *state = shared;
    return shared == MAP_FAILED ? -1 : scratch_make(NULL);
}

static inline int restarted_teardown(void **state) {
    munmap(*state, sizeof(told));
    return scratch_remove(NULL);
}

static inline uint64_t restarted_seed(void) {
    const char *text = getenv("HP_TEST_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    printf("HP_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

#endif
