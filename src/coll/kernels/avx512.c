/* SPDX-License-Identifier: Apache-2.0
 *
 * avx512.c - the loops with 64-byte vectors: AVX-512 with BW, DQ and VL.
 */
#include "versions.h"

#ifdef __x86_64__
#ifndef __AVX512BW__
#error "expected the flags of AVX-512, see CMakeLists.txt"
#endif

#include "fp8.h"
#include "loops.h"

const hpi_kernel_version hpi_kernels_avx512 = {"AVX-512", kernels, rounding, fp8};
#endif
