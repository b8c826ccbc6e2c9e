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

/* A peer's part; with two ranks nobody else reads it. */
static void pull(const hpi_run *run, int peer) {
    const unsigned char *in = run->state->in[peer];
    const uint64_t bytes = hpi_part_total(run, peer) * run->in_size;
    hpi_reading reading = hpi_reading_begin(run);
    for (uint64_t at = 0, end; at < bytes; at = end) {
        end = at + hpi_min(hpi_reading_step(&reading), bytes - at);
        hpi_part_scatter(run, peer, in + at, at, end);
        hpi_reading_judge(&reading, end - at);
        hpi_hand_back(&reading, in + at, end - at);
    }
}

static void copy(const hpi_run *run, int peer) {
    hpi_part_scatter(run, peer, run->state->in[peer], 0, hpi_part_total(run, peer) * run->in_size);
}

hp_status hpi_gather(hpi_run *run) {
    if (!run->is_in_place) /* in place: our part is there already */
        copy(run, run->rank);
    for (int k = 1; k < run->n; k++)
        (run->n == 2 ? pull : copy)(run, (run->rank + k) % run->n);
    return HP_OK;
}
