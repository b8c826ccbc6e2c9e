/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/die.c - the way out, memory, and the median, which every part of hpreport needs.
 */
#include "die.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void die(const char *format, ...) {
    va_list args;
    fputs("hpreport: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void *take(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p)
        die("expected memory for %zu elements of %zu bytes, there is none", n, size);
    return p;
}

void *grow(void *array, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity)
        return array;
    const size_t wanted = *capacity ? 2 * *capacity : 64;
    void *p = wanted <= SIZE_MAX / size ? realloc(array, wanted * size) : NULL;
    if (!p)
        die("expected memory for %zu elements of %zu bytes, there is none", wanted, size);
    *capacity = wanted;
    return p;
}

static int compare_u64(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

uint64_t median_of(uint64_t *values, size_t n) {
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, compare_u64);
    const uint64_t low = values[(n - 1) / 2], high = values[n / 2];
    return low + (high - low) / 2;
}
