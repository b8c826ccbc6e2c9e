/* SPDX-License-Identifier: Apache-2.0
 *
 * same_bits_model.h - a small network with a parameter of every sort, for tests of equal bits.
 *
 * Five units, the first of which is also the last layer. Every element x of a parameter feeds one
 * of WIDTH sums: z[c] += x * h[s]; then h[c] += z / (1 + |z|) / 2. The loss is the mean of h^2 over
 * one sample. All of it is fp32 in a fixed order, and plain functions of arrays: the serial
 * reference and the ranks differ in where the arrays come from, and in nothing else.
 */
#ifndef SAME_BITS_MODEL_H
#define SAME_BITS_MODEL_H

#include <hyperparallel/hyperparallel.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { N_ROWS = 19, N_UNITS = 5, N_LAYERS = N_UNITS + 1, WIDTH = 12, MAX_ELEMENTS = 640 };
enum { MAX_UNIT_PARAMS = 6, NO_ROW = -1 };

typedef struct model_row {
    const char *name;
    int unit, n_dims;
    int64_t shape[3];
    hp_dtype dtype;
    int shard_dim, is_frozen, is_ignored;
    int tied_to; /* the row of which this is another name */
} model_row;

/* Unevenly cut, with more and with fewer rows than ranks; cut inside; whole on every rank; scalar,
 * empty, frozen, ignored, tied; fp32, fp64 and bf16. Inner dimensions divide by 1, 2, 4 and 8. */
static const model_row rows[N_ROWS] = {
    {"a.weight", 0, 2, {10, 3}, HP_FP32, 0, 0, 0, NO_ROW},
    {"a.other_name", 0, 2, {10, 3}, HP_FP32, 0, 0, 0, 0},
    {"a.bias", 0, 1, {5}, HP_FP32, HP_REPLICATED, 0, 0, NO_ROW},
    {"a.gain", 0, 0, {0}, HP_FP64, 0, 0, 0, NO_ROW},
    {"b.half", 1, 3, {2, 16, 2}, HP_BF16, 1, 0, 0, NO_ROW},
    {"b.frozen", 1, 2, {4, 2}, HP_BF16, 0, 1, 0, NO_ROW},
    {"b.ignored", 1, 1, {3}, HP_FP32, 0, 0, 1, NO_ROW},
    {"b.double", 1, 1, {7}, HP_FP64, 0, 0, 0, NO_ROW},
    {"b.empty", 1, 2, {0, 4}, HP_FP32, 0, 0, 0, NO_ROW},
    {"b.rows", 1, 1, {31}, HP_FP32, 0, 0, 0, NO_ROW},
    {"c.inner", 2, 2, {4, 16}, HP_FP32, 1, 0, 0, NO_ROW},
    {"c.matrix", 2, 2, {13, 7}, HP_FP32, 0, 0, 0, NO_ROW},
    {"c.mask", 2, 1, {6}, HP_FP32, 0, 1, 0, NO_ROW},
    {"c.half", 2, 1, {9}, HP_BF16, 0, 0, 0, NO_ROW},
    {"d.frozen", 3, 1, {12}, HP_FP32, 0, 1, 0, NO_ROW},
    {"d.table", 3, 2, {3, 5}, HP_FP64, HP_REPLICATED, 1, 0, NO_ROW},
    {"e.matrix", 4, 2, {16, 8}, HP_FP32, 0, 0, 0, NO_ROW},
    {"e.half", 4, 2, {8, 8}, HP_BF16, HP_REPLICATED, 0, 0, NO_ROW},
    {"e.single", 4, 2, {1, 6}, HP_FP32, 0, 0, 0, NO_ROW},
};

/* How gradients are scaled: the sum divided by all ranks; multiplied as well; multiplied alone. */
static const struct {
    hp_reduce reduce;
    double factor;
} unit_scaling[N_UNITS] = {{HP_AVG, 1}, {HP_AVG, 1.5}, {HP_SUM, 0.1}, {HP_AVG, 1}, {HP_SUM, 1}};

static inline uint64_t row_count(int row) {
    uint64_t n = 1;
    for (int d = 0; d < rows[row].n_dims; d++)
        n *= (uint64_t)rows[row].shape[d];
    return n;
}

/* Where a row's elements begin among those of all rows. */
static inline uint64_t row_begin(int row) {
    uint64_t at = 0;
    for (int i = 0; i < row; i++)
        at += row_count(i);
    return at;
}

/* The number of a row among the parameters of its unit. */
static inline int row_param(int row) {
    int n = 0;
    for (int i = 0; i < row; i++)
        n += rows[i].unit == rows[row].unit;
    return n;
}

static inline bool row_is_trained(int row) {
    return !rows[row].is_frozen && !rows[row].is_ignored && rows[row].tied_to == NO_ROW;
}

/* Multiples of 2^-9 below 1/4: exact in every dtype but bf16, in which they are rounded. */
static inline double first_value(int row, uint64_t element) {
    return ((double)((element * 37 + (uint64_t)row * 11) % 251) - 125) / 512;
}

static inline float input_value(int sample, int c) {
    return (float)((sample * 7 + c * 13) % 29 - 14) / 16;
}

/* ---- the network ------------------------------------------------------------------------- */

/* All elements, row after row, and what a forward leaves for its backward. */
typedef struct network {
    float x[MAX_ELEMENTS], dx[MAX_ELEMENTS];
    float h[N_LAYERS + 1][WIDTH], z[N_LAYERS][WIDTH], dh[WIDTH];
} network;

static inline int layer_unit(int layer) {
    return layer % N_UNITS;
}

/* Where the elements begin that a row is a name of. */
static inline uint64_t owner_begin(int row) {
    return row_begin(rows[row].tied_to == NO_ROW ? row : rows[row].tied_to);
}

static inline bool row_is_used(int row, int layer) {
    return rows[row].unit == layer_unit(layer) && !rows[row].is_ignored;
}

static inline int target_of(int row, uint64_t i) {
    return (int)((i + (uint64_t)row) % WIDTH);
}

static inline int source_of(int row, uint64_t i) {
    return (int)((i * 5 + (uint64_t)row * 3 + 1) % WIDTH);
}

static inline void network_input(network *n, int sample) {
    for (int c = 0; c < WIDTH; c++)
        n->h[0][c] = input_value(sample, c);
}

static inline void network_forward(network *n, int layer) {
    float *z = n->z[layer];
    for (int c = 0; c < WIDTH; c++)
        z[c] = 0;
    for (int row = 0; row < N_ROWS; row++) {
        const float *x = n->x + owner_begin(row);
        for (uint64_t i = 0; row_is_used(row, layer) && i < row_count(row); i++)
            z[target_of(row, i)] += x[i] * n->h[layer][source_of(row, i)];
    }
    for (int c = 0; c < WIDTH; c++)
        n->h[layer + 1][c] = n->h[layer][c] + 0.5F * z[c] / (1 + fabsf(z[c]));
}

/* Returns the loss; its gradient is that of a mean over a step's passes. */
static inline double network_loss(network *n, int n_passes) {
    double loss = 0;
    for (int c = 0; c < WIDTH; c++) {
        const float h = n->h[N_LAYERS][c];
        loss += (double)h * h / WIDTH;
        n->dh[c] = 2 * h / (float)(WIDTH * n_passes);
    }
    return loss;
}

/* dx holds the gradients of the layer's unit, and zeros. */
static inline void network_backward(network *n, int layer) {
    float dz[WIDTH];
    for (int c = 0; c < WIDTH; c++) {
        const float root = 1 + fabsf(n->z[layer][c]);
        dz[c] = n->dh[c] * 0.5F / (root * root);
    }
    for (uint64_t i = 0; i < MAX_ELEMENTS; i++)
        n->dx[i] = 0;
    for (int row = 0; row < N_ROWS; row++) {
        const float *x = n->x + owner_begin(row);
        float *dx = n->dx + owner_begin(row);
        for (uint64_t i = 0; row_is_used(row, layer) && i < row_count(row); i++) {
            dx[i] += dz[target_of(row, i)] * n->h[layer][source_of(row, i)];
            n->dh[source_of(row, i)] += dz[target_of(row, i)] * x[i];
        }
    }
}

#endif
