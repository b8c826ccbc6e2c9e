/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/step_values.h - what hpperf step and hpperf-mpi step put into parameters and gradients.
 *
 * Whole numbers of at most 13 bits: sums are exact, and both programs must find the same. Elements
 * a power of two apart differ, so no block of a round size can be taken for another.
 */
#ifndef PERF_STEP_VALUES_H
#define PERF_STEP_VALUES_H

#include <stdint.h>

static inline uint32_t step_pattern(uint32_t i) {
    return (i + (i >> 10)) & 1023;
}

/* Element i of a parameter. */
static inline float step_param(int unit, int param, uint32_t i) {
    return (float)(step_pattern(i) + (uint32_t)(unit * 64 + param));
}

/* Of its gradient on a rank, and the mean over ranks: the sum is exact, divided once. */
static inline float step_grad(int unit, int param, int rank, uint32_t i) {
    return step_param(unit, param, i) + (float)(rank + 1);
}

static inline float step_grad_mean(int unit, int param, int n_ranks, uint32_t i) {
    const float n = (float)n_ranks;
    return (n * step_param(unit, param, i) + n * (n + 1) / 2) / n;
}

/* Elements of [begin, end) of a parameter that are not what they must be. */
static inline uint64_t step_count_params(const float *x, int unit, int param, uint32_t begin,
                                         uint32_t end) {
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += x[i - begin] != step_param(unit, param, i);
    return n;
}

static inline uint64_t step_count_grads(const float *x, int unit, int param, int n_ranks,
                                        uint32_t begin, uint32_t end) {
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; i++)
        n += x[i - begin] != step_grad_mean(unit, param, n_ranks, i);
    return n;
}

static inline void step_write_grads(float *x, int unit, int param, int rank, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = step_grad(unit, param, rank, i);
}

#endif
