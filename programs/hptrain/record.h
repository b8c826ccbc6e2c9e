/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/record.h - hptrain.json beside the checkpoints: of what run they are.
 *
 * A checkpoint holds weights and the optimizer's state alone. Whoever resumes one with another
 * batch, rate or file trains something else; the record is there to tell.
 */
#ifndef HPTRAIN_RECORD_H
#define HPTRAIN_RECORD_H

#include "trainer.h"

#define RECORD_TOKENS "tokens-per-step"

/* Into the directory of --save. Errors: FILE. Local. */
hp_status record_write(const trainer *t);

/* With the record in the directory of --resume, if there is one. out_note: what differs, "" if
 * nothing does. Errors: ARGUMENT naming the sizes of another model. Local. */
hp_status record_compare(const trainer *t, char out_note[NOTE_BYTES]);

/* The tokens of a step of the run in the directory of --resume; 0: it does not say. Local. */
uint64_t record_tokens(const trainer *t);

#endif
