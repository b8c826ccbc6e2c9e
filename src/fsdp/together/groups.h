/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/together/groups.h - the groups that an fsdp talks in, and how it stops talking.
 */
#ifndef HPI_FSDP_GROUPS_H
#define HPI_FSDP_GROUPS_H

#include "../engine.h"

/* shard, reduce, replicate, all. Collective. After a failure: hpi_fsdp_drop_groups. */
hp_status hpi_fsdp_take_groups(hp_fsdp *fsdp);
/* A group's first collective takes memory: from here on agreeing (agree.h) takes none. Collective.
 */
hp_status hpi_fsdp_warm_up(hp_fsdp *fsdp);
/* Takes groups that are not there. */
void hpi_fsdp_drop_groups(hp_fsdp *fsdp);
/* End every wait in them, here and on the peers, with this thread's record; the peers read a FAILED
 * of the first as the end of this rank, of the second as its choice. */
void hpi_fsdp_fail_groups(hp_fsdp *fsdp);
void hpi_fsdp_cancel_groups(hp_fsdp *fsdp);

/* The group in which ranks meet to reset. */
hp_status hpi_fsdp_take_meeting(hp_fsdp *fsdp);
void hpi_fsdp_drop_meeting(hp_fsdp *fsdp);
/* With this thread's record, PEER: where a rank has ended nobody can reset any more, and who waits
 * for this one to come is told why it will not. Where none has, nothing is done. */
void hpi_fsdp_end_meetings(hp_fsdp *fsdp);
/* A call of all ranks has ended here. */
void hpi_fsdp_done(const hp_fsdp *fsdp);
/* Tell the others, and wait until each has come to where this rank stands, or resets too. */
hp_status hpi_fsdp_begin_reset(const hp_fsdp *fsdp);
/* All ranks have all that they need to go on: the next one is another. */
void hpi_fsdp_end_reset(const hp_fsdp *fsdp);
/* FAILED naming a rank that has reset what this one is in. A load for each rank. */
hp_status hpi_fsdp_listen(const hp_fsdp *fsdp, const char *call);
/* Wait for all ranks; the same status on all: `mine` where it failed, else that of a rank whose
 * failed. Errors: MISMATCH when the weights were not updated equally often; PEER, TIMEOUT. */
hp_status hpi_fsdp_meet(hp_fsdp *fsdp, hp_status mine);

#endif
