/* SPDX-License-Identifier: Apache-2.0
 *
 * distance.c - copying what another core has just written, or is about to read.
 *
 * From near, out of its caches, a copy from two places at once takes half as long, because two
 * pages are fetched ahead of it. From afar a line that was read must be taken back before it is
 * written again, 28 ns each on AMD's Zen (placed/handback.c), which is several times what reading
 * it took. Stores past the caches do not ask for it: 256 KiB through a ring take 106 us, so
 * written 16. From near these take twice as long as others. Which of the two it is may change while
 * a job runs, so some of the copies are timed: 16 KiB take some 500 ns from near and 1300 ns from
 * afar.
 */
#include "mailbox.h"

enum {
    LEAST_BYTES = 4096,  /* of a copy from two places */
    SAMPLE_BYTES = 2048, /* of one that is timed */
    PIECES_PER_SAMPLE = 8,
    SLOW_FOR_SURE = 3 /* one may have been disturbed */
};

void hpi_distance_init(hpi_distance *distance, const hp_world *world) {
    *distance = (hpi_distance){.can_tell = hpi_world_can_spin(world) && hpi_can_hand_back()};
}

bool hpi_distance_is_far(const hpi_distance *distance) {
    return distance->n_slow == SLOW_FOR_SURE;
}

void hpi_copy_from_peer(void *out, const void *in, uint64_t bytes) {
    enum { STEP = 256 };
    unsigned char *to = out;
    const unsigned char *from = in;
    const uint64_t half = bytes < LEAST_BYTES ? 0 : bytes / 2 / STEP * STEP;
    for (uint64_t at = 0; at < half; at += STEP) {
        memcpy(to + at, from + at, STEP);
        memcpy(to + half + at, from + half + at, STEP);
    }
    memcpy(to + 2 * half, from + 2 * half, bytes - 2 * half);
}

/* From afar few copies are of this kind, and all are timed. */
static bool is_sample(hpi_distance *d, uint64_t bytes) {
    return d->can_tell && bytes >= SAMPLE_BYTES &&
           (d->n_pieces++ % PIECES_PER_SAMPLE == 0 || d->n_slow > 0);
}

static bool is_slow(uint64_t bytes, uint64_t ns) {
    enum { NEAR_NS = 1000, OF_BYTES = 16 << 10, CLOCK_NS = 60 };
    return ns > CLOCK_NS + NEAR_NS * bytes / OF_BYTES;
}

void hpi_copy_from(hpi_distance *distance, void *to, const void *from, uint64_t bytes) {
    if (!is_sample(distance, bytes)) {
        hpi_copy_from_peer(to, from, bytes);
        return;
    }
    const uint64_t began_ns = hpi_now_ns();
    hpi_copy_from_peer(to, from, bytes);
    distance->n_slow =
        is_slow(bytes, hpi_now_ns() - began_ns) ? hpi_min(distance->n_slow + 1, SLOW_FOR_SURE) : 0;
}
