/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/proof/job.h - jobs for hp_verify and hp_simulate: what the ranks of a mesh are going to do,
 * or did.
 *
 * The lists differ between shards at most: rank r * n_shards + s of replica r does what rank s of
 * replica 0 does. So a planned job has lists for one replica, and equal lists are kept once.
 */
#ifndef HPI_JOB_H
#define HPI_JOB_H

#include "../engine.h"

/* Buffers, communicators and names, and n_steps empty lists for each rank. */
hp_status hpi_job_frame(const hp_fsdp *fsdp, uint32_t n_steps, hp_job *out_job);
/* Three steps with every unit once, as they will be planned. */
hp_status hpi_job_plan(const hp_fsdp *fsdp, hp_job *job);
/* Every list that is not another one's, and the frame. */
void hpi_job_free(hp_job *job);

#endif
