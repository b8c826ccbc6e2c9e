/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/winners.h - who holds the value that won, a bit for each element, and what such bits
 * keep: the including file gets `winners`, a row for each size of elements.
 *
 * The inner loops run 64 times, as many as a word has bits, and the compiler makes vectors of them;
 * AVX-512 has the bits as masks. A value is its bits: -0 is not +0, and any NaN is a NaN.
 */
#ifndef HPI_WINNERS_H
#define HPI_WINNERS_H

#include "lanes.h"

enum { WORD = 64 };

#define ANY(bits) typedef uint##bits##_t __attribute__((aligned(1), may_alias)) any##bits;
ANY(8)
ANY(16)
ANY(32)
ANY(64)

#ifdef __AVX512BW__

/* `lanes` elements a vector; `set` is what intrinsics call a broadcast of one. */
#define WORDS(bits, lanes, set)                                                                    \
    INLINE uint64_t same_word_##bits(const any##bits *a, const any##bits *b,                       \
                                     uint##bits##_t infinity) {                                    \
        const __m512i magnitude = _mm512_##set((int##bits##_t)(UINT##bits##_MAX >> 1));            \
        const __m512i most = _mm512_##set((int##bits##_t)infinity);                                \
        uint64_t word = 0;                                                                         \
        for (int i = 0; i < WORD; i += lanes) {                                                    \
            const __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);            \
            const __m512i least = _mm512_min_epu##bits(_mm512_and_si512(x, magnitude),             \
                                                       _mm512_and_si512(y, magnitude));            \
            const uint64_t same =                                                                  \
                _mm512_cmpeq_epi##bits##_mask(x, y) | _mm512_cmpgt_epu##bits##_mask(least, most);  \
            word |= same << i;                                                                     \
        }                                                                                          \
        return word;                                                                               \
    }                                                                                              \
    INLINE void keep_word_##bits(uint64_t word, const any##bits *from, any##bits *to, int n) {     \
        const uint64_t there = n == WORD ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;                  \
        for (int i = 0; i < n; i += lanes) {                                                       \
            const __mmask##lanes in = (__mmask##lanes)(there >> i);                                \
            const __m512i v =                                                                      \
                _mm512_maskz_loadu_epi##bits(in & (__mmask##lanes)(word >> i), from + i);          \
            _mm512_mask_storeu_epi##bits(to + i, in, v);                                           \
        }                                                                                          \
    }
WORDS(8, 64, set1_epi8)
WORDS(16, 32, set1_epi16)
WORDS(32, 16, set1_epi32)
WORDS(64, 8, set1_epi64)

#else

/* Eight bytes of 0 or 1 to eight bits: the product moves byte i to bit i of the upper byte. */
INLINE uint64_t bits_of_flags(const uint8_t *flags) {
    uint64_t word = 0;
    for (unsigned i = 0; i < WORD; i += 8) {
        uint64_t eight = 0;
        for (unsigned k = 0; k < 8; k++)
            eight |= (uint64_t)flags[i + k] << 8 * k;
        word |= (eight * UINT64_C(0x0102040810204080)) >> 56 << i;
    }
    return word;
}

#define WORDS(bits)                                                                                \
    INLINE uint64_t same_word_##bits(const any##bits *a, const any##bits *b,                       \
                                     uint##bits##_t infinity) {                                    \
        const uint##bits##_t magnitude = UINT##bits##_MAX >> 1;                                    \
        uint8_t flags[WORD];                                                                       \
        for (int i = 0; i < WORD; i++)                                                             \
            flags[i] = (a[i] == b[i]) |                                                            \
                       (((a[i] & magnitude) > infinity) & ((b[i] & magnitude) > infinity));        \
        return bits_of_flags(flags);                                                               \
    }                                                                                              \
    INLINE void keep_word_##bits(uint64_t word, const any##bits *from, any##bits *to, int n) {     \
        for (int begin = 0; begin < n; begin += WORD / 2) {                                        \
            const uint32_t half = (uint32_t)(word >> begin); /* has shifts by lane */              \
            for (int i = 0; i < WORD / 2 && begin + i < n; i++)                                    \
                to[begin + i] =                                                                    \
                    (uint##bits##_t)(from[begin + i] & (0 - (uint##bits##_t)(half >> i & 1)));     \
        }                                                                                          \
    }
WORDS(8)
WORDS(16)
WORDS(32)
WORDS(64)

#endif

/* Of elements of `bits` bits, at any address. A magnitude above `infinity` is a NaN. */
#define WINNER(bits)                                                                               \
    static void same_##bits(const void *a, const void *b, uint64_t infinity, uint64_t *out,        \
                            uint64_t count) {                                                      \
        const any##bits *x = a, *y = b;                                                            \
        for (; count >= WORD; count -= WORD, x += WORD, y += WORD)                                 \
            *out++ = same_word_##bits(x, y, (uint##bits##_t)infinity);                             \
        if (count) {                                                                               \
            any##bits left[2][WORD] = {{0}, {0}};                                                  \
            memcpy(left[0], x, count * sizeof *x);                                                 \
            memcpy(left[1], y, count * sizeof *y);                                                 \
            *out = same_word_##bits(left[0], left[1], (uint##bits##_t)infinity) &                  \
                   ((UINT64_C(1) << count) - 1);                                                   \
        }                                                                                          \
    }                                                                                              \
    static void keep_##bits(const uint64_t *in, const void *from, void *to, uint64_t count) {      \
        const any##bits *f = from;                                                                 \
        any##bits *t = to;                                                                         \
        for (; count >= WORD; count -= WORD, f += WORD, t += WORD)                                 \
            keep_word_##bits(*in++, f, t, WORD);                                                   \
        if (count)                                                                                 \
            keep_word_##bits(*in, f, t, (int)count);                                               \
    }
WINNER(8)
WINNER(16)
WINNER(32)
WINNER(64)

static const hpi_winners winners = {{same_8, same_16, same_32, same_64},
                                    {keep_8, keep_16, keep_32, keep_64}};

#endif
