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

hp_status hpi_gather(hpi_run *run) {
    for (int k = 0; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        if (k > 0 || !run->is_in_place) /* in place: our part is there already */
            hpi_part_scatter(run, peer, run->state->in[peer], 0,
                             hpi_part_total(run, peer) * run->in_size);
    }
    return HP_OK;
}
