/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3.c - the whole model: gradients, first weights, batches, misuse.
 *
 * A directional derivative of the reference's loss, by central difference, must equal the inner
 * product of the direction with the model's reduced gradient; one random direction per tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fsdp/engine.h"
#include "qwen3_reference.h"

#include <malloc.h>

/* ---- gradients ---- */

static double random_unit(uint64_t *state) { /* in [-1, 1) */
    return 2 * hpi_random_unit(state) - 1;
}

/* d/dt loss(w + t direction) at 0 along a random direction of tensor i, against the gradient. */
static void check_tensor(network *net, const small *s, int i, double tolerance) {
    hp_shard shard;
    const small_param p = small_param_at(s->model, i);
    RANK_OK(hp_param_shard(p.unit, p.number, &shard));
    const float *grad = shard.grad;
    const double t = 1e-6;
    double loss[2], from_gradient = 0, squares = 0;
    double *there = malloc(net->n[i] * sizeof *there), *here = net->w[i];
    for (int side = 0; side < 2; side++) {
        uint64_t seed = (uint64_t)i + 11;
        for (size_t k = 0; k < net->n[i]; k++) {
            const double direction = random_unit(&seed);
            there[k] = here[k] + (side ? t : -t) * direction;
            from_gradient += side ? direction * (double)grad[k] : 0;
            squares += side ? (double)grad[k] * (double)grad[k] : 0;
        }
        net->w[i] = there;
        loss[side] = reference_loss(net, s->config, NULL);
    }
    net->w[i] = here;
    free(there);
    /* Along a direction of +-1 the derivative has the size of the gradient's norm. */
    const double difference = (loss[1] - loss[0]) / (2 * t), size = sqrt(squares / 3);
    const bool is_derivative =
        size > 0 && fabs(difference - from_gradient) < tolerance * size + 1e-9;
    if (!is_derivative)
        fprintf(stderr, "tensor %d: by difference %.9g, by gradient %.9g, of size %.3g\n", i,
                difference, from_gradient, size);
    RANK_CHECK(is_derivative);
}

static void gradients_body(hp_world *world, void *argument) {
    const small_config *config = argument;
    small s = small_begin(world, config);
    network net;
    network_read(&net, &s);
    const bool is_narrow = config->options.dtype == HP_BF16;
    const double loss = small_gradients(&s, 0), expected = reference_loss(&net, config, NULL);
    RANK_CHECK(fabs(loss - expected) < (is_narrow ? 1e-2 : 2e-6) * expected);
    for (int i = 0; i < small_n_params(s.model); i++)
        check_tensor(&net, &s, i, is_narrow ? 0.1 : 1e-4);
    network_free(&net, &s);
    small_end(&s);
}

static void gradients_are_derivatives(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (int n_kv = 1; n_kv <= 4; n_kv *= 2)
            for (int narrow = 0; narrow < 2; narrow++) {
                small_config c = small_config_init();
                c.options.batch = 3;
                c.model.tie_word_embeddings = tied;
                c.model.num_key_value_heads = n_kv;
                c.options.dtype = narrow ? HP_BF16 : HP_FP32;
                c.fsdp.param_dtype = c.options.dtype;
                c.fsdp.reduce_dtype = HP_FP32;
                ranks_run(1, RANKS_THREADS, gradients_body, &c);
            }
}

/* Gradients of the mean, times a weight. */
static void weight_body(hp_world *world, void *argument) {
    small_config config = small_config_init();
    small s = small_begin(world, &config);
    hp_shard shard;
    float whole[29 * 20];
    (void)argument;
    small_pass(&s, HP_SYNC, 0);
    RANK_OK(hp_param_shard(s.model->embed, 0, &shard));
    RANK_CHECK(shard.n_elements == 29 * 20);
    memcpy(whole, shard.grad, sizeof whole);
    config.n_accumulate = 4; /* the pass is weighted with a quarter */
    small_pass(&s, HP_SYNC, 0);
    RANK_OK(hp_param_shard(s.model->embed, 0, &shard));
    for (int k = 0; k < 29 * 20; k++)
        RANK_CHECK(fabsf(((const float *)shard.grad)[k] - whole[k] / 4) <=
                   1e-5F * fabsf(whole[k]) + 1e-9F);
    small_end(&s);
}

static void a_backward_is_weighted(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, weight_body, NULL);
}

/* ---- first weights ---- */

typedef struct first_job {
    small_config config;
    uint64_t digest; /* of rank 0 */
} first_job;

static void first_body(hp_world *world, void *argument) {
    first_job *job = argument;
    small s = small_begin(world, &job->config);
    const uint64_t digest = small_digest(&s, false);
    if (hp_world_rank(world) == 0)
        job->digest = digest;
    small_end(&s);
}

static uint64_t first_digest(int n_replicas, int n_shards, uint64_t seed) {
    first_job job = {.config = small_config_init()};
    job.config.n_replicas = n_replicas;
    job.config.n_shards = n_shards;
    job.config.options.seed = seed;
    ranks_run(n_replicas * n_shards, RANKS_THREADS, first_body, &job);
    return job.digest;
}

static void first_weights_do_not_depend_on_the_mesh(void **state) {
    (void)state;
    const uint64_t digest = first_digest(1, 1, 5);
    assert_int_equal(first_digest(1, 3, 5), digest);
    assert_int_equal(first_digest(2, 2, 5), digest);
    assert_int_equal(first_digest(4, 1, 5), digest);
    assert_int_not_equal(first_digest(1, 1, 6), digest);
}

/* Mean, deviation, skew and tails of what a tensor is filled with. */
static void first_weights_are_normal(void **state) {
    (void)state;
    enum { N = 200000 };
    static float values[N], again[1000];
    qwen3_first first = {7, 0.02};
    double moment[5] = {0};
    int n_beyond = 0;
    qwen3_fill_normal(&first, 0, N, values);
    for (int i = 0; i < N; i++) {
        const double z = (double)values[i] / 0.02;
        for (int m = 1; m <= 4; m++)
            moment[m] += pow(z, m) / N;
        n_beyond += fabs(z) > 3;
    }
    assert_true(fabs(moment[1]) < 0.01 && fabs(moment[2] - 1) < 0.02);
    assert_true(fabs(moment[3]) < 0.03 && fabs(moment[4] - 3) < 0.1);
    assert_in_range(n_beyond, N * 0.0021, N * 0.0033);
    qwen3_fill_normal(&first, 5000, 6000, again);
    assert_memory_equal(again, values + 5000, sizeof again);
}

static void names_body(hp_world *world, void *argument) {
    static const char *const layer[] = {
        "model.layers.1.input_layernorm.weight",  "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight",
        "model.layers.1.self_attn.o_proj.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.mlp.gate_proj.weight",    "model.layers.1.mlp.up_proj.weight",
        "model.layers.1.mlp.down_proj.weight"};
    static const int64_t shape[][2] = {{20, 0},  {24, 20}, {12, 20}, {12, 20}, {6, 0},  {6, 0},
                                       {20, 24}, {20, 0},  {36, 20}, {36, 20}, {20, 36}};
    const bool is_tied = argument != NULL;
    small_config config = small_config_init();
    config.model.tie_word_embeddings = is_tied;
    small s = small_begin(world, &config);
    const hp_unit *u = s.model->layers[1];
    RANK_CHECK(strcmp(hp_unit_name(u), "layer1") == 0);
    for (int j = 0; j < QWEN3_N_LAYER_PARAMS; j++) {
        RANK_CHECK(strcmp(u->params[j].name, layer[j]) == 0);
        RANK_CHECK(u->params[j].shape[0] == shape[j][0]);
        RANK_CHECK((u->params[j].n_dims == 1 ? 0 : u->params[j].shape[1]) == shape[j][1]);
    }
    u = s.model->embed;
    RANK_CHECK(strcmp(u->params[0].name, "model.embed_tokens.weight") == 0);
    RANK_CHECK((s.model->head == s.model->embed) == is_tied);
    u = s.model->head;
    RANK_CHECK(strcmp(u->params[s.model->head_norm].name, "model.norm.weight") == 0);
    RANK_CHECK(strcmp(u->params[s.model->head_w].name, "lm_head.weight") == 0);
    const uint64_t one_layer = 20 + 24 * 20 + 2 * 12 * 20 + 6 + 6 + 20 * 24 + 20 + 3 * 36 * 20;
    RANK_CHECK(qwen3_n_parameters(s.model) == 2 * one_layer + 20 + (is_tied ? 1 : 2) * 29 * 20);
    RANK_CHECK(qwen3_activation_bytes(s.model) > 7 * 29 * sizeof(float));
    small_end(&s);
}

static void names_and_shapes_are_hugging_faces(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, names_body, NULL);
    ranks_run(1, RANKS_THREADS, names_body, &(int){1});
}

/* ---- batches ---- */

/* Forward and backward over what the batch says. Returns the digest of the gradients. */
static uint64_t gradients_of(small *s, const qwen3_batch *batch, double *out_loss,
                             int64_t *out_n_targets) {
    RANK_OK(hp_fsdp_begin(s->fsdp, HP_SYNC));
    RANK_OK(qwen3_forward(s->model, batch, out_loss, out_n_targets));
    RANK_OK(qwen3_backward(s->model, 1));
    RANK_OK(hp_fsdp_end(s->fsdp));
    return small_digest(s, true);
}

static bool gradients_are_zero(const small *s) {
    for (int i = 0; i < small_n_params(s->model); i++) {
        hp_shard shard;
        const small_param p = small_param_at(s->model, i);
        RANK_OK(hp_param_shard(p.unit, p.number, &shard));
        for (uint64_t k = 0; k < shard.n_elements; k++)
            if (((const float *)shard.grad)[k] != 0)
                return false;
    }
    return true;
}

/* A batch without sequences, or without targets, has no loss and no gradient. */
static void empty_body(hp_world *world, void *argument) {
    small_config config = small_config_init();
    config.model.tie_word_embeddings = argument != NULL;
    config.options.recompute = 1;
    config.n_shards = 2;
    small s = small_begin(world, &config);
    double loss = 7;
    int64_t n_targets = 7;
    const qwen3_batch none = {NULL, NULL, 0, 7};
    (void)gradients_of(&s, &none, &loss, &n_targets);
    RANK_CHECK(loss == 0 && n_targets == 0 && gradients_are_zero(&s));
    const int32_t tokens[3] = {1, 2, 3}, ignored[3] = {-1, -100, -1};
    const qwen3_batch untold = {tokens, ignored, 1, 3};
    (void)gradients_of(&s, &untold, &loss, &n_targets);
    RANK_CHECK(loss == 0 && n_targets == 0 && gradients_are_zero(&s));
    small_end(&s);
}

static void without_targets_gradients_are_zero(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, empty_body, NULL);
    ranks_run(2, RANKS_THREADS, empty_body, &(int){1});
}

/* Rank 1 has nothing: the mean over ranks is half of what rank 0 alone has. */
static void one_sided_body(hp_world *world, void *argument) {
    uint64_t *digest = argument; /* of one rank with weight 1/2, to be found or to be met */
    small_config config = small_config_init();
    const int n_ranks = hp_world_size(world), rank = hp_world_rank(world);
    config.n_shards = n_ranks;
    small s = small_begin(world, &config);
    int32_t tokens[7], targets[7];
    double loss;
    int64_t n_targets;
    small_sample(&config, 0, 7, tokens, targets);
    const qwen3_batch batch = {tokens, targets, rank == 0, 7};
    RANK_OK(hp_fsdp_begin(s.fsdp, HP_SYNC));
    RANK_OK(qwen3_forward(s.model, &batch, &loss, &n_targets));
    RANK_OK(qwen3_backward(s.model, n_ranks == 1 ? 0.5 : 1));
    RANK_OK(hp_fsdp_end(s.fsdp));
    RANK_CHECK(n_targets == (rank == 0 ? 6 : 0));
    const uint64_t mine = small_digest(&s, true);
    if (n_ranks == 1)
        *digest = mine;
    else
        RANK_CHECK(mine == *digest);
    small_end(&s);
}

static void a_rank_may_have_no_sequences(void **state) {
    (void)state;
    uint64_t digest = 0;
    ranks_run(1, RANKS_THREADS, one_sided_body, &digest);
    ranks_run(2, RANKS_THREADS, one_sided_body, &digest);
}

/* A short batch is what a model of that size makes of it. */
static void short_body(hp_world *world, void *argument) {
    uint64_t *digest = argument;
    small_config config = small_config_init();
    if (*digest) {
        config.options.batch = 3;
        config.options.seq = 12;
        config.options.recompute = 1;
    } else {
        config.options.batch = 2;
        config.options.seq = 5;
    }
    small s = small_begin(world, &config);
    int32_t tokens[10], targets[10];
    double loss;
    int64_t n_targets;
    small_sample(&config, 0, 5, tokens, targets);
    small_sample(&config, 1, 5, tokens + 5, targets + 5);
    const qwen3_batch batch = {tokens, targets, 2, 5};
    const uint64_t mine = gradients_of(&s, &batch, &loss, &n_targets);
    RANK_CHECK(n_targets == 8);
    RANK_CHECK(!*digest || mine == *digest);
    *digest = mine;
    small_end(&s);
}

static void a_batch_may_be_shorter(void **state) {
    (void)state;
    uint64_t digest = 0;
    ranks_run(1, RANKS_THREADS, short_body, &digest);
    ranks_run(1, RANKS_THREADS, short_body, &digest);
}

static void logits_body(hp_world *world, void *argument) {
    (void)argument;
    small_config config = small_config_init();
    small s = small_begin(world, &config);
    network net;
    int32_t tokens[7], targets[7];
    double loss, expected[7 * 29];
    int64_t n_targets;
    small_sample(&config, 0, 7, tokens, targets);
    network_read(&net, &s);
    (void)reference_loss(&net, &config, expected);
    const qwen3_batch batch = {tokens, NULL, 1, 7};
    RANK_CHECK(qwen3_logits(s.model) == NULL);
    RANK_OK(hp_fsdp_begin(s.fsdp, HP_EVALUATE));
    RANK_OK(qwen3_forward(s.model, &batch, &loss, &n_targets));
    RANK_OK(hp_fsdp_end(s.fsdp));
    RANK_CHECK(loss == 0 && n_targets == 0);
    for (int i = 0; i < 7 * 29; i++)
        RANK_CHECK(fabs((double)qwen3_logits(s.model)[i] - expected[i]) < 1e-4);
    RANK_FAILS(qwen3_backward(s.model, 1), HP_ERR_STATE); /* there were no targets */
    small_pass(&s, HP_SYNC, 0);
    RANK_CHECK(qwen3_logits(s.model) == NULL);
    network_free(&net, &s);
    small_end(&s);
}

static void logits_are_those_of_the_reference(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, logits_body, NULL);
}

#ifndef HP_PLAIN_KERNELS /* a sanitizer's allocator does not count */
static void steps_take_no_memory_body(hp_world *world, void *argument) {
    (void)argument;
    small_config config = small_config_init();
    config.fsdp.executor = HP_EXECUTOR_INLINE;
    config.matmul = "plain";
    config.n_accumulate = 2;
    small s = small_begin(world, &config);
    for (int step = 0; step < 3; step++)
        small_step(&s, step);
    const size_t before = mallinfo2().uordblks, n_before = hpi_alloc_count();
    for (int step = 3; step < 6; step++)
        small_step(&s, step);
    RANK_CHECK(mallinfo2().uordblks == before && hpi_alloc_count() == n_before);
    small_end(&s);
}

static void steps_take_no_memory(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, steps_take_no_memory_body, NULL);
}
#endif

/* ---- misuse ---- */

static void bad_create_body(hp_world *world, void *argument) {
    (void)argument;
    small_config config = small_config_init();
    small s = small_begin(world, &config);
    hp_fsdp *fsdp;
    qwen3 *never = NULL;
    qwen3_options good = config.options, bad;
    RANK_OK(hp_fsdp_create(s.mesh, NULL, &fsdp));
    good.matmul = s.matmul;
    bad = good;
    bad.size = 8;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT, "OPTIONS_INIT");
    bad = good;
    bad.batch = 0;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT, "batch");
    bad = good;
    bad.batch = bad.seq = 30000;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT, "30000");
    bad = good;
    bad.seq = config.model.max_position_embeddings + 1;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT,
                 "max_position_embeddings");
    bad = good;
    bad.dtype = HP_FP16;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT, "fp16");
    bad = good;
    bad.matmul = NULL;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT, "hp_matmul");
    qwen3_config odd = config.model;
    odd.head_dim = 7;
    FAILS_SAYING(qwen3_create(fsdp, &odd, &good, &never), HP_ERR_ARGUMENT, "head_dim");
    RANK_FAILS(qwen3_create(NULL, &config.model, &good, &never), HP_ERR_ARGUMENT);
    RANK_FAILS(qwen3_create(fsdp, NULL, &good, &never), HP_ERR_ARGUMENT);
    RANK_FAILS(qwen3_create(fsdp, &config.model, NULL, &never), HP_ERR_ARGUMENT);
    RANK_FAILS(qwen3_create(fsdp, &config.model, &good, NULL), HP_ERR_ARGUMENT);
    bad = good; /* last, since the units are declared when it is noticed */
    bad.dtype = HP_BF16;
    FAILS_SAYING(qwen3_create(fsdp, &config.model, &bad, &never), HP_ERR_ARGUMENT,
                 "param_dtype, fp32, given bf16");
    RANK_CHECK(never == NULL);
    qwen3_destroy(NULL);
    hp_fsdp_destroy(fsdp);
    small_end(&s);
}

static void bad_batches_body(hp_world *world, void *argument) {
    (void)argument;
    small_config config = small_config_init();
    config.options.batch = 2;
    small s = small_begin(world, &config);
    int32_t tokens[14] = {0}, targets[14] = {0};
    double loss = 42;
    int64_t n = 42;
    const qwen3_batch good = {tokens, targets, 2, 7};
    RANK_OK(hp_fsdp_begin(s.fsdp, HP_EVALUATE));
    RANK_FAILS(qwen3_forward(NULL, &good, &loss, &n), HP_ERR_ARGUMENT);
    RANK_FAILS(qwen3_forward(s.model, NULL, &loss, &n), HP_ERR_ARGUMENT);
    RANK_FAILS(qwen3_forward(s.model, &good, NULL, &n), HP_ERR_ARGUMENT);
    RANK_FAILS(qwen3_forward(s.model, &good, &loss, NULL), HP_ERR_ARGUMENT);
    const qwen3_batch bad[] = {{tokens, targets, 3, 7},
                               {tokens, targets, -1, 7},
                               {tokens, targets, 2, 8},
                               {tokens, targets, 2, 0},
                               {NULL, targets, 2, 7}};
    for (int i = 0; i < 5; i++)
        RANK_FAILS(qwen3_forward(s.model, &bad[i], &loss, &n), HP_ERR_ARGUMENT);
    tokens[9] = 29;
    FAILS_SAYING(qwen3_forward(s.model, &good, &loss, &n), HP_ERR_ARGUMENT,
                 "tokens from 0 to vocab_size - 1 = 28, given 29 at position 2 of sequence 1");
    tokens[9] = -1;
    FAILS_SAYING(qwen3_forward(s.model, &good, &loss, &n), HP_ERR_ARGUMENT, "given -1");
    tokens[9] = 0;
    targets[0] = 29;
    FAILS_SAYING(qwen3_forward(s.model, &good, &loss, &n), HP_ERR_ARGUMENT,
                 "targets from 0 (below: none) to vocab_size - 1 = 28, given 29 at position 0 of "
                 "sequence 0");
    RANK_CHECK(loss == 42 && n == 42);
    RANK_FAILS(qwen3_backward(s.model, 1), HP_ERR_STATE);
    RANK_FAILS(qwen3_backward(NULL, 1), HP_ERR_ARGUMENT);
    RANK_OK(hp_fsdp_end(s.fsdp));
    small_pass(&s, HP_SYNC, 0); /* all is well after it */
    RANK_FAILS(qwen3_backward(s.model, 1), HP_ERR_STATE);
    RANK_FAILS(qwen3_backward(s.model, NAN), HP_ERR_ARGUMENT);
    small_end(&s);
}

static void misuse_is_refused_before_anything_is_touched(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, bad_create_body, NULL);
    ranks_run(1, RANKS_THREADS, bad_batches_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_derivatives),
        cmocka_unit_test(a_backward_is_weighted),
        cmocka_unit_test(first_weights_do_not_depend_on_the_mesh),
        cmocka_unit_test(first_weights_are_normal),
        cmocka_unit_test(names_and_shapes_are_hugging_faces),
        cmocka_unit_test(without_targets_gradients_are_zero),
        cmocka_unit_test(a_rank_may_have_no_sequences),
        cmocka_unit_test(a_batch_may_be_shorter),
        cmocka_unit_test(logits_are_those_of_the_reference),
#ifndef HP_PLAIN_KERNELS
        cmocka_unit_test(steps_take_no_memory),
#endif
        cmocka_unit_test(misuse_is_refused_before_anything_is_touched),
    };
    return cmocka_run_group_tests_name("qwen3", tests, NULL, NULL);
}
