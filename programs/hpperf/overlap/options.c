/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/options.c - the command line of hpperf overlap.
 *
 * As in options.c, every rank parses the same line and argp is kept silent.
 */
#include "../../odd_word.h"
#include "../fail.h"
#include "../parse.h"
#include "overlap.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum key {
    KEY_SCHEDULE = 0x1000,
    KEY_COMM,
    KEY_MESH,
    KEY_UNITS,
    KEY_PARAMS,
    KEY_WIDTH,
    KEY_PREFETCH,
    KEY_COMPUTE,
    KEY_COMPUTE_MS,
    KEY_COMM_MS,
    KEY_INJECT,
    KEY_RUNS,
    KEY_PAIRS,
    KEY_WARMUP,
    KEY_VIRTUAL,
    KEY_PRESET,
    KEY_TRACE,
    KEY_PIN,
    KEY_JSON
};

static const struct argp_option rows[] = {
    {0, 0, 0, 0, "Cases, a LIST with commas; each of one list with each of the others:", 0},
    {"schedule", KEY_SCHEDULE, "LIST", 0, "serial, prefetch, full, or all (default serial,full)",
     0},
    {"comm", KEY_COMM, "LIST", 0,
     "mode: per-param, fused, fused-zero-copy, mapped, auto, or all (default per-param)", 0},
    {"mesh", KEY_MESH, "LIST", 0,
     "replicas x shards, like 2x4 (default: 1x the ranks; --virtual: 2x4)", 0},
    {0, 0, 0, 0, "The model:", 0},
    {"units", KEY_UNITS, "N", 0, "1 to 1024 (default 32)", 0},
    {"params", KEY_PARAMS, "N", 0, "parameters of a unit, 1 to 64 (default 4)", 0},
    {"width", KEY_WIDTH, "BYTES", 0, "of a unit's parameters, fp32 (default 256K)", 0},
    {"prefetch", KEY_PREFETCH, "N", 0, "units gathered ahead, 0 to 16 (default 1)", 0},
    {0, 0, 0, 0, "Times, in milliseconds:", 0},
    {"compute", KEY_COMPUTE, "busy|sleep", 0, "work, or a timed sleep (default sleep)", 0},
    {"compute-ms", KEY_COMPUTE_MS, "F[,B]", 0,
     "of a unit's forward and backward (default 5; B: 2 F)", 0},
    {"comm-ms", KEY_COMM_MS, "G[,R[,A]]", 0,
     "put before a unit's gather, reduce-scatter and all-reduce (default: F; R: G B/F; A: R)", 0},
    {"inject", KEY_INJECT, "SEED", 0,
     "put up to as much again before each collective of each rank, at random", 0},
    {"virtual", KEY_VIRTUAL, 0, 0, "in virtual time: the ranks of the mesh need not exist", 0},
    {"preset", KEY_PRESET, "seed", 0,
     "32 layers in the cases of the seed's tables, with times from its figures: in virtual time, "
     "then on 8 ranks (docs/virtual-time.md)",
     0},
    {0, 0, 0, 0, "How it is measured:", 0},
    {"runs", KEY_RUNS, "N", 0, "of each case, in turns (default 10)", 0},
    {"pairs", KEY_PAIRS, "N", OPTION_ALIAS, 0, 0},
    {"warmup", KEY_WARMUP, "N", 0, "steps before, at least 2 (default 2)", 0},
    {"pin", KEY_PIN, "yes|no", 0,
     "bind rank r to the r-th core that it may use (default: yes with a core for each)", 0},
    {0, 0, 0, 0, "What is printed:", 0},
    {"json", KEY_JSON, 0, 0, "an object a line instead of the table", 0},
    {"trace", KEY_TRACE, "DIR", 0, "of one case, the trace of each rank: DIR/trace-RANK.json", 0},
    {"help", '?', 0, 0, "this text", 0},
    {0, 0, 0, 0, 0, 0}};

static const char about[] =
    "Measure how much communication a schedule hides behind compute: equal units, forward and "
    "backward, on the ranks that hprun started.\v"
    "Printed are medians over the runs, of the slowest rank; over: the step over its bound; "
    "serial: the step over that of the serial schedule, run by run. docs/hpperf.md says how the "
    "bound is made.\n\n"
    "  hprun -n 2 hpperf overlap --mesh 1x2,2x1 --compute busy --compute-ms 10\n"
    "  hprun -n 8 hpperf overlap --mesh 2x4 --schedule all --comm all --json";

/* ---- lists ---- */

/* The library's own words, behind the option's name. */
static hp_status refuse(const char *option) {
    hp_error e;
    hp_last_error_get(&e);
    return fail(HP_ERR_ARGUMENT, "%s: %s", option, e.message);
}

static hp_status parse_schedule(const char *word, int i, overlap_options *o) {
    return hp_schedule_parse(word, &o->schedules[i]) < 0 ? refuse("--schedule") : HP_OK;
}

static hp_status parse_mode(const char *word, int i, overlap_options *o) {
    return hp_mode_parse(word, &o->modes[i]) < 0 ? refuse("--comm") : HP_OK;
}

static hp_status parse_mesh(const char *word, int i, overlap_options *o) {
    char *end = NULL;
    const long n_replicas = strtol(word, &end, 10);
    const long n_shards = *end == 'x' ? strtol(end + 1, &end, 10) : 0;
    if (*end || n_replicas < 1 || n_shards < 1 || n_replicas > OVERLAP_MOST_RANKS ||
        n_shards > OVERLAP_MOST_RANKS || n_replicas * n_shards > OVERLAP_MOST_RANKS)
        return fail(HP_ERR_ARGUMENT,
                    "expected --mesh to be replicas x shards, like 2x4, of at most %d ranks, given "
                    "\"%s\"",
                    OVERLAP_MOST_RANKS, word);
    o->meshes[i] = (overlap_mesh){(int)n_replicas, (int)n_shards};
    return HP_OK;
}

/* A word after the other; *out_n: how many. */
static hp_status parse_list(const char *name, const char *text, const char *all,
                            hp_status (*parse)(const char *word, int i, overlap_options *o),
                            overlap_options *o, int *out_n) {
    char words[200];
    char *rest = NULL;
    int n = 0;
    snprintf(words, sizeof words, "%s", all && strcmp(text, "all") == 0 ? all : text);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (n == OVERLAP_MOST)
            return fail(HP_ERR_ARGUMENT, "expected at most %d of %s, given \"%s\"", OVERLAP_MOST,
                        name, text);
        TRY(parse(word, n++, o));
    }
    if (!n)
        return fail(HP_ERR_ARGUMENT, "expected %s to be a list, given \"%s\"", name, text);
    *out_n = n;
    return HP_OK;
}

/* ---- times ---- */

typedef struct command_line {
    overlap_options options;
    double compute[2], comm[3];
    int n_compute, n_comm;
    bool has_failed; /* the text is kept; else argp itself did not understand */
    const char *odd; /* this word */
    int n_read;      /* words, until then */
} command_line;

/* What was not said follows: communication lasts as long as the compute that it lies beside. */
static void fill_times(command_line *line) {
    overlap_times *t = &line->options.times;
    const double *compute = line->compute, *comm = line->comm;
    t->forward_ms = compute[0];
    t->backward_ms = line->n_compute > 1 ? compute[1] : 2 * compute[0];
    t->gather_ms = line->n_comm > 0 ? comm[0] : t->forward_ms;
    t->reduce_ms = line->n_comm > 1    ? comm[1]
                   : t->forward_ms > 0 ? t->gather_ms * t->backward_ms / t->forward_ms
                                       : t->gather_ms;
    t->replicate_ms = line->n_comm > 2 ? comm[2] : t->reduce_ms;
}

/* ---- the line ---- */

static hp_status parse_value(int key, const char *text, command_line *line) {
    overlap_options *o = &line->options;
    switch (key) {
    case KEY_SCHEDULE:
        return parse_list("--schedule", text, "serial,prefetch,full", parse_schedule, o,
                          &o->n_schedules);
    case KEY_COMM:
        return parse_list("--comm", text, "per-param,fused,fused-zero-copy,mapped,auto", parse_mode,
                          o, &o->n_modes);
    case KEY_MESH:
        return parse_list("--mesh", text, NULL, parse_mesh, o, &o->n_meshes);
    case KEY_UNITS:
        return parse_int("--units", text, 1, OVERLAP_MOST_UNITS, &o->n_units);
    case KEY_PARAMS:
        return parse_int("--params", text, 1, OVERLAP_MOST_PARAMS, &o->n_params);
    case KEY_WIDTH:
        return parse_bytes("--width", text, &o->width_bytes);
    case KEY_PREFETCH:
        return parse_int("--prefetch", text, 0, 16, &o->prefetch);
    case KEY_COMPUTE:
        return parse_flag("--compute", text, "sleep", "busy", &o->is_busy);
    case KEY_COMPUTE_MS:
        return parse_ms_list("--compute-ms", text, 2, line->compute, &line->n_compute);
    case KEY_COMM_MS:
        return parse_ms_list("--comm-ms", text, 3, line->comm, &line->n_comm);
    case KEY_INJECT:
        o->injects = true;
        return parse_count("--inject", text, 0, UINT64_MAX, &o->inject_seed);
    case KEY_RUNS:
    case KEY_PAIRS:
        return parse_int("--runs", text, 1, 10000, &o->n_runs);
    case KEY_WARMUP:
        return parse_int("--warmup", text, 2, 10000, &o->n_warmup);
    case KEY_PIN:
        return parse_pin(text, &o->pin);
    case KEY_PRESET:
        o->preset = text;
        return HP_OK;
    case KEY_TRACE:
        o->trace = text;
        return HP_OK;
    default:
        return fail(HP_ERR_ARGUMENT, "expected options alone after overlap, given \"%s\"", text);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state) {
    command_line *line = state->input;
    overlap_options *o = &line->options;
    bool *const flag = key == KEY_JSON      ? &o->as_json
                       : key == KEY_VIRTUAL ? &o->is_virtual
                       : key == '?'         ? &o->wants_help
                                            : NULL;
    if (key == ARGP_KEY_ERROR)
        line->odd = odd_word(state, line->n_read);
    line->n_read = state->next;
    if (flag) {
        *flag = true;
        return 0;
    }
    if (!text) /* argp's own keys: begin, end and so on */
        return ARGP_ERR_UNKNOWN;
    if (parse_value(key, text, line) == HP_OK)
        return 0;
    line->has_failed = true;
    return EINVAL; /* argp takes any error for "stop here" */
}

static const struct argp parser = {rows, parse_key, "", about, NULL, NULL, NULL};

void overlap_help(FILE *file) {
    char name[] = "hpperf overlap";
    argp_help(&parser, file, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
}

static hp_status check_together(const overlap_options *o) {
    if (o->width_bytes < sizeof(float) * (unsigned)o->n_params)
        return fail(HP_ERR_ARGUMENT,
                    "expected --width to be at least 4 bytes for each of %d parameters, given %llu",
                    o->n_params, (unsigned long long)o->width_bytes);
    if (!(o->times.reduce_ms <= PARSE_MOST_MS))
        return fail(
            HP_ERR_ARGUMENT,
            "expected reduce-scatters of at most %d ms, which --comm-ms G, --compute-ms F,B "
            "make G B/F = %g ms; give R too",
            PARSE_MOST_MS, o->times.reduce_ms);
    if (o->trace && (o->preset || overlap_n_cases(o) > 1))
        return fail(HP_ERR_ARGUMENT, "expected one case with --trace, given more");
    if (o->trace && o->is_virtual)
        return fail(HP_ERR_ARGUMENT, "expected no --trace with --virtual");
    return HP_OK;
}

hp_status overlap_parse(int argc, char **argv, overlap_options *out_options) {
    command_line line = {.options = {.schedules = {HP_SERIAL, HP_OVERLAP},
                                     .modes = {HP_PER_PARAM},
                                     .n_schedules = 2,
                                     .n_modes = 1,
                                     .n_units = 32,
                                     .n_params = 4,
                                     .width_bytes = 256 << 10,
                                     .prefetch = 1,
                                     .n_runs = 10,
                                     .n_warmup = 2},
                         .compute = {5, 10},
                         .n_compute = 1};
    if (argp_parse(&parser, argc, argv, ARGP_SILENT, NULL, &line) != 0) {
        if (line.has_failed)
            return HP_ERR_ARGUMENT;
        return fail(HP_ERR_ARGUMENT,
                    "unknown or ambiguous option, or missing value: %s; see hpperf overlap --help",
                    line.odd ? line.odd : "");
    }
    fill_times(&line);
    TRY(check_together(&line.options));
    *out_options = line.options;
    return HP_OK;
}

hp_status overlap_check_ranks(overlap_options *o, int n_ranks) {
    if (!o->n_meshes) {
        o->n_meshes = 1;
        o->meshes[0] = o->is_virtual ? (overlap_mesh){2, 4} : (overlap_mesh){1, n_ranks};
    }
    for (int i = 0; i < o->n_meshes && !o->is_virtual && !o->preset; i++) {
        const overlap_mesh *m = &o->meshes[i];
        if (m->n_replicas * m->n_shards != n_ranks)
            return fail(HP_ERR_ARGUMENT, "expected --mesh for %d ranks, given %dx%d", n_ranks,
                        m->n_replicas, m->n_shards);
    }
    return HP_OK;
}

/* ---- cases ---- */

int overlap_n_cases(const overlap_options *o) {
    return o->n_schedules * o->n_modes * (o->n_meshes ? o->n_meshes : 1);
}

overlap_case overlap_case_at(const overlap_options *o, int i) {
    const int s = i % o->n_schedules, m = i / o->n_schedules % o->n_modes;
    return (overlap_case){o->schedules[s], o->modes[m],
                          o->meshes[i / (o->n_schedules * o->n_modes)]};
}
