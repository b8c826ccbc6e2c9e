/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/options.c - argp.
 *
 * Every rank parses the same line, so argp is kept silent: the failure is returned and one rank
 * speaks for all.
 */
#include "options.h"
#include "../odd_word.h"
#include "fail.h"
#include "parse.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum key {
    KEY_CHECK = 0x1000,
    KEY_NO_CHECK,
    KEY_MODE,
    KEY_MEMORY,
    KEY_IN_PLACE,
    KEY_MISALIGN,
    KEY_GROUP_SPLIT,
    KEY_STREAM,
    KEY_WIRE,
    KEY_LATENCY,
    KEY_BACKWARD,
    KEY_JSON,
    KEY_PIN,
    KEY_ROOT,
    KEY_BATCH,
    KEY_PLAIN,
    KEY_BESIDE,
    KEY_SIZES,
    KEY_PAIRS,
    KEY_PAIRS_MS,
    KEY_ENOUGH,
    KEY_TIMEOUT
};

static const struct argp_option rows[] = {
    {0, 0, 0, 0, "Sizes: of the larger buffer of a rank, in bytes; K, M and G are powers of 1024",
     0},
    {"min-bytes", 'b', "BYTES", 0, "smallest size (default 8)", 0},
    {"max-bytes", 'e', "BYTES", 0, "largest size (default 16M)", 0},
    {"factor", 'f', "N", 0, "from one size to the next (default 4)", 0},
    {"step", 'i', "BYTES", 0, "from one size to the next, instead of -f", 0},
    {"sizes", KEY_SIZES, "BYTES,...", 0, "these, ascending, instead of -b, -e, -f and -i", 0},
    {0, 0, 0, 0, "What is called:", 0},
    {"dtype", 'd', "NAME", 0,
     "of the elements: fp64, fp32, fp16, bf16, int64, int32, int8, uint8, or all for each of them "
     "(default fp32)",
     0},
    {"op", 'o', "sum|avg|max|min|all", 0, "of reductions (default sum)", 0},
    {"wire", KEY_WIRE, "fp16|bf16|fp8_e4m3|fp8_e5m2", 0,
     "reductions send contributions in this precision (default: their own, whatever the "
     "environment says)",
     0},
    {"memory", KEY_MEMORY, "symm|private", 0, "where the buffers lie (default symm)", 0},
    {"in-place", KEY_IN_PLACE, 0, 0, "one buffer for input and output", 0},
    {"misalign", KEY_MISALIGN, "BYTES", 0, "shift each buffer by 0 to 4095 bytes (default 0)", 0},
    {"group-split", KEY_GROUP_SPLIT, "N", 0, "N disjoint groups of neighbours, all at once", 0},
    {"stream", KEY_STREAM, 0, 0, "put the calls on a stream, several behind each other", 0},
    {"root", KEY_ROOT, "RANK", 0, "of a broadcast, in its group (default 0)", 0},
    {"latency", KEY_LATENCY, "put|get|signal", 0, "measure this, and no collective", 0},
    {0, 0, 0, 0, "How it is measured:", 0},
    {"mode", KEY_MODE, "touched|classic", 0, "see below (default touched)", 0},
    {"warmup", 'w', "N", 0, "iterations before (default 3)", 0},
    {"iterations", 'n', "N", 0, "of each size (default: 0.25 s of them, 5 to 400)", 0},
    {"batch", KEY_BATCH, "N", 0,
     "calls behind each other in an iteration, whose mean counts (default: 20 us of them, at most "
     "64, with --stream at least 4)",
     0},
    {"check", KEY_CHECK, 0, 0, "check the results (default)", 0},
    {"no-check", KEY_NO_CHECK, 0, 0, "do not", 0},
    {"pin", KEY_PIN, "yes|no", 0,
     "bind rank r to the r-th core that it may use (default: yes with a core for each; where ranks "
     "share cores, to core r modulo their number)",
     0},
    {"plain", KEY_PLAIN, 0, 0,
     "in turns with plain copies between two ranks: of all_gather and all_to_all", 0},
    {"backward", KEY_BACKWARD, "identity|sum", 0,
     "in turns with the backward of the call, that of all_reduce in this mode", 0},
    {0, 0, 0, 0, "In turns with another library, on as many ranks:", 0},
    {"beside", KEY_BESIDE, "PEER", 0, BESIDE_NAMES, 0},
    {"pairs", KEY_PAIRS, "N", 0, "turns of each, for each size (default 9)", 0},
    {"pairs-ms", KEY_PAIRS_MS, "MS", 0,
     "up to three times as many of a size whose turns are so short that it takes less than this "
     "(default 0)",
     0},
    {"enough", KEY_ENOUGH, "RATIO,...", 0,
     "a size ends with two pairs in a row whose ratios are at least this: for each size, the last "
     "for all that follow (default: never)",
     0},
    {"peer-timeout-ms", KEY_TIMEOUT, "MS", 0, "for a peer to start, or a turn (default 60000)", 0},
    {0, 0, 0, 0, "What is printed:", 0},
    {"json", KEY_JSON, 0, 0, "an object a line instead of the table", 0},
    {"quiet", 'q', 0, 0, "the rows of the table alone", 0},
    {"help", '?', 0, 0, "this text", 0},
    {"version", 'V', 0, 0, "the version", 0},
    {0, 0, 0, 0, 0, 0}};

static const char about[] =
    "Measure a collective over sizes, on the ranks that hprun (or torchrun) started, and check its "
    "results. WHAT is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv, "
    "barrier, or all for each of them.\v"
    "An iteration begins at a barrier, which is not timed, and lasts on each rank from the start "
    "of "
    "its first call to the return of its last. The time of the iteration is that of the slowest "
    "rank. Printed are the median and the 99th percentile of the iterations, and the slowest "
    "rank's own median.\n\n"
    "touched: before each call every rank writes its whole input anew, and afterwards it reads its "
    "whole output; the time of the same loop without the call is subtracted. classic: the call "
    "alone, again and again on the same buffers, as nccl-tests does; where a peer's data are never "
    "read and never change they need not move, and small sizes look better than they are.\n\n"
    "send_recv, --latency put and --latency signal bounce between ranks 0 and 1, 2 and 3 and so "
    "on; the time is half a round trip. --latency get: the even ranks read what the odd ones have "
    "just written.\n\n"
    "algbw is bytes / time; busbw is algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, "
    "reduce_scatter and all_to_all, 1 for the others. moved is the bytes that the algorithm loads "
    "and stores over those that it must. wrong is the number of elements, over all ranks, that are "
    "not what they must be.\n\n"
    "Exit status: 0; 1 when a result is wrong or a call failed; 2 for a wrong command line.\n\n"
    "Examples:\n"
    "  hprun -n 2 hpperf all_reduce -b 8 -e 256M -f 4 -d fp32 -o sum --check\n"
    "  hprun -n 4 hpperf all --memory private --json\n"
    "  hprun -n 2 hpperf all_reduce --in-place --beside mpich\n"
    "  hprun -n 2 hpperf --latency put -e 4K";

static const char *const reduce_names[] = {"sum", "avg", "max", "min"};
static const char *const wire_names[] = {"default", "full", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"};

const char *reduce_name(hp_reduce reduce) {
    return reduce_names[reduce];
}

const char *wire_name(hp_wire wire) {
    return wire_names[wire];
}

/* ---- values ---- */

/* Which of the names, from 0; -1: none. */
static int find(const char *text, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

#define FIND(text, names) find((text), (names), (int)(sizeof(names) / sizeof *(names)))

static hp_status expect_one_of(const char *name, const char *choices, const char *text) {
    return fail(HP_ERR_ARGUMENT, "expected %s to be %s, given \"%s\"", name, choices, text);
}

static hp_status parse_dtype(const char *text, int *out) {
    hp_dtype dtype;
    if (strcmp(text, "all") == 0) {
        *out = ALL;
        return HP_OK;
    }
    if (hp_dtype_parse(text, &dtype) < 0)
        return expect_one_of("-d", "fp64, fp32, fp16, bf16, int64, int32, int8, uint8 or all",
                             text);
    *out = (int)dtype;
    return HP_OK;
}

static hp_status parse_reduce(const char *text, int *out) {
    *out = FIND(text, reduce_names);
    if (*out < 0 && strcmp(text, "all") != 0) /* ALL is -1 too */
        return expect_one_of("-o", "sum, avg, max, min or all", text);
    return HP_OK;
}

static hp_status parse_wire(const char *text, hp_wire *out) {
    const int found = FIND(text, wire_names);
    if (found < (int)HP_WIRE_FP16)
        return expect_one_of("--wire", "fp16, bf16, fp8_e4m3 or fp8_e5m2", text);
    *out = (hp_wire)found;
    return HP_OK;
}

static hp_status parse_backward(const char *text, hp_backward_mode *out) {
    static const char *const modes[] = {"identity", "sum"};
    const int found = FIND(text, modes);
    if (found < 0)
        return expect_one_of("--backward", "identity or sum", text);
    *out = (hp_backward_mode)found;
    return HP_OK;
}

/* ---- the line ---- */

typedef struct command_line {
    options options;
    bool has_what, has_latency, has_factor, has_range;
    bool has_failed; /* the text is kept; else argp itself did not understand */
    const char *odd; /* this word */
    int n_read;      /* words, until then */
} command_line;

static hp_status parse_what(const char *text, command_line *line) {
    if (line->has_what)
        return fail(HP_ERR_ARGUMENT, "expected one collective, given \"%s\" too", text);
    line->has_what = true;
    if (strcmp(text, "all") == 0)
        return HP_OK;
    line->options.op = op_find(text, false);
    if (line->options.op)
        return HP_OK;
    return expect_one_of("WHAT",
                         "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, "
                         "send_recv, barrier or all",
                         text);
}

static hp_status parse_latency(const char *text, command_line *line) {
    line->has_latency = true;
    line->options.op = op_find(text, true);
    return line->options.op ? HP_OK : expect_one_of("--latency", "put, get or signal", text);
}

/* The options that take a value. */
static hp_status parse_value(int key, const char *text, command_line *line) {
    options *o = &line->options;
    switch (key) {
    case 'b':
        line->has_range = true;
        return parse_bytes("-b", text, &o->least_bytes);
    case 'e':
        line->has_range = true;
        return parse_bytes("-e", text, &o->most_bytes);
    case 'f':
        line->has_factor = true;
        return parse_count("-f", text, 2, 1U << 20, &o->factor);
    case 'i':
        return parse_bytes("-i", text, &o->step_bytes);
    case 'd':
        return parse_dtype(text, &o->dtype);
    case 'o':
        return parse_reduce(text, &o->reduce);
    case 'w':
        return parse_int("-w", text, 0, 1000000, &o->n_warmup);
    case 'n':
        return parse_int("-n", text, 1, 1000000, &o->n_iterations);
    case KEY_WIRE:
        return parse_wire(text, &o->wire);
    case KEY_MEMORY:
        return parse_flag("--memory", text, "symm", "private", &o->is_private);
    case KEY_MODE:
        return parse_flag("--mode", text, "touched", "classic", &o->is_classic);
    case KEY_MISALIGN:
        return parse_count("--misalign", text, 0, 4095, &o->misalign_bytes);
    case KEY_GROUP_SPLIT:
        return parse_int("--group-split", text, 1, 1024, &o->n_groups);
    case KEY_ROOT:
        return parse_int("--root", text, 0, 1023, &o->root);
    case KEY_BATCH:
        return parse_int("--batch", text, 1, 10000, &o->batch);
    case KEY_LATENCY:
        return parse_latency(text, line);
    case KEY_BACKWARD:
        o->has_backward = true;
        return parse_backward(text, &o->backward);
    case KEY_PIN:
        return parse_pin(text, &o->pin);
    case KEY_BESIDE:
        o->beside = beside_find(text);
        return o->beside ? HP_OK : HP_ERR_ARGUMENT;
    case KEY_PAIRS:
        return parse_int("--pairs", text, 1, 10000, &o->n_pairs);
    case KEY_PAIRS_MS:
        return parse_int("--pairs-ms", text, 0, 60000, &o->pairs_ms);
    case KEY_ENOUGH:
        return parse_ratio_list("--enough", text, OPTIONS_MOST_SIZES, o->enough, &o->n_enough);
    case KEY_SIZES:
        return parse_bytes_list("--sizes", text, OPTIONS_MOST_SIZES, o->sizes, &o->n_sizes);
    case KEY_TIMEOUT:
        return parse_int("--peer-timeout-ms", text, 1, 3600000, &o->timeout_ms);
    default:
        return parse_what(text, line);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state) {
    command_line *line = state->input;
    options *o = &line->options;
    bool *const flag = key == KEY_CHECK || key == KEY_NO_CHECK ? &o->checks
                       : key == KEY_IN_PLACE                   ? &o->is_in_place
                       : key == KEY_STREAM                     ? &o->on_stream
                       : key == KEY_JSON                       ? &o->as_json
                       : key == KEY_PLAIN                      ? &o->is_plain
                       : key == 'q'                            ? &o->is_quiet
                       : key == '?'                            ? &o->wants_help
                       : key == 'V'                            ? &o->wants_version
                                                               : NULL;
    if (key == ARGP_KEY_ERROR)
        line->odd = odd_word(state, line->n_read);
    line->n_read = state->next;
    if (flag) {
        *flag = key != KEY_NO_CHECK;
        return 0;
    }
    if (!text) /* argp's own keys: begin, end and so on */
        return ARGP_ERR_UNKNOWN;
    if (parse_value(key, text, line) == HP_OK)
        return 0;
    line->has_failed = true;
    return EINVAL; /* argp takes any error for "stop here" */
}

static const struct argp parser = {rows, parse_key, "WHAT\n--latency=put|get|signal", about, NULL,
                                   NULL, NULL};

void options_help(FILE *file) {
    char name[] = "hpperf";
    argp_help(&parser, file, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
}

static hp_status check_in_place(const options *o) {
    if (o->is_in_place && o->op && !o->op->has_in_place)
        return fail(HP_ERR_ARGUMENT, "expected no --in-place with %s", o->op->name);
    return HP_OK;
}

static hp_status check_reduction(const options *o) {
    if (o->wire != HP_WIRE_FULL && o->op && !o->op->reduces)
        return fail(HP_ERR_ARGUMENT, "expected no --wire with %s, which reduces nothing",
                    o->op->name);
    if (o->wire != HP_WIRE_FULL && o->dtype != ALL && !op_has_wire((hp_dtype)o->dtype))
        return fail(HP_ERR_ARGUMENT, "expected -d fp32, fp16 or bf16 with --wire, given %s",
                    hp_dtype_name((hp_dtype)o->dtype));
    if (o->reduce == HP_AVG && o->dtype != ALL && !op_has_avg((hp_dtype)o->dtype))
        return fail(HP_ERR_ARGUMENT, "expected -d fp64, fp32, fp16 or bf16 with -o avg, given %s",
                    hp_dtype_name((hp_dtype)o->dtype));
    return HP_OK;
}

/* What a peer has no word for. */
static hp_status check_beside(const options *o) {
    const char *odd = o->op && o->op->is_latency ? "--latency"
                      : o->reduce == HP_AVG      ? "-o avg"
                      : o->reduce == ALL         ? "-o all"
                      : o->wire != HP_WIRE_FULL  ? "--wire"
                      : o->misalign_bytes        ? "--misalign"
                      : o->n_groups > 1          ? "--group-split"
                      : o->on_stream             ? "--stream"
                      : o->has_backward          ? "--backward"
                                                 : NULL;
    if (o->beside && odd)
        return fail(HP_ERR_ARGUMENT, "expected no %s with --beside", odd);
    return HP_OK;
}

/* What two ranks exchange by plain copies. */
static hp_status check_plain(const options *o) {
    const bool is_gather = o->op && o->op->what == HP_ALL_GATHER && !o->op->is_latency;
    const bool is_exchange = o->op && o->op->what == HP_ALL_TO_ALL && !o->op->is_latency;
    if (o->is_plain && !is_gather && !(is_exchange && !o->is_in_place))
        return fail(HP_ERR_ARGUMENT, "expected --plain with all_gather, or with all_to_all that is "
                                     "not in place");
    const char *odd = o->beside           ? "--beside"
                      : o->is_private     ? "--memory private"
                      : o->misalign_bytes ? "--misalign"
                      : o->n_groups > 1   ? "--group-split"
                      : o->on_stream      ? "--stream"
                                          : NULL;
    if (o->is_plain && odd)
        return fail(HP_ERR_ARGUMENT, "expected no %s with --plain", odd);
    return HP_OK;
}

static hp_status check_together(const command_line *line) {
    const options *o = &line->options;
    if (o->wants_help || o->wants_version)
        return HP_OK;
    if (line->has_what && line->has_latency)
        return fail(HP_ERR_ARGUMENT, "expected no collective with --latency");
    if (o->has_backward && line->has_latency)
        return fail(HP_ERR_ARGUMENT, "expected no --backward with --latency");
    if (o->has_backward && o->is_in_place && o->reduce != HP_SUM && o->reduce != HP_AVG)
        return fail(HP_ERR_ARGUMENT,
                    "expected no --in-place with --backward and -o max or min, which look at the "
                    "input again");
    if (!line->has_what && !line->has_latency)
        return fail(HP_ERR_ARGUMENT, "expected a collective, like all_reduce; see hpperf --help");
    if (o->most_bytes < o->least_bytes)
        return fail(HP_ERR_ARGUMENT, "expected -e to be at least -b %llu, given %llu",
                    (unsigned long long)o->least_bytes, (unsigned long long)o->most_bytes);
    if (line->has_factor && o->step_bytes)
        return fail(HP_ERR_ARGUMENT, "expected -f or -i, given both");
    if (o->n_sizes && (line->has_range || line->has_factor || o->step_bytes))
        return fail(HP_ERR_ARGUMENT, "expected --sizes or -b, -e, -f and -i, given both");
    TRY(check_in_place(o));
    TRY(check_beside(o));
    TRY(check_plain(o));
    return check_reduction(o);
}

hp_status options_parse(int argc, char **argv, options *out_options) {
    command_line line = {.options = {.least_bytes = 8,
                                     .most_bytes = 16 << 20,
                                     .factor = 4,
                                     .dtype = HP_FP32,
                                     .reduce = HP_SUM,
                                     .wire = HP_WIRE_FULL,
                                     .n_warmup = 3,
                                     .n_groups = 1,
                                     .n_pairs = 9,
                                     .timeout_ms = 60000,
                                     .checks = true}};
    if (argp_parse(&parser, argc, argv, ARGP_SILENT, NULL, &line) != 0) {
        if (line.has_failed)
            return HP_ERR_ARGUMENT;
        return fail(HP_ERR_ARGUMENT,
                    "unknown or ambiguous option, or missing value: %s; see hpperf --help",
                    line.odd ? line.odd : "");
    }
    if (line.options.least_bytes > line.options.most_bytes && line.options.most_bytes == 16 << 20)
        line.options.most_bytes = line.options.least_bytes; /* -b alone */
    TRY(check_together(&line));
    if (line.options.n_sizes) {
        line.options.least_bytes = line.options.sizes[0];
        line.options.most_bytes = line.options.sizes[line.options.n_sizes - 1];
    }
    *out_options = line.options;
    return HP_OK;
}

hp_status options_check_ranks(const options *o, int n_ranks) {
    const int n = n_ranks / o->n_groups;
    if (n * o->n_groups != n_ranks)
        return fail(HP_ERR_ARGUMENT, "expected --group-split to divide the %d ranks, given %d",
                    n_ranks, o->n_groups);
    if (o->is_plain && n_ranks != 2)
        return fail(HP_ERR_ARGUMENT, "expected 2 ranks with --plain, given %d", n_ranks);
    if (o->root >= n)
        return fail(HP_ERR_ARGUMENT, "expected --root to be a rank from 0 to %d, given %d", n - 1,
                    o->root);
    if (o->op && n < o->op->least_ranks)
        return fail(HP_ERR_ARGUMENT, "expected at least %d ranks in a group for %s, given %d",
                    o->op->least_ranks, o->op->name, n);
    return HP_OK;
}
