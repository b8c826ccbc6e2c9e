/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_reset.c - passes that are left in their middle: all ranks come out, and train on.
 *
 * Three units with known gradients. A pass is a list of calls; ranks leave it after any of them,
 * each after another one if need be, and reset. What they train afterwards must have the bits of a
 * run in which the pass was never begun, in any mode and executor.
 */
#include "base/base.h"
#include "small_fsdp.h"

#include <dirent.h>
#include <unistd.h>

enum { N_UNITS = 3, N_ELEMENTS = 24, N_CALLS = 4 * N_UNITS + 2 };

struct job {
    int sizes[2];
    hp_mode mode;
    hp_executor_type executor;
    int record, replay_after;
    bool has_frozen; /* the last unit */
};

struct bench {
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_optimizer *optimizer;
    hp_unit *units[N_UNITS];
    int rank;
    bool has_frozen;
};

static void fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    (void)context;
    for (uint64_t k = begin; k < end; k++)
        ((float *)out_elements)[k - begin] = (float)k;
}

static void set_up(struct bench *b, hp_world *world, const struct job *job) {
    static const char *const names[N_UNITS] = {"a", "b", "c"};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = job->mode;
    config.executor = job->executor;
    config.record = job->record;
    config.replay_after = job->replay_after;
    *b =
        (struct bench){.world = world, .rank = hp_world_rank(world), .has_frozen = job->has_frozen};
    RANK_OK(hp_mesh_create(world, job->sizes, 2, &b->mesh));
    RANK_OK(hp_fsdp_create(b->mesh, &config, &b->fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        hp_param p = vector(names[i], N_ELEMENTS + i);
        p.fill = fill;
        p.is_frozen = job->has_frozen && i == N_UNITS - 1;
        RANK_OK(hp_unit_create(b->fsdp, names[i], &p, 1, NULL, &b->units[i]));
    }
    RANK_OK(hp_fsdp_commit(b->fsdp));
    RANK_OK(hp_optimizer_create(b->fsdp, "adamw", NULL, &b->optimizer));
}

static void tear_down(struct bench *b) {
    hp_optimizer_destroy(b->optimizer);
    hp_fsdp_destroy(b->fsdp);
    hp_mesh_destroy(b->mesh);
}

/* A gradient that depends on the weights, so that any difference stays. */
static void write_gradient(struct bench *b, int i, int seed) {
    if (b->has_frozen && i == N_UNITS - 1)
        return;
    const float *w = hp_param_data(b->units[i], 0);
    float *g = hp_param_grad(b->units[i], 0);
    RANK_CHECK(w && g);
    for (int k = 0; k < N_ELEMENTS + i; k++)
        g[k] = w[k] * 0.125F + (float)((seed * 7 + b->rank * 3 + k) % 11);
}

/* Call number `n` of a pass. */
static hp_status call(struct bench *b, hp_pass pass, int n, int seed) {
    if (n == 0)
        return hp_fsdp_begin(b->fsdp, pass);
    if (n == N_CALLS - 1)
        return hp_fsdp_end(b->fsdp);
    const bool is_forward = n <= 2 * N_UNITS;
    const int k = (n - 1) / 2 % N_UNITS, i = is_forward ? k : N_UNITS - 1 - k;
    if (is_forward)
        return n % 2 ? hp_forward_begin(b->units[i]) : hp_forward_end(b->units[i]);
    if (n % 2)
        return hp_backward_begin(b->units[i]);
    write_gradient(b, i, seed);
    return hp_backward_end(b->units[i]);
}

/* The first n_calls of a pass. */
static hp_status run(struct bench *b, hp_pass pass, int n_calls, int seed) {
    hp_status status = HP_OK;
    for (int n = 0; n < n_calls && status >= 0; n++)
        status = call(b, pass, n, seed);
    return status;
}

static void step(struct bench *b, int seed) {
    RANK_OK(run(b, HP_SYNC, N_CALLS, seed));
    RANK_OK(hp_optimizer_step(b->optimizer, 1e-2));
}

/* Of all weights of this rank's shards. */
static uint64_t digest(const struct bench *b) {
    uint64_t sum = 0;
    for (int i = 0; i < N_UNITS; i++) {
        hp_shard shard;
        RANK_OK(hp_param_shard(b->units[i], 0, &shard));
        sum = sum * 31 + hpi_checksum(shard.values, shard.n_elements * sizeof(float));
    }
    return sum;
}

static uint64_t undisturbed(hp_world *world, const struct job *job, int n_steps) {
    struct bench b;
    set_up(&b, world, job);
    for (int s = 0; s < n_steps; s++)
        step(&b, s);
    const uint64_t sum = digest(&b);
    tear_down(&b);
    return sum;
}

/* A rank that was left alone is told who reset. */
static void expect_told(struct bench *b, hp_status status) {
    hp_error error;
    if (status >= 0)
        return;
    hp_last_error_get(&error);
    RANK_CHECK(status == HP_ERR_FAILED);
    RANK_CHECK(error.world_rank >= 0 && error.world_rank != b->rank);
    RANK_CHECK(strstr(error.message, "reset") != NULL);
}

/* ---- left anywhere ----------------------------------------------------------------------- */

static void left_anywhere(hp_world *world, void *argument) {
    const struct job *job = argument;
    static const hp_pass passes[] = {HP_SYNC, HP_EVALUATE, HP_NO_SYNC, HP_DEFER_REPLICATE};
    const uint64_t expected = undisturbed(world, job, N_CALLS);
    struct bench b;
    set_up(&b, world, job);
    for (int n = 0; n < N_CALLS; n++) {
        const hp_pass pass = passes[n % 4];
        const int n_calls = pass == HP_EVALUATE ? n % (2 * N_UNITS + 1) : n;
        step(&b, n);
        RANK_OK(run(&b, HP_NO_SYNC, N_CALLS, 100)); /* dropped with the rest */
        RANK_OK(run(&b, HP_DEFER_REPLICATE, N_CALLS, 101));
        expect_told(&b, run(&b, pass, n_calls, 102));
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    RANK_CHECK(digest(&b) == expected);
    tear_down(&b);
}

/* Each rank at another call; one has not begun. */
static void left_apart(hp_world *world, void *argument) {
    const struct job *job = argument;
    enum { N_STEPS = 10 };
    const uint64_t expected = undisturbed(world, job, N_STEPS);
    struct bench b;
    set_up(&b, world, job);
    for (int s = 0; s < N_STEPS; s++) {
        step(&b, s);
        expect_told(&b, run(&b, HP_SYNC, (b.rank * 5 + s * 3) % N_CALLS, 102));
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    RANK_CHECK(digest(&b) == expected);
    tear_down(&b);
}

/* Rank 0 resets, and the others, who would go on, are told where they stand. */
static void left_by_one(hp_world *world, void *argument) {
    const struct job *job = argument;
    const uint64_t expected = undisturbed(world, job, N_CALLS);
    struct bench b;
    set_up(&b, world, job);
    for (int n = 0; n < N_CALLS; n++) {
        step(&b, n);
        const hp_status status = run(&b, HP_SYNC, b.rank ? N_CALLS - 1 : n, 102);
        expect_told(&b, status);
        if (b.rank) {
            const hp_status next = status < 0 ? status : hp_fsdp_end(b.fsdp);
            RANK_CHECK(next < 0 || n == N_CALLS - 1);
            expect_told(&b, next);
        }
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    RANK_CHECK(digest(&b) == expected);
    tear_down(&b);
}

/* Rank 0 has ended the pass, and seen its units in another order, that rank 1 leaves. */
static void left_behind(hp_world *world, void *argument) {
    const struct job *job = argument;
    const uint64_t expected = undisturbed(world, job, 2);
    struct bench b;
    set_up(&b, world, job);
    step(&b, 0);
    RANK_OK(hp_fsdp_begin(b.fsdp, HP_SYNC));
    for (int i = N_UNITS - 1; i >= 0; i--) {
        RANK_OK(hp_forward_begin(b.units[i]));
        RANK_OK(hp_forward_end(b.units[i]));
    }
    for (int i = 0; i < N_UNITS; i++) {
        RANK_OK(hp_backward_begin(b.units[i]));
        write_gradient(&b, i, 102);
        RANK_OK(hp_backward_end(b.units[i]));
    }
    if (b.rank == 0)
        expect_told(&b, hp_fsdp_end(b.fsdp)); /* hardly ever: rank 1 gives it time */
    else
        hpi_sleep_ns(UINT64_C(20000000));
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 1);
    RANK_CHECK(digest(&b) == expected);
    tear_down(&b);
}

static const int meshes[][2] = {{1, 4}, {2, 2}, {4, 1}};

static void on_all_meshes(ranks_body body) {
    for (int m = 0; m < 3; m++)
        for (int executor = 0; executor < (m == 1 ? 2 : 1); executor++) {
            struct job job = {.sizes = {meshes[m][0], meshes[m][1]},
                              .executor = executor ? HP_EXECUTOR_INLINE : HP_EXECUTOR_THREAD};
            ranks_run(4, RANKS_THREADS, body, &job);
        }
}

static void test_left_anywhere(void **state) {
    (void)state;
    on_all_meshes(left_anywhere);
}

static void test_left_apart(void **state) {
    (void)state;
    on_all_meshes(left_apart);
}

static void test_left_by_one(void **state) {
    (void)state;
    on_all_meshes(left_by_one);
}

static void test_left_behind(void **state) {
    (void)state;
    for (int mode = HP_PER_PARAM; mode <= HP_FUSED; mode++) {
        struct job job = {.sizes = {1, 2}, .mode = (hp_mode)mode};
        ranks_run(2, RANKS_THREADS, left_behind, &job);
    }
}

static void test_replayed_steps(void **state) {
    (void)state;
    struct job job = {.sizes = {2, 2}, .record = 1, .replay_after = 2};
    ranks_run(4, RANKS_THREADS, left_apart, &job);
    ranks_run(4, RANKS_THREADS, left_by_one, &job);
}

static void test_modes(void **state) {
    (void)state;
    static const hp_mode modes[] = {HP_FUSED, HP_FUSED_ZERO_COPY, HP_MAPPED};
    for (int m = 0; m < 3; m++) {
        struct job job = {.sizes = {2, 2}, .mode = modes[m]};
        ranks_run(4, RANKS_THREADS, left_anywhere, &job);
        ranks_run(4, RANKS_THREADS, left_apart, &job);
    }
}

/* ---- errors of a pass -------------------------------------------------------------------- */

/* A call out of order, which fails nothing; passes that differ, which fail everything. */
static void after_errors(hp_world *world, void *argument) {
    const struct job *job = argument;
    const uint64_t expected = undisturbed(world, job, 3);
    struct bench b;
    set_up(&b, world, job);
    step(&b, 0);
    hp_status status = hp_fsdp_begin(b.fsdp, HP_SYNC);
    status = status < 0 ? status : hp_forward_end(b.units[0]);
    if (status != HP_ERR_STATE)
        expect_told(&b, status);
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 1);
    status = hp_fsdp_begin(b.fsdp, b.rank == 1 ? HP_NO_SYNC : HP_SYNC);
    for (int n = 1; n < N_CALLS && status >= 0; n++)
        status = call(&b, HP_SYNC, n, 9);
    RANK_CHECK(status == HP_ERR_MISMATCH || status == HP_ERR_FAILED);
    RANK_FAILS(hp_fsdp_begin(b.fsdp, HP_SYNC), HP_ERR_FAILED);
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 2);
    RANK_CHECK(digest(&b) == expected);
    tear_down(&b);
}

static void test_after_errors(void **state) {
    (void)state;
    struct job job = {.sizes = {1, 4}};
    ranks_run(4, RANKS_THREADS, after_errors, &job);
}

/* Rank 0 is busy elsewhere for longer than the others wait. */
static void after_a_timeout(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct bench b;
    set_up(&b, world, job);
    step(&b, 0);
    if (b.rank == 0)
        hpi_sleep_ns(UINT64_C(400000000));
    else
        RANK_FAILS(run(&b, HP_SYNC, N_CALLS, 9), HP_ERR_TIMEOUT);
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 1);
    const uint64_t sum = digest(&b);
    tear_down(&b);
    RANK_CHECK(sum == undisturbed(world, job, 2));
}

static _Atomic bool has_tried; /* ranks are threads */

/* Rank 1 is a pass ahead, and comes twice before rank 0 does: that is one reset, not two. */
static void tried_again(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct bench b;
    set_up(&b, world, job);
    step(&b, 0);
    hp_status status = run(&b, HP_SYNC, N_CALLS - 1, 9);
    RANK_OK(status);
    while (b.rank == 0 && !has_tried)
        hpi_sleep_ns(UINT64_C(1000000));
    status = hp_fsdp_end(b.fsdp);
    if (b.rank) {
        RANK_OK(status);
        FAILS_SAYING(hp_fsdp_reset(b.fsdp), HP_ERR_TIMEOUT, "fsdp_reset");
        has_tried = true;
    } else if (status < 0) {
        RANK_CHECK(status == HP_ERR_FAILED);
    }
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 1);
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 2);
    const uint64_t sum = digest(&b);
    tear_down(&b);
    RANK_CHECK(sum == undisturbed(world, job, 3));
}

/* A rank that never comes to the reset. */
static void never_comes(hp_world *world, void *argument) {
    struct bench b;
    set_up(&b, world, argument);
    if (b.rank) {
        FAILS_SAYING(hp_fsdp_reset(b.fsdp), HP_ERR_TIMEOUT, "fsdp_reset");
        RANK_CHECK(strstr(hp_last_error(), "rank 0") != NULL);
        FAILS_SAYING(hp_fsdp_begin(b.fsdp, HP_SYNC), HP_ERR_FAILED, "hp_fsdp_reset on all");
    } else {
        hpi_sleep_ns(UINT64_C(500000000));
    }
    tear_down(&b);
}

static void test_timeouts(void **state) {
    (void)state;
    struct job job = {.sizes = {1, 2}};
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "250", 1);
    ranks_run(2, RANKS_THREADS, after_a_timeout, &job);
    ranks_run(2, RANKS_THREADS, never_comes, &job);
    ranks_run(2, RANKS_THREADS, tried_again, &job);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

static void after_a_death(hp_world *world, void *argument) {
    struct bench b;
    set_up(&b, world, argument);
    step(&b, 0);
    if (b.rank == 1)
        ranks_die();
    hp_error error;
    RANK_FAILS(run(&b, HP_SYNC, N_CALLS, 1), HP_ERR_PEER);
    RANK_FAILS(hp_fsdp_reset(b.fsdp), HP_ERR_PEER);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 1);
    tear_down(&b);
}

static void test_after_a_death(void **state) {
    (void)state;
    struct job job = {.sizes = {1, 2}};
    ranks_run(2, RANKS_PROCESSES, after_a_death, &job);
}

/* Rank 0's k-th allocation fails, for every k: all ranks are told, and the next reset goes well. */
static void without_memory(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct bench b;
    hp_status status = HP_ERR_MEMORY;
    set_up(&b, world, job);
    for (uint64_t k = 1; status < 0; k++) {
        expect_told(&b, hp_fsdp_begin(b.fsdp, HP_SYNC));
        hpi_alloc_fail_after(b.rank == 0 ? k : 0);
        status = hp_fsdp_reset(b.fsdp);
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(status < 0 || k > 10); /* it does take memory */
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    step(&b, 0);
    const uint64_t sum = digest(&b);
    tear_down(&b);
    RANK_CHECK(sum == undisturbed(world, job, 1));
}

static void test_without_memory(void **state) {
    (void)state;
    struct job job = {.sizes = {2, 1}, .record = 1};
    ranks_run(2, RANKS_PROCESSES, without_memory, &job);
}

/* ---- between passes ---------------------------------------------------------------------- */

/* The others are in a call of all ranks; then two have other weights. */
static void between_passes(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct bench b;
    double norm;
    FAILS_SAYING(hp_fsdp_reset(NULL), HP_ERR_ARGUMENT, "fsdp");
    set_up(&b, world, job);
    step(&b, 0);
    RANK_OK(run(&b, HP_SYNC, N_CALLS, 1));
    if (b.rank)
        expect_told(&b, hp_clip_grad_norm(b.fsdp, 1.0, 2.0, &norm));
    RANK_OK(hp_fsdp_reset(b.fsdp));
    FAILS_SAYING(hp_optimizer_step(b.optimizer, 1e-2), HP_ERR_STATE, "gradients");
    step(&b, 1);
    RANK_CHECK(digest(&b) == undisturbed(world, job, 2));
    RANK_OK(run(&b, HP_SYNC, N_CALLS, 2));
    if (b.rank) {
        RANK_OK(hp_optimizer_step(b.optimizer, 1e-2));
        expect_told(&b, run(&b, HP_SYNC, N_CALLS, 3));
    }
    FAILS_SAYING(hp_fsdp_reset(b.fsdp), HP_ERR_MISMATCH, "the same weights on all ranks");
    FAILS_SAYING(hp_fsdp_begin(b.fsdp, HP_SYNC), HP_ERR_FAILED, "hp_fsdp_reset on all");
    tear_down(&b);
}

/* Rank 0 waits in its update for rank 1, which resets instead: no weight is new. */
static void in_an_update(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct bench b;
    set_up(&b, world, job);
    step(&b, 0);
    RANK_OK(run(&b, HP_SYNC, N_CALLS, 1));
    if (b.rank == 0) {
        const hp_status status = hp_optimizer_step(b.optimizer, 1e-2);
        RANK_CHECK(status == HP_ERR_FAILED);
        expect_told(&b, status);
    } else {
        hpi_sleep_ns(UINT64_C(20000000));
    }
    RANK_OK(hp_fsdp_reset(b.fsdp));
    step(&b, 1);
    RANK_CHECK(digest(&b) == undisturbed(world, job, 2));
    tear_down(&b);
}

/* Rank 1 resets as soon as it has updated; rank 0 is told behind its own update. */
static void behind_an_update(hp_world *world, void *argument) {
    const struct job *job = argument;
    enum { N_STEPS = 20 };
    struct bench b;
    set_up(&b, world, job);
    for (int s = 0; s < N_STEPS; s++) {
        step(&b, s);
        if (b.rank == 0)
            expect_told(&b, run(&b, HP_SYNC, N_CALLS, s));
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    RANK_CHECK(digest(&b) == undisturbed(world, job, N_STEPS));
    tear_down(&b);
}

static void before_commit(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    FAILS_SAYING(hp_fsdp_reset(fsdp), HP_ERR_STATE, "hp_fsdp_commit");
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_between_passes(void **state) {
    (void)state;
    struct job job = {.sizes = {1, 3}};
    ranks_run(3, RANKS_THREADS, between_passes, &job);
    ranks_run(2, RANKS_THREADS, before_commit, NULL);
    /* what is frozen is not reduced, so ranks meet before they write what all read */
    struct job mapped = {.sizes = {1, 2}, .mode = HP_MAPPED, .has_frozen = true};
    ranks_run(2, RANKS_THREADS, in_an_update, &mapped);
    ranks_run(2, RANKS_THREADS, behind_an_update, &mapped);
}

/* ---- again and again --------------------------------------------------------------------- */

static int n_open_files(void) {
    int n = 0;
    DIR *directory = opendir("/proc/self/fd");
    RANK_CHECK(directory != NULL);
    while (readdir(directory))
        n++;
    closedir(directory);
    return n;
}

/* Groups alone would run out after a thousand. */
static void again_and_again(hp_world *world, void *argument) {
    const int n_resets = *(const int *)argument;
    const struct job job = {.sizes = {1, 2}};
    struct bench b;
    int n_files = 0;
    set_up(&b, world, &job);
    for (int k = 0; k < n_resets; k++) {
        expect_told(&b, run(&b, HP_SYNC, (b.rank + k) % N_CALLS, k));
        RANK_OK(hp_fsdp_reset(b.fsdp));
        if (k == 2)
            n_files = n_open_files();
    }
    RANK_CHECK(n_open_files() == n_files);
    step(&b, 0);
    RANK_CHECK(digest(&b) == undisturbed(world, &job, 1));
    tear_down(&b);
}

static void test_again_and_again(void **state) {
    (void)state;
    int n_resets = 50;
    ranks_run(2, RANKS_PROCESSES, again_and_again, &n_resets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_anywhere),  cmocka_unit_test(test_left_apart),
        cmocka_unit_test(test_left_by_one),    cmocka_unit_test(test_left_behind),
        cmocka_unit_test(test_replayed_steps), cmocka_unit_test(test_modes),
        cmocka_unit_test(test_after_errors),   cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_after_a_death),  cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_between_passes), cmocka_unit_test(test_again_and_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
