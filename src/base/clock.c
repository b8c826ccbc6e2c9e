/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c - time and seeded random numbers.
 */
#include "base.h"

#include <errno.h>
#include <time.h>

uint64_t hpi_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void hpi_sleep_ns(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                         .tv_nsec = (long)(ns % UINT64_C(1000000000))};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR) {
    }
}

uint64_t hpi_random_next(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double hpi_random_unit(uint64_t *state) {
    return (double)(hpi_random_next(state) >> 11) * 0x1.0p-53;
}
