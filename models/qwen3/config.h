/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/config.h - a model's sizes, as Hugging Face's config.json names them.
 *
 * Names and defaults are those of Transformers' Qwen3Config. Both of its spellings are read: with
 * rope_theta at the top (Transformers 4) and inside rope_parameters (5).
 */
#ifndef QWEN3_CONFIG_H
#define QWEN3_CONFIG_H

#include <hyperparallel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qwen3_config {
    size_t size; /* sizeof(qwen3_config) */
    int vocab_size, hidden_size, intermediate_size;
    int num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    int max_position_embeddings;
    int tie_word_embeddings; /* 1: the head's matrix is the embedding's */
    double rms_norm_eps, rope_theta;
    double initializer_range; /* standard deviation of first weights */
} qwen3_config;
#define QWEN3_CONFIG_INIT                                                                          \
    { sizeof(qwen3_config), 151936, 4096, 22016, 32, 32, 32, 128, 32768, 0, 1e-6, 10000.0, 0.02 }

/* Check the sizes against each other and against their bounds. Errors: ARGUMENT. */
HP_MUST_CHECK hp_status qwen3_config_check(const qwen3_config *config);

/* Read config.json. model_type, vocab_size, hidden_size, intermediate_size, num_hidden_layers,
 * num_attention_heads and num_key_value_heads must be there, though Transformers has defaults for
 * them: it takes 32 key-value heads where nobody said so, whatever the heads are. As there, null
 * means num_attention_heads. Another field that is missing takes Transformers' default. A field
 * that would change the model in a way that is not built (a rope scaling, attention_bias, a sliding
 * window, another activation or model_type) is refused; fields that do not bear on the numbers are
 * passed over, names that Transformers does not know are refused too. Errors: FILE, FORMAT,
 * UNSUPPORTED, each naming file and field. */
HP_MUST_CHECK hp_status qwen3_config_read(const char *path, qwen3_config *out_config);

/* The text of a config.json that Transformers 4.51 and later load. dtype: of the weights beside it.
 * Returns bytes without the NUL, or -1 when out_text[0, n_bytes) is too short. */
int qwen3_config_write(const qwen3_config *config, hp_dtype dtype, char *out_text, size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
