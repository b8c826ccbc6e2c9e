/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_accumulate.c - sums of gradients over passes and uses, against a serial oracle.
 *
 * Eight ranks write known gradients, infinities and NaN among them, in every backward of a few
 * passes. The oracle adds each rank's in order, rounds once to what is reduced, adds the ranks by
 * the tree and divides; the shards must hold those bits on every mesh. Small integers, whose sums
 * are exact, must not show in how many passes they came.
 */
#include "base/base.h"
#include "coll/coll.h"
#include "fsdp/memory/accumulate.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { N_RANKS = 8, N_PARAMS = 4, MAX_ELEMENTS = 40, MAX_BACKWARDS = 9, N_OTHER = 256 };

/* ---- the loops --------------------------------------------------------------------------- */

static void check_loops(hp_dtype dtype, uint64_t n) {
    const hp_dtype sum_dtype = dtype == HP_FP64 ? HP_FP64 : HP_FP32;
    enum { MAX = 1000 };
    static _Alignas(64) unsigned char sum[MAX * 8], grad[MAX * 8], wide[MAX * 8], out[MAX * 8];
    uint64_t first;
    oracle_fill(sum_dtype, sum, n, 1);
    oracle_fill(dtype, grad, n, 2);
    assert_int_equal(hpi_convert(grad, dtype, wide, sum_dtype, n), HP_OK);
    const void *const both[] = {sum, wide};
    oracle_reduce(sum_dtype, sum_dtype, HP_SUM, both, 2, out, n);
    hpi_accumulate(sum, grad, dtype, n);
    assert_true(oracle_same(sum_dtype, sum, out, n, &first));
    oracle_fill(sum_dtype, sum, n, 1);
    hpi_fold(grad, sum, dtype, n);
    if (dtype == HP_BF16)
        for (uint64_t k = 0; k < n; k++)
            ((uint16_t *)out)[k] = oracle_to_bf16(((float *)out)[k]);
    assert_true(oracle_same(dtype, grad, out, n, &first));
}

static void test_loops(void **state) {
    (void)state;
    static const uint64_t counts[] = {0, 1, 7, 16, 63, 1000};
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_BF16};
    for (int d = 0; d < 3; d++)
        for (int c = 0; c < 6; c++)
            check_loops(dtypes[d], counts[c]);
}

/* ---- a unit in passes -------------------------------------------------------------------- */

struct job {
    int n_replicas, n_shards;
    int n_passes, n_uses; /* backwards in each pass */
    int n_last;           /* backwards in the last pass; the unit is not touched when 0 */
    int param_dtype, reduce_dtype;
    int n_unused;  /* forwards in each pass that have no backward */
    bool is_exact; /* small integers instead of anything */
};

struct bench {
    const struct job *job;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit, *other; /* the other one leaves NaN where gradients are written */
    int rank;
    hp_dtype grad[N_PARAMS];
};

static const struct {
    const char *name;
    int n_dims;
    int64_t shape[2];
    hp_dtype dtype;
    int shard_dim;
} declared[N_PARAMS] = {{"w", 2, {5, 8}, HP_FP32, 0},
                        {"v", 1, {13, 0}, HP_BF16, 0},
                        {"inner", 2, {3, 8}, HP_FP32, 1},
                        {"scale", 1, {3, 0}, HP_FP64, HP_REPLICATED}};

static uint64_t count_of(int p) {
    return (uint64_t)(declared[p].shape[0] * (declared[p].n_dims == 2 ? declared[p].shape[1] : 1));
}

static void set_up(struct bench *b, hp_world *world, const struct job *job) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_param params[N_PARAMS];
    const int sizes[] = {job->n_replicas, job->n_shards};
    *b = (struct bench){.job = job, .rank = hp_world_rank(world)};
    config.param_dtype = job->param_dtype;
    config.reduce_dtype = job->reduce_dtype;
    config.prefetch = job->n_uses % 3;
    RANK_OK(hp_mesh_create(world, sizes, 2, &b->mesh));
    RANK_OK(hp_fsdp_create(b->mesh, &config, &b->fsdp));
    for (int p = 0; p < N_PARAMS; p++) {
        params[p] = (hp_param)HP_PARAM_INIT;
        params[p].name = declared[p].name;
        params[p].n_dims = declared[p].n_dims;
        memcpy(params[p].shape, declared[p].shape, sizeof declared[p].shape);
        params[p].dtype = declared[p].dtype;
        params[p].shard_dim = declared[p].shard_dim;
    }
    RANK_OK(hp_unit_create(b->fsdp, "unit", params, N_PARAMS, NULL, &b->unit));
    hp_param large = HP_PARAM_INIT;
    large.name = "large";
    large.n_dims = 1;
    large.shape[0] = N_OTHER;
    RANK_OK(hp_unit_create(b->fsdp, "other", &large, 1, NULL, &b->other));
    for (int p = 0; p < N_PARAMS; p++) {
        hp_dtype data;
        RANK_OK(hp_param_dtypes(b->unit, p, &data, &b->grad[p]));
    }
    RANK_OK(hp_fsdp_commit(b->fsdp));
}

static void tear_down(struct bench *b) {
    hp_fsdp_destroy(b->fsdp);
    hp_mesh_destroy(b->mesh);
}

static void store(hp_dtype dtype, void *out, uint64_t k, float value) {
    if (dtype == HP_FP64)
        ((double *)out)[k] = (double)value;
    else if (dtype == HP_FP32)
        ((float *)out)[k] = value;
    else
        ((uint16_t *)out)[k] = oracle_to_bf16(value);
}

/* What rank writes for parameter p in its backward number `backward` of a step. */
static void fill_gradient(const struct bench *b, int rank, int backward, int p, void *out) {
    const uint64_t seed = (uint64_t)((rank * MAX_BACKWARDS + backward) * N_PARAMS + p + 1);
    const uint64_t n = count_of(p);
    oracle_fill(b->grad[p], out, n, seed);
    for (uint64_t k = 0; b->job->is_exact && k < n; k++)
        store(b->grad[p], out, k, (float)((seed * 7 + k) % 5) - 2.0F);
}

static void run_other(struct bench *b) {
    hp_dtype data, grad;
    RANK_OK(hp_param_dtypes(b->other, 0, &data, &grad));
    RANK_OK(hp_forward_begin(b->other));
    RANK_OK(hp_forward_end(b->other));
    RANK_OK(hp_backward_begin(b->other));
    memset(hp_param_grad(b->other, 0), 0xff, N_OTHER * hp_dtype_size(grad));
    RANK_OK(hp_backward_end(b->other));
}

static void run_backwards(struct bench *b, int n, int *backward) {
    for (int use = 0; use < n + b->job->n_unused; use++) {
        RANK_OK(hp_forward_begin(b->unit));
        RANK_OK(hp_forward_end(b->unit));
    }
    for (int use = 0; use < n; use++, ++*backward) {
        RANK_OK(hp_backward_begin(b->unit));
        for (int p = 0; p < N_PARAMS; p++)
            fill_gradient(b, b->rank, *backward, p, hp_param_grad(b->unit, p));
        RANK_OK(hp_backward_end(b->unit));
    }
}

static void evaluate(struct bench *b) {
    RANK_OK(hp_fsdp_begin(b->fsdp, HP_EVALUATE));
    for (int use = 0; use < 2; use++) {
        RANK_OK(hp_forward_begin(b->unit));
        RANK_OK(hp_forward_end(b->unit));
    }
    RANK_OK(hp_fsdp_end(b->fsdp));
}

/* Returns the number of backwards. An evaluation between two passes changes nothing. */
static int run_step(struct bench *b) {
    int backward = 0;
    for (int pass = 0; pass < b->job->n_passes; pass++) {
        const bool is_last = pass + 1 == b->job->n_passes;
        RANK_OK(hp_fsdp_begin(b->fsdp, is_last ? HP_SYNC : HP_NO_SYNC));
        run_other(b);
        run_backwards(b, is_last ? b->job->n_last : b->job->n_uses, &backward);
        RANK_OK(hp_fsdp_end(b->fsdp));
        if (!is_last)
            evaluate(b);
    }
    return backward;
}

/* ---- the oracle -------------------------------------------------------------------------- */

static double load(hp_dtype dtype, const void *data, uint64_t k) {
    if (dtype == HP_FP64)
        return ((const double *)data)[k];
    return dtype == HP_FP32 ? (double)((const float *)data)[k]
                            : (double)oracle_from_bf16(((const uint16_t *)data)[k]);
}

/* A rank's contribution: ((g0 + g1) + g2) + ..., in fp32 or fp64, rounded once. */
static void leaf_of(const struct bench *b, int rank, int n_backwards, int p, void *out) {
    static _Thread_local _Alignas(64) unsigned char grad[MAX_ELEMENTS * 8];
    double wide[MAX_ELEMENTS] = {0};
    for (int i = 0; i < n_backwards; i++) {
        fill_gradient(b, rank, i, p, grad);
        for (uint64_t k = 0; k < count_of(p); k++) {
            const double g = load(b->grad[p], grad, k);
            if (b->grad[p] == HP_FP64)
                wide[k] = i ? wide[k] + g : g;
            else
                wide[k] = i ? (double)((float)wide[k] + (float)g) : g;
        }
    }
    for (uint64_t k = 0; k < count_of(p); k++) {
        if (b->grad[p] == HP_FP64)
            ((double *)out)[k] = wide[k];
        else
            store(b->grad[p], out, k, (float)wide[k]);
    }
}

static void expect_same(const struct bench *b, int p, const hp_shard *shard, const void *grad,
                        const void *expected, uint64_t n) {
    char text[160];
    uint64_t first = 0;
    if (oracle_same(shard->dtype, grad, expected, n, &first))
        return;
    snprintf(text, sizeof text, "%s: element %llu of rows [%lld, %lld), %d x %d ranks, %d passes",
             declared[p].name, (unsigned long long)first, (long long)shard->begin,
             (long long)shard->end, b->job->n_replicas, b->job->n_shards, b->job->n_passes);
    ranks_fail(__FILE__, __LINE__, text, 0);
}

/* Where rows end a shard is padded to the size of the others, with zeros for ever. */
static void expect_zero_padding(const struct bench *b, int p, const hp_shard *shard) {
    const int64_t n_shards = b->job->n_shards;
    const int64_t chunk = (declared[p].shape[0] + n_shards - 1) / n_shards;
    const size_t row =
        (size_t)(declared[p].n_dims == 2 ? declared[p].shape[1] : 1) * hp_dtype_size(shard->dtype);
    const size_t end = (size_t)chunk * row;
    const unsigned char *grad = shard->grad;
    for (size_t k = (size_t)(shard->end - shard->begin) * row; k < end; k++)
        RANK_CHECK(grad[k] == 0);
}

/* Shards along dimension 1 hold a piece of each row. */
static void expect_shard(const struct bench *b, int p, const unsigned char *whole) {
    hp_shard shard;
    RANK_OK(hp_param_shard(b->unit, p, &shard));
    const size_t bytes = hp_dtype_size(shard.dtype);
    const bool is_inner = declared[p].shard_dim == 1;
    if (declared[p].shard_dim == 0)
        expect_zero_padding(b, p, &shard);
    const uint64_t row = declared[p].n_dims == 2 ? (uint64_t)declared[p].shape[1] : 1;
    const uint64_t n_pieces = is_inner ? (uint64_t)declared[p].shape[0] : 1;
    const uint64_t n = shard.n_elements / n_pieces, begin = (uint64_t)shard.begin;
    for (uint64_t i = 0; i < n_pieces; i++)
        expect_same(b, p, &shard, (const unsigned char *)shard.grad + i * n * bytes,
                    whole + (is_inner ? i * row + begin : begin * row) * bytes, n);
}

static void expect_gradients(const struct bench *b, int n_backwards) {
    for (int p = 0; p < N_PARAMS; p++) {
        _Alignas(64) unsigned char leaves[N_RANKS][MAX_ELEMENTS * 8], whole[MAX_ELEMENTS * 8];
        const void *in[N_RANKS];
        for (int rank = 0; rank < N_RANKS; rank++) {
            leaf_of(b, rank, n_backwards, p, leaves[rank]);
            in[rank] = leaves[rank];
        }
        const hp_dtype sum = b->grad[p] == HP_FP64 ? HP_FP64 : HP_FP32;
        oracle_reduce(b->grad[p], sum, HP_AVG, in, N_RANKS, whole, count_of(p));
        expect_shard(b, p, whole);
    }
}

static void oracle_body(hp_world *world, void *argument) {
    struct bench b;
    set_up(&b, world, argument);
    for (int step = 0; step < 3; step++)
        expect_gradients(&b, run_step(&b));
    tear_down(&b);
}

static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};

static void check_all_meshes(struct job job) {
    for (int m = 0; m < 4; m++) {
        job.n_replicas = meshes[m][0];
        job.n_shards = meshes[m][1];
        ranks_run(N_RANKS, RANKS_THREADS, oracle_body, &job);
    }
}

static void test_against_the_oracle(void **state) {
    (void)state;
    enum { OWN = HP_OWN_DTYPE };
    static const int dtypes[][2] = {
        {OWN, OWN}, {HP_BF16, HP_FP32}, {HP_FP32, HP_BF16}, {HP_BF16, OWN}};
    static const int counts[][3] = {{1, 1, 1}, {1, 2, 2}, {2, 1, 1}, {3, 1, 1},
                                    {3, 3, 3}, {2, 2, 0}, {3, 1, 2}};
    for (int c = 0; c < 7; c++) {
        const int *d = dtypes[c % 4], *e = dtypes[(c + 2) % 4];
        const struct job job = {.n_passes = counts[c][0],
                                .n_uses = counts[c][1],
                                .n_last = counts[c][2],
                                .param_dtype = d[0],
                                .reduce_dtype = d[1]};
        check_all_meshes(job);
        struct job other = job;
        other.n_unused = 1;
        other.param_dtype = e[0];
        other.reduce_dtype = e[1];
        check_all_meshes(other);
    }
}

/* ---- exact sums -------------------------------------------------------------------------- */

/* The sum over all backwards, written in one: the shards are the same bits. */
static void exact_body(hp_world *world, void *argument) {
    const struct job one = {.n_replicas = 2,
                            .n_shards = 4,
                            .n_passes = 1,
                            .n_uses = 1,
                            .n_last = 1,
                            .param_dtype = HP_OWN_DTYPE,
                            .reduce_dtype = HP_OWN_DTYPE,
                            .is_exact = true};
    struct bench many, single;
    set_up(&many, world, argument);
    set_up(&single, world, &one);
    const int n_backwards = run_step(&many);
    RANK_OK(hp_fsdp_begin(single.fsdp, HP_SYNC));
    RANK_OK(hp_forward_begin(single.unit));
    RANK_OK(hp_forward_end(single.unit));
    RANK_OK(hp_backward_begin(single.unit));
    for (int p = 0; p < N_PARAMS; p++)
        leaf_of(&single, single.rank, n_backwards, p, hp_param_grad(single.unit, p));
    RANK_OK(hp_backward_end(single.unit));
    RANK_OK(hp_fsdp_end(single.fsdp));
    for (int p = 0; p < N_PARAMS; p++) {
        hp_shard a, b;
        RANK_OK(hp_param_shard(many.unit, p, &a));
        RANK_OK(hp_param_shard(single.unit, p, &b));
        RANK_CHECK(memcmp(a.grad, b.grad, a.n_elements * hp_dtype_size(a.dtype)) == 0);
    }
    tear_down(&single);
    tear_down(&many);
}

static void test_exact_sums_do_not_show_the_passes(void **state) {
    (void)state;
    for (int n_passes = 1; n_passes <= 3; n_passes++) {
        struct job job = {.n_replicas = 2,
                          .n_shards = 4,
                          .n_passes = n_passes,
                          .n_uses = 2,
                          .n_last = 2,
                          .param_dtype = HP_OWN_DTYPE,
                          .reduce_dtype = HP_OWN_DTYPE,
                          .is_exact = true};
        ranks_run(N_RANKS, RANKS_THREADS, exact_body, &job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_against_the_oracle),
        cmocka_unit_test(test_exact_sums_do_not_show_the_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
