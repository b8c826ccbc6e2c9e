/* SPDX-License-Identifier: Apache-2.0
 *
 * handback.c - lines that were read go back to the core that writes them next.
 *
 * A line that another core has read is shared, and its writer must have that taken back. On AMD's
 * Zen this is done line after line and no prefetch hides it: 7 ns each while both cores hang on one
 * third-level cache, and 28 ns when they do not, three times what the read has taken. From afar the
 * reader therefore flushes what it has read: nobody holds the line then, and its writer takes it as
 * if it were new. Stores past the caches do not ask either. Which of the two it is, a hypervisor
 * decides, and decides anew while a job runs; so calls time the first loads of a peer's input, all
 * while it is not sure and every eighth one then: 16 KiB take 450 to 750 ns from near and 1150 to
 * 1400 ns from afar. From memory they take as long, but then so do those of our own input, which
 * are timed as well; and it is the ends of the inputs that are timed, which were mostly written
 * last. From near a flush takes as long as it saves, or longer. The largest calls do without: their
 * lines have left the caches when they are written again.
 *
 * Medium sizes are carried instead, as operands in ordinary memory are: see ring.c.
 *
 * A flush changes no content and is not agreed on: each rank does what it finds. Measured
 * on 2 cores of an EPYC 9004; on Intel a shared line is written as fast as any other.
 */
#include "../inside.h"

enum { LINE = 64 };

enum { SAMPLE_BYTES = 16 << 10, NEAR_NS = 1000 }; /* what near cores reach and far ones do not */
/* Samples behind each other, of which one may have been disturbed; and how often, once sure. */
enum { READINGS_PER_SAMPLE = 8 };
enum { FAR_STEP_BYTES = 4 << 10 }; /* that the first-level cache still holds after it was read */

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>

enum { HAS_CLFLUSHOPT = 1 << 23 };

bool hpi_are_lines_dear(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || c != signature_AMD_ecx)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & HAS_CLFLUSHOPT);
}

static void flush(const void *memory, uint64_t bytes) {
    const unsigned char *line = memory;
    for (uint64_t at = 0; at < bytes; at += LINE)
        __asm__ volatile("clflushopt %0" : : "m"(line[at]));
}

#else

bool hpi_are_lines_dear(void) {
    return false;
}

static void flush(const void *memory, uint64_t bytes) {
    (void)memory;
    (void)bytes;
}

#endif

bool hpi_is_from_afar(const hpi_reading *reading) {
    return reading->state && hpi_is_afar(&reading->state->distance);
}

uint64_t hpi_reading_step(const hpi_reading *reading) {
    return hpi_is_from_afar(reading) ? FAR_STEP_BYTES : UINT64_MAX;
}

void hpi_reading_judge(const hpi_reading *reading, uint64_t own_ns, uint64_t peer_ns) {
    if (own_ns <= NEAR_NS) /* else the peer's may lie in memory as well */
        hpi_note_sample(&reading->state->distance, peer_ns > NEAR_NS);
}

/* A load from each line. They are read again, from the first-level cache. */
static uint64_t time_to_load(const void *memory) {
    const volatile unsigned char *line = memory;
    const uint64_t began_ns = hpi_now_ns();
    for (uint64_t at = 0; at < SAMPLE_BYTES; at += LINE)
        (void)line[at];
    return hpi_now_ns() - began_ns;
}

static bool is_sample_due(hpi_coll_state *s) {
    return s->n_readings++ % READINGS_PER_SAMPLE == 0 || !hpi_is_sure(&s->distance);
}

/* Such calls are tagged, and go through more memory than caches hold: no peer has their lines any
 * more when they are written again, and a flush or a second copy is for nothing. */
static bool is_of_a_step(const hpi_run *run) {
    return run->c.tag != 0;
}

hpi_reading hpi_reading_begin(const hpi_run *run, const void *own, const void *peer,
                              uint64_t bytes) {
    hpi_coll_state *s = run->state;
    if (!s->are_lines_dear || is_of_a_step(run) || !hpi_is_from(run, HPI_FROM_HAND_BACK) ||
        hpi_is_from(run, HPI_FROM_KEEP))
        return (hpi_reading){NULL};
    const hpi_reading reading = {s};
    if (bytes >= SAMPLE_BYTES && is_sample_due(s)) {
        const uint64_t end = bytes - SAMPLE_BYTES;
        const uint64_t own_ns = time_to_load((const unsigned char *)own + end);
        hpi_reading_judge(&reading, own_ns, time_to_load((const unsigned char *)peer + end));
    }
    return reading;
}

void hpi_hand_back(const hpi_reading *reading, const void *piece, uint64_t bytes) {
    if (hpi_is_from_afar(reading))
        flush(piece, bytes);
}
