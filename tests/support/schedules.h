/* SPDX-License-Identifier: Apache-2.0
 *
 * support/schedules.h - the planned job of a small model on a mesh that does not exist, ready to be
 * verified, changed and verified again.
 *
 * The model: 6 units, or what `shape` says; the second frozen in part, the third with a parameter
 * that every rank holds. Nothing is run.
 */
#ifndef SUPPORT_SCHEDULES_H
#define SUPPORT_SCHEDULES_H

#include <hyperparallel/hyperparallel.h>

typedef struct schedule_shape {
    hp_mode mode;
    int n_replicas, n_shards;
    int prefetch, reshard_after_forward;
    hp_schedule schedule;
    int param_dtype; /* or HP_OWN_DTYPE */
    int n_units;
} schedule_shape;
#define SCHEDULE_SHAPE_INIT                                                                        \
    { HP_PER_PARAM, 2, 2, 1, 1, HP_OVERLAP, HP_OWN_DTYPE, 6 }

/* Fails the calling cmocka test where anything fails. The job's lists are its own: each rank's, in
 * each step, so that one can be changed. */
typedef struct schedule {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_job planned, job; /* as it was made; with the lists below */
    hp_op **ops;         /* [n_steps][n_ranks] */
    hp_list *lists;
    hp_verdict verdict;
} schedule;
void schedule_make(const schedule_shape *shape, schedule *out);
void schedule_drop(schedule *s);
const char *schedule_name(const schedule_shape *shape, char *text, size_t size);

#endif
