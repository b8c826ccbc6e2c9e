/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/first.c - the weights before the first step.
 *
 * A value is a hash of (seed, tensor, element) turned into a normal one, so every rank fills its
 * own shard without knowing the others', and every mesh starts from the same bits.
 * Source: Box and Muller 1958.
 */
#include "inside.h"

#include <math.h>

uint64_t qwen3_mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In (0, 1): a logarithm of it is finite. */
static double unit(uint64_t bits) {
    return ((double)(bits >> 11) + 0.5) * 0x1.0p-53;
}

void qwen3_fill_normal(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const qwen3_first *first = context;
    float *out = out_elements;
    for (uint64_t i = begin; i < end; i++) {
        const uint64_t bits = qwen3_mix(first->seed ^ qwen3_mix(i));
        const double radius = sqrt(-2 * log(unit(bits)));
        const double angle = 2 * 3.14159265358979323846 * unit(qwen3_mix(bits));
        out[i - begin] = (float)(first->deviation * radius * cos(angle));
    }
}

void qwen3_fill_ones(void *unused, uint64_t begin, uint64_t end, void *out_elements) {
    (void)unused;
    float *out = out_elements;
    for (uint64_t i = begin; i < end; i++)
        out[i - begin] = 1;
}
