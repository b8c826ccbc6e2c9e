/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast_params.c - some ranks train while others evaluate what was trained so far: parameters
 * go down a tree of send and receive, and nobody stands still for them.
 *
 *     hprun -n 4 broadcast_params
 *
 * The first half of the ranks train together. Every few steps rank 0 copies the parameters and
 * sends the copy on a stream of its own, with no barrier; the others evaluate each version as it
 * comes, among themselves. Rank 0 asks for the losses at the end.
 */
#include <hyperparallel/hyperparallel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMS = 50000, VERSIONS = 5, STEPS = 4 /* of a version */ };

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "broadcast_params: %s\n", hp_last_error());
    exit(1);
}

/* To be learnt by parameter i: the mean over trainers of what each one wants, in [-1, 1). */
static float target(int rank, uint64_t i) {
    uint64_t x = ((uint64_t)rank * PARAMS + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(x >> 40) / 0x1p23F - 1;
}

/* A step, on every trainer: half the way along the mean gradient. */
static void train(hp_group *trainers, float *params, float *gradient) {
    const int rank = hp_group_rank(trainers);
    for (uint64_t i = 0; i < PARAMS; i++)
        gradient[i] = params[i] - target(rank, i);
    ok(hp_all_reduce(trainers, gradient, gradient, PARAMS, HP_FP32, HP_AVG));
    for (uint64_t i = 0; i < PARAMS; i++)
        params[i] -= gradient[i] / 2;
}

/* Rank r of the tree has children 2 r + 1 and 2 r + 2. */
static void send_down(hp_group *tree, float *params, hp_stream *stream) {
    const int first = 2 * hp_group_rank(tree) + 1;
    for (int child = first; child < first + 2 && child < hp_group_size(tree); child++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        call.what = HP_SEND;
        call.group = tree;
        call.in = params;
        call.count = PARAMS;
        call.rank = child;
        call.stream = stream;
        ok(hp_coll_run(&call));
    }
}

/* The largest difference of a version from plain loops that start from zeros, as the trainers do;
 * *out_loss is the mean squared way to the target. */
static double evaluate(const float *params, int version, int n_trainers, double *out_loss) {
    double largest = 0, loss = 0;
    for (uint64_t i = 0; i < PARAMS; i++) {
        double wanted = 0, plain = 0;
        for (int r = 0; r < n_trainers; r++)
            wanted += (double)target(r, i) / n_trainers;
        for (int step = 0; step < version * STEPS; step++)
            plain -= (plain - wanted) / 2;
        largest = fmax(largest, fabs(plain - (double)params[i]));
        loss += ((double)params[i] - wanted) * ((double)params[i] - wanted) / PARAMS;
    }
    *out_loss = loss;
    return largest;
}

/* Rank 0's half: versions leave on the stream while the next one is trained. The copy may be
 * written again when the last version has left. */
static void train_all(hp_group *trainers, hp_group *tree, float *params) {
    static float gradient[PARAMS], copy[PARAMS];
    hp_stream *stream;
    ok(hp_stream_create(NULL, &stream));
    for (int version = 1; version <= VERSIONS; version++) {
        for (int step = 0; step < STEPS; step++)
            train(trainers, params, gradient);
        if (!tree)
            continue;
        ok(hp_stream_synchronize(stream));
        memcpy(copy, params, sizeof copy);
        send_down(tree, copy, stream);
    }
    ok(hp_stream_synchronize(stream));
    hp_stream_destroy(stream);
}

/* An evaluator's half; it never meets a trainer. Returns the largest difference. */
static double evaluate_all(hp_group *evaluators, hp_group *tree, float *params, int n_trainers,
                           double *out_losses) {
    double largest = 0;
    for (int version = 1; version <= VERSIONS; version++) {
        ok(hp_recv(tree, params, PARAMS, HP_FP32, (hp_group_rank(tree) - 1) / 2));
        send_down(tree, params, NULL);
        largest = fmax(largest, evaluate(params, version, n_trainers, &out_losses[version - 1]));
    }
    ok(hp_all_reduce(evaluators, out_losses, out_losses, VERSIONS, HP_FP64, HP_AVG));
    return largest;
}

int main(void) {
    static float params[PARAMS];
    double losses[VERSIONS] = {0}, differs;
    hp_world *world;
    hp_group *half, *tree;
    ok(hp_world_create(NULL, &world));
    const int rank = hp_world_rank(world), n = hp_world_size(world), n_trainers = (n + 1) / 2;
    const int is_trainer = rank < n_trainers;
    hp_group *all = hp_world_group(world);
    ok(hp_group_split(all, is_trainer, rank, &half)); /* who works together */
    ok(hp_group_split(all, rank == 0 || !is_trainer ? 0 : -1, rank, &tree)); /* NULL for the rest */

    if (is_trainer) {
        train_all(half, tree, params);
        differs = evaluate(params, VERSIONS, n_trainers, &losses[VERSIONS - 1]);
    } else {
        differs = evaluate_all(half, tree, params, n_trainers, losses);
    }

    if (rank == 0 && n > 1)
        ok(hp_recv(tree, losses, VERSIONS, HP_FP64, 1));
    if (tree && hp_group_rank(tree) == 1)
        ok(hp_send(tree, losses, VERSIONS, HP_FP64, 0));
    if (rank == 0)
        printf("%d ranks trained, %d evaluated\n", n_trainers, n - n_trainers);
    for (int i = n > 1 ? 0 : VERSIONS - 1; rank == 0 && i < VERSIONS; i++)
        printf("version %d: loss %.2g\n", i + 1, losses[i]);

    ok(hp_all_reduce(all, &differs, &differs, 1, HP_FP64, HP_MAX)); /* the verdict of all */
    const int is_wrong = !(differs < 1e-5);
    if (rank == 0)
        printf("%s: largest difference from plain loops %.2g\n", is_wrong ? "wrong" : "right",
               differs);
    hp_group_destroy(tree);
    hp_group_destroy(half);
    hp_world_destroy(world);
    return is_wrong;
}
