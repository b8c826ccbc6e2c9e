/* SPDX-License-Identifier: Apache-2.0
 *
 * avx2.c - the loops with 32-byte vectors: AVX2 and F16C.
 */
#include "versions.h"

#ifdef __x86_64__
#ifndef __AVX2__
#error "expected the flags of AVX2, see CMakeLists.txt"
#endif

#include "rounded.h"
#include "winners.h"

const hpi_kernel_version hpi_kernels_avx2 = {"AVX2", kernels, rounding, fp8, &winners};
#endif
