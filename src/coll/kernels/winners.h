/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/winners.h - who holds the value that won: the including file gets `winners`, a row for
 * each size of elements. A value is its bits: -0 is not +0, and any NaN is a NaN.
 *
 * A bit for each element says that two values are the same, and such bits keep elements. These
 * loops run 64 times, as many as a word has bits, and the compiler makes vectors of them; AVX-512
 * has the bits as masks. Who sees the inputs of all ranks gives each element's gradient to the
 * first that holds the greatest, and takes it from those behind, a vector at a time.
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

/* ---- to the first that holds the greatest ---- */

/* Up to a vector. */
INLINE vec load_some(const unsigned char *from, uint64_t bytes) {
    vec v = {0};
    if (bytes == VECTOR)
        return load(from);
#ifdef __AVX512BW__ /* not by way of memory: a load waits for parts that were just stored */
    v = (vec)_mm512_maskz_loadu_epi8((UINT64_C(1) << bytes) - 1, from);
#else
    memcpy(&v, from, bytes);
#endif
    return v;
}
INLINE void store_some(unsigned char *to, vec v, uint64_t bytes) {
    if (bytes == VECTOR)
        store(to, v, false);
    else
#ifdef __AVX512BW__
        _mm512_mask_storeu_epi8(to, (UINT64_C(1) << bytes) - 1, (__m512i)v);
#else
        memcpy(to, &v, bytes);
#endif
}

/* greater: x > y ? a : b, lane by lane; equal: the same of x == y. */
#ifdef __AVX512BW__
#define COMPARED(name, compare, bits)                                                              \
    INLINE vec name##_##bits(vec x, vec y, vec a, vec b) {                                         \
        return (vec)_mm512_mask_mov_epi##bits(                                                     \
            (__m512i)b, _mm512_##compare##_epi##bits##_mask((__m512i)x, (__m512i)y), (__m512i)a);  \
    }
#define COMPARE_LANES(bits) COMPARED(greater, cmpgt, bits) COMPARED(equal, cmpeq, bits)
#else
#define COMPARED(name, compare, bits)                                                              \
    INLINE vec name##_##bits(vec x, vec y, vec a, vec b) {                                         \
        const vec is = (vec)((lanes##bits)x compare(lanes##bits) y);                               \
        return (is & a) | (~is & b);                                                               \
    }
#define COMPARE_LANES(bits) COMPARED(greater, >, bits) COMPARED(equal, ==, bits)
#endif

/* Up to a vector, at `at`; an output may be the gradient. The keys of two inputs stay in registers,
 * of more they are made once more. */
#define GIVE_LANES(bits)                                                                           \
    typedef LANES(int##bits##_t, VECTOR) lanes##bits;                                              \
    COMPARE_LANES(bits)                                                                            \
    INLINE vec all_##bits(uint64_t x) {                                                            \
        return (vec)((lanes##bits){0} + (int##bits##_t)x);                                         \
    }                                                                                              \
    INLINE vec key_##bits(bool is_float, vec flip, vec infinity, vec x) {                          \
        const vec greatest = all_##bits(INT##bits##_MAX), zero = {0};                              \
        if (!is_float)                                                                             \
            return x ^ flip;                                                                       \
        const vec turned = x ^ greater_##bits(zero, x, greatest, zero) ^ flip;                     \
        return greater_##bits(x & greatest, infinity, greatest, turned);                           \
    }                                                                                              \
    INLINE void give_two_##bits(bool is_float, vec flip, vec infinity,                             \
                                const unsigned char *const *in, const unsigned char *gradient,     \
                                unsigned char *const *out, uint64_t at) {                          \
        const vec zero = {0}, left = load(gradient + at);                                          \
        const vec a = key_##bits(is_float, flip, infinity, load(in[0] + at));                      \
        const vec b = key_##bits(is_float, flip, infinity, load(in[1] + at));                      \
        store(out[0] + at, greater_##bits(b, a, zero, left), false);                               \
        store(out[1] + at, greater_##bits(b, a, left, zero), false);                               \
    }                                                                                              \
    INLINE void give_some_##bits(                                                                  \
        bool is_float, vec flip, vec infinity, const unsigned char *const *in, int n,              \
        const unsigned char *gradient, unsigned char *const *out, uint64_t at, uint64_t bytes) {   \
        const vec zero = {0};                                                                      \
        vec left = load_some(gradient + at, bytes);                                                \
        vec best = key_##bits(is_float, flip, infinity, load_some(in[0] + at, bytes));             \
        for (int i = 1; i < n; i++) {                                                              \
            const vec k = key_##bits(is_float, flip, infinity, load_some(in[i] + at, bytes));      \
            best = greater_##bits(k, best, k, best);                                               \
        }                                                                                          \
        for (int i = 0; i < n; i++) {                                                              \
            const vec k = key_##bits(is_float, flip, infinity, load_some(in[i] + at, bytes));      \
            store_some(out[i] + at, equal_##bits(k, best, left, zero), bytes);                     \
            left = equal_##bits(k, best, zero, left);                                              \
        }                                                                                          \
    }
GIVE_LANES(8)
GIVE_LANES(16)
GIVE_LANES(32)
GIVE_LANES(64)

#define GIVE(name, bits, is_float)                                                                 \
    static void give_##name(const hpi_order *order, const void *const *in, int n,                  \
                            const void *gradient, void *const *out, uint64_t count) {              \
        const vec flip = all_##bits(order->flip), infinity = all_##bits(order->infinity);          \
        const unsigned char *const *from = (const unsigned char *const *)in;                       \
        const unsigned char *two_in[2] = {in[0], in[n > 1]};                                       \
        unsigned char *const *to = (unsigned char *const *)out;                                    \
        unsigned char *two_out[2] = {out[0], out[n > 1]};                                          \
        const uint64_t end = count * (bits / 8);                                                   \
        uint64_t at = 0;                                                                           \
        for (; n == 2 && end - at >= VECTOR; at += VECTOR)                                         \
            give_two_##bits(is_float, flip, infinity, two_in, gradient, two_out, at);              \
        for (; end - at >= VECTOR; at += VECTOR)                                                   \
            give_some_##bits(is_float, flip, infinity, from, n, gradient, to, at, VECTOR);         \
        if (at < end)                                                                              \
            give_some_##bits(is_float, flip, infinity, from, n, gradient, to, at, end - at);       \
    }
GIVE(int8, 8, false)
GIVE(int32, 32, false)
GIVE(int64, 64, false)
GIVE(half, 16, true)
GIVE(fp32, 32, true)
GIVE(fp64, 64, true)

static const hpi_winners winners = {
    .same = {same_8, same_16, same_32, same_64},
    .keep = {keep_8, keep_16, keep_32, keep_64},
    .give = {{give_int8, NULL, give_int32, give_int64}, {NULL, give_half, give_fp32, give_fp64}}};

#endif
