/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_by_hand.c - units gathered by hand, forwards computed again, units used as they come.
 *
 * Each loop that a user may write trains beside the plain one: the weights must have the same bits
 * whatever was gathered by hand, evicted, recomputed or evaluated in between, in every mode, and
 * from the third step on the list of a step is the same bytes.
 */
#include "base/base.h"
#include "fsdp/plan/plan.h"
#include "small_fsdp.h"

enum { N_UNITS = 6, N_ELEMENTS = 24, N_STEPS = 6, SEGMENT = 3 };

struct bench;
typedef void (*loop)(struct bench *b, int step);

struct job {
    loop loop;
    hp_mode mode;
    hp_executor_type executor;
    int prefetch, keep, record, replay_after;
};

struct bench {
    const struct job *job;
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_optimizer *optimizer;
    hp_unit *units[N_UNITS];
    int rank;
};

static void fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    for (uint64_t k = begin; k < end; k++)
        ((float *)out_elements)[k - begin] = (float)k + (float)*(const int *)context;
}

static void set_up(struct bench *b, hp_world *world, const struct job *job) {
    static int numbers[N_UNITS] = {0, 1, 2, 3, 4, 5};
    static const char *const names[N_UNITS] = {"u0", "u1", "u2", "u3", "u4", "u5"};
    static const int sizes[] = {2, 2};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = job->mode;
    config.executor = job->executor;
    config.prefetch = job->prefetch;
    config.reshard_after_forward = !job->keep;
    config.record = job->record;
    config.replay_after = job->replay_after;
    *b = (struct bench){.job = job, .world = world, .rank = hp_world_rank(world)};
    RANK_OK(hp_mesh_create(world, sizes, 2, &b->mesh));
    RANK_OK(hp_fsdp_create(b->mesh, &config, &b->fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        hp_param p = vector(names[i], N_ELEMENTS + i);
        p.fill = fill;
        p.fill_context = &numbers[i];
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

/* ---- what loops are made of --------------------------------------------------------------- */

/* The weights are there, whole: the shards of all ranks, which no step has mixed up. */
static float read_unit(struct bench *b, int i) {
    const float *w = hp_param_data(b->units[i], 0);
    float sum = 0;
    RANK_CHECK(w != NULL);
    for (int k = 0; k < N_ELEMENTS + i; k++)
        sum += w[k] * (float)(k + 1);
    return sum;
}

static void forward(struct bench *b, int i) {
    RANK_OK(hp_forward_begin(b->units[i]));
    (void)read_unit(b, i);
    RANK_OK(hp_forward_end(b->units[i]));
}

static void recompute(struct bench *b, int i) {
    RANK_OK(hp_recompute_begin(b->units[i]));
    (void)read_unit(b, i);
    RANK_OK(hp_recompute_end(b->units[i]));
}

static void backward(struct bench *b, int i, int step) {
    RANK_OK(hp_backward_begin(b->units[i]));
    const float sum = read_unit(b, i);
    float *g = hp_param_grad(b->units[i], 0);
    for (int k = 0; k < N_ELEMENTS + i; k++)
        g[k] = sum * 0.001F + (float)((b->rank * 5 + step * 3 + k) % 7);
    RANK_OK(hp_backward_end(b->units[i]));
}

static void forwards(struct bench *b) {
    for (int i = 0; i < N_UNITS; i++)
        forward(b, i);
}

/* ---- loops -------------------------------------------------------------------------------- */

static void plain(struct bench *b, int step) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_SYNC));
    forwards(b);
    for (int i = N_UNITS; i-- > 0;)
        backward(b, i, step);
    RANK_OK(hp_fsdp_end(b->fsdp));
}

/* Every unit just before its backward. */
static void recomputed_each(struct bench *b, int step) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_SYNC));
    forwards(b);
    for (int i = N_UNITS; i-- > 0;) {
        recompute(b, i);
        backward(b, i, step);
    }
    RANK_OK(hp_fsdp_end(b->fsdp));
}

/* Segments of three, more than there are slots with little prefetch. */
static void recomputed_in_segments(struct bench *b, int step) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_SYNC));
    forwards(b);
    for (int first = N_UNITS - SEGMENT; first >= 0; first -= SEGMENT) {
        for (int i = first; i < first + SEGMENT; i++)
            recompute(b, i);
        for (int i = first + SEGMENT; i-- > first;)
            backward(b, i, step);
    }
    RANK_OK(hp_fsdp_end(b->fsdp));
}

/* Units held over their use, ahead of it, or read and let go. */
static void held(struct bench *b, int step) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_SYNC));
    RANK_OK(hp_unit_unshard(b->units[3], 0));
    RANK_CHECK(!hp_param_data(b->units[3], 0)); /* not waited for */
    RANK_OK(hp_unit_reshard(b->units[3]));
    RANK_OK(hp_unit_unshard(b->units[2], 1));
    const float sum = read_unit(b, 2);
    for (int i = 0; i < N_UNITS; i++) {
        forward(b, i);
        if (i < 3)
            RANK_CHECK(read_unit(b, 2) == sum);
        if (i == 3)
            RANK_OK(hp_unit_reshard(b->units[2]));
    }
    RANK_CHECK(!hp_param_data(b->units[2], 0));
    RANK_OK(hp_unit_unshard(b->units[4], 0));
    for (int i = N_UNITS; i-- > 0;)
        backward(b, i, step);
    if (b->job->mode == HP_MAPPED) /* its owners may write it now */
        FAILS_SAYING(hp_unit_unshard(b->units[4], 1), HP_ERR_STATE, "unit u4: expected no use");
    else /* readable since its backward began, let go by the end of the pass */
        (void)read_unit(b, 4);
    RANK_OK(hp_fsdp_end(b->fsdp));
    RANK_CHECK(!hp_param_data(b->units[4], 0));
}

/* Evaluations between, and one with a unit that is read by hand and a unit left out. */
static void evaluated(struct bench *b, int step) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_EVALUATE));
    for (int i = 0; i < N_UNITS; i += 2)
        forward(b, i);
    RANK_OK(hp_unit_unshard(b->units[1], 1));
    (void)read_unit(b, 1);
    FAILS_SAYING(hp_recompute_begin(b->units[0]), HP_ERR_STATE, "HP_EVALUATE");
    RANK_OK(hp_fsdp_end(b->fsdp));
    plain(b, step);
}

static const loop loops[] = {recomputed_each, recomputed_in_segments, held, evaluated};
enum { N_LOOPS = sizeof loops / sizeof *loops };

/* ---- the same bits ------------------------------------------------------------------------ */

static uint64_t digest(const struct bench *b) {
    uint64_t sum = 0;
    for (int i = 0; i < N_UNITS; i++) {
        hp_shard shard;
        RANK_OK(hp_param_shard(b->units[i], 0, &shard));
        sum = sum * 31 + hpi_checksum(shard.values, shard.n_elements * sizeof(float));
    }
    return sum;
}

static uint64_t train(hp_world *world, const struct job *job) {
    struct bench b;
    set_up(&b, world, job);
    uint64_t last = 0, n_allocations = 0;
    for (int step = 0; step < N_STEPS; step++) {
        RANK_OK(hp_barrier(hp_world_group(world)));
        RANK_CHECK(step < 3 || job->replay_after || hpi_alloc_count() == n_allocations);
        RANK_OK(hp_barrier(hp_world_group(world)));
        n_allocations = hpi_alloc_count();
        job->loop(&b, step);
        RANK_OK(hp_optimizer_step(b.optimizer, 1e-2));
        if (!job->record)
            continue;
        const hp_op *ops;
        const hp_kind *kinds;
        uint64_t n;
        uint32_t n_kinds;
        RANK_OK(hp_fsdp_recorded(b.fsdp, &ops, &n, &kinds, &n_kinds));
        const uint64_t sum = hpi_checksum(ops, n * sizeof *ops);
        RANK_CHECK(step < 3 || sum == last);
        last = sum;
    }
    if (job->record && !job->replay_after) {
        hp_verdict verdict;
        RANK_OK(hp_fsdp_verify(b.fsdp, HP_VERIFY_RECORDED, &verdict));
    }
    const uint64_t sum = digest(&b);
    tear_down(&b);
    return sum;
}

static void same_bits(hp_world *world, void *argument) {
    const struct job *job = argument;
    struct job simple = *job;
    simple.loop = plain;
    simple.replay_after = 0;
    RANK_CHECK(train(world, job) == train(world, &simple));
}

static void test_same_bits(void **state) {
    (void)state;
    for (int l = 0; l < N_LOOPS; l++)
        for (int c = 0; c < 8; c++) {
            struct job job = {.loop = loops[l],
                              .mode = (hp_mode)(c % 4),
                              .executor = c % 3 ? HP_EXECUTOR_THREAD : HP_EXECUTOR_INLINE,
                              .prefetch = loops[l] == held ? 1 + c / 4 : c / 2 % 3,
                              .keep = c == 5,
                              .record = 1};
            ranks_run(4, RANKS_THREADS, same_bits, &job);
        }
}

static void test_replayed(void **state) {
    (void)state;
    for (int l = 0; l < N_LOOPS; l++) {
        struct job job = {.loop = loops[l], .prefetch = 1, .record = 1, .replay_after = 3};
        ranks_run(4, RANKS_THREADS, same_bits, &job);
    }
}

/* ---- calls out of order ------------------------------------------------------------------- */

static void misuse_body(hp_world *world, void *argument) {
    struct bench b;
    hp_mesh *mesh;
    hp_fsdp *alone = make_fsdp(world, &mesh);
    hp_fsdp_destroy(alone);
    hp_mesh_destroy(mesh);
    set_up(&b, world, argument);
    hp_unit *const u = b.units[0];
    FAILS_SAYING(hp_unit_unshard(NULL, 1), HP_ERR_ARGUMENT, "hp_unit_unshard");
    FAILS_SAYING(hp_unit_unshard(u, 1), HP_ERR_STATE, "unit u0 between hp_fsdp_begin");
    FAILS_SAYING(hp_recompute_begin(u), HP_ERR_STATE, "unit u0 between hp_fsdp_begin");
    RANK_OK(hp_fsdp_begin(b.fsdp, HP_SYNC));
    FAILS_SAYING(hp_recompute_begin(u), HP_ERR_STATE, "forward of unit u0");
    FAILS_SAYING(hp_recompute_end(u), HP_ERR_STATE, "unit u0 to be recomputed, it is idle");
    RANK_OK(hp_unit_reshard(u)); /* it is sharded: nothing to do */
    RANK_OK(hp_forward_begin(u));
    FAILS_SAYING(hp_unit_unshard(u, 1), HP_ERR_STATE, "it is in forward");
    FAILS_SAYING(hp_unit_reshard(u), HP_ERR_STATE, "it is in forward");
    RANK_OK(hp_forward_end(u));
    RANK_OK(hp_recompute_begin(u));
    RANK_CHECK(!hp_param_grad(u, 0));
    FAILS_SAYING(hp_backward_begin(u), HP_ERR_STATE, "it is recomputed");
    FAILS_SAYING(hp_fsdp_end(b.fsdp), HP_ERR_STATE, "unit u0");
    RANK_OK(hp_recompute_end(u));
    RANK_OK(hp_unit_unshard(b.units[1], 1));
    RANK_OK(hp_unit_unshard(b.units[2], 0));
    FAILS_SAYING(hp_unit_unshard(b.units[3], 1), HP_ERR_STATE,
                 "hp_unit_unshard: unit u3: expected at most 2 units in use at once");
    FAILS_SAYING(hp_forward_begin(b.units[3]), HP_ERR_STATE, "at most 2 units");
    RANK_OK(hp_unit_reshard(b.units[1]));
    RANK_OK(hp_unit_reshard(b.units[2]));
    backward(&b, 0, 0);
    FAILS_SAYING(hp_recompute_begin(u), HP_ERR_STATE, "given 1 forwards and 1 backwards");
    RANK_OK(hp_fsdp_end(b.fsdp));
    tear_down(&b);
}

static void test_misuse(void **state) {
    (void)state;
    struct job job = {.prefetch = 1};
    ranks_run(4, RANKS_THREADS, misuse_body, &job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_replayed),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
