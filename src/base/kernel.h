/* SPDX-License-Identifier: Apache-2.0
 *
 * base/kernel.h - HPI_KERNEL stands before a plain loop that is worth a version per vector width.
 *
 * The loader picks the widest that the machine has. All give the same bits: nothing is contracted,
 * and no result of such a loop depends on the order of its additions. x86-64-v4 is AVX-512 with the
 * 16-bit elements that bf16 needs. clang 14 cannot clone static functions, other C libraries have
 * no way to choose, and a sanitizer's run time is not up when the loader does: there the loop is
 * compiled once.
 */
#ifndef HPI_KERNEL_H
#define HPI_KERNEL_H

#include <stdint.h> /* says which C library this is: __GLIBC__ */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) &&       \
    !defined(HP_PLAIN_KERNELS) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HPI_KERNEL __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define HPI_KERNEL
#endif

#endif
