/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fused/options.c - the command line of hpperf ag_matmul, matmul_rs and ag_weight_grad, and
 * the shapes.
 *
 * As in options.c, every rank parses the same line and argp is kept silent.
 */
#include "../../odd_word.h"
#include "../fail.h"
#include "../parse.h"
#include "fused.h"

#include <argp.h>
#include <errno.h>
#include <string.h>

/* Of Qwen3-0.6B (hidden 1024, heads 16 x 128 and 8 x 128, 3072), Qwen3-8B (4096, 32 and 8 heads,
 * 12288) and an expert of Qwen3-30B-A3B (2048, 768). */
static const fused_shape shapes[] = {
    {"0.6b-q", false, 2048, 1024},     {"0.6b-kv", false, 1024, 1024},
    {"0.6b-gate", false, 3072, 1024},  {"8b-q", false, 4096, 4096},
    {"8b-kv", false, 1024, 4096},      {"8b-gate", false, 12288, 4096},
    {"expert-gate", false, 768, 2048}, {"0.6b-o", true, 1024, 2048},
    {"0.6b-down", true, 1024, 3072},   {"8b-o", true, 4096, 4096},
    {"8b-down", true, 4096, 12288},    {"expert-down", true, 2048, 768}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

enum key {
    KEY_SHAPE = 0x1000,
    KEY_TOKENS,
    KEY_DTYPE,
    KEY_ENGINE,
    KEY_PAIRS,
    KEY_DELAY,
    KEY_PIN,
    KEY_JSON
};

static const struct argp_option rows[] = {
    {"shape", KEY_SHAPE, "LIST", 0,
     "0.6b-q, 0.6b-kv, 0.6b-gate, 8b-q, 8b-kv, 8b-gate, expert-gate; of matmul_rs 0.6b-o, "
     "0.6b-down, 8b-o, 8b-down, expert-down; or all (default)",
     0},
    {"tokens", KEY_TOKENS, "LIST", 0, "rows of all ranks (default 128,512,2048,8192)", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0, "fp32, bf16 or fp16 (default fp32)", 0},
    {"engine", KEY_ENGINE, "NAME", 0, "auto, onednn or plain (default auto)", 0},
    {"pairs", KEY_PAIRS, "N", 0, "turns of each form, 1 to 100 (default 5)", 0},
    {"delay", KEY_DELAY, 0, 0,
     "the last rank comes late by the time of a whole product; the others are measured", 0},
    {"pin", KEY_PIN, "yes|no", 0,
     "bind rank r to the r-th core that it may use (default: yes with a core for each)", 0},
    {"json", KEY_JSON, 0, 0, "an object a line instead of the table", 0},
    {"help", '?', 0, 0, "this text", 0},
    {0, 0, 0, 0, 0, 0}};

static const char about[] =
    "Measure a fused product beside the separate form, a collective and one product, in turns: "
    "all-gather + matmul (ag_matmul), matmul + reduce-scatter (matmul_rs), all-gather + the "
    "gradient of weights (ag_weight_grad).\v"
    "Printed are medians over the pairs, from the first rank's begin to the last one's end; share "
    "is what the separate form takes beyond its product alone, ratio the time of the separate form "
    "over the fused one's.\n\n"
    "  hprun -n 2 hpperf ag_matmul --shape 0.6b-kv --tokens 2048";

typedef struct command_line {
    fused_options options;
    bool has_failed; /* the text is kept; else argp itself did not understand */
    const char *odd; /* this word */
    int n_read;      /* words, until then */
} command_line;

static const char *const names[N_FUSED_OPS] = {"ag_matmul", "matmul_rs", "ag_weight_grad"};

const char *fused_op_name(fused_op op) {
    return names[op];
}

bool fused_op_parse(const char *word, fused_op *out_op) {
    for (int i = 0; i < N_FUSED_OPS; i++)
        if (strcmp(names[i], word) == 0) {
            *out_op = (fused_op)i;
            return true;
        }
    return false;
}

static bool has_shape(const fused_options *o, const fused_shape *shape) {
    return shape->is_scatter == (o->op == MATMUL_RS);
}

static void take_all(fused_options *o) {
    o->n_shapes = 0;
    for (int i = 0; i < N_SHAPES; i++)
        if (has_shape(o, &shapes[i]))
            o->shapes[o->n_shapes++] = &shapes[i];
}

static hp_status take_shape(const char *name, fused_options *o) {
    for (int i = 0; i < N_SHAPES; i++)
        if (has_shape(o, &shapes[i]) && strcmp(shapes[i].name, name) == 0) {
            o->shapes[o->n_shapes++] = &shapes[i];
            return HP_OK;
        }
    return fail(HP_ERR_ARGUMENT, "expected a shape of %s for --shape, given \"%s\"", names[o->op],
                name);
}

static hp_status parse_shapes(const char *text, fused_options *o) {
    char words[200];
    char *rest = NULL;
    if (strcmp(text, "all") == 0) {
        take_all(o);
        return HP_OK;
    }
    o->n_shapes = 0;
    snprintf(words, sizeof words, "%s", text);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (o->n_shapes == FUSED_MOST_SHAPES)
            return fail(HP_ERR_ARGUMENT, "expected at most %d of --shape, given \"%s\"",
                        FUSED_MOST_SHAPES, text);
        TRY(take_shape(word, o));
    }
    if (o->n_shapes)
        return HP_OK;
    return fail(HP_ERR_ARGUMENT, "expected --shape to be a list, given \"%s\"", text);
}

static hp_status parse_dtype(const char *text, fused_options *o) {
    hp_dtype dtype;
    if (hp_dtype_parse(text, &dtype) == HP_OK &&
        (dtype == HP_FP32 || dtype == HP_BF16 || dtype == HP_FP16)) {
        o->dtype = dtype;
        return HP_OK;
    }
    return fail(HP_ERR_ARGUMENT, "expected --dtype fp32, bf16 or fp16, given \"%s\"", text);
}

static hp_status parse_value(int key, const char *text, fused_options *o) {
    switch (key) {
    case KEY_SHAPE:
        return parse_shapes(text, o);
    case KEY_TOKENS:
        return parse_bytes_list("--tokens", text, FUSED_MOST_TOKENS, o->tokens, &o->n_tokens);
    case KEY_DTYPE:
        return parse_dtype(text, o);
    case KEY_ENGINE:
        o->engine = text;
        return HP_OK;
    case KEY_PAIRS:
        return parse_int("--pairs", text, 1, 100, &o->n_pairs);
    case KEY_PIN:
        return parse_pin(text, &o->pin);
    default:
        return fail(HP_ERR_ARGUMENT, "expected options alone after %s, given \"%s\"", names[o->op],
                    text);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state) {
    command_line *line = state->input;
    fused_options *o = &line->options;
    if (key == ARGP_KEY_ERROR)
        line->odd = odd_word(state, line->n_read);
    line->n_read = state->next;
    if (key == KEY_JSON || key == KEY_DELAY || key == '?') {
        *(key == '?' ? &o->wants_help : key == KEY_DELAY ? &o->delays : &o->as_json) = true;
        return 0;
    }
    if (!text) /* argp's own keys: begin, end and so on */
        return ARGP_ERR_UNKNOWN;
    if (parse_value(key, text, o) == HP_OK)
        return 0;
    line->has_failed = true;
    return EINVAL; /* argp takes any error for "stop here" */
}

static const struct argp parser = {rows, parse_key, "", about, NULL, NULL, NULL};

void fused_help(FILE *file) {
    char name[] = "hpperf ag_matmul|matmul_rs|ag_weight_grad";
    argp_help(&parser, file, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
}

hp_status fused_parse(int argc, char **argv, fused_options *out_options) {
    command_line line = {.options = {.tokens = {128, 512, 2048, 8192},
                                     .n_tokens = 4,
                                     .dtype = HP_FP32,
                                     .engine = "auto",
                                     .n_pairs = 5}};
    if (!fused_op_parse(argv[0], &line.options.op))
        return fail(HP_ERR_ARGUMENT, "expected a fused product, given \"%s\"", argv[0]);
    take_all(&line.options);
    if (argp_parse(&parser, argc, argv, ARGP_SILENT, NULL, &line) != 0) {
        if (line.has_failed)
            return HP_ERR_ARGUMENT;
        return fail(HP_ERR_ARGUMENT,
                    "unknown or ambiguous option, or missing value: %s; see hpperf %s --help",
                    line.odd ? line.odd : "", argv[0]);
    }
    *out_options = line.options;
    return HP_OK;
}

static int64_t cut_width(const fused_shape *shape) {
    return shape->is_scatter ? shape->k : shape->n;
}

hp_status fused_check_ranks(const fused_options *o, int n_ranks) {
    for (int i = 0; i < o->n_shapes; i++)
        if (cut_width(o->shapes[i]) % n_ranks)
            return fail(HP_ERR_ARGUMENT, "expected ranks that divide %lld, of shape %s, given %d",
                        (long long)cut_width(o->shapes[i]), o->shapes[i]->name, n_ranks);
    if (o->delays && n_ranks < 2)
        return fail(HP_ERR_ARGUMENT, "expected 2 ranks or more with --delay, given %d", n_ranks);
    return HP_OK;
}
