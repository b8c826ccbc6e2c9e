/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast.c - broadcast, by reading and writing where the data lie.
 *
 *     rank   0      1      2      3          root 1, 4 ranks: each of the others
 *           [    ] [data] [    ] [    ]      reads the root's buffer straight
 *           [data] [data] [data] [data]      into its own
 *
 * One core copies at half the rate of the memory behind it, so where the root sees the others'
 * buffers it stores the last of n slices into each of them, and they read the rest: all ranks copy
 * as much.
 *
 * Two waits, for all to be there and for all to have done; one copy. For what is so large that the
 * waits do not count: smaller ones go without a meeting, see cast/cast.c.
 */
#include "../inside.h"

hp_status hpi_broadcast_pull(hpi_run *run) {
    if (run->rank != run->c.root)
        hpi_copy(run->c.out, run->state->in[run->c.root], run->in_bytes);
    return HP_OK;
}

hpi_piece hpi_root_slice(const hpi_run *run) {
    uint64_t begin, end;
    hpi_slice(run, run->c.count, run->n - 1, &begin, &end);
    return (hpi_piece){begin * run->in_size, (end - begin) * run->in_size};
}

hp_status hpi_broadcast_push_pull(hpi_run *run) {
    const unsigned char *in = run->state->in[run->c.root];
    const hpi_piece last = hpi_root_slice(run);
    if (run->rank != run->c.root)
        hpi_copy(run->c.out, in, last.begin);
    for (int k = 1; k < run->n && run->rank == run->c.root; k++)
        hpi_copy_past(run->state->out[(run->rank + k) % run->n] + last.begin, in + last.begin,
                      last.bytes);
    return HP_OK;
}
