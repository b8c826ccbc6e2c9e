/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c - all-gather, by reading where the data lie.
 *
 *     rank   0      1      2      3          all_gather, 4 ranks: each reads
 *           [a...] [b...] [c...] [d...]      the other three parts straight
 *           [abcd] [abcd] [abcd] [abcd]      into its own output
 *
 * One wait for the peers to be there, n - 1 copies, one line to say that they are done. Rank r
 * starts with r + 1, so that no two ranks read from the same one at a time. Our own part comes
 * last: from afar 16 MiB take up to 1.7 times as long the other way round, from near it does not
 * matter.
 */
#include "../inside.h"

void hpi_copy_own(const hpi_run *run, void *to, const void *from, uint64_t bytes) {
    (hpi_passes_caches(run) ? hpi_copy_past : hpi_copy)(to, from, bytes);
}

void hpi_gather_own(const hpi_run *run) {
    const uint64_t end = run->is_in_place ? 0 : hpi_part_total(run, run->rank) * run->in_size;
    unsigned char *to = run->c.out;
    const unsigned char *from = run->c.in;
    uint64_t offset;
    for (uint64_t at = 0, bytes; at < end; at += bytes) {
        bytes = hpi_part_piece(run, run->rank, at, end, &offset);
        hpi_copy_own(run, to + offset, from + at, bytes);
    }
}

/* With two ranks nobody else reads the peer's part. */
static hpi_reading reading_of(const hpi_run *run) {
    if (run->n != 2)
        return (hpi_reading){NULL};
    const int peer = 1 - run->rank;
    const uint64_t own = hpi_part_total(run, run->rank), theirs = hpi_part_total(run, peer);
    return hpi_reading_begin(run, run->state->in[run->rank], run->state->in[peer],
                             hpi_min(own, theirs) * run->in_size);
}

static void pull(const hpi_run *run, int peer, const hpi_reading *reading) {
    const unsigned char *in = run->state->in[peer];
    const uint64_t bytes = hpi_part_total(run, peer) * run->in_size;
    for (uint64_t at = 0, end; at < bytes; at = end) {
        end = at + hpi_min(hpi_reading_step(reading), bytes - at);
        hpi_part_scatter(run, peer, in + at, at, end);
        hpi_hand_back(reading, in + at, end - at);
    }
}

hp_status hpi_gather(hpi_run *run) {
    const hpi_reading reading = reading_of(run);
    for (int k = 1; k < run->n; k++)
        pull(run, (run->rank + k) % run->n, &reading);
    hpi_gather_own(run);
    return HP_OK;
}
