/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/layout.h - arrays one after the other in one piece of memory, 64-byte aligned.
 *
 * A function lays out a struct of pointers by calling qwen3_take for each. It is run twice: without
 * a base, to learn how many bytes there are, and on the memory itself; so the two cannot differ.
 */
#ifndef QWEN3_LAYOUT_H
#define QWEN3_LAYOUT_H

#include <hyperparallel/base.h>

typedef struct qwen3_layout {
    char *base; /* 64-byte aligned, or NULL: bytes are counted, pointers are NULL */
    size_t n_bytes;
} qwen3_layout;

static inline void *qwen3_take(qwen3_layout *layout, hp_dtype dtype, size_t n_elements) {
    void *here = layout->base ? layout->base + layout->n_bytes : NULL;
    layout->n_bytes += (n_elements * hp_dtype_size(dtype) + 63) / 64 * 64;
    return here;
}

#endif
