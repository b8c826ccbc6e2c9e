/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/attention.h - causal attention with grouped queries, forward and backward.
 *
 * Per sequence and head the scores are computed in blocks of query rows against the keys up to the
 * block's last row, so memory is one block of scores and what lies above the diagonal is hardly
 * computed. The backward computes the scores again from the saved log-sum-exp.
 * Source: Dao et al. 2022 (FlashAttention), the recomputation; Ainslie et al. 2023 (grouped
 * queries).
 */
#ifndef QWEN3_ATTENTION_H
#define QWEN3_ATTENTION_H

#include <hyperparallel/matmul.h>

typedef struct qwen3_attention {
    size_t n_sequences, seq;
    size_t n_heads, n_kv_heads,
        head_dim;   /* head h reads key-value head h / (n_heads / n_kv_heads) */
    hp_dtype dtype; /* of q, k, v, out, d_out: fp32 or bf16 */
    hp_matmul *matmul;
    void *scratch; /* qwen3_attention_scratch_bytes, 64-byte aligned */
} qwen3_attention;

size_t qwen3_attention_scratch_bytes(const qwen3_attention *a);

/* Rows are tokens, n = n_sequences * seq. q, out: [n][n_heads * head_dim]; k, v: [n][n_kv_heads *
 * head_dim], all in `dtype`. out_lse: [n_heads][n], the log of each row's sum of exp(score), where
 * score = q . k / sqrt(head_dim). Errors: those of hp_matmul_run. */
HP_MUST_CHECK hp_status qwen3_attention_forward(const qwen3_attention *a, const void *q,
                                                const void *k, const void *v, void *out,
                                                float *out_lse);

/* d_out: as out, in `dtype`. d_q, d_k, d_v: as q, k, v but fp32; every element is written. */
HP_MUST_CHECK hp_status qwen3_attention_backward(const qwen3_attention *a, const void *q,
                                                 const void *k, const void *v, const void *out,
                                                 const float *lse, const void *d_out, float *d_q,
                                                 float *d_k, float *d_v);

/* One more row of one sequence: q, out [n_heads * head_dim] against n_keys cached rows of k and v
 * ([n_keys][n_kv_heads * head_dim]), the new one included. Plain loops. */
void qwen3_attention_one(const qwen3_attention *a, const void *q, const void *k, const void *v,
                         size_t n_keys, void *out);

#endif
