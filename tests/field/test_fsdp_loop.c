/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_loop.c - what goes wrong in training loops in the field: rows F15, F16 and F21.
 *
 * Each case runs in every mode on meshes of both dimensions. No rank may hang: whoever waits for a
 * rank that does something else is told which rank, and what it does.
 */
#include "../unit/small_fsdp.h"

#include <unistd.h>

enum { N_RANKS = 4, N_UNITS = 3, N_ELEMENTS = 10, ODD_RANK = 1, NO_BACKWARD = 9 };

struct job {
    int sizes[2];
    hp_mode mode;
    hp_missing_grad missing_grad;
    int what; /* the odd rank does instead */
};

struct bench {
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
    int rank;
};

static void set_up(struct bench *b, hp_world *world, const struct job *job) {
    static const char *const names[N_UNITS] = {"embedding", "layer", "head"};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = job->mode;
    config.missing_grad = job->missing_grad;
    *b = (struct bench){.world = world, .rank = hp_world_rank(world)};
    RANK_OK(hp_mesh_create(world, job->sizes, 2, &b->mesh));
    RANK_OK(hp_fsdp_create(b->mesh, &config, &b->fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        hp_param params[2] = {vector(names[i], N_ELEMENTS), vector("bias", 4)};
        char bias[32];
        snprintf(bias, sizeof bias, "%s.bias", names[i]);
        params[1].name = bias;
        RANK_OK(hp_unit_create(b->fsdp, names[i], params, 2, NULL, &b->units[i]));
    }
    RANK_OK(hp_fsdp_commit(b->fsdp));
}

static void tear_down(struct bench *b) {
    hp_fsdp_destroy(b->fsdp);
    hp_mesh_destroy(b->mesh);
}

static void write_gradient(struct bench *b, int unit, int param, float value) {
    float *g = hp_param_grad(b->units[unit], param);
    RANK_CHECK(g != NULL);
    for (int k = 0; k < (param ? 4 : N_ELEMENTS); k++)
        g[k] = value;
}

/* A whole pass; the bias of unit `without` gets no gradient, or the first unit has no backward; -1:
 * all have. */
static hp_status run_pass(struct bench *b, hp_pass pass, float value, int without) {
    hp_status status = hp_fsdp_begin(b->fsdp, pass);
    for (int i = 0; i < N_UNITS && status >= 0; i++) {
        status = hp_forward_begin(b->units[i]);
        status = status < 0 ? status : hp_forward_end(b->units[i]);
    }
    for (int i = N_UNITS; i-- > (without == NO_BACKWARD) && status >= 0;) {
        status = hp_backward_begin(b->units[i]);
        if (status < 0)
            break;
        write_gradient(b, i, 0, value);
        if (i != without)
            write_gradient(b, i, 1, value);
        status = hp_backward_end(b->units[i]);
    }
    return status < 0 ? status : hp_fsdp_end(b->fsdp);
}

static void expect_gradients(struct bench *b, int unit, int param, float value) {
    hp_shard shard;
    RANK_OK(hp_param_shard(b->units[unit], param, &shard));
    for (uint64_t k = 0; k < shard.n_elements; k++)
        RANK_CHECK(((const float *)shard.grad)[k] == value);
}

static void in_every_mode(ranks_kind kind, ranks_body body, struct job job) {
    static const int meshes[][2] = {{1, 4}, {2, 2}, {4, 1}, {2, 2}};
    for (int m = 0; m < 4; m++) {
        job.mode = (hp_mode)m;
        job.sizes[0] = meshes[m][0];
        job.sizes[1] = meshes[m][1];
        ranks_run(N_RANKS, kind, body, &job);
    }
}

/* ---- F15: a gradient on some ranks only ---------------------------------------------------- */

static void no_gradient_is_zero(hp_world *world, void *argument) {
    struct bench b;
    set_up(&b, world, argument);
    for (int step = 0; step < 3; step++) {
        RANK_OK(run_pass(&b, HP_SYNC, 4.0F, b.rank == ODD_RANK ? 1 : -1));
        expect_gradients(&b, 1, 0, 4.0F);
        expect_gradients(&b, 1, 1, 3.0F); /* 3 of 4 ranks gave 4 */
    }
    tear_down(&b);
}

/* The rank without is told which parameter; the others which rank; all can reset and go on. */
static void no_gradient_is_an_error(hp_world *world, void *argument) {
    struct bench b;
    hp_error error;
    set_up(&b, world, argument);
    for (int step = 0; step < 3; step++) {
        RANK_OK(run_pass(&b, HP_SYNC, 4.0F, -1));
        RANK_OK(run_pass(&b, HP_NO_SYNC, 4.0F, 1)); /* asked for in HP_SYNC passes alone */
        const hp_status status = run_pass(&b, HP_SYNC, 4.0F, b.rank == ODD_RANK ? step : -1);
        hp_last_error_get(&error);
        if (b.rank == ODD_RANK) {
            static const char *const names[] = {"embedding.bias", "layer.bias", "head.bias"};
            RANK_CHECK(status == HP_ERR_STATE);
            RANK_CHECK(strstr(error.message, names[step]) != NULL);
        } else {
            RANK_CHECK(status == HP_ERR_FAILED && error.world_rank != b.rank);
            RANK_CHECK(strstr(error.message, "HP_MISSING_ERROR") || strstr(error.message, "reset"));
        }
        RANK_OK(hp_fsdp_reset(b.fsdp));
    }
    RANK_OK(run_pass(&b, HP_SYNC, 4.0F, -1));
    expect_gradients(&b, 1, 1, 4.0F);
    tear_down(&b);
}

/* A unit whose backward one rank leaves out: at the end of the pass. */
static void no_backward_is_an_error(hp_world *world, void *argument) {
    struct bench b;
    set_up(&b, world, argument);
    const hp_status status = run_pass(&b, HP_SYNC, 4.0F, b.rank == ODD_RANK ? NO_BACKWARD : -1);
    RANK_CHECK(status == (b.rank == ODD_RANK ? HP_ERR_STATE : HP_ERR_FAILED));
    RANK_CHECK(b.rank != ODD_RANK || strstr(hp_last_error(), "hp_fsdp_end: unit embedding"));
    RANK_OK(hp_fsdp_reset(b.fsdp));
    RANK_OK(run_pass(&b, HP_SYNC, 4.0F, -1));
    tear_down(&b);
}

static void test_f15_gradient_on_some_ranks(void **state) {
    (void)state;
    const struct job zero = {.missing_grad = HP_MISSING_ZERO};
    const struct job error = {.missing_grad = HP_MISSING_ERROR};
    in_every_mode(RANKS_THREADS, no_gradient_is_zero, zero);
    in_every_mode(RANKS_THREADS, no_gradient_is_an_error, error);
    in_every_mode(RANKS_THREADS, no_backward_is_an_error, error);
}

/* ---- F16: one rank has fewer batches ------------------------------------------------------- */

enum { LEAVES, IDLES, EVALUATES, SAVES, N_THINGS };

/* The odd rank has trained one step less and does something else. */
static hp_status do_instead(struct bench *b, int what) {
    switch (what) {
    case LEAVES:
        return HP_OK;
    case IDLES:
        hpi_sleep_ns(UINT64_C(500000000));
        return HP_OK;
    case EVALUATES:
        return run_pass(b, HP_EVALUATE, 0.0F, -1);
    default:
        return hp_checkpoint_save(b->fsdp, NULL, "/tmp/never-written", 1);
    }
}

/* Ranks of another row and column wait for one that waits for the odd rank: they may be told of
 * that one, when both give up in the same moment. */
static bool meets_the_odd_rank(const struct bench *b) {
    const int n_shards = hp_mesh_size(b->mesh, 1);
    return b->rank / n_shards == ODD_RANK / n_shards || b->rank % n_shards == ODD_RANK % n_shards;
}

static void expect_named(struct bench *b, int what, hp_status status) {
    hp_error error;
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank >= 0 && error.world_rank != b->rank);
    switch (what) {
    case LEAVES:
        RANK_CHECK(status == HP_ERR_PEER && error.world_rank == ODD_RANK);
        break;
    case IDLES:
        RANK_CHECK(status == HP_ERR_TIMEOUT);
        RANK_CHECK(error.world_rank == ODD_RANK || !meets_the_odd_rank(b));
        RANK_CHECK(strstr(error.message, "is alive") != NULL);
        break;
    case EVALUATES: /* and leaves, where evaluation needs nobody */
        RANK_CHECK(status == HP_ERR_MISMATCH || status == HP_ERR_PEER);
        RANK_CHECK(status != HP_ERR_MISMATCH || strstr(error.message, "HP_EVALUATE") != NULL);
        break;
    default: /* both give up; who comes late finds it gone */
        RANK_CHECK(status == HP_ERR_TIMEOUT || status == HP_ERR_PEER);
    }
}

static void fewer_batches(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct bench b;
    set_up(&b, world, job);
    RANK_OK(run_pass(&b, HP_SYNC, 1.0F, -1));
    if (b.rank == ODD_RANK) {
        const hp_status status = do_instead(&b, job->what);
        RANK_CHECK(job->what != SAVES || status < 0);
    } else {
        expect_named(&b, job->what, run_pass(&b, HP_SYNC, 1.0F, -1));
    }
    tear_down(&b);
}

static void test_f16_fewer_batches(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "250", 1);
    for (int what = 0; what < N_THINGS; what++) {
        struct job job = {.sizes = {1, 4}, .what = what};
        in_every_mode(what == LEAVES ? RANKS_PROCESSES : RANKS_THREADS, fewer_batches, job);
    }
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

/* ---- F21: microbatches of other replicas ---------------------------------------------------- */

/* Three microbatches, reduced over shards each, over replicas once: the sum of all. */
static void deferred(hp_world *world, void *argument) {
    struct bench b;
    set_up(&b, world, argument);
    for (int step = 0; step < 3; step++) {
        const float value = (float)(1 << (2 * b.rank)); /* 1, 4, 16, 64: each shows */
        RANK_OK(run_pass(&b, HP_DEFER_REPLICATE, value, -1));
        RANK_OK(run_pass(&b, HP_DEFER_REPLICATE, 256.0F * value, -1));
        RANK_OK(run_pass(&b, HP_SYNC, 65536.0F * value, -1));
        for (int i = 0; i < N_UNITS; i++)
            expect_gradients(&b, i, 0, 85.0F * 65793.0F / 4.0F);
    }
    tear_down(&b);
}

static void test_f21_deferred_all_reduce(void **state) {
    (void)state;
    const struct job job = {.missing_grad = HP_MISSING_ERROR};
    in_every_mode(RANKS_THREADS, deferred, job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f15_gradient_on_some_ranks),
        cmocka_unit_test(test_f16_fewer_batches),
        cmocka_unit_test(test_f21_deferred_all_reduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
