/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what the targets of libFuzzer share: the entry, a check that ends the process, and the
 * input taken as fields.
 *
 * An input that has come to its end reads as zeros.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
} fuzz_input;

static inline void fuzz_take(fuzz_input *input, void *out, size_t n_bytes) {
    const size_t n = n_bytes < input->left ? n_bytes : input->left;
    memset(out, 0, n_bytes);
    if (n)
        memcpy(out, input->at, n);
    input->at += n;
    input->left -= n;
}
static inline uint8_t fuzz_byte(fuzz_input *input) {
    uint8_t byte;
    fuzz_take(input, &byte, 1);
    return byte;
}

#endif
