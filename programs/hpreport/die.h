/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/die.h - what ends the program: a file that is not what it should be, no memory.
 *
 * hpreport reads, computes and writes once. Nothing is left to be cleaned up when it cannot go on,
 * so that no function below main has a failure to pass on.
 */
#ifndef HPREPORT_DIE_H
#define HPREPORT_DIE_H

#include <stddef.h>
#include <stdint.h>

/* "hpreport: " and the text on standard error, then exit status 1. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed, never NULL. */
void *take(size_t n, size_t size);

/* Room for one more at the end of an array of n elements; its capacity doubles. */
void *grow(void *array, size_t n, size_t *capacity, size_t size);

/* A list of times: sorted in place; 0 when there are none, of an even number the mean of the middle
 * two. */
uint64_t median_of(uint64_t *values, size_t n);

#endif
