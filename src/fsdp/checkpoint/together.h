/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/together.h - ranks that save and load say the same of how it went.
 *
 * Both are collective over the world, between two passes.
 */
#ifndef HPI_TOGETHER_H
#define HPI_TOGETHER_H

#include "../engine.h"

/* Tell everybody what rank `root` of the world has. */
hp_status hpi_tell(const hp_fsdp *fsdp, void *data, size_t n_bytes, int root);
/* All ranks succeed, or all return the record of the first that failed, its rank in front. */
hp_status hpi_agree(const hp_fsdp *fsdp, hp_status mine);
/* A number that no other save has, the same on all ranks. */
hp_status hpi_token(const hp_fsdp *fsdp, uint64_t *out_token);

#endif
