/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/model.h - what the trainer knows of a model: one table of functions.
 *
 * A sample is sample_tokens in a row, of which the model predicts `seq`. A row of the table is a
 * file model_NAME.c; the rest of the program never asks which one it has.
 */
#ifndef HPTRAIN_MODEL_H
#define HPTRAIN_MODEL_H

#include "options.h"

#include <hyperparallel/fsdp.h>

typedef struct model model;

typedef struct model_kind {
    /* Sizes from the options or a directory, checked; fills what stands in `model` below.
     * data_vocab: the data's vocabulary, 0 when unknown. Local. */
    hp_status (*open)(model *m, uint32_t data_vocab);
    /* Take memory and declare units. Local, before hp_fsdp_commit. */
    hp_status (*create)(model *m, hp_fsdp *fsdp);
    /* Weights of the directory, where it has some; NULL: there never are. Collective. */
    hp_status (*load)(model *m, hp_fsdp *fsdp);
    /* Inside a pass. samples: [n][sample_tokens], which must stay until the backward, the same on
     * the ranks of --tp; n: 0 to --batch. *out_loss: the sum over n * seq predictions, or what of
     * them this rank of --tp has. Collective. */
    hp_status (*forward)(model *m, const int32_t *samples, int n, double *out_loss);
    /* The gradient of `weight` times the mean over these predictions. Collective. */
    hp_status (*backward)(model *m, double weight);
    /* Continue a prompt by n tokens, alike on all ranks; NULL: it cannot. Collective. */
    hp_status (*generate)(model *m, const int32_t *prompt, int n_prompt, uint64_t seed, int n,
                          int32_t *out_tokens);
    /* Write it as other programs read it; NULL: there is no such form. Collective. */
    hp_status (*export)(model *m, hp_fsdp *fsdp, const char *directory);
    /* Also after a failed open or create. */
    void (*close)(model *m);
} model_kind;

struct model {
    const model_kind *kind;
    const options *options;
    hp_group *tensor; /* of --tp, before create; NULL: none */
    /* From open. */
    int sample_tokens, vocab_size, n_units;
    char sizes[256];  /* all that its weights' shapes follow from, for people */
    bool has_weights; /* for load to take */
    void *state;      /* the kind's own */
    /* From create. */
    uint64_t n_parameters, activation_bytes;
    const char *engine;    /* of its matrix products */
    char engine_note[640]; /* why that is not the best one; "": it is, or was asked for */
};

extern const model_kind model_bytes_mlp, model_qwen3;

#endif
