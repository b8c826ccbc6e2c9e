/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/options.c - argp over the table.
 *
 * Every rank parses the same line, so argp is kept silent: the failure is returned and one rank
 * speaks for all. A default is the text in its row, read by the same parser as the user's.
 */
#include "options.h"
#include "fail.h"

#include <hyperparallel/coll.h>

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { COUNT, REAL, TEXT, CHOICE, FLAG } kind;
typedef enum owner { ANY, MLP, QWEN3, SIZES } owner;

typedef struct row {
    const char *name;
    kind kind;
    owner owner;
    size_t offset; /* in options */
    const char *argument, *fallback;
    double least, most;
} row;

static const row rows[N_OPTIONS] = {
#define HEADING(text)
#define X(field, type, name, argument, fallback, least, most, owner, text)                         \
    {name,     type,     owner,           offsetof(options, field),                                \
     argument, fallback, (double)(least), (double)(most)},
#include "options.def"
#undef X
#undef HEADING
};

/* Keys of argp: row r is FIRST_KEY + r. */
enum { KEY_HELP = 'h', KEY_VERSION = 'V', FIRST_KEY = 0x1000 };

static const struct argp_option argp_rows[] = {
#define HEADING(text) {0, 0, 0, 0, text, 0},
#define X(field, type, name, argument, fallback, least, most, owner, text)                         \
    {name, FIRST_KEY + OPTION_##field, argument, 0, text, 0},
#include "options.def"
#undef X
#undef HEADING
    {0, 0, 0, 0, "Else:", 0},
    {"help", KEY_HELP, 0, 0, "this text", 0},
    {"version", KEY_VERSION, 0, 0, "the version", 0},
    {0, 0, 0, 0, 0, 0},
};

/* ---- one value ---- */

/* errno tells a number that does not fit from the largest one. */
static hp_status parse_count(const row *r, const char *text, int64_t *out) {
    char *end = NULL;
    errno = 0;
    const int64_t value = strtoll(text, &end, 10);
    if (errno || end == text || *end || (double)value < r->least || (double)value > r->most)
        return fail(HP_ERR_ARGUMENT,
                    "expected --%s to be a whole number from %.0f to %.0f, given \"%s\"", r->name,
                    r->least, r->most, text);
    *out = value;
    return HP_OK;
}

/* The comparison is written so that NaN fails it. */
static hp_status parse_real(const row *r, const char *text, double *out) {
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end || !(value >= r->least && value <= r->most))
        return fail(HP_ERR_ARGUMENT, "expected --%s to be a number from %g to %g, given \"%s\"",
                    r->name, r->least, r->most, text);
    *out = value;
    return HP_OK;
}

/* Is `text` one of the names in "one|two|three"? */
static bool is_choice(const char *choices, const char *text) {
    const size_t n = strlen(text);
    for (const char *c = choices; n; c = strchr(c, '|') + 1) {
        if (strncmp(c, text, n) == 0 && (c[n] == '|' || c[n] == 0))
            return true;
        if (!strchr(c, '|'))
            break;
    }
    return false;
}

static hp_status parse_value(const row *r, const char *text, options *o) {
    void *field = (char *)o + r->offset;
    switch (r->kind) {
    case COUNT:
        return parse_count(r, text, field);
    case REAL:
        return parse_real(r, text, field);
    case CHOICE:
        if (!is_choice(r->argument, text))
            return fail(HP_ERR_ARGUMENT, "expected --%s to be %s, given \"%s\"", r->name,
                        r->argument, text);
        break;
    case TEXT:
        break;
    case FLAG:
        *(bool *)field = true;
        return HP_OK;
    }
    *(const char **)field = text;
    return HP_OK;
}

/* ---- the line ---- */

typedef struct command_line {
    options options;
    bool has_failed; /* the text is kept; else argp itself did not understand */
} command_line;

/* argp takes any error code for "stop here". */
static error_t refuse(command_line *line) {
    line->has_failed = true;
    return EINVAL;
}

/* An empty text would read as "not given". */
static error_t parse_row(const row *r, const char *text, command_line *line) {
    if (r->kind == TEXT && !*text) {
        (void)fail(HP_ERR_ARGUMENT, "expected --%s to be %s, given \"\"", r->name, r->argument);
        return refuse(line);
    }
    line->options.is_given[r - rows] = true;
    return parse_value(r, text, &line->options) < 0 ? refuse(line) : 0;
}

static error_t parse_key(int key, char *text, struct argp_state *state) {
    command_line *line = state->input;
    if (key >= FIRST_KEY && key < FIRST_KEY + N_OPTIONS)
        return parse_row(&rows[key - FIRST_KEY], text, line);
    switch (key) {
    case KEY_HELP:
        line->options.wants_help = true;
        return 0;
    case KEY_VERSION:
        line->options.wants_version = true;
        return 0;
    case ARGP_KEY_ARG: /* a word that is no option */
        (void)fail(HP_ERR_ARGUMENT, "expected options alone (see --help), given \"%s\"", text);
        return refuse(line);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* "train up to this step (default 300)". argp frees what is returned. */
static char *with_default(int key, const char *text, void *input) {
    (void)input;
    char *all = NULL;
    if (key < FIRST_KEY || key >= FIRST_KEY + N_OPTIONS || !*rows[key - FIRST_KEY].fallback)
        return (char *)(uintptr_t)text;
    if (asprintf(&all, "%s (default %s)", text, rows[key - FIRST_KEY].fallback) < 0)
        return (char *)(uintptr_t)text;
    return all;
}

static const char about[] =
    "Train a language model over the ranks that hprun (or torchrun) started; by itself it is one "
    "rank.\v"
    "SIGINT or SIGTERM ends the run after a whole step, or inside an evaluation or a sample, with "
    "a "
    "checkpoint when --save is given; the exit status is 0 then too. A second one ends it at once. "
    "A loss, a gradient or a weight that is not finite ends it with status 1 and saves nothing.\n\n"
    "With --model DIR the weights are those of DIR where it has some, and --export hf carries over "
    "what stands beside them: tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, "
    "special_tokens_map.json, added_tokens.json, chat_template.jinja and "
    "generation_config.json.\n\n"
    "Where the ranks have more threads in matrix products than cores, threads that wait sleep "
    "(OMP_WAIT_POLICY=passive, unless the environment says otherwise). HYPER_PARALLEL_MATMUL in "
    "the "
    "environment is what --matmul is without the option.\n\n"
    "JSON lines, in --log and on standard output, are objects by \"event\". begin: what is run, "
    "weights among it: first, checkpoint, or the directory that they come from. step: "
    "step, loss (mean over the global batch, before the update), lr, grad_norm (before it is "
    "limited), step_ms, "
    "tokens_per_s, exposed_ms (waited for communication, mean over ranks), peak_bytes (weights, "
    "gradients, optimizer and activations of the rank that holds most), and held_out_loss (after "
    "the update) where it was evaluated. held_out: before the first step. sample: prompt and text. "
    "end: the held-out losses and what was written.\n\n"
    "Examples:\n"
    "  hprun -n 8 hptrain --mesh 2x4 --save checkpoint --sample \"And God said\"\n"
    "  hprun -n 2 hptrain --model DIR --data FILE --lr 1e-4 --save out --export hf";

static const struct argp parser = {argp_rows, parse_key, NULL, about, NULL, with_default, NULL};

void options_help(FILE *file) {
    char name[] = "hptrain";
    argp_help(&parser, file, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
}

/* A number from 1 to 9999 at the front of *text, which moves behind it; 0: there is none. */
static int take_size(const char **text) {
    char *end = NULL;
    const long value = strtol(*text, &end, 10);
    *text = end;
    return value >= 1 && value <= 9999 ? (int)value : 0;
}

static hp_status parse_mesh(options *o) {
    const char *text = o->mesh;
    if (!*text)
        return HP_OK;
    o->n_replicas = take_size(&text);
    const bool has_x = *text == 'x';
    text += has_x;
    o->n_shards = take_size(&text);
    if (!has_x || *text || !o->n_replicas || !o->n_shards)
        return fail(HP_ERR_ARGUMENT,
                    "expected --mesh to be RxS, replicas x shards, like 2x4, given \"%s\"",
                    o->mesh);
    return HP_OK;
}

bool options_is_bytes_mlp(const options *o) {
    return strcmp(o->model, "bytes-mlp") == 0;
}

bool options_is_directory(const options *o) {
    return !options_is_bytes_mlp(o) && strcmp(o->model, "qwen3") != 0;
}

/* Whose options this run may not be given. */
static bool is_foreign(owner whose, const options *o) {
    if (options_is_bytes_mlp(o))
        return whose == QWEN3 || whose == SIZES;
    return whose == MLP || (whose == SIZES && options_is_directory(o));
}

static hp_status check_together(const options *o) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (o->is_given[i] && is_foreign(rows[i].owner, o))
            return fail(HP_ERR_ARGUMENT, "expected no --%s with --model %s%s", rows[i].name,
                        o->model, rows[i].owner == SIZES ? ", whose config.json gives it" : "");
    if (strcmp(o->export, "none") != 0 && !*o->save)
        return fail(HP_ERR_ARGUMENT, "expected --save DIR with --export %s, given none", o->export);
    if (strlen(o->save) + sizeof "/hf" > PATH_MAX)
        return fail(HP_ERR_ARGUMENT, "expected --save to be a path below %d bytes", PATH_MAX - 3);
    return HP_OK;
}

/* A row without a default is zero; a number without one follows from others, NAN until then. */
static hp_status set_defaults(options *o) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (*rows[i].fallback || rows[i].kind == TEXT)
            TRY(parse_value(&rows[i], rows[i].fallback, o));
        else if (rows[i].kind == REAL)
            *(double *)((char *)o + rows[i].offset) = NAN;
    return HP_OK;
}

hp_status options_parse(int argc, char **argv, options *out_options) {
    command_line line = {.has_failed = false};
    int next = argc;
    TRY(set_defaults(&line.options));
    if (argp_parse(&parser, argc, argv, ARGP_SILENT, &next, &line) != 0) {
        if (line.has_failed)
            return HP_ERR_ARGUMENT;
        while (next > 2 && argv[next - 1][0] != '-') /* from its value back to the option */
            next--;
        return fail(HP_ERR_ARGUMENT, "expected an option of --help, with its value; given \"%s\"",
                    argv[next - 1]);
    }
    TRY(parse_mesh(&line.options));
    TRY(check_together(&line.options));
    *out_options = line.options;
    return HP_OK;
}

/* Weights that have learnt something are lost at the rate that first ones are trained with. */
hp_status options_settle(options *o, bool has_weights) {
    if (!o->is_given[OPTION_lr])
        o->lr = has_weights ? 5e-5 : 6e-3;
    if (!o->is_given[OPTION_lr_min])
        o->lr_min = o->lr / 50;
    if (o->lr_min > o->lr)
        return fail(HP_ERR_ARGUMENT, "expected --lr-min to be at most --lr %g, given %g", o->lr,
                    o->lr_min);
    return HP_OK;
}

void options_export_path(const options *o, char out_path[PATH_MAX]) {
    snprintf(out_path, PATH_MAX, "%s/hf", o->save); /* check_together has seen that it fits */
}

/* ---- between ranks ---- */

/* FNV-1a. Source: Fowler, Noll, Vo 1991. */
static int64_t hash_of(const void *bytes, size_t n) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
    return (int64_t)hash;
}

static int64_t hash_value(const row *r, const options *o) {
    const void *field = (const char *)o + r->offset;
    switch (r->kind) {
    case COUNT:
        return hash_of(field, sizeof(int64_t));
    case REAL:
        return hash_of(field, sizeof(double));
    case FLAG:
        return hash_of(field, sizeof(bool));
    case TEXT:
    case CHOICE:
        break;
    }
    const char *text = *(const char *const *)field;
    return hash_of(text, strlen(text));
}

/* The smallest hash that a rank has is the largest too where all have the same. */
hp_status options_compare(hp_world *world, const options *o) {
    int64_t least[N_OPTIONS], most[N_OPTIONS];
    for (int i = 0; i < N_OPTIONS; i++)
        least[i] = most[i] = hash_value(&rows[i], o);
    TRY(hp_all_reduce(hp_world_group(world), least, least, N_OPTIONS, HP_INT64, HP_MIN));
    TRY(hp_all_reduce(hp_world_group(world), most, most, N_OPTIONS, HP_INT64, HP_MAX));
    hp_status status = HP_OK;
    for (int i = 0; i < N_OPTIONS && status == HP_OK; i++)
        if (least[i] != most[i])
            status = fail(HP_ERR_ARGUMENT,
                          "expected the same options on every rank, --%s differs between them",
                          rows[i].name);
    return agree(world, status);
}
