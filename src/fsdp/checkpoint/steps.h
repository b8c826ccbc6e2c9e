/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/steps.h - the directory of checkpoints: step-00000012, step-00000020, ... and
 * `latest`.
 *
 * A checkpoint is written into a hidden directory beside the others and renamed when it is whole
 * and durable; `latest` is a file with the name of the newest and is replaced by a rename as well.
 * So each name that is not hidden is whole at any moment, whatever kills us. All of it is done by
 * one rank.
 *
 *     step-N                whole
 *     .step-N.tmp-TOKEN     being written, or being removed: anything may be missing
 *     .step-N.old-TOKEN     whole, moved aside for a moment where a file system cannot exchange
 * names
 */
#ifndef HPI_STEPS_H
#define HPI_STEPS_H

#include "../../base/base.h"

/* The hidden directory in which step N is written; `token` is new for each save. NULL: no memory.
 * The caller frees it with hpi_free. */
char *hpi_steps_path(const char *directory, uint64_t step, uint64_t token);
/* Make it, and `directory` itself when that is missing. Errors: FILE. */
hp_status hpi_steps_begin(const char *directory, const char *path);
/* Sync `path`, give it its name and point `latest` at it; keep it and the one that was latest
 * before, remove the others and what earlier runs left. A failure leaves `latest` as it was.
 * Errors: FILE. */
hp_status hpi_steps_publish(const char *directory, const char *path, uint64_t step);
/* Remove what a failed save leaves. */
void hpi_steps_abandon(const char *directory, const char *path);

/* The name of the checkpoint to load: the one that `latest` names, else the newest that is whole.
 * Errors: FILE when there is none. */
enum { HPI_STEP_NAME_BYTES = 64 };
hp_status hpi_steps_find(const char *directory, char *out_name);

#endif
