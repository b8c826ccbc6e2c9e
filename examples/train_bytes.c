/* SPDX-License-Identifier: Apache-2.0
 *
 * train_bytes.c - the program to read second, after linear.c: a model that stands in files of its
 * own (models/bytes_mlp), trained over ranks on a text.
 *
 *     hprun -n 4 train_bytes data/genesis_to_deuteronomy.txt
 *
 * The ranks are one shard group (FSDP): each holds a quarter of the weights, of the gradients and
 * of AdamW's state, and trains on samples of its own. Started by itself it is one rank.
 */
#include <hyperparallel/hyperparallel.h>

#include "bytes_mlp/bytes_mlp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 100, WINDOW = 16, SEQ = 64, BATCH = 4, SAMPLE_BYTES = WINDOW + SEQ };

/* Every function that can fail returns a status, and hp_last_error says why. A rank that ends here
 * leaves its peers nothing to wait for: their next call tells them so. */
static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "train_bytes: %s: %s\n", hp_status_text(status), hp_last_error());
    exit(1);
}

static unsigned char *read_text(const char *path, size_t *out_bytes) {
    FILE *file = fopen(path, "rb");
    unsigned char *text = malloc(16U << 20);
    *out_bytes = file && text ? fread(text, 1, 16U << 20, file) : 0;
    if (*out_bytes < SAMPLE_BYTES) {
        fprintf(stderr, "train_bytes: expected a text of at least %d bytes, given %s\n",
                SAMPLE_BYTES, path);
        exit(2);
    }
    (void)fclose(file);
    return text;
}

/* This rank's samples of a step: each rank and step has its own. */
static void pick_samples(const unsigned char *text, size_t n_bytes, int step, const hp_world *world,
                         unsigned char *out_samples) {
    const uint64_t n_ranks = (uint64_t)hp_world_size(world), rank = (uint64_t)hp_world_rank(world);
    for (size_t j = 0; j < BATCH; j++) {
        const uint64_t number = ((uint64_t)step * n_ranks + rank) * BATCH + j;
        const size_t place = number * 2654435761U % (n_bytes - SAMPLE_BYTES + 1);
        memcpy(out_samples + j * SAMPLE_BYTES, text + place, SAMPLE_BYTES);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: train_bytes FILE\n");
        return 2;
    }
    size_t n_bytes;
    unsigned char *text = read_text(argv[1], &n_bytes);
    unsigned char samples[BATCH * SAMPLE_BYTES];

    /* Who we are: from hprun, or torchrun's environment; else a world of one rank. */
    hp_world *world;
    ok(hp_world_create(NULL, &world));

    /* One dimension: all ranks shard together. {2, 4} would be 2 replicas of 4 shards. */
    hp_mesh *mesh;
    ok(hp_mesh_create(world, (int[]){hp_world_size(world)}, 1, &mesh));
    hp_fsdp *fsdp;
    ok(hp_fsdp_create(mesh, NULL, &fsdp));

    /* The model declares its layers as units with hp_unit_create; commit takes all memory. */
    bytes_mlp_config config = BYTES_MLP_CONFIG_INIT;
    config.window = WINDOW;
    config.seq = SEQ;
    config.batch = BATCH;
    bytes_mlp *model;
    ok(bytes_mlp_create(fsdp, &config, &model));
    ok(hp_fsdp_commit(fsdp));
    hp_optimizer *adamw;
    ok(hp_optimizer_create(fsdp, "adamw", NULL, &adamw));

    for (int step = 0; step < STEPS; step++) {
        double loss = 0, norm = 0;
        pick_samples(text, n_bytes, step, world, samples);
        ok(hp_fsdp_begin(fsdp, HP_SYNC));
        /* Inside: hp_forward_begin waits for a unit's weights, which were gathered while the unit
         * before it computed; hp_backward_end sends its gradients on their way. */
        ok(bytes_mlp_forward(model, samples, BATCH, &loss));
        ok(bytes_mlp_backward(model, 1));
        ok(hp_fsdp_end(fsdp)); /* the mean gradient of all ranks is in the shards */
        ok(hp_clip_grad_norm(fsdp, 1.0, 2.0, &norm));
        ok(hp_optimizer_step(adamw, 3e-3));

        /* The loss of all ranks: a sum, then a mean over ranks and bytes. */
        ok(hp_all_reduce(hp_world_group(world), &loss, &loss, 1, HP_FP64, HP_SUM));
        if (hp_world_rank(world) == 0 && step % 10 == 9)
            printf("step %d: loss %.4f, gradient norm %.3f\n", step + 1,
                   loss / ((double)hp_world_size(world) * BATCH * SEQ), norm);
    }

    /* Whoever creates destroys; the world comes last. */
    hp_optimizer_destroy(adamw);
    hp_fsdp_destroy(fsdp);
    bytes_mlp_destroy(model);
    hp_mesh_destroy(mesh);
    hp_world_destroy(world);
    free(text);
    return 0;
}
