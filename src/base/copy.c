/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.c - memcpy for blocks of many pages.
 *
 * One string instruction for all of a block: the processor knows how much will be stored and takes
 * lines without reading what they held, as it does for no loop and no shorter instruction. Past a
 * second-level cache that is 1.1 to 1.5 times as fast. Where blocks begin at different places of a
 * line it may be ten times slower (Zen 3 and 4). Those go page by page, and a line of the page
 * after the next is asked for on both sides, because no prefetcher crosses into the next page.
 *
 * hpi_copy_past is for what no cache will hold until it is read, and for lines that others hold and
 * that would have to be asked for.
 */
#include "base.h"

enum { LINE = 64, PAGE = 4096, LEAST = 16 * PAGE };

/* Sanitizers see memcpy, and no such instructions. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) &&                  \
    !defined(__SANITIZE_THREAD__)

#include <emmintrin.h>

static bool can_copy_at_once(const void *to, const void *from) {
    return ((uintptr_t)to - (uintptr_t)from) % LINE == 0;
}

static void copy_at_once(void *to, const void *from, uint64_t bytes) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

/* Whole lines, `to` at the begin of one. */
static void store_past(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    enum { AHEAD = 2048 };
    for (uint64_t at = 0; at < bytes; at += LINE) {
        const __m128i *f = (const void *)(from + at);
        __m128i *t = (void *)(to + at);
        if (bytes - at > AHEAD)
            __builtin_prefetch(from + at + AHEAD);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128(t + i, _mm_loadu_si128(f + i));
    }
    _mm_sfence(); /* the release store that follows does not order such stores */
}

#else

static bool can_copy_at_once(const void *to, const void *from) {
    (void)to;
    (void)from;
    return false;
}

static void copy_at_once(void *to, const void *from, uint64_t bytes) {
    memcpy(to, from, bytes);
}

static void store_past(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    memcpy(to, from, bytes);
}

#endif

static void copy_by_pages(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    uint64_t at = 0;
    for (; at + 3 * PAGE <= bytes; at += PAGE) {
        __builtin_prefetch(from + at + 2 * PAGE, 0);
        __builtin_prefetch(to + at + 2 * PAGE, 1);
        memcpy(to + at, from + at, PAGE);
    }
    memcpy(to + at, from + at, bytes - at);
}

void hpi_copy(void *to, const void *from, uint64_t bytes) {
    if (bytes < LEAST)
        memcpy(to, from, bytes);
    else if (can_copy_at_once(to, from))
        copy_at_once(to, from, bytes);
    else
        copy_by_pages(to, from, bytes);
}

void hpi_copy_past(void *to, const void *from, uint64_t bytes) {
    const uint64_t first = hpi_min(-(uintptr_t)to % LINE, bytes);
    const uint64_t last = (bytes - first) % LINE, end = bytes - last;
    unsigned char *t = to;
    const unsigned char *f = from;
    memcpy(t, f, first);
    store_past(t + first, f + first, end - first);
    memcpy(t + end, f + end, last);
}
