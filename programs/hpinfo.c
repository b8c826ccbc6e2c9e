/* SPDX-License-Identifier: Apache-2.0
 *
 * hpinfo.c - what this machine can do, which limits a job will hit, the options, the version.
 *
 * Everything comes from the library: hp_machine_read, hp_machine_plan, hp_is_available,
 * hp_option_at and hp_coll_choice_get. Here it is only laid out.
 */
#include "standard.h"

#include "hpinfo/report.h"

#include <hyperparallel/matmul.h>
#include <hyperparallel/world.h>

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_CANNOT = 1, EXIT_USAGE = 64, KEY_OPTIONS = 256, KEY_ALGORITHMS, KEY_JSON };

static const char doc[] =
    "Say what this machine has, which limits a job of N ranks on it will hit, how large a heap "
    "each rank would get, and whether the library can run here at all.\v"
    "Exit status: 0; 1 when the library cannot run here, or a job of N ranks cannot start; 64 for "
    "a wrong command line.\n\n"
    "Examples:\n"
    "  hpinfo -n 8\n"
    "  hpinfo --options\n"
    "  hpinfo --algorithms -n 2\n"
    "  hpinfo --json | jq .job.heap_bytes\n";

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "How many ranks (default: the cores that this process may use)", 0},
    {"options", KEY_OPTIONS, 0, 0,
     "The options of the library: what each is now, where that comes from, what it takes", 0},
    {"algorithms", KEY_ALGORITHMS, 0, 0,
     "Which algorithm each collective runs, from 8 bytes to 64M, and why (without -n for 2, 4 and "
     "8 "
     "ranks)",
     0},
    {"json", KEY_JSON, 0, 0, "The same as JSON; sizes are bytes, what is unlimited is null", 0},
    {0, 0, 0, 0, 0, 0}};

typedef struct command {
    int n_ranks; /* 0: as many as cores */
    bool shows_options, shows_algorithms, is_json;
} command;

static int parse_ranks(struct argp_state *state, const char *text) {
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < 1 || n > 1024)
        argp_error(state, "expected -n to be a number from 1 to 1024, given \"%s\"", text);
    return (int)n;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    command *c = state->input;
    switch (key) {
    case 'n':
        c->n_ranks = parse_ranks(state, text);
        return 0;
    case KEY_OPTIONS:
        c->shows_options = true;
        return 0;
    case KEY_ALGORITHMS:
        c->shows_algorithms = true;
        return 0;
    case KEY_JSON:
        c->is_json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "expected options alone, given \"%s\"", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state) {
    (void)state;
    fprintf(stream, "hpinfo (HyperParallel in C) %s\n", hp_version());
}

/* ---- finding out ---------------------------------------------------------------------------- */

static void keep_reason(report *r) {
    if (!*r->why_not)
        snprintf(r->why_not, sizeof r->why_not, "%s", hp_last_error());
}

static void look_at_matmul(report *r) {
    hp_matmul *matmul;
    if (hp_matmul_open(NULL, 1, &matmul)) {
        snprintf(r->matmul, sizeof r->matmul, "none");
        snprintf(r->matmul_note, sizeof r->matmul_note, "%s", hp_last_error());
        return;
    }
    r->has_matmul = true;
    snprintf(r->matmul, sizeof r->matmul, "%s", matmul->name);
    snprintf(r->matmul_note, sizeof r->matmul_note, "%s", matmul->note ? matmul->note : "");
    hp_matmul_close(matmul);
}

static void find_out(const command *c, report *r) {
    r->is_available = hp_is_available();
    if (!r->is_available)
        keep_reason(r);
    r->can_start = !hp_machine_read("", &r->machine);
    r->n_ranks = c->n_ranks ? c->n_ranks : r->machine.n_cores_allowed;
    r->n_ranks = r->n_ranks > 0 ? r->n_ranks : 1;
    r->can_start = r->can_start && !hp_machine_plan(&r->machine, r->n_ranks, &r->job);
    if (!r->can_start)
        keep_reason(r);
    look_at_matmul(r);
}

static bool print_algorithms(const command *c) {
    const int usual[ALGORITHMS_RANKS] = {2, 4, 8}, asked[ALGORITHMS_RANKS] = {c->n_ranks};
    const int *ranks = c->n_ranks ? asked : usual;
    if (!(c->is_json ? print_algorithms_json : print_algorithms_text)(ranks, stdout))
        return true;
    fprintf(stderr, "hpinfo: %s\n", hp_last_error());
    return false;
}

int main(int argc, char **argv) {
    const struct argp parser = {options, parse, NULL, doc, NULL, NULL, NULL};
    command c = {0};
    bool is_good = true;
    report r;
    memset(&r, 0, sizeof r);
    open_missing_stdio();
    argp_program_version_hook = print_version;
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &c);
    if (c.shows_options) {
        (c.is_json ? print_options_json : print_options_text)(stdout);
    } else if (c.shows_algorithms) {
        is_good = print_algorithms(&c);
    } else {
        find_out(&c, &r);
        (c.is_json ? print_json : print_text)(&r, stdout);
        is_good = r.is_available && r.can_start;
    }
    const bool is_written = !fflush(stdout) && !ferror(stdout);
    if (!is_written)
        fprintf(stderr, "hpinfo: expected to write to standard output\n");
    return is_written && is_good ? 0 : EXIT_CANNOT;
}
