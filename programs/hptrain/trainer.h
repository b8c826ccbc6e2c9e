/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/trainer.h - everything that a run holds, and the parts that work on it.
 */
#ifndef HPTRAIN_TRAINER_H
#define HPTRAIN_TRAINER_H

#include "data.h"
#include "model.h"
#include "report.h"

typedef struct trainer {
    options *o;
    hp_world *world;
    data data;
    model model;
    int32_t *samples, *held_out; /* [batch], [eval_samples]; each sample_tokens */
    int32_t *prompt;             /* of --sample; NULL: none */
    int n_prompt;
    int mesh_sizes[2]; /* replicate, and shard x tensor: the latter are neighbours */
    hp_mesh *mesh;
    hp_group *tensor; /* of --tp; NULL: each rank has samples of its own */
    hp_trace *trace;
    bool has_traced;
    hp_fsdp *fsdp;
    hp_optimizer *optimizer;
    int n_restarts;                /* of the job, before this run */
    char resumed_note[NOTE_BYTES]; /* what differs from the run that is resumed; "": nothing */
    uint64_t first_step;           /* steps done before this run */
    uint64_t last_step;            /* and after it */
    bool has_saved;
    uint64_t saved_step; /* of the newest checkpoint, if has_saved */
    hp_fsdp_stats last;  /* at the end of the last step */
    hp_status own;       /* what failed here and was not told to the others yet */
    report *report;      /* rank 0; else NULL */
} trainer;

/* setup.c. The trainer comes with options and world alone. Collective. */
hp_status set_up(trainer *t);
/* In the reverse order; also after a set_up that failed. */
void tear_down(trainer *t);

/* train.c. What failed on this rank alone: the first counts, and is told before the next update. */
void keep(trainer *t, hp_status status);

/* verify.c. With --verify: prove it, report, and write verdict.json. Errors: UNSOUND. Collective.
 */
hp_status verify(trainer *t, hp_verify_what what);

/* Ranks, or groups of --tp, that have samples of their own; which of them this is. */
int n_data(const trainer *t);
int data_rank(const trainer *t);

/* Samples, and predictions, of all of them in one step. */
uint64_t global_batch(const trainer *t);
uint64_t tokens_per_step(const trainer *t);

/* restart.c. How often the job was started again: TORCHELASTIC_RESTART_COUNT. */
int restart_count(void);
/* After a restart: resume what --save holds, if it holds anything. Errors: ARGUMENT naming what is
 * not as in the run that wrote it. Local. */
hp_status restart_find(trainer *t);

/* sample.c. The ids of --sample. Errors: ARGUMENT naming what is no id of the model. Local. */
hp_status sample_read_prompt(trainer *t);
/* Continue it and report. *out_stop: asked to end before its end. Collective. */
hp_status sample_generate(trainer *t, bool *out_stop);

#endif
