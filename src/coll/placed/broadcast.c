/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast.c - broadcast, by reading where the data lie.
 *
 *     rank   0      1      2      3          root 1, 4 ranks: each of the others
 *           [    ] [data] [    ] [    ]      reads the root's buffer straight
 *           [data] [data] [data] [data]      into its own
 *
 * Two waits, for all to be there and for all to have read; one copy. For what is so large that the
 * waits do not count: smaller ones go without a meeting, see cast/cast.c.
 */
#include "../inside.h"

hp_status hpi_broadcast_pull(hpi_run *run) {
    if (run->rank != run->c.root)
        hpi_copy(run->c.out, run->state->in[run->c.root], run->in_bytes);
    return HP_OK;
}
