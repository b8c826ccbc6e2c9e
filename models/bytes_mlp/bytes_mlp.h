/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes_mlp.h - a small language model over bytes, trained through the C API.
 *
 * It predicts a byte from the `window` bytes before it:
 *
 *     h = sum over w of table[w][the byte w + 1 places back]           unit "embedding"
 *     h += relu(norm(h) w1 + b1) w2 + b2, n_blocks times               units "block0" ...
 *     loss = -log softmax(norm(h) w + b)[the byte]                     unit "head"
 *
 * norm divides by the root of the mean square (no gain). Weights and arithmetic are fp32, the loss
 * is summed in fp64. Sums over samples use the library's tree over ranks: where the number of
 * ranks, batch and seq are powers of two, a global batch gives the same bits on any number of
 * ranks. All memory is taken by create; a step takes none. Source: Bengio et al. 2003 (a table of
 * bytes and a window); He et al. 2016 (residual blocks).
 */
#ifndef BYTES_MLP_H
#define BYTES_MLP_H

#include <hyperparallel/fsdp.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bytes_mlp bytes_mlp;

typedef struct bytes_mlp_config {
    size_t size;   /* sizeof(bytes_mlp_config) */
    int window;    /* bytes that a prediction sees, 1 to 1024 */
    int width;     /* of the residual stream, 1 to 8192 */
    int hidden;    /* of a block, 1 to 32768 */
    int n_blocks;  /* 1 to 256 */
    int seq;       /* bytes predicted in one sample, 1 to 65536 */
    int batch;     /* samples of one rank in one pass at most, 1 to 65536 */
    uint64_t seed; /* of the first weights, equal on all ranks */
} bytes_mlp_config;
#define BYTES_MLP_CONFIG_INIT                                                                      \
    { sizeof(bytes_mlp_config), 16, 128, 256, 6, 64, 8, 1 }

/* Take the activations' memory and declare the units, before hp_fsdp_commit; both must live until
 * the fsdp is destroyed. Owns: the caller. Errors: ARGUMENT (a size outside its bounds), MEMORY,
 * and those of hp_unit_create. */
HP_MUST_CHECK hp_status bytes_mlp_create(hp_fsdp *fsdp, const bytes_mlp_config *config,
                                         bytes_mlp **out_model);
/* Takes NULL. */
void bytes_mlp_destroy(bytes_mlp *model);

/* Forward through all units, inside hp_fsdp_begin and hp_fsdp_end.
 * samples: [n_samples][window + seq] bytes, of which the last seq are predicted; they must stay
 * until the backward. n_samples: 0 to batch. *out_loss is the sum over this rank's n_samples * seq
 * predictions, in nats. Collective. */
HP_MUST_CHECK hp_status bytes_mlp_forward(bytes_mlp *model, const unsigned char *samples,
                                          int n_samples, double *out_loss);

/* Backward through all units, once after a forward: the gradient of `weight` times the mean over
 * this rank's predictions (weight 1/K where K passes are accumulated). Collective. */
HP_MUST_CHECK hp_status bytes_mlp_backward(bytes_mlp *model, double weight);

/* The mean loss over all of samples, [n_samples][window + seq], which every rank holds and of which
 * each computes its part; the same bits on all ranks. A pass of its own: outside hp_fsdp_begin and
 * hp_fsdp_end. Collective over the world. */
HP_MUST_CHECK hp_status bytes_mlp_evaluate(bytes_mlp *model, hp_world *world,
                                           const unsigned char *samples, int n_samples,
                                           double *out_loss);

/* Trainable numbers of the model, over all ranks. */
uint64_t bytes_mlp_n_parameters(const bytes_mlp *model);
/* Bytes that create took on this rank: activations and room for the backward. */
uint64_t bytes_mlp_activation_bytes(const bytes_mlp *model);

#ifdef __cplusplus
}
#endif
#endif
