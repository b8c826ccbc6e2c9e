/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c - the program to read first: two layers trained over ranks, nothing hidden.
 *
 *     hprun -n 4 linear [DIRECTORY]        DIRECTORY: of the checkpoint; linear.checkpoint
 *
 * The ranks are one shard group (FSDP): each keeps a part of the weights, of their gradients and of
 * AdamW's state in fp32, and has a layer's whole weights, in bf16, only while it computes with
 * them. All ranks together take the same samples whatever their number, so the loss is the same up
 * to rounding. Started by itself, the program is one rank.
 */
#include <hyperparallel/hyperparallel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 16, STEPS = 100, SAMPLES = 32 /* of a step, on all ranks together */ };
enum { WEIGHT, BIAS, N_PARAMS }; /* a unit's parameters go by their place in its declaration */

/* Every call that can fail says so, and hp_last_error says why. A rank that ends here leaves its
 * peers nothing to wait for: their next call tells them that it has gone. */
static void need(int is_good) {
    if (is_good)
        return;
    fprintf(stderr, "linear: %s\n", hp_last_error());
    exit(1);
}
#define OK(call) need((call) >= 0)

/* The i-th number of a fixed sequence in [-1, 1), the same on every rank. */
static float noise(uint64_t i) {
    i = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    i = (i ^ (i >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(i >> 40) / 0x1p23F - 1;
}

/* First values: each rank is asked for the elements of its own shard alone. */
static void first_weights(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const uint64_t *seed = context;
    for (uint64_t i = begin; i < end; i++)
        ((float *)out_elements)[i - begin] = noise(*seed + i) / sqrtf(WIDTH);
}

/* y = W x + b. A layer is a unit: what is gathered and reduced together. Both parameters are fp32,
 * cut by rows; their names are those in checkpoints. `seed` is read by hp_fsdp_commit. */
static hp_unit *declare(hp_fsdp *fsdp, const char *unit_name, const char *weight_name,
                        const char *bias_name, uint64_t *seed) {
    hp_param params[N_PARAMS] = {[WEIGHT] = HP_PARAM_INIT, [BIAS] = HP_PARAM_INIT};
    params[WEIGHT].name = weight_name;
    params[WEIGHT].n_dims = 2;
    params[WEIGHT].shape[0] = WIDTH;
    params[WEIGHT].shape[1] = WIDTH;
    params[WEIGHT].fill = first_weights;
    params[WEIGHT].fill_context = seed;
    params[BIAS].name = bias_name; /* no first values: zeros */
    params[BIAS].n_dims = 1;
    params[BIAS].shape[0] = WIDTH;
    hp_unit *unit;
    OK(hp_unit_create(fsdp, unit_name, params, N_PARAMS, NULL, &unit));
    return unit;
}

/* A whole parameter, which is there between a begin and its end; bf16, as param_dtype says. */
static void read_param(const hp_unit *unit, int param, uint64_t count, float *out) {
    const void *data = hp_param_data(unit, param);
    need(data != NULL);
    OK(hp_convert(data, HP_BF16, out, HP_FP32, count));
}

static void forward(hp_unit *unit, const float x[WIDTH], float y[WIDTH]) {
    float w[WIDTH * WIDTH];
    OK(hp_forward_begin(unit)); /* waits for weights that were gathered meanwhile */
    read_param(unit, WEIGHT, WIDTH * WIDTH, w);
    read_param(unit, BIAS, WIDTH, y);
    for (int o = 0; o < WIDTH; o++)
        for (int i = 0; i < WIDTH; i++)
            y[o] += w[o * WIDTH + i] * x[i];
    OK(hp_forward_end(unit)); /* the whole weights may go */
}

static void backward(hp_unit *unit, const float x[WIDTH], const float dy[WIDTH], float dx[WIDTH]) {
    float w[WIDTH * WIDTH];
    OK(hp_backward_begin(unit));
    read_param(unit, WEIGHT, WIDTH * WIDTH, w);
    /* fp32, as reduce_dtype says. They hold anything at first: every element must be written. */
    float *dw = hp_param_grad(unit, WEIGHT), *db = hp_param_grad(unit, BIAS);
    need(dw && db);
    for (int i = 0; i < WIDTH; i++)
        dx[i] = 0;
    for (int o = 0; o < WIDTH; o++) {
        db[o] = dy[o];
        for (int i = 0; i < WIDTH; i++) {
            dw[o * WIDTH + i] = dy[o] * x[i];
            dx[i] += dy[o] * w[o * WIDTH + i];
        }
    }
    OK(hp_backward_end(unit)); /* in an HP_SYNC pass, sends the gradients on their way */
}

/* One microbatch, a single sample so that the code stays short: forward and backward. To be learnt:
 * the sine of the sum of two neighbours. Returns the sum of squared errors. Its gradient is divided
 * by the outputs and the microbatches of a step, so that what a rank adds up is a mean. */
static double train(hp_unit *hidden, hp_unit *out, int sample, int n_microbatches) {
    float x[WIDTH], h[WIDTH], y[WIDTH], dx[WIDTH], dh[WIDTH], dy[WIDTH];
    double loss = 0;
    for (int i = 0; i < WIDTH; i++)
        x[i] = noise((uint64_t)(sample * WIDTH + i));
    forward(hidden, x, h);
    for (int i = 0; i < WIDTH; i++)
        h[i] = tanhf(h[i]);
    forward(out, h, y);
    for (int i = 0; i < WIDTH; i++) {
        const float error = y[i] - sinf(x[i] + x[(i + 1) % WIDTH]);
        loss += error * error;
        dy[i] = 2 * error / (float)(WIDTH * n_microbatches);
    }
    backward(out, h, dy, dh);
    for (int i = 0; i < WIDTH; i++)
        dh[i] *= 1 - h[i] * h[i];
    backward(hidden, x, dh, dx);
    return loss;
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : "linear.checkpoint";
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_optimizer *adamw;
    OK(hp_world_create(NULL, &world)); /* who we are: hprun, torchrun's environment, or alone */
    const int rank = hp_world_rank(world), n_ranks = hp_world_size(world);
    if (SAMPLES % n_ranks != 0) {
        fprintf(stderr, "linear: expected a number of ranks that divides %d, given %d\n", SAMPLES,
                n_ranks);
        return 2;
    }

    /* One dimension: all ranks shard together. {2, 4} would be 2 replicas of 4 shards (HSDP). */
    OK(hp_mesh_create(world, (int[]){n_ranks}, 1, &mesh));
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.param_dtype = HP_BF16;  /* of hp_param_data: half the bytes to gather */
    config.reduce_dtype = HP_FP32; /* of hp_param_grad */
    OK(hp_fsdp_create(mesh, &config, &fsdp));

    /* Units in the order of the forward, then commit, which takes all memory. */
    uint64_t seeds[] = {UINT64_C(1) << 40, UINT64_C(2) << 40}; /* far from the samples */
    hp_unit *hidden = declare(fsdp, "hidden", "hidden.weight", "hidden.bias", &seeds[0]);
    hp_unit *out = declare(fsdp, "out", "out.weight", "out.bias", &seeds[1]);
    OK(hp_fsdp_commit(fsdp));
    OK(hp_optimizer_create(fsdp, "adamw", NULL, &adamw));

    const int n_microbatches = SAMPLES / n_ranks; /* of this rank in a step */
    for (int step = 1; step <= STEPS; step++) {
        const int first = (step - 1) * SAMPLES + rank * n_microbatches;
        double loss = 0, norm;
        for (int k = 0; k < n_microbatches; k++) {
            /* Gradients are added up on this rank; the last pass reduces them all, once. */
            OK(hp_fsdp_begin(fsdp, k + 1 < n_microbatches ? HP_NO_SYNC : HP_SYNC));
            loss += train(hidden, out, first + k, n_microbatches);
            OK(hp_fsdp_end(fsdp));
        }
        /* The shards hold the mean gradient over all ranks. */
        OK(hp_clip_grad_norm(fsdp, 1.0, 2.0, &norm));
        OK(hp_optimizer_step(adamw, 1e-2));
        OK(hp_all_reduce(hp_world_group(world), &loss, &loss, 1, HP_FP64, HP_SUM));
        if (rank == 0 && step % 10 == 0)
            printf("step %d: loss %.4f, gradient norm %.3f\n", step, loss / (SAMPLES * WIDTH),
                   norm);
    }
    OK(hp_checkpoint_save(fsdp, adamw, directory, STEPS)); /* any mesh loads it */

    /* Whoever creates destroys; the world comes last. */
    hp_optimizer_destroy(adamw);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
    hp_world_destroy(world);
    return 0;
}
