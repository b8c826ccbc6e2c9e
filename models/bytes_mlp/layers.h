/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes_mlp/layers.h - forward and backward of the three kinds of units, on plain pointers.
 *
 * A row is one byte to be predicted; n_samples samples have n = n_samples * seq of them. A backward
 * writes every element of the weights' gradients and turns dh, the gradient of the layer's output,
 * into that of its input. Nothing here knows of ranks, so a test can check each gradient by itself.
 *
 * Sums over rows run in order within a sample, then over samples by the tree that the library uses
 * over ranks. So, for powers of two, the gradients of a global batch are the same bits however many
 * ranks share it.
 */
#ifndef BYTES_MLP_LAYERS_H
#define BYTES_MLP_LAYERS_H

#include <stddef.h>

enum { BYTES_MLP_VOCABULARY = 256 };

typedef struct bytes_mlp_sizes {
    size_t window; /* bytes that a prediction sees */
    size_t seq;    /* predictions in a sample */
    size_t width;  /* of the residual stream */
    size_t hidden; /* of a block */
} bytes_mlp_sizes;

/* Weights of a block, or their gradients. w1: [width][hidden], w2: [hidden][width]. */
typedef struct bytes_mlp_block {
    const float *w1, *b1, *w2, *b2;
} bytes_mlp_block;
typedef struct bytes_mlp_block_grad {
    float *w1, *b1, *w2, *b2;
} bytes_mlp_block_grad;

/* What a block's forward leaves to its backward. x: [n][width], scale: [n], a: [n][hidden]. */
typedef struct bytes_mlp_saved {
    float *x, *scale, *a;
} bytes_mlp_saved;

/* Room for one backward. d_wide: [n][max(hidden, 256)], d_x: [n][width], transposed: [width *
 * max(hidden, 256)], tree: [bytes_mlp_tree_levels(n_samples)][width * max(hidden, 256)]. */
typedef struct bytes_mlp_scratch {
    float *d_wide, *d_x, *transposed, *tree;
} bytes_mlp_scratch;
size_t bytes_mlp_tree_levels(size_t n_samples);

/* h[row] = sum over w of table[w][the byte w + 1 places before the row's].
 * table: [window][256][width]; samples: [n_samples][window + seq], whose last seq bytes are the
 * rows; h: [n_samples * seq][width]. */
void bytes_mlp_embed(const bytes_mlp_sizes *s, float *h, const float *table,
                     const unsigned char *samples, size_t n_samples);
void bytes_mlp_embed_grad(const bytes_mlp_sizes *s, float *d_table, const float *dh,
                          const unsigned char *samples, bytes_mlp_scratch scratch,
                          size_t n_samples);

/* h += relu(norm(h) w1 + b1) w2 + b2. */
void bytes_mlp_block_forward(const bytes_mlp_sizes *s, float *h, bytes_mlp_block w,
                             bytes_mlp_saved saved, size_t n_samples);
void bytes_mlp_block_backward(const bytes_mlp_sizes *s, float *dh, bytes_mlp_block w,
                              bytes_mlp_block_grad grad, bytes_mlp_saved saved,
                              bytes_mlp_scratch scratch, size_t n_samples);

/* probabilities = softmax(norm(h) w + b). Returns the sum over rows of -log p[target].
 * w: [width][256], x: [n][width] and scale: [n] are kept for the backward. */
double bytes_mlp_head_forward(const bytes_mlp_sizes *s, const float *h, const float *w,
                              const float *b, float *x, float *scale, float *probabilities,
                              const unsigned char *target, size_t n_samples);
/* The gradient of weight times the mean over rows; writes all of dh. `probabilities` is used up. */
void bytes_mlp_head_backward(const bytes_mlp_sizes *s, float *dh, const float *w, float *d_w,
                             float *d_b, const float *x, const float *scale, float *probabilities,
                             const unsigned char *target, double weight, bytes_mlp_scratch scratch,
                             size_t n_samples);

#endif
