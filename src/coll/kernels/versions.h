/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/versions.h - the loops of loops.h, compiled once per instruction set. The compiler's
 * flags for a file here stand in CMakeLists.txt, by its name.
 */
#ifndef HPI_VERSIONS_H
#define HPI_VERSIONS_H

#include "kernels.h"

#ifdef __x86_64__
extern const hpi_kernel_version hpi_kernels_avx512_bf16, hpi_kernels_avx512, hpi_kernels_avx2;
#endif
extern const hpi_kernel_version hpi_kernels_plain; /* NEON on aarch64 */

#endif
