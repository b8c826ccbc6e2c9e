/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3.h - the Qwen3 language model, trained through the C API.
 *
 *     h = table[token]                                    unit "embed"
 *     h += attention(norm(h)); h += swiglu(norm(h))       units "layer0" ...
 *     loss = -log softmax(norm(h) head^T)[target]         unit "head"; when tied: "embed" again
 *
 * Tied, the unit "embed" holds table, last norm and, as another name of the table, lm_head.weight;
 * it is used twice in a pass. Parameters have Hugging Face's names and
 * shapes (model.layers.0.self_attn.q_proj.weight is [out][in]), so hp_weights_load and _save speak
 * its format. Sums run in fp32; matrix products take their operands in the fsdp's param_dtype (fp32
 * or bf16); the residual stream, the norms, the softmax and the loss are fp32. All memory is taken
 * by create: a step takes none. A rank's result depends on its own samples alone.
 *
 * Ranks of a tensor group compute the same samples together: each has some of the tokens between
 * products and some of the heads and columns inside them. Weights are the fsdp's as ever, whose
 * ranks the group's are part of: whole while they are computed with, cut over all ranks else.
 * Source: Qwen Team 2025 (Qwen3 technical report); Transformers' modeling_qwen3 for the names.
 */
#ifndef QWEN3_H
#define QWEN3_H

#include "config.h"

#include <hyperparallel/fsdp.h>
#include <hyperparallel/matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qwen3 qwen3;

typedef struct qwen3_options {
    size_t size;       /* sizeof(qwen3_options) */
    int batch, seq;    /* sequences of one rank in one pass, tokens of one, at most */
    int recompute;     /* 1: keep a layer's input alone, compute the rest again in backward */
    uint64_t seed;     /* of the first weights, equal on all ranks */
    hp_dtype dtype;    /* of activations in products; must be the fsdp's param_dtype */
    hp_matmul *matmul; /* must outlive the model */
    int generate;      /* 1: take the memory that qwen3_generate needs (keys and values) */
    /* Ranks of one node that compute the same samples together; NULL: none. Their number divides
     * num_key_value_heads. Must outlive the model. */
    hp_group *tensor;
} qwen3_options;
#define QWEN3_OPTIONS_INIT                                                                         \
    { sizeof(qwen3_options), 8, 64, 0, 1, HP_FP32, 0, 0, 0 }

/* Take the activations' memory and declare the units, before hp_fsdp_commit; both must live until
 * the fsdp is destroyed. First weights: normal(0, initializer_range), norms 1, as Transformers; the
 * same bits in every mesh. Owns: the caller. Errors: ARGUMENT, MEMORY (saying how much), and those
 * of hp_unit_create; after one the fsdp may hold some of the units and can only be destroyed. */
HP_MUST_CHECK hp_status qwen3_create(hp_fsdp *fsdp, const qwen3_config *config,
                                     const qwen3_options *options, qwen3 **out_model);
/* Takes NULL. */
void qwen3_destroy(qwen3 *model);

/* What one rank computes on in a pass, or a tensor group: the same on all of its ranks. */
typedef struct qwen3_batch {
    const int32_t *tokens;  /* [n_sequences][seq]; must stay until the backward, as targets */
    const int32_t *targets; /* as tokens: the one to predict, below 0: none; NULL: logits alone */
    int n_sequences, seq;   /* 0 to options.batch, 1 to options.seq */
} qwen3_batch;

/* Forward through all units, inside hp_fsdp_begin and hp_fsdp_end. *out_loss is the sum over this
 * rank's targets, in nats; *out_n_targets how many there are. In a tensor group these are of its
 * tokens alone: as equal parts as can be, in the order of the ranks. Errors: ARGUMENT naming a
 * token that is not below vocab_size and where it stands, before anything is computed. Collective.
 */
HP_MUST_CHECK hp_status qwen3_forward(qwen3 *model, const qwen3_batch *batch, double *out_loss,
                                      int64_t *out_n_targets);

/* Backward through all units, once after a forward: the gradient of `weight` times the mean over
 * the batch's targets (weight 1/K where K passes are accumulated); zeros where there are none. In a
 * tensor group the sum over its ranks is that times their number, so that a mean over all ranks is
 * one over batches.
 * Errors: STATE without a forward with targets. Collective. */
HP_MUST_CHECK hp_status qwen3_backward(qwen3 *model, double weight);

/* Logits of the last forward, [n_sequences * seq][vocab_size], in a tensor group those of this
 * rank's tokens; valid until the next call; NULL once the backward has run. */
const float *qwen3_logits(const qwen3 *model);

/* Continue a prompt: every rank computes the same tokens. A pass of its own. top_k 0: all;
 * temperature 0: the likeliest. Positions end at options.seq: when they are used up, the last seq /
 * 2 tokens of the text so far are read again as the new beginning (also of a longer prompt).
 * out_tokens: [n_tokens]. Errors: STATE without options.generate, or when logits are not finite;
 * ARGUMENT. Collective. */
typedef struct qwen3_sampling {
    double temperature;
    int top_k;
    uint64_t seed;
} qwen3_sampling;
HP_MUST_CHECK hp_status qwen3_generate(qwen3 *model, const int32_t *prompt, int n_prompt,
                                       const qwen3_sampling *sampling, int n_tokens,
                                       int32_t *out_tokens);

/* Trainable numbers of the model over all ranks; bytes of this rank's activations. */
uint64_t qwen3_n_parameters(const qwen3 *model);
uint64_t qwen3_activation_bytes(const qwen3 *model);

#ifdef __cplusplus
}
#endif
#endif
