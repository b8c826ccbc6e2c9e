/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/inside.h - the model as its own files see it.
 *
 * qwen3.c makes it (units, memory), first.c its first weights, passes.c and generate.c compute with
 * it. Nothing here is known outside of the folder.
 */
#ifndef QWEN3_INSIDE_H
#define QWEN3_INSIDE_H

#include "common.h"
#include "layers.h"
#include "qwen3.h"
#include "tensor.h"

/* Parameters of a layer, in the order of their declaration. */
enum qwen3_layer_param {
    QWEN3_INPUT_NORM,
    QWEN3_Q,
    QWEN3_K,
    QWEN3_V,
    QWEN3_Q_NORM,
    QWEN3_K_NORM,
    QWEN3_O,
    QWEN3_POST_NORM,
    QWEN3_GATE,
    QWEN3_UP,
    QWEN3_DOWN,
    QWEN3_N_LAYER_PARAMS
};
enum { QWEN3_TABLE = 0 }; /* of the embedding's unit */

/* How a tensor's first values are made. */
typedef struct qwen3_first {
    uint64_t seed;
    double deviation;
} qwen3_first;

/* Element i of a normal distribution, of (seed, i) alone: a rank fills its own shard. */
void qwen3_fill_normal(void *first, uint64_t begin, uint64_t end, void *out_elements);
void qwen3_fill_ones(void *unused, uint64_t begin, uint64_t end, void *out_elements);
/* splitmix64's output function. Source: Steele, Lea, Flood, OOPSLA 2014. */
uint64_t qwen3_mix(uint64_t z);

/* One candidate of a draw. */
typedef struct qwen3_candidate {
    float logit;
    int32_t token;
} qwen3_candidate;

struct qwen3 {
    qwen3_config config;
    qwen3_options options;
    qwen3_shape shape;
    hp_fsdp *fsdp;
    hp_unit *embed, **layers, *head; /* head is embed when the two are tied */
    int head_norm, head_w;           /* numbers of the head's parameters in its unit */
    qwen3_first *first;              /* of every matrix, read during commit */
    uint64_t n_parameters;
    /* Memory of the passes, one piece; n, most_rows: this rank's of options.batch * options.seq
     * tokens, but 1 at least. */
    void *memory;
    size_t memory_bytes, saved_stride, most_rows;
    float *cosines, *sines; /* [seq][head_dim / 2] */
    float *h;               /* [n, to generate seq][hidden]; in the backward its gradient */
    float *inputs;          /* recompute: [layer][n][hidden] */
    unsigned char *saved;   /* [layer, or 1 with recompute][saved_stride] */
    float *logits;          /* [n][vocab] */
    void *head_saved, *scratch;
    /* Generation: keys and values, [layer][seq][n_kv_heads * head_dim] in dtype each. */
    unsigned char *keys, *values;
    int32_t *context;            /* [seq] tokens, the text so far as far as it is read */
    qwen3_candidate *candidates; /* [vocab] */
    /* The last forward. */
    qwen3_batch batch;
    qwen3_part own;    /* this rank's tokens of it */
    int64_t n_targets; /* of all of them */
    bool has_forward;  /* and no backward yet: logits are valid */
};

/* The same, of a rank that computes alone. */
static inline qwen3_shape qwen3_alone(qwen3_shape s) {
    s.tensor = (qwen3_tensor){.group = NULL};
    return s;
}

/* Valid between begin and end of the layer's unit. */
qwen3_layer_weights qwen3_weights_of(const hp_unit *layer);

#endif
