/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/options.c - argp over the table.
 *
 * Every rank parses the same line, so argp is kept silent: the failure is returned and one rank
 * speaks for all. A default is the text in its row, read by the same parser as the user's.
 */
#include "options.h"
#include "../odd_word.h"
#include "fail.h"
#include "json.h"
#include "spell.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/fsdp.h>

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { COUNT, REAL, TEXT, CHOICE, FLAG, MODE, SCHEDULE } kind;
typedef enum owner { ANY, MLP, QWEN3, SIZES } owner;

typedef struct row {
    const char *name;
    kind kind;
    owner owner;
    size_t offset; /* in options */
    const char *argument, *fallback;
    double least, most;      /* of a REAL */
    int64_t n_least, n_most; /* of a COUNT: a double cannot tell the largest ones apart */
} row;

#define WHOLE_COUNT(value) (value)
#define WHOLE_REAL(value) 0
#define WHOLE_TEXT(value) 0
#define WHOLE_CHOICE(value) 0
#define WHOLE_FLAG(value) 0
#define WHOLE_MODE(value) 0
#define WHOLE_SCHEDULE(value) 0

static const row rows[N_OPTIONS] = {
#define HEADING(text)
#define X(field, type, name, argument, fallback, least, most, owner, text)                         \
    {name,                                                                                         \
     type,                                                                                         \
     owner,                                                                                        \
     offsetof(options, field),                                                                     \
     argument,                                                                                     \
     fallback,                                                                                     \
     (double)(least),                                                                              \
     (double)(most),                                                                               \
     WHOLE_##type(least),                                                                          \
     WHOLE_##type(most)},
#include "options.def"
#undef X
#undef HEADING
#undef WHOLE_COUNT
#undef WHOLE_REAL
#undef WHOLE_TEXT
#undef WHOLE_CHOICE
#undef WHOLE_FLAG
#undef WHOLE_MODE
#undef WHOLE_SCHEDULE
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
    if (errno || end == text || *end || value < r->n_least || value > r->n_most)
        return fail(HP_ERR_ARGUMENT,
                    "expected --%s to be a whole number from %" PRId64 " to %" PRId64
                    ", given \"%s\"",
                    r->name, r->n_least, r->n_most, text);
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

/* The library's name i of a mode or a schedule; NULL: there are not so many. */
static const char *library_name(kind of, int i) {
    const char *name = of == MODE ? hp_mode_name((hp_mode)i) : hp_schedule_name((hp_schedule)i);
    return strcmp(name, "?") != 0 ? name : NULL;
}

/* "one|two|three" */
enum { NAMES_BYTES = 128 };
static const char *library_names(kind of, char out_text[NAMES_BYTES]) {
    const char *name;
    size_t n = 0;
    for (int i = 0; (name = library_name(of, i)) && n < NAMES_BYTES; i++)
        n += (size_t)snprintf(out_text + n, NAMES_BYTES - n, "%s%s", i ? "|" : "", name);
    return out_text;
}

static hp_status parse_library_name(const row *r, const char *text) {
    hp_mode mode;
    hp_schedule schedule;
    char names[NAMES_BYTES];
    const hp_status status =
        r->kind == MODE ? hp_mode_parse(text, &mode) : hp_schedule_parse(text, &schedule);
    return status < 0 ? fail(status, "expected --%s to be %s, given \"%s\"", r->name,
                             library_names(r->kind, names), text)
                      : HP_OK;
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
    case MODE:
    case SCHEDULE:
        TRY(parse_library_name(r, text));
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
    const char *odd; /* this word */
    int n_read;      /* words, until then */
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
    if (key == ARGP_KEY_ERROR)
        line->odd = odd_word(state, line->n_read);
    line->n_read = state->next;
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
    char *all = NULL, names[NAMES_BYTES];
    if (key < FIRST_KEY || key >= FIRST_KEY + N_OPTIONS || !*rows[key - FIRST_KEY].fallback)
        return (char *)(uintptr_t)text;
    const row *r = &rows[key - FIRST_KEY];
    const bool has_names = r->kind == MODE || r->kind == SCHEDULE;
    if (asprintf(&all, "%s (%s%sdefault %s)", text, has_names ? library_names(r->kind, names) : "",
                 has_names ? "; " : "", r->fallback) < 0)
        return (char *)(uintptr_t)text;
    return all;
}

static const char about[] =
    "Train a language model over the ranks that hprun (or torchrun) started; by itself it is one "
    "rank.\v"
    "SIGINT or SIGTERM ends the run after a whole step, or inside an evaluation or a sample, with "
    "a "
    "checkpoint when --save is given; the exit status is 0 then too. A second one ends it at once. "
    "So does a reader of standard output who is gone. "
    "A loss, a gradient or a weight that is not finite ends it with status 1 and saves nothing.\n\n"
    "Beside the checkpoints stands hptrain.json, of what run they are; a run that resumes them "
    "tells what it does otherwise. Checkpoints of another run are not written over. Where hprun "
    "(or "
    "torchrun) starts the same command again (--max-restarts), it goes on from the newest "
    "checkpoint "
    "in --save, or afresh where there is none yet; the log goes on.\n\n"
    "With --model DIR the weights are those of DIR where it has some, and --export hf carries over "
    "what stands beside them: tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, "
    "special_tokens_map.json, added_tokens.json, chat_template.jinja and "
    "generation_config.json.\n\n"
    "Where the ranks have more threads in matrix products than cores, threads that wait sleep "
    "(OMP_WAIT_POLICY=passive, unless the environment says otherwise). HYPER_PARALLEL_MATMUL in "
    "the "
    "environment is what --matmul is without the option.\n\n"
    "JSON lines, in --log and on standard output, are objects by \"event\". begin: what is run, "
    "weights among it: first, checkpoint, or the directory that they come from; comm, the mode "
    "that "
    "auto chose; restart, how often the job was started again; and options, all "
    "that hold. verify: what was verified (plan, recorded), whether it is sound, the rule that is "
    "broken and by what. step: "
    "step, loss (mean over the global batch, before the update), lr, grad_norm (before it is "
    "limited), step_ms, "
    "tokens_per_s, exposed_ms (waited for communication, mean over ranks), peak_bytes (weights, "
    "gradients, optimizer, activations and rings of the rank that holds most), and held_out_loss "
    "(after "
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

/* "-1xS": as many replicas as the ranks make, n_replicas stays 0. */
static hp_status parse_mesh(options *o) {
    const char *text = o->mesh;
    if (!*text)
        return HP_OK;
    const bool is_open = strncmp(text, "-1x", 3) == 0;
    if (is_open)
        text += 2;
    else
        o->n_replicas = take_size(&text);
    const bool has_x = *text == 'x';
    text += has_x;
    o->n_shards = take_size(&text);
    if (!has_x || *text || (!o->n_replicas && !is_open) || !o->n_shards)
        return fail(HP_ERR_ARGUMENT,
                    "expected --mesh to be RxS, replicas x shards, like 2x4 or -1x4, given \"%s\"",
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
    const double later = NAN;
    for (int i = 0; i < N_OPTIONS; i++)
        if (*rows[i].fallback || rows[i].kind == TEXT)
            TRY(parse_value(&rows[i], rows[i].fallback, o));
        else if (rows[i].kind == REAL)
            memcpy((char *)o + rows[i].offset, &later, sizeof later);
    return HP_OK;
}

/* The row with the closest name, if a few slips of the hand lead there. */
static const row *find_meant(const char *name) {
    const row *best = NULL;
    int least = 1 + (int)strlen(name) / 3;
    for (int i = 0; i < N_OPTIONS; i++) {
        const int distance = spell_distance(name, rows[i].name);
        if (distance > least || (best && distance == least))
            continue;
        best = &rows[i];
        least = distance;
    }
    return best;
}

/* What argp did not understand: a name that is none, or one without its value. */
static hp_status refuse_word(const char *word) {
    char name[64] = "";
    const char *begin = word + strspn(word, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(begin, "="), begin);
    const row *meant = find_meant(name);
    if (meant && strcmp(meant->name, name) == 0 && strncmp(word, "--", 2) == 0)
        return meant->kind == FLAG ? fail(HP_ERR_ARGUMENT,
                                          "expected --%s without a value, given \"%s\"", name, word)
                                   : fail(HP_ERR_ARGUMENT, "expected --%s %s, given no value", name,
                                          meant->argument);
    if (meant)
        return fail(HP_ERR_ARGUMENT, "unknown option %s (did you mean --%s?); see hptrain --help",
                    word, meant->name);
    return fail(HP_ERR_ARGUMENT, "unknown option %s; see hptrain --help", word);
}

hp_status options_parse(int argc, char **argv, options *out_options) {
    command_line line = {.has_failed = false};
    TRY(set_defaults(&line.options));
    if (argp_parse(&parser, argc, argv, ARGP_SILENT, NULL, &line) != 0)
        return line.has_failed ? HP_ERR_ARGUMENT : refuse_word(line.odd ? line.odd : "");
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

/* ---- as text ---- */

const char *options_name(enum option_number number) {
    return rows[number].name;
}

/* The shortest text that reads back as the same number. */
static void write_real(double value, char out_text[OPTION_TEXT_BYTES]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out_text, OPTION_TEXT_BYTES, "%.*g", digits, value);
        if (strtod(out_text, NULL) == value)
            return;
    }
}

const char *options_text(const options *o, enum option_number number,
                         char out_text[OPTION_TEXT_BYTES]) {
    const void *field = (const char *)o + rows[number].offset;
    switch (rows[number].kind) {
    case COUNT:
        snprintf(out_text, OPTION_TEXT_BYTES, "%" PRId64, *(const int64_t *)field);
        return out_text;
    case REAL:
        write_real(*(const double *)field, out_text);
        return out_text;
    case FLAG:
        return *(const bool *)field ? "true" : "false";
    case TEXT:
    case CHOICE:
    case MODE:
    case SCHEDULE:
        break;
    }
    return *(const char *const *)field;
}

static void write_json_row(FILE *file, const row *r, const options *o) {
    const void *field = (const char *)o + r->offset;
    switch (r->kind) {
    case COUNT: /* none is below 0 */
        json_count(file, r->name, (uint64_t)(*(const int64_t *)field));
        break;
    case REAL:
        json_number(file, r->name, *(const double *)field);
        break;
    case FLAG:
        json_name(file, r->name);
        fputs(*(const bool *)field ? "true" : "false", file);
        break;
    case TEXT:
    case CHOICE:
    case MODE:
    case SCHEDULE:
        json_text(file, r->name, *(const char *const *)field);
        break;
    }
}

void options_write_json(FILE *file, const options *o) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (!is_foreign(rows[i].owner, o))
            write_json_row(file, &rows[i], o);
}

/* In quotes for a shell, unless it is plain. */
static void write_word(FILE *file, const char *text) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./,:=@%";
    if (*text && strspn(text, plain) == strlen(text)) {
        fputs(text, file);
        return;
    }
    fputc('\'', file);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", file);
        else
            fputc(*text, file);
    fputc('\'', file);
}

void options_write_line(FILE *file, const options *o, const bool is_left_out[N_OPTIONS]) {
    char text[OPTION_TEXT_BYTES];
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!o->is_given[i] || is_left_out[i])
            continue;
        fprintf(file, " --%s", rows[i].name);
        if (rows[i].kind == FLAG)
            continue;
        fputc(' ', file);
        write_word(file, options_text(o, (enum option_number)i, text));
    }
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
    case MODE:
    case SCHEDULE:
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
