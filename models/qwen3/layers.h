/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/layers.h - forward and backward of embedding, layer and head, on plain pointers.
 *
 * A row is one token, n of them. Weights come in `dtype`, their gradients go in `grad_dtype`; h,
 * the residual stream, is fp32 [n][hidden] and is updated in place: by a forward with the layer's
 * output, by a backward from the gradient of the output to that of the input. A backward writes
 * every element of the weights' gradients, whatever n is. Matrices are [out][in], as Hugging Face
 * has them. Ranks that compute one batch together have the same weights, all of them, and rows of
 * their own: h holds this rank's tokens, and what it has no part in of a gradient is zero.
 */
#ifndef QWEN3_LAYERS_H
#define QWEN3_LAYERS_H

#include "attention.h"

#include <hyperparallel/world.h>

#include <stdbool.h>

/* The ranks that compute one batch together (tensor.h); alone without a group. */
typedef struct qwen3_tensor {
    hp_group *group;
    int n_ranks, rank;
} qwen3_tensor;

/* What does not change while a model lives. */
typedef struct qwen3_shape {
    size_t hidden, intermediate, n_heads, n_kv_heads, head_dim, vocab;
    float eps;
    hp_dtype dtype, grad_dtype; /* fp32 or bf16 each */
    hp_matmul *matmul;
    const float *cosines, *sines; /* [position][head_dim / 2] */
    qwen3_tensor tensor;
} qwen3_shape;

/* cosines, sines: [n_positions][head_dim / 2]; angle = position * theta^(-2i / head_dim), in fp64
 * until it is rounded. */
void qwen3_rope_fill(size_t n_positions, size_t head_dim, double theta, float *cosines,
                     float *sines);

typedef struct qwen3_layer_weights {
    const void *input_norm, *q, *k, *v, *q_norm, *k_norm, *o, *post_norm, *gate, *up, *down;
} qwen3_layer_weights;
typedef struct qwen3_layer_grads {
    void *input_norm, *q, *k, *v, *q_norm, *k_norm, *o, *post_norm, *gate, *up, *down;
} qwen3_layer_grads;

/* What a layer's forward leaves for its backward, and the scratch that all layers share: both are
 * laid out by layers.c in memory that the model takes (64-byte aligned). */
size_t qwen3_saved_bytes(const qwen3_shape *s, size_t n_sequences, size_t seq);
size_t qwen3_scratch_bytes(const qwen3_shape *s, size_t n_sequences, size_t seq);
/* What embedding and head need of it. */
size_t qwen3_ends_scratch_bytes(const qwen3_shape *s, size_t n);

/* h in, h out. saved: written whole. Forward's sums do not depend on the other sequences. */
HP_MUST_CHECK hp_status qwen3_layer_forward(const qwen3_shape *s, size_t n_sequences, size_t seq,
                                            const qwen3_layer_weights *w, float *h, void *saved,
                                            void *scratch);
/* dh: gradient of the layer's output in, of its input out. */
HP_MUST_CHECK hp_status qwen3_layer_backward(const qwen3_shape *s, size_t n_sequences, size_t seq,
                                             const qwen3_layer_weights *w,
                                             const qwen3_layer_grads *g, const void *saved,
                                             float *dh, void *scratch);

/* The first n tokens of one sequence: h [n][hidden] as in the forward, with the same bits; k_cache,
 * v_cache: in dtype, [positions][n_kv_heads * head_dim], rows [0, n) are written. saved and
 * scratch: as for a forward of n tokens; no backward can follow. */
HP_MUST_CHECK hp_status qwen3_layer_first(const qwen3_shape *s, size_t n,
                                          const qwen3_layer_weights *w, float *h, void *k_cache,
                                          void *v_cache, void *saved, void *scratch);
/* One more token at `position`: h [hidden], row `position` of the caches is written. scratch: as
 * for one sequence of position + 1 tokens. */
HP_MUST_CHECK hp_status qwen3_layer_one(const qwen3_shape *s, size_t position,
                                        const qwen3_layer_weights *w, float *h, void *k_cache,
                                        void *v_cache, void *scratch);

/* h[i] = table[tokens[i]]; the tokens were checked. */
void qwen3_embed_forward(const qwen3_shape *s, const void *table, const int32_t *tokens, size_t n,
                         float *h);
/* d_table [vocab][hidden] in grad_dtype, zeros where no token points; a row is summed in fp32 in
 * the order of the tokens and rounded once. */
void qwen3_embed_backward(const qwen3_shape *s, const int32_t *tokens, size_t n, const float *dh,
                          void *d_table, void *scratch);

/* Norm, head and loss. w: [vocab][hidden]. logits: [n][vocab] fp32, kept for the backward.
 * targets below 0 do not count. Returns the sum of the losses (in fp64) in *out_loss. targets NULL:
 * logits alone. saved: qwen3_head_saved_bytes. */
size_t qwen3_head_saved_bytes(const qwen3_shape *s, size_t n);
HP_MUST_CHECK hp_status qwen3_head_forward(const qwen3_shape *s, const void *norm, const void *w,
                                           const float *h, size_t n, const int32_t *targets,
                                           float *logits, void *saved, double *out_loss);
/* Gradient of `weight` times the sum of the losses. logits are overwritten; dh: [n][hidden] out. */
HP_MUST_CHECK hp_status qwen3_head_backward(const qwen3_shape *s, const void *norm, const void *w,
                                            void *d_norm, void *d_w, const int32_t *targets,
                                            size_t n, double weight, float *logits,
                                            const void *saved, float *dh, void *scratch);

#endif
