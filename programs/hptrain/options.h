/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/options.h - the command line, from the table options.def.
 */
#ifndef HPTRAIN_OPTIONS_H
#define HPTRAIN_OPTIONS_H

#include <hyperparallel/base.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct options {
#define HEADING(text)
#define X_COUNT int64_t
#define X_REAL double
#define X_TEXT const char *
#define X_CHOICE const char *
#define X(field, type, name, argument, fallback, least, most, text) X_##type field;
#include "options.def"
#undef X
#undef X_COUNT
#undef X_REAL
#undef X_TEXT
#undef X_CHOICE
#undef HEADING
    int n_replicas, n_shards; /* of --mesh; 0 without it */
    bool wants_help, wants_version;
} options;

/* A TEXT option that was not given is "". Errors: ARGUMENT saying what was expected and given. */
hp_status options_parse(int argc, char **argv, options *out_options);
void options_help(FILE *file);

#endif
