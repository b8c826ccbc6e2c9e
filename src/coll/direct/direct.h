/* SPDX-License-Identifier: Apache-2.0
 *
 * direct/direct.h - reading and writing a peer's memory where it lies, whatever memory it is.
 *
 * What this process can see is read by loads: symmetric memory, and everything when the ranks are
 * threads. The rest is *far*: the kernel copies it from the other process (process_vm_readv). Not
 * every machine lets it, so the ranks of a group find out together, once, and all go by the answer.
 */
#ifndef HPI_DIRECT_H
#define HPI_DIRECT_H

#include "../inside.h"

#include <sys/uio.h>

/* Can each rank of the group read what the others name by an address? Asked of the kernel by the
 * first call, which is collective and waits for every rank; run->state->reach is set. */
hp_status hpi_direct_open(hpi_run *run);
void hpi_direct_close(hpi_coll_state *state);
/* Fill state->in and state->out from what all have said. Of far operands they are addresses in
 * the peer's process, for hpi_fetch_add alone. */
hp_status hpi_direct_find(hpi_run *run);
/* Does this process see the operand that rank i named so? */
bool hpi_is_near(const hpi_run *run, int i, hpi_place place);

/* Pieces of one peer's memory on their way here, or of ours on their way there. */
enum { HPI_FETCH_PIECES = 32 };
typedef struct hpi_fetch {
    const hpi_run *run;
    int peer;
    bool is_near, is_store;
    int n; /* pieces that have been asked for and have not come yet */
    uint64_t bytes;
    struct iovec to[HPI_FETCH_PIECES], from[HPI_FETCH_PIECES];
} hpi_fetch;

/* `place`: the operand of `peer` that will be read, or written if is_store is set behind. Add
 * pieces, in any number; all of them are there after hpi_fetch_end. Errors: PEER, when it has died;
 * SYSTEM, when it lives, but its memory cannot be reached. */
void hpi_fetch_begin(hpi_fetch *fetch, const hpi_run *run, int peer, hpi_place place);
hp_status hpi_fetch_add(hpi_fetch *fetch, void *to, const void *from, uint64_t bytes);
hp_status hpi_fetch_end(hpi_fetch *fetch);

#endif
