/* SPDX-License-Identifier: Apache-2.0
 *
 * models/kernel.h - MODEL_KERNEL stands before a function of plain loops: a copy per vector width.
 *
 * The loader chooses. x86-64-v4 is AVX-512 with the 16-bit elements that bf16 needs (avx512f alone
 * has none: loops that store bf16 take half as long again, or twice). Sanitizers cannot run the
 * choice, other C libraries have none, and clang 14 gives such a function another name in the
 * object file than its callers use: there the function is compiled once.
 */
#ifndef MODELS_KERNEL_H
#define MODELS_KERNEL_H

#include <stdint.h> /* says which C library this is: __GLIBC__ */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) &&       \
    !defined(HP_PLAIN_KERNELS) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MODEL_KERNEL __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define MODEL_KERNEL
#endif

#endif
