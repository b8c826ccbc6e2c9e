/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bytes_mlp_training.c - the model trained over ranks.
 *
 * One global batch is shared by 1, 2 and 4 ranks in every mesh: the losses of all steps must be the
 * same bits, since sums over samples and sums over ranks are one tree. Evaluation must count each
 * sample once, whatever is left over for the last pass.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bytes_mlp/bytes_mlp.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <math.h>
#include <string.h>

enum { WINDOW = 4, SEQ = 8, SAMPLE_BYTES = WINDOW + SEQ, GLOBAL_BATCH = 8, STEPS = 12 };

typedef struct run {
    int n_replicas, n_shards;
    double expected[STEPS]; /* losses; NAN: none yet */
    double losses[STEPS];   /* of rank 0, when the ranks are threads */
} run;

/* Everything that stands between a world and a step. */
typedef struct training {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    bytes_mlp *model;
    hp_optimizer *optimizer;
} training;

static training training_begin(hp_world *world, const int sizes[2]) {
    training t;
    bytes_mlp_config config = BYTES_MLP_CONFIG_INIT;
    config.window = WINDOW;
    config.seq = SEQ;
    config.width = 12;
    config.hidden = 20;
    config.n_blocks = 2;
    config.batch = GLOBAL_BATCH / hp_world_size(world);
    RANK_OK(hp_mesh_create(world, sizes, 2, &t.mesh));
    RANK_OK(hp_fsdp_create(t.mesh, NULL, &t.fsdp));
    RANK_OK(bytes_mlp_create(t.fsdp, &config, &t.model));
    RANK_OK(hp_fsdp_commit(t.fsdp));
    RANK_OK(hp_optimizer_create(t.fsdp, "adamw", NULL, &t.optimizer));
    return t;
}

static void training_end(training *t) {
    hp_optimizer_destroy(t->optimizer);
    hp_fsdp_destroy(t->fsdp);
    bytes_mlp_destroy(t->model);
    hp_mesh_destroy(t->mesh);
}

/* Text that can be learnt: a period of seven letters, shifted from sample to sample. */
static void write_samples(int first, int n, unsigned char *out_samples) {
    for (int i = 0; i < n * SAMPLE_BYTES; i++)
        out_samples[i] =
            (unsigned char)("abcabde"[(i % SAMPLE_BYTES + first + i / SAMPLE_BYTES) % 7]);
}

static double train_step(training *t, hp_world *world, int step) {
    const int batch = GLOBAL_BATCH / hp_world_size(world);
    unsigned char samples[GLOBAL_BATCH * SAMPLE_BYTES];
    double loss = 0, norm = 0;
    write_samples(step * GLOBAL_BATCH + hp_world_rank(world) * batch, batch, samples);
    RANK_OK(hp_fsdp_begin(t->fsdp, HP_SYNC));
    RANK_OK(bytes_mlp_forward(t->model, samples, batch, &loss));
    RANK_OK(bytes_mlp_backward(t->model, 1));
    RANK_OK(hp_fsdp_end(t->fsdp));
    RANK_OK(hp_clip_grad_norm(t->fsdp, 1.0, 2.0, &norm));
    RANK_OK(hp_optimizer_step(t->optimizer, 1e-2));
    RANK_OK(hp_all_reduce(hp_world_group(world), &loss, &loss, 1, HP_FP64, HP_SUM));
    return loss / (GLOBAL_BATCH * SEQ);
}

static void train_body(hp_world *world, void *argument) {
    run *r = argument;
    training t = training_begin(world, (int[]){r->n_replicas, r->n_shards});
    for (int step = 0; step < STEPS; step++) {
        const double loss = train_step(&t, world, step);
        RANK_CHECK(isnan(r->expected[step]) || loss == r->expected[step]);
        if (hp_world_rank(world) == 0)
            r->losses[step] = loss;
    }
    training_end(&t);
}

static run one_rank(void) {
    run r = {.n_replicas = 1, .n_shards = 1};
    for (int step = 0; step < STEPS; step++)
        r.expected[step] = NAN;
    ranks_run(1, RANKS_THREADS, train_body, &r);
    memcpy(r.expected, r.losses, sizeof r.expected);
    return r;
}

static void a_global_batch_has_the_same_bits_on_any_ranks(void **state) {
    (void)state;
    static const int meshes[][2] = {{1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}};
    run r = one_rank();
    assert_true(fabs(r.losses[0] - log(256)) < 0.5);
    assert_true(r.losses[STEPS - 1] < r.losses[0] - 2);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        r.n_replicas = meshes[i][0];
        r.n_shards = meshes[i][1];
        ranks_run(r.n_replicas * r.n_shards, RANKS_THREADS, train_body, &r);
    }
}

static void processes_have_the_bits_of_threads(void **state) {
    (void)state;
    run r = one_rank();
    r.n_replicas = r.n_shards = 2;
    ranks_run(4, RANKS_PROCESSES, train_body, &r);
}

/* ---- evaluation ---- */

/* All sample counts up to three passes, against the mean over single samples. */
static void evaluate_body(hp_world *world, void *argument) {
    (void)argument;
    enum { MOST = 3 * GLOBAL_BATCH };
    unsigned char samples[MOST * SAMPLE_BYTES];
    double sum = 0, one = 0, all = 0;
    training t = training_begin(world, (int[]){1, hp_world_size(world)});
    write_samples(0, MOST, samples);
    for (int n = 1; n <= MOST; n++) {
        RANK_OK(bytes_mlp_evaluate(t.model, world, samples + (n - 1) * SAMPLE_BYTES, 1, &one));
        RANK_OK(bytes_mlp_evaluate(t.model, world, samples, n, &all));
        sum += one;
        RANK_CHECK(fabs(all - sum / n) < 1e-12 * all);
    }
    training_end(&t);
}

static void evaluation_counts_each_sample_once(void **state) {
    (void)state;
    for (int n = 1; n <= 4; n *= 2)
        ranks_run(n, RANKS_THREADS, evaluate_body, NULL);
}

/* An evaluation between two steps changes nothing of the training. */
static void evaluate_between_body(hp_world *world, void *argument) {
    const run *r = argument;
    unsigned char samples[5 * SAMPLE_BYTES];
    double ignored;
    training t = training_begin(world, (int[]){1, hp_world_size(world)});
    write_samples(3, 5, samples);
    for (int step = 0; step < STEPS; step++) {
        RANK_OK(bytes_mlp_evaluate(t.model, world, samples, 5, &ignored));
        RANK_CHECK(train_step(&t, world, step) == r->expected[step]);
    }
    training_end(&t);
}

static void evaluation_leaves_the_training_alone(void **state) {
    (void)state;
    run r = one_rank();
    ranks_run(2, RANKS_THREADS, evaluate_between_body, &r);
}

/* ---- misuse ---- */

static void misuse_body(hp_world *world, void *argument) {
    (void)argument;
    const unsigned char samples[SAMPLE_BYTES] = {0};
    double loss = 42;
    training t = training_begin(world, (int[]){1, 1});
    bytes_mlp *never = NULL;
    bytes_mlp_config bad = BYTES_MLP_CONFIG_INIT;
    bad.width = 0;
    RANK_FAILS(bytes_mlp_create(t.fsdp, &bad, &never), HP_ERR_ARGUMENT);
    bad.width = 64;
    bad.size = 3;
    RANK_FAILS(bytes_mlp_create(t.fsdp, &bad, &never), HP_ERR_ARGUMENT);
    RANK_FAILS(bytes_mlp_create(NULL, NULL, &never), HP_ERR_ARGUMENT);
    RANK_CHECK(never == NULL);
    RANK_OK(hp_fsdp_begin(t.fsdp, HP_EVALUATE));
    RANK_FAILS(bytes_mlp_forward(t.model, samples, GLOBAL_BATCH + 1, &loss), HP_ERR_ARGUMENT);
    RANK_FAILS(bytes_mlp_forward(t.model, NULL, 1, &loss), HP_ERR_ARGUMENT);
    RANK_FAILS(bytes_mlp_forward(t.model, samples, -1, &loss), HP_ERR_ARGUMENT);
    RANK_CHECK(loss == 42);
    RANK_OK(hp_fsdp_end(t.fsdp));
    RANK_FAILS(bytes_mlp_evaluate(t.model, world, samples, 0, &loss), HP_ERR_ARGUMENT);
    bytes_mlp_destroy(NULL);
    training_end(&t);
}

static void misuse_is_refused_before_anything_is_touched(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, misuse_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_global_batch_has_the_same_bits_on_any_ranks),
        cmocka_unit_test(processes_have_the_bits_of_threads),
        cmocka_unit_test(evaluation_counts_each_sample_once),
        cmocka_unit_test(evaluation_leaves_the_training_alone),
        cmocka_unit_test(misuse_is_refused_before_anything_is_touched),
    };
    return cmocka_run_group_tests_name("bytes_mlp_training", tests, NULL, NULL);
}
