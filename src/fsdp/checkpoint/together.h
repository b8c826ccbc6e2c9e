/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/together.h - what ranks that save and load need to go together.
 *
 * Collective over the world, between two passes.
 */
#ifndef HPI_TOGETHER_H
#define HPI_TOGETHER_H

#include "../engine.h"
#include "../together/agree.h"

/* A number that no other save has, the same on all ranks. */
hp_status hpi_token(const hp_fsdp *fsdp, uint64_t *out_token);

#endif
