/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/log.h - what a run says as JSON lines: to --log, and to standard output for programs.
 *
 * One object per line, with its kind in "event": begin, verify, held_out (before the first
 * step), step, sample, end. `hptrain --help` describes the fields. Each line is flushed: a run that
 * is killed leaves all of its steps.
 */
#ifndef HPTRAIN_LOG_H
#define HPTRAIN_LOG_H

#include "options.h"

enum { NOTE_BYTES = 1024 };

/* What the run is. */
typedef struct run_facts {
    const char *data, *unit;     /* "byte" or "token" */
    const char *engine;          /* of matrix products */
    const char *engine_note;     /* why it is a slow one; NULL: it is not, or was asked for */
    const char *weights;         /* "first", "checkpoint" or the directory that they come from */
    const char *resumed_note;    /* what differs from the run that is resumed; "": nothing */
    const char *mode, *schedule; /* as the fsdp has them */
    int n_restarts;              /* of the job, before this run */
    int vocab_size;              /* of the model */
    uint64_t n_parameters, n_train, n_held_out, tokens_per_step;
    int n_ranks, n_replicas, n_shards, n_tensor, n_cores; /* cores that this rank may run on */
    uint64_t first_step, n_steps; /* steps done before this run, and after it */
} run_facts;

/* One step, over all ranks. */
typedef struct step_record {
    uint64_t step;        /* steps done, this one included */
    double loss;          /* mean over the global batch, before this step's update */
    double lr, grad_norm; /* of the update */
    double step_ms, tokens_per_s;
    double unshard_ms, reduce_ms, replicate_ms; /* compute stood still for them; mean over ranks */
    uint64_t peak_bytes;                        /* of the rank with most */
    bool has_held_out;
    double held_out_loss; /* after this step's update, if has_held_out */
} step_record;

/* What was proved, of all ranks. */
typedef struct verified {
    const char *what; /* "plan" or "recorded" */
    bool is_sound;
    const char *rule, *text; /* which is broken, and by what; text "": none */
    uint64_t n_steps, n_ops, peak_bytes, bound_bytes;
    uint64_t steady_bytes; /* held between steps too, beside the lives that make the peak */
} verified;

/* Tokens as text: bytes that need not be UTF-8. */
typedef struct sample_text {
    const char *prompt, *text;
    size_t n_prompt, n_text;
} sample_text;

/* How the run ended. */
typedef struct run_end {
    uint64_t step;
    double seconds;
    uint64_t n_held_out; /* how often it was evaluated */
    double held_out_before, held_out_after;
    bool is_stopped; /* by a signal */
} run_end;

typedef struct log_lines {
    FILE *file, *output; /* NULL: none */
    const options *options;
} log_lines;

/* The fields of a verdict, each behind a comma. */
void log_write_verified(FILE *file, const verified *v);

/* A resumed run adds to the file. output: standard output, or NULL. Errors: FILE. */
hp_status log_open(log_lines *l, const options *o, bool is_resumed, FILE *output);
void log_close(log_lines *l);

/* Errors, of each: FILE. */
hp_status log_begin(log_lines *l, const run_facts *facts);
hp_status log_verified(log_lines *l, const verified *v);
hp_status log_held_out(log_lines *l, uint64_t step, double loss);
hp_status log_step(log_lines *l, const step_record *record);
hp_status log_sample(log_lines *l, const sample_text *sample);
hp_status log_end(log_lines *l, const run_end *end);

#endif
