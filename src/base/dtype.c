/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.c - names and sizes of the element types.
 */
#include "base.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [HP_FP64] = {"fp64", 8}, [HP_FP32] = {"fp32", 4},   [HP_FP16] = {"fp16", 2},
    [HP_BF16] = {"bf16", 2}, [HP_INT64] = {"int64", 8}, [HP_INT32] = {"int32", 4},
    [HP_INT8] = {"int8", 1}, [HP_UINT8] = {"uint8", 1},
};
_Static_assert(sizeof dtypes / sizeof *dtypes == HPI_N_DTYPES, "every dtype has a row");

static bool is_known(hp_dtype dtype) {
    return (unsigned)dtype < HPI_N_DTYPES;
}

size_t hp_dtype_size(hp_dtype dtype) {
    return is_known(dtype) ? dtypes[dtype].bytes : 0;
}
const char *hp_dtype_name(hp_dtype dtype) {
    return is_known(dtype) ? dtypes[dtype].name : "?";
}

hp_status hp_dtype_parse(const char *name, hp_dtype *out_dtype) {
    for (int i = 0; name && out_dtype && i < HPI_N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *out_dtype = (hp_dtype)i;
            return HP_OK;
        }
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected fp64, fp32, fp16, bf16, int64, int32, int8 or uint8, given \"%s\"",
                    name ? name : "(null)");
}

bool hpi_dtype_is_float(hp_dtype dtype) {
    return dtype <= HP_BF16;
}

hp_dtype hpi_sum_dtype(hp_dtype dtype) {
    return dtype == HP_FP16 || dtype == HP_BF16 ? HP_FP32 : dtype;
}
