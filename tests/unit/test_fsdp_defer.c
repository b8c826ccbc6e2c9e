/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_defer.c - passes of all kinds one after the other, against a serial oracle.
 *
 * Two units write known gradients in every pass of a list like "NDS". The oracle keeps what each
 * rank keeps: sums of full gradients, rounded once when they are reduced, and sums over a shard
 * group, which the replicas add up once, in the HP_SYNC pass. Shards must hold its bits in every
 * mode and executor, each unit is all-reduced once, and after warm-up nothing is allocated.
 */
#include "base/base.h"
#include "coll/coll.h"
#include "fsdp/plan/plan.h"
#include "small_fsdp.h"
#include "support/oracle.h"

enum { N_RANKS = 4, N_UNITS = 2, N_ELEMENTS = 13 };

struct job {
    int sizes[2]; /* replicas, shards */
    hp_mode mode;
    hp_executor_type executor;
    hp_dtype dtype;
    const char *passes; /* S, E, N, D: the kinds; U: an update */
    int own_pass;       /* of the second unit; -1: none */
    int replay_after;
};

struct bench {
    const struct job *job;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
    hp_optimizer *optimizer;
    int rank;
};

static hp_pass kind_of(char letter) {
    return letter == 'S'   ? HP_SYNC
           : letter == 'E' ? HP_EVALUATE
           : letter == 'N' ? HP_NO_SYNC
                           : HP_DEFER_REPLICATE;
}

static void set_up(struct bench *b, hp_world *world, const struct job *job) {
    static const char *const names[N_UNITS] = {"first", "second"};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = job->mode;
    config.executor = job->executor;
    config.record = 1;
    config.replay_after = job->replay_after;
    *b = (struct bench){.job = job, .rank = hp_world_rank(world)};
    RANK_OK(hp_mesh_create(world, job->sizes, 2, &b->mesh));
    RANK_OK(hp_fsdp_create(b->mesh, &config, &b->fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        hp_param p = vector(names[i], N_ELEMENTS);
        p.dtype = job->dtype;
        RANK_OK(hp_unit_create(b->fsdp, names[i], &p, 1, NULL, &b->units[i]));
    }
    RANK_OK(hp_fsdp_commit(b->fsdp));
    RANK_OK(hp_optimizer_create(b->fsdp, "sgd", NULL, &b->optimizer));
    RANK_OK(hp_unit_set_pass(b->units[1], job->own_pass));
}

static void tear_down(struct bench *b) {
    hp_optimizer_destroy(b->optimizer);
    hp_fsdp_destroy(b->fsdp);
    hp_mesh_destroy(b->mesh);
}

/* What a rank writes for a unit in pass number `pass`. */
static void fill_gradient(const struct bench *b, int rank, int unit, int pass, void *out) {
    oracle_fill(b->job->dtype, out, N_ELEMENTS,
                (uint64_t)((pass * N_UNITS + unit) * N_RANKS + rank));
}

static void run_pass(struct bench *b, hp_pass kind, int pass) {
    RANK_OK(hp_fsdp_begin(b->fsdp, kind));
    for (int i = 0; i < N_UNITS; i++) {
        RANK_OK(hp_forward_begin(b->units[i]));
        RANK_OK(hp_forward_end(b->units[i]));
    }
    for (int i = N_UNITS; i-- > 0 && kind != HP_EVALUATE;) {
        RANK_OK(hp_backward_begin(b->units[i]));
        fill_gradient(b, b->rank, i, pass, hp_param_grad(b->units[i], 0));
        RANK_OK(hp_backward_end(b->units[i]));
    }
    RANK_OK(hp_fsdp_end(b->fsdp));
}

/* ---- the oracle -------------------------------------------------------------------------- */

typedef float values[N_ELEMENTS];

/* Of one unit: what the ranks keep, and the gradient at the end. */
struct oracle {
    values sums[N_RANKS], partial[N_RANKS], gradient; /* partial: by replica */
    bool has_sums, has_partial, has_gradient;
};

static void add(float *to, const float *what, bool is_first) {
    for (int k = 0; k < N_ELEMENTS; k++)
        to[k] = is_first ? what[k] : to[k] + what[k];
}

/* A full gradient as the rank reduces it: with its sums, rounded once. */
static void leaf_of(const struct bench *b, struct oracle *o, int rank, int unit, int pass,
                    bool is_kept, void *out_leaf) {
    values wide;
    fill_gradient(b, rank, unit, pass, out_leaf);
    RANK_OK(hpi_convert(out_leaf, b->job->dtype, wide, HP_FP32, N_ELEMENTS));
    if (is_kept) {
        add(o->sums[rank], wide, !o->has_sums);
        return;
    }
    for (int k = 0; o->has_sums && k < N_ELEMENTS; k++)
        wide[k] = o->sums[rank][k] + wide[k];
    RANK_OK(hpi_convert(wide, HP_FP32, out_leaf, b->job->dtype, N_ELEMENTS));
}

static void reduce(const struct bench *b, struct oracle *o, unsigned char leaves[][N_ELEMENTS * 4],
                   bool is_deferred) {
    const int n_replicas = b->job->sizes[0], n_shards = b->job->sizes[1];
    values buckets[N_RANKS];
    const void *in[N_RANKS], *sums[N_RANKS];
    for (int r = 0; r < n_replicas; r++) {
        for (int s = 0; s < n_shards; s++)
            in[s] = leaves[r * n_shards + s];
        oracle_reduce(b->job->dtype, HP_FP32, HP_SUM, in, n_shards, buckets[r], N_ELEMENTS);
        if (is_deferred)
            add(o->partial[r], buckets[r], !o->has_partial);
        for (int k = 0; !is_deferred && o->has_partial && k < N_ELEMENTS; k++)
            buckets[r][k] = o->partial[r][k] + buckets[r][k];
        sums[r] = buckets[r];
    }
    o->has_partial = is_deferred;
    o->has_gradient = !is_deferred;
    if (is_deferred)
        return;
    oracle_reduce(HP_FP32, HP_FP32, HP_SUM, sums, n_replicas, o->gradient, N_ELEMENTS);
    for (int k = 0; k < N_ELEMENTS; k++)
        o->gradient[k] /= N_RANKS;
}

static void oracle_pass(const struct bench *b, struct oracle *o, int unit, hp_pass kind, int pass) {
    unsigned char leaves[N_RANKS][N_ELEMENTS * 4];
    o->has_gradient = false;
    if (kind == HP_EVALUATE)
        return;
    for (int rank = 0; rank < N_RANKS; rank++)
        leaf_of(b, o, rank, unit, pass, kind == HP_NO_SYNC, leaves[rank]);
    o->has_sums = kind == HP_NO_SYNC;
    if (kind != HP_NO_SYNC)
        reduce(b, o, leaves, kind == HP_DEFER_REPLICATE);
}

static void compare(const struct bench *b, const struct oracle *o, int unit) {
    hp_shard shard;
    uint64_t first;
    RANK_OK(hp_param_shard(b->units[unit], 0, &shard));
    RANK_CHECK((shard.grad != NULL) == o->has_gradient);
    if (shard.grad)
        RANK_CHECK(
            oracle_same(HP_FP32, shard.grad, o->gradient + shard.begin, shard.n_elements, &first));
}

/* ---- what is done ------------------------------------------------------------------------ */

/* Of the last pass: all-reduces between replicas, by unit. */
static void count_all_reduces(const struct bench *b, const hp_pass *kinds) {
    const hp_op *ops;
    const hp_kind *table;
    uint64_t n;
    uint32_t n_kinds;
    int counts[N_UNITS] = {0};
    RANK_OK(hp_fsdp_recorded(b->fsdp, &ops, &n, &table, &n_kinds));
    for (uint64_t i = 0; i < n; i++)
        if (ops[i].comm == HPI_COMM_REPLICATE)
            counts[ops[i].unit]++;
    for (int i = 0; i < N_UNITS; i++)
        RANK_CHECK(counts[i] == (kinds[i] == HP_SYNC && b->job->sizes[0] > 1));
}

static void run_list(struct bench *b, struct oracle *o) {
    const struct job *job = b->job;
    for (int pass = 0; job->passes[pass]; pass++) {
        if (job->passes[pass] == 'U') {
            RANK_OK(hp_optimizer_step(b->optimizer, 0.0));
            for (int i = 0; i < N_UNITS; i++)
                o[i].has_sums = o[i].has_partial = false;
            continue;
        }
        const hp_pass kind = kind_of(job->passes[pass]);
        const bool has_own = job->own_pass >= 0 && kind != HP_EVALUATE;
        const hp_pass kinds[N_UNITS] = {kind, has_own ? (hp_pass)job->own_pass : kind};
        run_pass(b, kind, pass);
        count_all_reduces(b, kinds);
        for (int i = 0; i < N_UNITS; i++) {
            oracle_pass(b, &o[i], i, kinds[i], pass);
            compare(b, &o[i], i);
        }
    }
}

static void oracle_body(hp_world *world, void *argument) {
    struct bench b;
    struct oracle o[N_UNITS] = {0};
    set_up(&b, world, argument);
    for (int step = 0; step < 3; step++)
        run_list(&b, o);
    tear_down(&b);
}

static const int meshes[][2] = {{2, 2}, {1, 4}, {4, 1}};
static const char *const lists[] = {"DDS", "NDS", "DNS", "DSU", "NNDDENS", "SUDNS", "DEDSU", "SS"};
enum { N_LISTS = sizeof lists / sizeof *lists };

static void test_against_the_oracle(void **state) {
    (void)state;
    for (int c = 0; c < 3 * N_LISTS; c++) {
        struct job job = {.sizes = {meshes[c % 3][0], meshes[c % 3][1]},
                          .mode = (hp_mode)(c % 4),
                          .executor = c % 5 ? HP_EXECUTOR_THREAD : HP_EXECUTOR_INLINE,
                          .dtype = c % 2 ? HP_BF16 : HP_FP32,
                          .passes = lists[c % N_LISTS],
                          .own_pass = -1};
        ranks_run(N_RANKS, RANKS_THREADS, oracle_body, &job);
    }
}

static void test_a_pass_of_its_own(void **state) {
    (void)state;
    static const int own[] = {HP_SYNC, HP_NO_SYNC, HP_DEFER_REPLICATE};
    for (int c = 0; c < 12; c++) {
        struct job job = {.sizes = {meshes[c % 2][0], meshes[c % 2][1]},
                          .mode = (hp_mode)(c % 4),
                          .dtype = c % 2 ? HP_BF16 : HP_FP32,
                          .passes = c % 2 ? "NDS" : "SDESNS",
                          .own_pass = own[c % 3]};
        ranks_run(N_RANKS, RANKS_THREADS, oracle_body, &job);
    }
}

static void test_replayed(void **state) {
    (void)state;
    struct job job = {
        .sizes = {2, 2}, .dtype = HP_FP32, .passes = "NDS", .own_pass = -1, .replay_after = 1};
    ranks_run(N_RANKS, RANKS_THREADS, oracle_body, &job);
    job.own_pass = HP_DEFER_REPLICATE;
    job.passes = "SSS";
    job.replay_after = 2;
    ranks_run(N_RANKS, RANKS_THREADS, oracle_body, &job);
}

/* ---- the three passes of a step are one (F21) -------------------------------------------- */

/* Small integers, whose sums are exact: how they came does not show. */
static void exact_body(hp_world *world, void *argument) {
    static const hp_pass kinds[][3] = {
        {HP_DEFER_REPLICATE, HP_DEFER_REPLICATE, HP_SYNC},
        {HP_NO_SYNC, HP_DEFER_REPLICATE, HP_SYNC},
        {HP_NO_SYNC, HP_NO_SYNC, HP_SYNC},
    };
    struct bench b;
    set_up(&b, world, argument);
    for (int c = 0; c < 3; c++) {
        for (int k = 0; k < 3; k++) {
            RANK_OK(hp_fsdp_begin(b.fsdp, kinds[c][k]));
            RANK_OK(hp_forward_begin(b.units[0]));
            RANK_OK(hp_forward_end(b.units[0]));
            RANK_OK(hp_backward_begin(b.units[0]));
            float *g = hp_param_grad(b.units[0], 0);
            for (int j = 0; j < N_ELEMENTS; j++)
                g[j] = (float)(16 * k + 4 * b.rank + j);
            RANK_OK(hp_backward_end(b.units[0]));
            RANK_OK(hp_fsdp_end(b.fsdp));
        }
        hp_shard shard;
        RANK_OK(hp_param_shard(b.units[0], 0, &shard));
        for (uint64_t j = 0; j < shard.n_elements; j++) /* 16 * 3 + 3 * 6 / 4 * 4 + 3 j */
            RANK_CHECK(((const float *)shard.grad)[j] ==
                       48.0F + 18.0F + 3.0F * (float)((uint64_t)shard.begin + j));
        RANK_OK(hp_param_shard(b.units[1], 0, &shard)); /* never used: zero */
        for (uint64_t j = 0; j < shard.n_elements; j++)
            RANK_CHECK(((const float *)shard.grad)[j] == 0);
    }
    tear_down(&b);
}

static void test_no_microbatch_is_lost(void **state) {
    (void)state;
    for (int c = 0; c < 12; c++) {
        struct job job = {.sizes = {meshes[c % 3][0], meshes[c % 3][1]},
                          .mode = (hp_mode)(c % 4),
                          .dtype = HP_FP32,
                          .own_pass = -1};
        ranks_run(N_RANKS, RANKS_THREADS, exact_body, &job);
    }
}

/* ---- memory ------------------------------------------------------------------------------ */

static void memory_body(hp_world *world, void *argument) {
    struct bench b;
    hp_fsdp_stats before, after;
    set_up(&b, world, argument);
    RANK_OK(hp_fsdp_stats_get(b.fsdp, &before));
    for (int step = 0; step < 4; step++) {
        const uint64_t n_allocations = hpi_alloc_count();
        for (const char *letter = "NDESDS"; *letter; letter++)
            run_pass(&b, kind_of(*letter), step);
        RANK_OK(hp_barrier(hp_world_group(world)));
        RANK_CHECK(step < 2 || hpi_alloc_count() == n_allocations);
        RANK_OK(hp_barrier(hp_world_group(world)));
    }
    RANK_OK(hp_fsdp_stats_get(b.fsdp, &after));
    RANK_CHECK(after.grad_bytes - before.grad_bytes >= N_UNITS * N_ELEMENTS * sizeof(float));
    tear_down(&b);
}

static void test_no_allocation_after_warm_up(void **state) {
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        struct job job = {.sizes = {2, 2}, .mode = (hp_mode)mode, .dtype = HP_FP32, .own_pass = -1};
        ranks_run(N_RANKS, RANKS_THREADS, memory_body, &job);
    }
}

/* ---- misuse ------------------------------------------------------------------------------ */

/* Ranks that gave a unit different passes of its own: told by its first collective. */
static void misuse_body(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit[2];
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 8), q = vector("v", 8);
    FAILS_SAYING(hp_unit_set_pass(NULL, HP_SYNC), HP_ERR_ARGUMENT, "a unit");
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit[0]));
    RANK_OK(hp_unit_create(fsdp, "head", &q, 1, NULL, &unit[1]));
    FAILS_SAYING(hp_unit_set_pass(unit[0], HP_SYNC), HP_ERR_STATE, "hp_fsdp_commit");
    RANK_OK(hp_fsdp_commit(fsdp));
    FAILS_SAYING(hp_unit_set_pass(unit[0], HP_EVALUATE), HP_ERR_ARGUMENT, "unit layer, given 1");
    FAILS_SAYING(hp_unit_set_pass(unit[0], -2), HP_ERR_ARGUMENT, "given -2");
    RANK_CHECK(strstr(hp_last_error(), "hp_unit_set_pass: expected") == hp_last_error());
    FAILS_SAYING(hp_fsdp_begin(fsdp, (hp_pass)4), HP_ERR_ARGUMENT, "HP_DEFER_REPLICATE, given 4");
    RANK_OK(hp_unit_set_pass(unit[1], hp_world_rank(world) ? HP_NO_SYNC : -1));
    RANK_OK(hp_fsdp_begin(fsdp, HP_DEFER_REPLICATE));
    FAILS_SAYING(hp_unit_set_pass(unit[0], HP_SYNC), HP_ERR_STATE, "unit layer");
    RANK_OK(hp_forward_begin(unit[0]));
    hp_status status = hp_forward_end(unit[0]);
    status = status < 0 ? status : hp_forward_begin(unit[1]);
    RANK_CHECK(status == HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "in a HP_NO_SYNC pass after 0 of HP_NO_SYNC") != NULL);
    RANK_CHECK(strstr(hp_last_error(), "in a HP_DEFER_REPLICATE pass after 0") != NULL);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_misuse(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_oracle),
        cmocka_unit_test(test_a_pass_of_its_own),
        cmocka_unit_test(test_replayed),
        cmocka_unit_test(test_no_microbatch_is_lost),
        cmocka_unit_test(test_no_allocation_after_warm_up),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
