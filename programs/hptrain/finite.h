/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/finite.h - a run that has diverged ends, and saves nothing of it.
 */
#ifndef HPTRAIN_FINITE_H
#define HPTRAIN_FINITE_H

#include <hyperparallel/fsdp.h>

/* Errors, of both: STATE saying what to try. Local. */
hp_status finite_check(const char *what, double value, uint64_t step);
/* All weights of this rank's shards, cheap beside writing them. */
hp_status finite_check_weights(const hp_fsdp *fsdp, uint64_t step);

#endif
