/* SPDX-License-Identifier: Apache-2.0
 *
 * avx512.c - the loops with 64-byte vectors: AVX-512 with BW, DQ and VL; and with AVX512_BF16,
 * where there is that, for sums of bf16.
 *
 * Its instruction rounds as floats.h does and keeps a NaN, but takes subnormals for zero: where one
 * lies among the results, the vector goes the other way.
 */
#include "versions.h"

#ifdef __x86_64__
#ifndef __AVX512BW__
#error "expected the flags of AVX-512, see CMakeLists.txt"
#endif

#include "rounded.h"
#include "winners.h"

#define BF16_TARGET __attribute__((target("avx512bf16")))

BF16_TARGET INLINE void store_bf16_rounded(unsigned char *to, acc a, bool streams) {
    enum { SUBNORMAL = 0x20 };
    static const uint16_t places[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __mmask16 is_subnormal = _mm512_fpclass_ps_mask((__m512)a.v, SUBNORMAL) |
                                   _mm512_fpclass_ps_mask((__m512)a.w, SUBNORMAL);
    if (__builtin_expect(is_subnormal != 0, false)) {
        store_bf16_pairs(to, a, streams);
        return;
    }
    const __m512i apart = (__m512i)_mm512_cvtne2ps_pbh((__m512)a.w, (__m512)a.v);
    const __m512i place = (__m512i)load((const unsigned char *)places);
    store(to, (vec)_mm512_permutexvar_epi16(place, apart), streams);
}

#undef LOOP_TARGET
#define LOOP_TARGET BF16_TARGET
#define BF16_ROUNDED                                                                               \
    { load_bf16_pairs, sum_fp32, divide_fp32, store_bf16_rounded, true, VECTOR / 2, 2, 2 }
SUM(bf16, rounded, BF16_ROUNDED)

#define BF16_ROW                                                                                   \
    {                                                                                              \
        .to_sum = ROW(bf16, fp32), .to_own = {sum_bf16_rounded, max_bf16_bf16, min_bf16_bf16},     \
        .merge = ROW(fp32, fp32), .merge_to_own = ROW(fp32, bf16)                                  \
    }
static const hpi_kernel bf16_kernels[HPI_N_DTYPES] = KERNELS(BF16_ROW);

const hpi_kernel_version hpi_kernels_avx512_bf16 = {"AVX-512, BF16", bf16_kernels, rounding, fp8,
                                                    &winners};
const hpi_kernel_version hpi_kernels_avx512 = {"AVX-512", kernels, rounding, fp8, &winners};
#endif
