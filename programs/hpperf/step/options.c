/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/step/options.c - the command line of hpperf step.
 *
 * As in options.c, every rank parses the same line and argp is kept silent.
 */
#include "../../odd_word.h"
#include "../fail.h"
#include "../parse.h"
#include "step.h"

#include <argp.h>
#include <errno.h>
#include <string.h>

enum key {
    KEY_COMM = 0x1000,
    KEY_UNITS,
    KEY_PARAMS,
    KEY_WIDTH,
    KEY_EXECUTOR,
    KEY_BESIDE,
    KEY_PAIRS,
    KEY_STEPS,
    KEY_TIMEOUT,
    KEY_TRACE,
    KEY_PIN,
    KEY_JSON
};

static const struct argp_option rows[] = {
    {"comm", KEY_COMM, "LIST", 0,
     "modes: per-param, fused, fused-zero-copy, mapped, auto, or all (default all)", 0},
    {"units", KEY_UNITS, "N", 0, "1 to 1024 (default 8)", 0},
    {"params", KEY_PARAMS, "N", 0, "parameters of a unit, 1 to 64 (default 4)", 0},
    {"width", KEY_WIDTH, "BYTES", 0, "of a unit's parameters, fp32 (default 4M)", 0},
    {"executor", KEY_EXECUTOR, "inline|thread", 0,
     "who runs the streams: the caller, or threads (default inline)", 0},
    {"beside", KEY_BESIDE, "PEER", 0,
     "the same in turns with an MPI, on as many ranks: openmpi, mpich, intelmpi ...", 0},
    {"pairs", KEY_PAIRS, "N", 0, "turns of each (default 20)", 0},
    {"steps", KEY_STEPS, "N", 0, "of a turn, behind one that is not timed (default 3)", 0},
    {"peer-timeout-ms", KEY_TIMEOUT, "MS", 0, "for a peer to start, or a turn (default 60000)", 0},
    {"trace", KEY_TRACE, "DIR", 0, "of one mode, the trace of each rank: DIR/trace-RANK.json", 0},
    {"pin", KEY_PIN, "yes|no", 0,
     "bind rank r to the r-th core that it may use (default: yes with a core for each)", 0},
    {"json", KEY_JSON, 0, 0, "an object a line instead of the table", 0},
    {"help", '?', 0, 0, "this text", 0},
    {0, 0, 0, 0, 0, 0}};

static const char about[] =
    "Measure what the communication of a training step costs, every mode in turns: forward and "
    "backward of equal units under the schedule serial, the time inside the library's calls.\v"
    "Printed are medians over the pairs, of the slowest rank; with --beside: the peer's step with "
    "its packing and the part of it inside MPI, and both over ours, pair by pair.\n\n"
    "  hprun -n 2 hpperf step --beside openmpi --comm per-param,mapped";

typedef struct command_line {
    step_options options;
    bool has_failed; /* the text is kept; else argp itself did not understand */
    const char *odd; /* this word */
    int n_read;      /* words, until then */
} command_line;

static hp_status parse_modes(const char *text, step_options *o) {
    char words[200];
    char *rest = NULL;
    const bool is_all = strcmp(text, "all") == 0;
    o->n_modes = 0;
    snprintf(words, sizeof words, "%s",
             is_all ? "per-param,fused,fused-zero-copy,mapped,auto" : text);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        hp_error e;
        if (o->n_modes == STEP_MOST_MODES)
            return fail(HP_ERR_ARGUMENT, "expected at most %d of --comm, given \"%s\"",
                        STEP_MOST_MODES, text);
        if (hp_mode_parse(word, &o->modes[o->n_modes++]) < 0) {
            hp_last_error_get(&e);
            return fail(HP_ERR_ARGUMENT, "--comm: %s", e.message);
        }
    }
    if (o->n_modes)
        return HP_OK;
    return fail(HP_ERR_ARGUMENT, "expected --comm to be a list, given \"%s\"", text);
}

static hp_status parse_beside(const char *text, step_options *o) {
    o->beside = beside_find(text);
    if (o->beside && o->beside->has_no_step)
        return fail(HP_ERR_ARGUMENT, "expected an MPI for --beside of hpperf step, given \"%s\"",
                    text);
    return o->beside ? HP_OK : HP_ERR_ARGUMENT;
}

static hp_status parse_value(int key, const char *text, step_options *o) {
    switch (key) {
    case KEY_COMM:
        return parse_modes(text, o);
    case KEY_UNITS:
        return parse_int("--units", text, 1, STEP_MOST_UNITS, &o->n_units);
    case KEY_PARAMS:
        return parse_int("--params", text, 1, STEP_MOST_PARAMS, &o->n_params);
    case KEY_WIDTH:
        return parse_bytes("--width", text, &o->width_bytes);
    case KEY_EXECUTOR:
        return parse_flag("--executor", text, "inline", "thread", &o->is_threaded);
    case KEY_BESIDE:
        return parse_beside(text, o);
    case KEY_PAIRS:
        return parse_int("--pairs", text, 1, 10000, &o->n_pairs);
    case KEY_STEPS:
        return parse_int("--steps", text, 1, 10000, &o->n_steps);
    case KEY_TIMEOUT:
        return parse_int("--peer-timeout-ms", text, 1, 3600000, &o->timeout_ms);
    case KEY_TRACE:
        o->trace = text;
        return HP_OK;
    case KEY_PIN:
        return parse_pin(text, &o->pin);
    default:
        return fail(HP_ERR_ARGUMENT, "expected options alone after step, given \"%s\"", text);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state) {
    command_line *line = state->input;
    if (key == ARGP_KEY_ERROR)
        line->odd = odd_word(state, line->n_read);
    line->n_read = state->next;
    if (key == KEY_JSON || key == '?') {
        *(key == '?' ? &line->options.wants_help : &line->options.as_json) = true;
        return 0;
    }
    if (!text) /* argp's own keys: begin, end and so on */
        return ARGP_ERR_UNKNOWN;
    if (parse_value(key, text, &line->options) == HP_OK)
        return 0;
    line->has_failed = true;
    return EINVAL; /* argp takes any error for "stop here" */
}

static const struct argp parser = {rows, parse_key, "", about, NULL, NULL, NULL};

void step_help(FILE *file) {
    char name[] = "hpperf step";
    argp_help(&parser, file, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
}

hp_status step_parse(int argc, char **argv, step_options *out_options) {
    command_line line = {
        .options = {.modes = {HP_PER_PARAM, HP_FUSED, HP_FUSED_ZERO_COPY, HP_MAPPED, HP_AUTO},
                    .n_modes = 5,
                    .n_units = 8,
                    .n_params = 4,
                    .width_bytes = 4 << 20,
                    .n_pairs = 20,
                    .n_steps = 3,
                    .timeout_ms = 60000}};
    if (argp_parse(&parser, argc, argv, ARGP_SILENT, NULL, &line) != 0) {
        if (line.has_failed)
            return HP_ERR_ARGUMENT;
        return fail(HP_ERR_ARGUMENT,
                    "unknown or ambiguous option, or missing value: %s; see hpperf step --help",
                    line.odd ? line.odd : "");
    }
    if (line.options.trace && line.options.n_modes > 1)
        return fail(HP_ERR_ARGUMENT, "expected one mode with --trace, given %d",
                    line.options.n_modes);
    *out_options = line.options;
    return HP_OK;
}

/* The peer's buffers have no padding; elements are counted in 32 bits, its rows in an int. */
hp_status step_check_ranks(const step_options *o, int n_ranks) {
    const uint64_t least = sizeof(float) * (uint64_t)o->n_params * (uint64_t)n_ranks;
    if (o->width_bytes % least || !o->width_bytes || o->width_bytes > UINT64_C(1) << 32)
        return fail(HP_ERR_ARGUMENT,
                    "expected --width to be a multiple of %llu, for %d parameters of fp32 on %d "
                    "ranks, at most 4G, given %llu",
                    (unsigned long long)least, o->n_params, n_ranks,
                    (unsigned long long)o->width_bytes);
    return HP_OK;
}
