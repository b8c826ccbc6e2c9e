/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/weights/floats.h - between fp64, fp32, fp16 and bf16, each value rounded once.
 *
 * Files of others may hold fp16, which nothing else in the library computes with.
 */
#ifndef HPI_FLOATS_H
#define HPI_FLOATS_H

#include "../../base/base.h"

static inline bool hpi_dtype_is_convertible(hp_dtype dtype) {
    return dtype == HP_FP64 || dtype == HP_FP32 || dtype == HP_FP16 || dtype == HP_BF16;
}

/* To nearest even; what is too large becomes infinite, a NaN stays one. Any dtype to itself is a
 * copy. The memories must not overlap. Errors: UNSUPPORTED. */
hp_status hpi_floats_convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                             uint64_t count);

#endif
