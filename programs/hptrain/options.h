/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/options.h - the command line, from the table options.def.
 */
#ifndef HPTRAIN_OPTIONS_H
#define HPTRAIN_OPTIONS_H

#include <hyperparallel/world.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

enum { MOST_TENSOR = 64 }; /* of --tp */

/* The number of a row: OPTION_steps and so on. */
enum option_number {
#define HEADING(text)
#define X(field, ...) OPTION_##field,
#include "options.def"
#undef X
#undef HEADING
    N_OPTIONS
};

typedef struct options {
#define HEADING(text)
#define X_COUNT int64_t
#define X_REAL double
#define X_TEXT const char *
#define X_CHOICE const char *
#define X_FLAG bool
#define X_MODE const char *
#define X_SCHEDULE const char *
#define X(field, type, ...) X_##type field;
#include "options.def"
#undef X
#undef X_COUNT
#undef X_REAL
#undef X_TEXT
#undef X_CHOICE
#undef X_FLAG
#undef X_MODE
#undef X_SCHEDULE
#undef HEADING
    int n_replicas, n_shards; /* of --mesh; 0 without it */
    bool wants_help, wants_version;
    bool is_given[N_OPTIONS];
} options;

/* A TEXT option that was not given is "" or its default. Errors: ARGUMENT saying what was expected
 * and given, also of options that do not go together. */
hp_status options_parse(int argc, char **argv, options *out_options);

/* Defaults that depend on the model. Errors: ARGUMENT of options that do not go together then. */
hp_status options_settle(options *o, bool has_weights);

/* Ranks that were started by hand may have been given different options. Errors: ARGUMENT naming
 * the first one that differs. Collective. */
hp_status options_compare(hp_world *world, const options *o);

bool options_is_bytes_mlp(const options *o);
/* Does --model name a directory? */
bool options_is_directory(const options *o);

const char *options_name(enum option_number number);

/* The value as it stands on a command line: in out_text, or the option's own text. */
enum { OPTION_TEXT_BYTES = 32 };
const char *options_text(const options *o, enum option_number number,
                         char out_text[OPTION_TEXT_BYTES]);

/* Fields of all options that this model takes, for json.h. */
void options_write_json(FILE *file, const options *o);

/* " --NAME VALUE" for a shell, of each that was given and is not left out. */
void options_write_line(FILE *file, const options *o, const bool is_left_out[N_OPTIONS]);

/* Where --export leaves the model. */
void options_export_path(const options *o, char out_path[PATH_MAX]);

void options_help(FILE *file);

#endif
