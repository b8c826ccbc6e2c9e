/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c - all-gather, by reading where the data lie.
 *
 *     rank   0      1      2      3          all_gather, 4 ranks: each reads
 *           [a...] [b...] [c...] [d...]      the other three parts straight
 *           [abcd] [abcd] [abcd] [abcd]      into its own output
 *
 * One wait for the peers to be there, n - 1 copies, one line to say that they are done. Rank r
 * starts with r + 1, so that no two ranks read from the same one at a time.
 */
#include "../inside.h"

static void copy(const hpi_run *run, int peer) {
    hpi_part_scatter(run, peer, run->state->in[peer], 0, hpi_part_total(run, peer) * run->in_size);
}

/* With two ranks nobody else reads the peer's part. */
static void pull(const hpi_run *run, int peer, const hpi_reading *reading) {
    const unsigned char *in = run->state->in[peer];
    const uint64_t bytes = hpi_part_total(run, peer) * run->in_size;
    for (uint64_t at = 0, end; at < bytes; at = end) {
        end = at + hpi_min(hpi_reading_step(reading), bytes - at);
        hpi_part_scatter(run, peer, in + at, at, end);
        hpi_hand_back(reading, in + at, end - at);
    }
}

static void gather_of_two(const hpi_run *run) {
    const int peer = 1 - run->rank;
    const uint64_t own = hpi_part_total(run, run->rank), theirs = hpi_part_total(run, peer);
    const hpi_reading reading = hpi_reading_begin(
        run, run->state->in[run->rank], run->state->in[peer], hpi_min(own, theirs) * run->in_size);
    if (!run->is_in_place)
        copy(run, run->rank);
    pull(run, peer, &reading);
}

hp_status hpi_gather(hpi_run *run) {
    if (run->n == 2) {
        gather_of_two(run);
        return HP_OK;
    }
    if (!run->is_in_place) /* in place: our part is there already */
        copy(run, run->rank);
    for (int k = 1; k < run->n; k++)
        copy(run, (run->rank + k) % run->n);
    return HP_OK;
}
