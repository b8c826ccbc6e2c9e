/* SPDX-License-Identifier: Apache-2.0
 *
 * plain.c - the loops with what every processor of the architecture has.
 */
#include "rounded.h"
#include "versions.h"
#include "winners.h"

#ifdef __aarch64__
#define NAME "NEON"
#elif defined(__x86_64__)
#define NAME "SSE2"
#else
#define NAME "plain"
#endif

const hpi_kernel_version hpi_kernels_plain = {NAME, kernels, rounding, fp8, &winners};
