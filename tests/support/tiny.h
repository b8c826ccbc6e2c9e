/* SPDX-License-Identifier: Apache-2.0
 *
 * tiny.h - a tiny model for tests of fsdp: L units of one square weight and one bias.
 *
 * h[i] += relu(sum_j w[i][j] h[j] + b[i]) * scale, scale 0.5 or gain * mask[i]; the loss is the
 * mean of h^2 over a batch that depends on (step, sample). All arithmetic is fp32 in a fixed order,
 * so a loss depends on nothing but weights and samples. A tied model runs through its first unit
 * once more at the end. A step is one pass, or several of which all but the last are HP_NO_SYNC.
 */
#ifndef TESTS_TINY_H
#define TESTS_TINY_H

#include <hyperparallel/hyperparallel.h>
#include <stdint.h>

enum { TINY_MAX_UNITS = 32, TINY_MAX_WIDTH = 64, TINY_MAX_BATCH = 64 };

typedef struct tiny_config {
    int n_units, width, global_batch, n_steps;
    hp_fsdp_config fsdp;
    int n_replicas, n_shards;
    const char *optimizer;
    double learning_rate;
    double max_norm;     /* 0: no clipping */
    uint64_t compute_ns; /* each forward and each backward of a unit sleeps so long */
    hp_dtype dtype;      /* of the weights */
    int is_mixed;        /* 1: every second weight in bf16, one frozen parameter, one replicated */
    int is_tied;         /* 1: the first unit is also the last layer */
    int n_passes;        /* of a step; they share the global batch */
} tiny_config;
#define TINY_CONFIG_INIT                                                                           \
    { 4, 10, 8, 20, HP_FSDP_CONFIG_INIT, 1, 1, "adamw", 1e-2, 0.0, 0, HP_FP32, 0, 0, 1 }

typedef struct tiny tiny;

/* A trained world: the losses, and the digest of all weights, gathered in row-major order. */
typedef struct tiny_result {
    double losses[128];
    uint64_t weights;   /* digest over all parameters; equal on all ranks */
    uint64_t gradients; /* digest over all gradient shards of every step, gathered */
    double norms[128];
    uint64_t step_ns; /* median over steps */
} tiny_result;

hp_status tiny_create(hp_world *world, const tiny_config *config, tiny **out_tiny);
hp_status tiny_step(tiny *t, int step, double *out_loss);
/* One pass of a step, its number `pass`; the loss over its samples. */
hp_status tiny_pass(tiny *t, int step, int pass, double *out_loss);
hp_status tiny_evaluate(tiny *t, int step, double *out_loss);
/* Digest of all weights (values as bytes, padding left out), gathered from the shards. */
hp_status tiny_digest(tiny *t, int of_gradients, uint64_t *out_digest);
hp_fsdp *tiny_fsdp(tiny *t);
hp_optimizer *tiny_optimizer(tiny *t);
void tiny_destroy(tiny *t);
/* create, n_steps steps, digest, destroy. */
hp_status tiny_train(hp_world *world, const tiny_config *config, tiny_result *out_result);

#endif
