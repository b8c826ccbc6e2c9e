/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/text.h - the text, and which pieces of it a step trains on.
 *
 * The first 90% of the bytes are trained on, the last 10% are held out. A sample is window + seq
 * bytes in a row. Where sample number i begins is a hash of (seed, i), so the order of the data
 * depends on the number of the step alone: not on the ranks, not on where a run was resumed.
 */
#ifndef HPTRAIN_TEXT_H
#define HPTRAIN_TEXT_H

#include <hyperparallel/base.h>
#include <limits.h>

typedef struct text {
    char path[PATH_MAX];
    unsigned char *bytes;
    size_t n_bytes, n_train, sample_bytes;
} text;

/* Read `path`, or with "" the text that ships with the program. Errors: FILE; FORMAT when one of
 * the two parts is shorter than a sample. Owns: the caller; free takes a zeroed text. */
hp_status text_load(const char *path, size_t sample_bytes, text *out_text);
void text_free(text *t);

/* Samples [first, first + n) of the training part. out_samples: [n][sample_bytes]. */
void text_samples(const text *t, uint64_t seed, uint64_t first, int n, unsigned char *out_samples);

/* n samples, evenly spaced over the held-out part. out_samples: [n][sample_bytes]. */
void text_held_out(const text *t, int n, unsigned char *out_samples);

#endif
