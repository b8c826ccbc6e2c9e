/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/winners.h - who holds the value that won, a bit for each element, and what such bits
 * keep: the including file gets `winners`, a row for each size of elements.
 *
 * The inner loops run 64 times, as many as a word has bits, and the compiler makes vectors of them.
 * A value is its bits: -0 is not +0, and any NaN is a NaN.
 */
#ifndef HPI_WINNERS_H
#define HPI_WINNERS_H

#include "lanes.h"

enum { WORD = 64 };

/* Eight bytes of 0 or 1 to eight bits: the product moves byte i to bit i of the upper byte. */
INLINE uint64_t bits_of_flags(const uint8_t *flags) {
    uint64_t word = 0;
    for (unsigned i = 0; i < WORD; i += 8) {
        const uint8_t *f = flags + i;
        const uint64_t low =
            (uint64_t)f[0] | (uint64_t)f[1] << 8 | (uint64_t)f[2] << 16 | (uint64_t)f[3] << 24;
        const uint64_t high =
            (uint64_t)f[4] | (uint64_t)f[5] << 8 | (uint64_t)f[6] << 16 | (uint64_t)f[7] << 24;
        word |= ((low | high << 32) * UINT64_C(0x0102040810204080)) >> 56 << i;
    }
    return word;
}

/* Of elements of `bits` bits, at any address. A magnitude above `infinity` is a NaN. */
#define WINNER(bits)                                                                               \
    typedef uint##bits##_t __attribute__((aligned(1), may_alias)) any##bits;                       \
    INLINE uint64_t same_word_##bits(const any##bits *a, const any##bits *b,                       \
                                     uint##bits##_t infinity) {                                    \
        const uint##bits##_t magnitude = (uint##bits##_t) - 1 >> 1;                                \
        uint8_t flags[WORD];                                                                       \
        for (int i = 0; i < WORD; i++)                                                             \
            flags[i] = (a[i] == b[i]) |                                                            \
                       (((a[i] & magnitude) > infinity) & ((b[i] & magnitude) > infinity));        \
        return bits_of_flags(flags);                                                               \
    }                                                                                              \
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
    INLINE void keep_word_##bits(uint64_t word, const any##bits *from, any##bits *to, int n) {     \
        for (int i = 0; i < n; i++)                                                                \
            to[i] = from[i] & (uint##bits##_t) - (uint##bits##_t)(word >> i & 1);                  \
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
