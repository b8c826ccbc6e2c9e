/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport.c - the traces of a run as one HTML page that needs nothing else.
 *
 * Reads DIR/trace-R.json of every rank and DIR/verdict.json, computes (hpreport/figures.h), and
 * writes the page beside its name before it is renamed: there is an old page or a whole new one.
 */
#include "standard.h"

#include "hpreport/die.h"
#include "hpreport/out.h"

#include <hyperparallel/base.h>

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 64, KEY_JSON = 256, KEY_ARRIVALS, KEY_MESH };

static const char doc[] =
    "Make one self-contained HTML page, DIR/report.html, from the traces of a run (hptrain --trace "
    "DIR): a timeline, exposed communication, memory, skew between ranks, step times, the "
    "verifier's verdict.\v"
    "Exit status: 0; 1 when a file cannot be read, is no trace of this version or cannot be "
    "written; 64 for a wrong command line.\n\n"
    "Examples:\n"
    "  hpreport traces\n"
    "  hpreport --json traces | jq .communication.exposed_ms\n"
    "  hpreport --arrivals traces > arrivals.csv\n";

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Write the page there instead", 0},
    {"mesh", KEY_MESH, "RxS", 0,
     "R replicas of S shards, when there is no verdict.json that says it", 0},
    {"json", KEY_JSON, 0, 0, "Print the page's figures as JSON instead; times are milliseconds", 0},
    {"arrivals", KEY_ARRIVALS, 0, 0,
     "Print first and last arrival of each collective of each step as CSV instead", 0},
    {0, 0, 0, 0, 0, 0}};

typedef struct command {
    const char *directory, *output;
    uint64_t mesh[2];
    int what; /* KEY_JSON, KEY_ARRIVALS; 0: the page */
} command;

static void parse_mesh(struct argp_state *state, const char *word, uint64_t *out_mesh) {
    unsigned r, s;
    char rest;
    if (sscanf(word, "%4ux%4u%c", &r, &s, &rest) != 2 || r == 0 || s == 0 || r * s > MAX_RANKS)
        argp_error(state, "expected --mesh to be like 2x4, of at most %d ranks, given \"%s\"",
                   MAX_RANKS, word);
    out_mesh[0] = r;
    out_mesh[1] = s;
}

static error_t parse(int key, char *word, struct argp_state *state) {
    command *c = state->input;
    switch (key) {
    case 'o':
        c->output = word;
        return 0;
    case KEY_MESH:
        parse_mesh(state, word, c->mesh);
        return 0;
    case KEY_JSON:
    case KEY_ARRIVALS:
        c->what = key;
        return 0;
    case ARGP_KEY_ARG:
        if (c->directory)
            argp_error(state, "expected one folder, given \"%s\" too", word);
        c->directory = word;
        return 0;
    case ARGP_KEY_END:
        if (!c->directory)
            argp_error(state, "expected the folder of a run's traces");
        if (c->what && c->output)
            argp_error(state, "expected -o FILE for the page alone");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *file, struct argp_state *state) {
    (void)state;
    fprintf(file, "hpreport (HyperParallel in C) %s\n", hp_version());
}

/* The folder's own name, for the title. */
static char *name_of(const char *directory) {
    char *path = realpath(directory, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash && slash[1] ? slash + 1 : directory;
    char *copy = strdup(name);
    if (!copy)
        die("expected memory for a name, there is none");
    free(path);
    return copy;
}

static void write_page(const figures *f, const char *name, const char *path) {
    char beside[4200];
    snprintf(beside, sizeof beside, "%s.tmp-%d", path, (int)getpid());
    FILE *file = fopen(beside, "we");
    if (!file)
        die("expected to write %s: %s", beside, strerror(errno));
    print_page(f, name, file);
    const bool is_written = !fflush(file) && !ferror(file);
    if (fclose(file) || !is_written || rename(beside, path)) {
        const int error = errno;
        unlink(beside);
        die("expected to write %s: %s", path, strerror(error));
    }
    printf("%s\n", path);
}

int main(int argc, char **argv) {
    const struct argp parser = {options, parse, "DIR", doc, NULL, NULL, NULL};
    command c = {0};
    char path[4096];
    open_missing_stdio();
    argp_program_version_hook = print_version;
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &c);

    run r = {.mesh = {c.mesh[0], c.mesh[1]}};
    figures f = {.run = &r};
    run_read(&r, c.directory);
    figures_compute(&f);

    char *name = name_of(c.directory);
    if (c.what == KEY_JSON)
        print_json(&f, name, stdout);
    else if (c.what == KEY_ARRIVALS)
        print_arrivals(&f, stdout);
    else {
        snprintf(path, sizeof path, "%s/report.html", c.directory);
        write_page(&f, name, c.output ? c.output : path);
    }
    free(name);
    figures_release(&f);
    run_release(&r);
    return !fflush(stdout) && !ferror(stdout) ? 0 : 1;
}
