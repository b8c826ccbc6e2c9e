/* SPDX-License-Identifier: Apache-2.0
 *
 * plain.c - the engine "plain": blocked loops, any layout, no generated code.
 *
 * Blocks of A and B are packed, row-major and widened to the type of the sums, and added into one
 * block of C, which is written once. An element of C is the sum over k in ascending order from
 * zero, each product and each sum rounded, then added to C when accumulating: the same bits
 * whatever the blocks, the vector width and the strides.
 */
#include "matmul.h"

#include "../base/base.h"

/* Of a block of C and of the inner index: a block of B stays in the second-level cache. */
enum { ROWS = 64, COLUMNS = 128, DEPTH = 128 };

/* The packed blocks, rows COLUMNS (a: DEPTH) apart, in floats or doubles. */
typedef struct blocks {
    _Alignas(64) unsigned char a[ROWS * DEPTH * sizeof(double)];
    _Alignas(64) unsigned char b[DEPTH * COLUMNS * sizeof(double)];
    _Alignas(64) unsigned char c[ROWS * COLUMNS * sizeof(double)];
} blocks;

/* Where element (i, j) of a matrix lies: data + i * row_step + j * column_step. */
typedef struct view {
    const void *data;
    hp_dtype dtype;
    int64_t row_step, column_step;
} view;

static view view_of(const void *data, hp_dtype dtype, int64_t stride, int is_transposed) {
    return (view){data, dtype, is_transposed ? 1 : stride, is_transposed ? stride : 1};
}

#define TYPE float
#define OF_TYPE HP_FP32
#define NAME(name) name##_fp32
#include "plain_type.h"
#undef TYPE
#undef OF_TYPE
#undef NAME

#define TYPE double
#define OF_TYPE HP_FP64
#define NAME(name) name##_fp64
#include "plain_type.h"
#undef TYPE
#undef OF_TYPE
#undef NAME

static hp_status plain_run(hp_matmul *matmul, const hp_matmul_args *p) {
    (p->dtype == HP_FP64 ? hpi_matmul_multiply_fp64 : hpi_matmul_multiply_fp32)(matmul->state, p);
    return HP_OK;
}

static void plain_close(hp_matmul *matmul) {
    hpi_free(matmul->state);
}

hp_status hpi_matmul_open_plain(hp_matmul *out_matmul) {
    blocks *state = hpi_alloc_aligned(64, sizeof *state);
    if (!state)
        return HP_ERR_MEMORY;
    *out_matmul = (hp_matmul){.size = sizeof *out_matmul,
                              .name = "plain",
                              .run = plain_run,
                              .close = plain_close,
                              .n_threads = 1,
                              .state = state};
    return HP_OK;
}
