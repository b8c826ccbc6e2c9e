/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/kernel.h - HPI_KERNEL stands before a plain loop that is worth a version per vector width.
 *
 * The loader picks the widest that the machine has. All give the same bits: nothing is contracted,
 * and no result of such a loop depends on the order of its additions. clang 14 cannot clone static
 * functions, and a sanitizer's run time is not up when the loader chooses: there the loop is
 * compiled once.
 */
#ifndef HPI_KERNEL_H
#define HPI_KERNEL_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(HP_PLAIN_KERNELS)
#define HPI_KERNEL __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HPI_KERNEL
#endif

#endif
