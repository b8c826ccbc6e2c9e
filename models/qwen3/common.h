/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/common.h - what several files of the model say in one word.
 *
 * Of the folder alone. Arithmetic that is shared stands in math.h.
 */
#ifndef QWEN3_COMMON_H
#define QWEN3_COMMON_H

#include <hyperparallel/base.h>

/* Hand an error on to the caller. */
#define TRY(expression)                                                                            \
    do {                                                                                           \
        const hp_status try_status_ = (expression);                                                \
        if (try_status_ < 0)                                                                       \
            return try_status_;                                                                    \
    } while (0)

static inline size_t qwen3_larger(size_t a, size_t b) {
    return a > b ? a : b;
}

#endif
