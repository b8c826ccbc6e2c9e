/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_tensor.c - ranks that compute the same samples together are one rank that is alone.
 *
 * One rank takes all samples of a step by itself. Any other arrangement (replicas, shards, tensor
 * groups) of the same samples must come to its loss and its gradients, up to the order of sums.
 * Sizes are odd: tokens and columns that the ranks do not divide.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "small_qwen3.h"

#include <math.h>

enum { GLOBAL = 12, MOST_PARAMS = 32, MOST_ELEMENTS = 1200, N_STEPS = 8 };

/* What a step has left, of all ranks: they are threads and write their own shards. */
typedef struct outcome {
    float grads[MOST_PARAMS][MOST_ELEMENTS];
    double loss[N_STEPS];
} outcome;

typedef struct job {
    small_config config;
    int n_steps; /* 0: gradients alone */
    outcome *out;
} job;

static small_config tensor_config(void) {
    small_config c = small_config_init();
    c.model.num_attention_heads = 8;
    c.model.num_key_value_heads = 4;
    c.model.intermediate_size = 37;
    return c;
}

static void keep_gradients(const small *s, outcome *out) {
    for (int i = 0; i < small_n_params(s->model); i++) {
        hp_shard shard;
        const small_param p = small_param_at(s->model, i);
        RANK_OK(hp_param_shard(p.unit, p.number, &shard));
        if (!shard.n_elements)
            continue;
        const int64_t inner = (int64_t)shard.n_elements / (shard.end - shard.begin);
        RANK_CHECK(i < MOST_PARAMS && shard.end * inner <= MOST_ELEMENTS);
        if (hp_mesh_coordinate(s->mesh, 0) == 0)
            memcpy(out->grads[i] + shard.begin * inner, shard.grad,
                   shard.n_elements * sizeof(float));
    }
}

static void body(hp_world *world, void *argument) {
    const job *j = argument;
    small s = small_begin(world, &j->config);
    for (int step = 0; step < j->n_steps; step++) {
        const double loss = small_step(&s, step);
        if (hp_world_rank(world) == 0)
            j->out->loss[step] = loss;
    }
    if (!j->n_steps) {
        const double loss = small_gradients(&s, 0);
        if (hp_world_rank(world) == 0)
            j->out->loss[0] = loss;
        keep_gradients(&s, j->out);
    }
    small_end(&s);
}

/* How the ranks are arranged; n_shards are all that are not replicas. */
typedef struct arrangement {
    int n_replicas, n_shards, n_tensor, n_accumulate;
} arrangement;

static job job_of(small_config config, arrangement a, int n_steps, outcome *out) {
    const int n_ranks = a.n_replicas * a.n_shards;
    config.n_replicas = a.n_replicas;
    config.n_shards = a.n_shards;
    config.n_tensor = a.n_tensor;
    config.n_accumulate = a.n_accumulate;
    config.options.batch = GLOBAL * (a.n_tensor ? a.n_tensor : 1) / n_ranks / a.n_accumulate;
    memset(out, 0, sizeof *out);
    return (job){config, n_steps, out};
}

static void run(small_config config, arrangement a, int n_steps, outcome *out) {
    job j = job_of(config, a, n_steps, out);
    ranks_run(a.n_replicas * a.n_shards, RANKS_THREADS, body, &j);
}

/* Of a parameter's gradient: the difference's norm over the norm. */
static double difference(const float *a, const float *b) {
    double squares = 0, of_difference = 0;
    for (int k = 0; k < MOST_ELEMENTS; k++) {
        const double d = (double)a[k] - (double)b[k];
        squares += (double)b[k] * (double)b[k];
        of_difference += d * d;
    }
    return squares > 0 ? sqrt(of_difference / squares) : of_difference;
}

static void check_outcome(const outcome *got, const outcome *expected, double tolerance) {
    assert_true(fabs(got->loss[0] - expected->loss[0]) <= tolerance * expected->loss[0]);
    for (int i = 0; i < MOST_PARAMS; i++)
        if (difference(got->grads[i], expected->grads[i]) > tolerance)
            fail_msg("parameter %d: its gradient differs by %g of its norm", i,
                     difference(got->grads[i], expected->grads[i]));
}

static const arrangement alone = {1, 1, 0, 1};
static outcome expected, got;

/* ---- gradients ---- */

static void gradients_are_those_of_a_rank_alone(void **state) {
    static const arrangement all[] = {{1, 1, 1, 1}, {1, 2, 2, 1}, {1, 4, 4, 1},
                                      {1, 4, 2, 1}, {2, 4, 2, 1}, {2, 2, 2, 3}};
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        small_config c = tensor_config();
        c.model.tie_word_embeddings = tied;
        run(c, alone, 0, &expected);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            c.fsdp.mode = (hp_mode)(((int)i + tied) % HP_AUTO);
            c.options.recompute = i % 2 == 1;
            run(c, all[i], 0, &got);
            check_outcome(&got, &expected, 3e-6);
        }
    }
}

/* bf16 operands, bf16 gradients of fp32 operands, and both. */
static void gradients_in_bf16_are_those_of_a_rank_alone(void **state) {
    static const hp_dtype dtypes[][2] = {
        {HP_BF16, HP_FP32}, {HP_FP32, HP_BF16}, {HP_BF16, HP_BF16}};
    static const arrangement groups = {2, 2, 2, 1}, four = {1, 4, 4, 1};
    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        small_config c = tensor_config();
        c.options.dtype = dtypes[i][0];
        c.fsdp.param_dtype = dtypes[i][0];
        c.fsdp.reduce_dtype = dtypes[i][1];
        run(c, alone, 0, &expected);
        run(c, i == 1 ? four : groups, 0, &got);
        check_outcome(&got, &expected, 2e-2);
    }
}

/* ---- training ---- */

static void losses_are_those_of_a_rank_alone(void **state) {
    static const arrangement all[] = {{1, 2, 2, 1}, {2, 4, 2, 1}, {2, 4, 4, 2}};
    (void)state;
    small_config c = tensor_config();
    run(c, alone, N_STEPS, &expected);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        run(c, all[i], N_STEPS, &got);
        for (int step = 0; step < N_STEPS; step++)
            assert_true(fabs(got.loss[step] - expected.loss[step]) <= 1e-5);
    }
    assert_true(expected.loss[N_STEPS - 1] < expected.loss[0] - 0.1);
}

/* ---- batches ---- */

/* A pass over n_sequences of seq; returns the loss of all ranks. */
static double pass_over(small *s, int n_sequences, int seq) {
    int32_t tokens[SMALL_MOST_TOKENS], targets[SMALL_MOST_TOKENS];
    double loss = -1;
    int64_t n = -1;
    for (int j = 0; j < n_sequences; j++)
        small_sample(s->config, j, seq, tokens + j * seq, targets + j * seq);
    const qwen3_batch batch = {tokens, targets, n_sequences, seq};
    RANK_OK(hp_fsdp_begin(s->fsdp, HP_SYNC));
    RANK_OK(qwen3_forward(s->model, &batch, &loss, &n));
    RANK_OK(qwen3_backward(s->model, 1));
    RANK_OK(hp_fsdp_end(s->fsdp));
    RANK_OK(hp_all_reduce(hp_world_group(s->world), &loss, &loss, 1, HP_FP64, HP_SUM));
    RANK_OK(hp_all_reduce(hp_world_group(s->world), &n, &n, 1, HP_INT64, HP_SUM));
    RANK_CHECK(n == (int64_t)n_sequences * (seq - 1));
    return loss;
}

/* None at all; one token, so that ranks have none; fewer than there is room for; all. */
static void batches_body(hp_world *world, void *argument) {
    static const int sizes[][2] = {{0, 7}, {1, 1}, {1, 3}, {2, 5}, {3, 7}};
    const job *j = argument;
    small s = small_begin(world, &j->config);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const double loss = pass_over(&s, sizes[i][0], sizes[i][1]);
        hp_shard shard;
        RANK_OK(hp_param_shard(s.model->layers[0], QWEN3_DOWN, &shard));
        for (uint64_t k = 0; k < shard.n_elements; k++)
            RANK_CHECK(sizes[i][1] > 1 && sizes[i][0] ? isfinite(((const float *)shard.grad)[k])
                                                      : ((const float *)shard.grad)[k] == 0);
        if (hp_world_rank(world) == 0)
            j->out->loss[i] = loss;
    }
    small_end(&s);
}

static void tokens_need_not_divide(void **state) {
    small_config c = tensor_config();
    (void)state;
    c.options.batch = 3;
    job j = {c, 0, &expected};
    ranks_run(1, RANKS_THREADS, batches_body, &j);
    j.out = &got;
    j.config.n_shards = j.config.n_tensor = 4;
    ranks_run(4, RANKS_THREADS, batches_body, &j);
    for (int i = 0; i < 5; i++)
        assert_true(fabs(got.loss[i] - expected.loss[i]) <= 1e-5 * expected.loss[i]);
}

/* ---- nodes ---- */

/* Shards go over nodes, tensor groups do not. */
static void tensor_groups_stand_on_nodes(void **state) {
    static const arrangement over_two = {1, 4, 2, 1};
    (void)state;
    run(tensor_config(), alone, 0, &expected);
    job j = job_of(tensor_config(), over_two, 0, &got);
    ranks_run_nodes(4, 2, body, &j);
    check_outcome(&got, &expected, 3e-6);
}

static void between_nodes_body(hp_world *world, void *argument) {
    const job *j = argument;
    const int32_t tokens[] = {1, 2, 3};
    const qwen3_batch batch = {tokens, tokens, 1, 3};
    double loss;
    int64_t n;
    small s = small_begin(world, &j->config);
    RANK_OK(hp_fsdp_begin(s.fsdp, HP_SYNC));
    FAILS_SAYING(qwen3_forward(s.model, &batch, &loss, &n), HP_ERR_UNSUPPORTED,
                 "expected every rank of");
    small_end(&s);
}

static void a_tensor_group_between_nodes_is_refused(void **state) {
    static const arrangement all = {1, 4, 4, 1};
    job j = job_of(tensor_config(), all, 0, &got);
    (void)state;
    ranks_run_nodes(4, 2, between_nodes_body, &j);
}

/* ---- generation ---- */

static void text_body(hp_world *world, void *argument) {
    const job *j = argument;
    const int32_t prompt[] = {3, 14, 15, 9};
    const qwen3_sampling sampling = {0.7, 0, 11};
    int32_t tokens[20];
    small s = small_begin(world, &j->config);
    RANK_OK(qwen3_generate(s.model, prompt, 4, &sampling, 20, tokens));
    for (int i = 0; i < 20 && hp_world_rank(world) == 0; i++)
        j->out->grads[0][i] = (float)tokens[i];
    small_end(&s);
}

static void text_is_that_of_a_rank_alone(void **state) {
    job j = {tensor_config(), 0, &expected};
    (void)state;
    j.config.options.generate = 1;
    ranks_run(1, RANKS_THREADS, text_body, &j);
    j.out = &got;
    j.config.n_shards = j.config.n_tensor = 4;
    ranks_run(4, RANKS_THREADS, text_body, &j);
    assert_memory_equal(got.grads[0], expected.grads[0], 20 * sizeof(float));
}

/* ---- misuse ---- */

static void misuse_body(hp_world *world, void *argument) {
    small_config c = tensor_config();
    qwen3_options options = c.options;
    qwen3 *model = NULL;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    (void)argument;
    RANK_OK(hp_mesh_create(world, (int[]){1, 3}, 2, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &c.fsdp, &fsdp));
    RANK_OK(hp_matmul_open("plain", 1, &options.matmul));
    options.tensor = hp_world_group(world);
    FAILS_SAYING(qwen3_create(fsdp, &c.model, &options, &model), HP_ERR_ARGUMENT,
                 "divide the 4 key-value heads, given 3");
    RANK_CHECK(!model);
    hp_fsdp_destroy(fsdp);
    hp_matmul_close(options.matmul);
    hp_mesh_destroy(mesh);
}

static void heads_that_the_ranks_do_not_divide_are_refused(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, misuse_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_a_rank_alone),
        cmocka_unit_test(gradients_in_bf16_are_those_of_a_rank_alone),
        cmocka_unit_test(losses_are_those_of_a_rank_alone),
        cmocka_unit_test(tokens_need_not_divide),
        cmocka_unit_test(tensor_groups_stand_on_nodes),
        cmocka_unit_test(a_tensor_group_between_nodes_is_refused),
        cmocka_unit_test(text_is_that_of_a_rank_alone),
        cmocka_unit_test(heads_that_the_ranks_do_not_divide_are_refused),
    };
    return cmocka_run_group_tests_name("qwen3_tensor", tests, NULL, NULL);
}
