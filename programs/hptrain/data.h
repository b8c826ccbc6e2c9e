/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/data.h - the tokens, and which pieces of them a step trains on.
 *
 * A text's bytes are its tokens; a token file holds ids. A sample is read when it is asked for: the
 * file may be larger than memory, and one that is cut short meanwhile is an error, where a mapping
 * would end the program. The first 90% of the tokens are trained on, the last 10% are held out.
 * Where sample number i begins is a hash of (seed, i), so the order of the data depends on the
 * number of the step alone: not on the ranks, not on where a run was resumed.
 */
#ifndef HPTRAIN_DATA_H
#define HPTRAIN_DATA_H

#include <hyperparallel/base.h>
#include <limits.h>
#include <stdbool.h>

typedef struct data {
    char path[PATH_MAX];
    bool is_open;
    int fd;
    uint64_t tokens_begin; /* bytes in front of the first token */
    size_t token_bytes;    /* 1, a text; 2 or 4, a token file */
    uint64_t n_tokens, n_train;
    uint32_t vocab_size; /* every id is below it, says the file; 0: it does not */
    /* What data_fit agreed on. */
    size_t sample_tokens;
    uint32_t limit;      /* ids at or above it are refused */
    unsigned char *room; /* of one sample, as it lies in the file */
} data;

/* Open `path`, or with "" the text that ships with the program. Errors: FILE; FORMAT naming the
 * file. Owns: the caller; close takes a zeroed data. */
hp_status data_open(const char *path, data *out_data);
void data_close(data *d);

/* Samples will be `sample_tokens` in a row, of a model with ids below vocab_size. Errors: FORMAT
 * when one of the two parts is shorter than a sample or the file has more ids than the model;
 * MEMORY. */
hp_status data_fit(data *d, int sample_tokens, int vocab_size);

/* Samples [first, first + n) of the training part. out_samples: [n][sample_tokens]. Errors: FORMAT
 * naming an id that the model has not, and its place; FILE. */
hp_status data_samples(const data *d, uint64_t seed, uint64_t first, int n, int32_t *out_samples);

/* n samples, evenly spaced over the held-out part. out_samples: [n][sample_tokens]. */
hp_status data_held_out(const data *d, int n, int32_t *out_samples);

bool data_is_text(const data *d);
/* "byte" or "token". */
const char *data_unit(const data *d);

#endif
