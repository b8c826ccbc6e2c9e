/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/together/agree.h - ranks say the same of how something went that each of them did alone.
 *
 * All are collective over the world, for set-up and between two passes. They take no memory:
 * hp_fsdp_create and hp_fsdp_reset have used the group (hpi_fsdp_warm_up), so a rank that has none
 * left can still say so.
 */
#ifndef HPI_AGREE_H
#define HPI_AGREE_H

#include <hyperparallel/fsdp.h>

/* Tell everybody what rank `root` of the world has. */
hp_status hpi_tell(const hp_fsdp *fsdp, void *data, size_t n_bytes, int root);
/* All ranks succeed, or all return the record of the first that failed, its rank in front. `mine`
 * is this rank's status, with its record. */
hp_status hpi_agree(const hp_fsdp *fsdp, hp_status mine);
/* The first world rank whose word differs from rank 0's, or -1. */
hp_status hpi_find_odd_rank(const hp_fsdp *fsdp, uint64_t word, int *out_rank);

#endif
