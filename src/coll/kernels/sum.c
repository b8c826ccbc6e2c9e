/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/sum.c - the tree of the bit contract, for the rooms above.
 *
 * They sum what they have made themselves, in fp32, and round the result in their own way.
 */
#include "../coll.h"
#include "kernels.h"

void hpi_sum_fp32(const void *const *in, int n, float *out, uint64_t count, void *scratch) {
    const hpi_reduction r = {.kernel = hpi_kernel_of(HP_FP32),
                             .dtype = HP_FP32,
                             .out_dtype = HP_FP32,
                             .op = HP_SUM,
                             .n = n,
                             .scratch = scratch};
    void *const to = out;
    hpi_reduce_into(&r, in, &to, 1, count, false);
}

uint64_t hpi_sum_scratch_bytes(int n) {
    return hpi_scratch_bytes(n);
}
