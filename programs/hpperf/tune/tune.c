/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/tune/tune.c - where one algorithm should give way to another on this machine.
 *
 * For each threshold every collective that it matters to is measured at sizes around the table's
 * value, with the threshold beyond all of them and below all of them in turns: a world for each,
 * with HYPER_PARALLEL_THRESHOLDS set, since all ranks must agree on it. The value that costs least
 * over all collectives and sizes is printed, the table's own where it is as good as any.
 */
#include "tune.h"
#include "../../odd_word.h"
#include "../../perf/median.h"
#include "../bench.h"
#include "../fail.h"
#include "../parse.h"

#include <hyperparallel/machine.h>

#include <argp.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OPTION "HYPER_PARALLEL_THRESHOLDS"
enum {
    MOST_THRESHOLDS = 32,
    MOST_POINTS = 128,
    MOST_PAIRS = 25,
    N_BELOW = 2,
    N_SIZES = 8,
    FACTOR = 4
};
static const uint64_t least_bytes = 64;
/* A gain that is smaller is taken for noise: the table's value stays. */
static const double least_gain = 0.02;

typedef struct command {
    const char *only; /* "direct,stream"; NULL: all */
    int n_pairs;
    uint64_t most_bytes;
    bool wants_help;
    hp_status status; /* of the first value that makes no sense */
    const char *odd;  /* the word that is no option */
    int n_read;
} command;

/* One collective at one size, with the threshold beyond it and below it. */
typedef struct point {
    const op_row *op;
    bool is_private, is_in_place;
    uint64_t bytes;
    double us[2][MOST_PAIRS];
} point;

typedef struct campaign {
    const command *c;
    hp_coll_threshold threshold;
    uint64_t table_bytes; /* its value for these ranks */
    int n_ranks, rank, pair;
    bool is_crowded;
    int n_points;
    point points[MOST_POINTS];
} campaign;

/* ---- the command line ---- */

static const struct argp_option rows[] = {
    {"thresholds", 't', "NAME,...", 0, "these alone (default: all of hpinfo --algorithms)", 0},
    {"pairs", 'p', "N", 0, "measurements of each side, up to 25 (default 5)", 0},
    {"max-bytes", 'e', "BYTES", 0, "no size beyond it (default 64M)", 0},
    {"help", '?', 0, 0, "this text", 0},
    {0, 0, 0, 0, 0, 0}};
static const char about[] =
    "Measure, on the ranks that hprun started, where one algorithm should give way to another, and "
    "print the option that says so. Run it with a core for each rank, and again with more ranks "
    "than "
    "cores: the table holds a value for each.\v"
    "ratio is the time with the threshold below a size over the time with it above: under 1 the "
    "algorithm for large calls is faster.";

static error_t parse_key(int key, char *text, struct argp_state *state) {
    command *c = state->input;
    if (key == ARGP_KEY_ERROR)
        c->odd = odd_word(state, c->n_read);
    c->n_read = state->next;
    if (key == 't')
        c->only = text;
    else if (key == 'p')
        c->status = parse_int("--pairs", text, 1, MOST_PAIRS, &c->n_pairs);
    else if (key == 'e')
        c->status = parse_bytes("-e", text, &c->most_bytes);
    else if (key == '?')
        c->wants_help = true;
    else if (key == ARGP_KEY_ARG)
        c->status = fail(HP_ERR_ARGUMENT, "expected options alone, given \"%s\"", text);
    else
        return ARGP_ERR_UNKNOWN;
    return c->status < 0 ? EINVAL : 0;
}

static bool is_named(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; at && *at;) {
        const size_t word = strcspn(at, ",");
        if (word == length && strncmp(at, name, length) == 0)
            return true;
        at += word + (at[word] == ',');
    }
    return !list;
}

static hp_status parse(int argc, char **argv, command *out) {
    static const struct argp parser = {rows, parse_key, NULL, about, NULL, NULL, NULL};
    *out = (command){.n_pairs = 5, .most_bytes = UINT64_C(64) << 20};
    const error_t error = argp_parse(&parser, argc, argv, ARGP_SILENT, NULL, out);
    if (error && out->status >= 0)
        return fail(HP_ERR_ARGUMENT,
                    "expected an option of hpperf tune --help, with its value, given \"%s\"",
                    out->odd ? out->odd : "");
    return out->status;
}

static void print_help(void) {
    static const struct argp parser = {rows, parse_key, NULL, about, NULL, NULL, NULL};
    static char name[] = "hpperf tune";
    argp_help(&parser, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
}

/* Every name of the list is one of a threshold. */
static hp_status check_names(const char *list) {
    char names[256] = "";
    hp_coll_threshold t;
    for (int i = 0; hp_coll_threshold_at(i, &t); i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", t.name);
    }
    for (const char *at = list; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        const int length = (int)strcspn(at, ",");
        bool is_known = false;
        for (int i = 0; hp_coll_threshold_at(i, &t) && !is_known; i++)
            is_known = (int)strlen(t.name) == length && strncmp(at, t.name, (size_t)length) == 0;
        if (!is_known)
            return fail(HP_ERR_ARGUMENT, "expected --thresholds to be of %s, given \"%.*s\"", names,
                        length, at);
    }
    return list && !*list
               ? fail(HP_ERR_ARGUMENT, "expected --thresholds to be of %s, given none", names)
               : HP_OK;
}

/* One rank runs one algorithm: there would be nothing to measure. */
static hp_status check_ranks(int n_ranks) {
    return n_ranks > 1 ? HP_OK
                       : fail(HP_ERR_ARGUMENT, "expected 2 ranks or more, like hprun -n 2 hpperf "
                                               "tune, given 1");
}

/* ---- a world with a setting ---- */

/* is_above: the threshold lies below every size, so calls are above it. */
static void set_threshold(const char *name, bool is_above) {
    char text[80];
    snprintf(text, sizeof text, "%s=%s", name, is_above ? "0" : "1T");
    setenv(OPTION, text, 1);
}

static hp_status open_bench(hp_world *world, const options *o, bench *b) {
    *b = (bench){.o = o, .world = world, .op = o->op, .dtype = HP_FP32, .reduce = HP_SUM};
    TRY(hp_group_split(hp_world_group(world), 0, hp_world_rank(world), &b->group));
    b->rank = hp_group_rank(b->group);
    b->n = hp_group_size(b->group);
    b->partner = -1;
    return HP_OK;
}

static hp_status measure_here(bench *b, uint64_t bytes, double *out_us) {
    const uint64_t unit = hp_dtype_size(b->dtype) * bench_parts(b);
    const uint64_t count = bytes > unit ? bytes / unit : 1;
    result r = {0};
    TRY(bench_open(b, count * unit));
    bench_set_count(b, count);
    TRY(measure(b, &r));
    *out_us = r.time_us;
    return bench_close(b);
}

static hp_status measure_point(hp_world *world, campaign *c, point *p, int side) {
    const options o = {.op = p->op,
                       .dtype = HP_FP32,
                       .reduce = HP_SUM,
                       .wire = HP_WIRE_FULL,
                       .n_warmup = 2,
                       .n_iterations = p->bytes < 1 << 20 ? 40 : 8,
                       .n_groups = 1,
                       .is_private = p->is_private,
                       .is_in_place = p->is_in_place};
    bench b;
    hp_status status = open_bench(world, &o, &b);
    if (status >= 0)
        status = measure_here(&b, p->bytes, &p->us[side][c->pair]);
    bench_abandon(&b);
    hp_group_destroy(b.group);
    return status;
}

static hp_status measure_side(campaign *c, int side) {
    hp_world *world;
    set_threshold(c->threshold.name, side);
    TRY(hp_world_create(NULL, &world));
    hp_status status = HP_OK;
    for (int i = 0; i < c->n_points && status >= 0; i++)
        status = measure_point(world, c, &c->points[i], side);
    hp_world_destroy(world);
    return status;
}

/* ---- what is measured ---- */

static hp_status algorithm_of(const campaign *c, const point *p, bool is_above,
                              const char **out_name) {
    hp_coll_case call = HP_COLL_CASE_INIT;
    hp_coll_choice choice;
    const bool has_parts = p->op->each_in || p->op->each_out;
    call.what = p->op->what;
    call.n_ranks = c->n_ranks;
    call.is_crowded = c->is_crowded;
    call.count = p->bytes / (sizeof(float) * (has_parts ? (uint64_t)c->n_ranks : 1));
    call.in_is_symmetric = call.out_is_symmetric = !p->is_private;
    call.is_in_place = p->is_in_place;
    set_threshold(c->threshold.name, is_above);
    TRY(hp_coll_choice_get(&call, &choice));
    *out_name = choice.algorithm;
    return HP_OK;
}

/* Which calls are looked at: those that are not in place; those that are, for a threshold that
 * changes none of the first; all in symmetric memory, for one inside of algorithms, which no choice
 * shows. */
typedef enum kind { APART, IN_PLACE, ANY, N_KINDS } kind;

static hp_status add_if_it_matters(campaign *c, point p, kind k) {
    const char *below, *above;
    TRY(algorithm_of(c, &p, false, &below));
    TRY(algorithm_of(c, &p, true, &above));
    if ((k == ANY || strcmp(below, above) != 0) && c->n_points < MOST_POINTS)
        c->points[c->n_points++] = p;
    return HP_OK;
}

static hp_status list_points(campaign *c, kind of) {
    uint64_t first = c->table_bytes < c->c->most_bytes ? c->table_bytes : c->c->most_bytes;
    for (int i = 0; i < N_BELOW && first / FACTOR >= least_bytes; i++)
        first /= FACTOR;
    for (int i = 0; i < n_ops; i++)
        for (int is_private = 0; is_private < (of == ANY ? 1 : 2); is_private++)
            for (uint64_t bytes = first, k = 0; k < N_SIZES && bytes <= c->c->most_bytes;
                 bytes *= FACTOR, k++) {
                const op_row *op = &ops[i];
                const point p = {op, is_private, of == IN_PLACE, bytes, {{0}}};
                if (op->is_latency || op->is_pairs || op->source == FROM_NOBODY ||
                    (p.is_in_place && !op->has_in_place))
                    continue;
                TRY(add_if_it_matters(c, p, of));
            }
    return HP_OK;
}

/* ---- the value ---- */

static double ratio_of(const campaign *c, const point *p) {
    double ratios[MOST_PAIRS];
    for (int i = 0; i < c->c->n_pairs; i++)
        ratios[i] = p->us[1][i] > 0 && p->us[0][i] > 0 ? p->us[1][i] / p->us[0][i] : 1;
    return median(ratios, c->c->n_pairs);
}

/* What all calls lose where the threshold is `bytes`: the mean of log(time / the faster side's). */
static double cost_of(const campaign *c, uint64_t bytes) {
    double sum = 0;
    for (int i = 0; i < c->n_points; i++) {
        const double gain = log(ratio_of(c, &c->points[i])); /* < 0: above is faster */
        sum += c->points[i].bytes >= bytes ? fmax(gain, 0) : fmax(-gain, 0);
    }
    return c->n_points ? sum / c->n_points : 0;
}

/* One that was measured, or beyond them all. */
static uint64_t best_value(const campaign *c) {
    uint64_t best = c->table_bytes;
    double least = cost_of(c, best) - least_gain;
    for (int i = 0; i < c->n_points; i++)
        for (int beyond = 0; beyond < 2; beyond++) {
            const uint64_t bytes = c->points[i].bytes * (beyond ? FACTOR : 1);
            if (cost_of(c, bytes) < least) {
                least = cost_of(c, bytes);
                best = bytes;
            }
        }
    return best;
}

/* ---- telling ---- */

static void bytes_text(char *out, size_t size, uint64_t bytes) {
    static const char suffixes[] = "KMGT";
    int n = 0;
    for (; n < 4 && bytes && bytes % 1024 == 0; n++)
        bytes /= 1024;
    snprintf(out, size, "%llu%.*s", (unsigned long long)bytes, n > 0, &suffixes[n - (n > 0)]);
}

static double median_us(const campaign *c, const point *p, int side) {
    double us[MOST_PAIRS];
    memcpy(us, p->us[side], sizeof us);
    return median(us, c->c->n_pairs);
}

static void print_points(const campaign *c, uint64_t best) {
    char table[32], value[32];
    for (int i = 0; i < c->n_points; i++) {
        const point *p = &c->points[i];
        char call[32];
        snprintf(call, sizeof call, "%s%s", p->op->name, p->is_in_place ? " in place" : "");
        printf("  %-12s %-20s %-8s %10llu %11.2f %11.2f %7.2f\n", c->threshold.name, call,
               p->is_private ? "private" : "symm", (unsigned long long)p->bytes, median_us(c, p, 0),
               median_us(c, p, 1), ratio_of(c, p));
    }
    bytes_text(table, sizeof table, c->table_bytes);
    bytes_text(value, sizeof value, best);
    printf("# %s: %s; the table says %s\n", c->threshold.name, value, table);
    fflush(stdout);
}

static hp_status tune_threshold(campaign *c, uint64_t *out_bytes) {
    c->n_points = 0;
    c->table_bytes = c->is_crowded ? c->threshold.crowded_bytes : c->threshold.roomy_bytes;
    for (kind of = APART; of < N_KINDS && c->n_points == 0; of++)
        TRY(list_points(c, of));
    for (c->pair = 0; c->pair < c->c->n_pairs; c->pair++)
        for (int k = 0; k < 2; k++)
            TRY(measure_side(c, k ^ (c->pair & 1)));
    *out_bytes = best_value(c);
    if (c->rank == 0)
        print_points(c, *out_bytes);
    return HP_OK;
}

typedef hp_status binder(const hp_world *world, pin asked);

/* Who these ranks are, whether each has a core, and whether their command lines make sense: one
 * world for that. */
static hp_status look_in(hp_world *world, campaign *c, hp_status parsed, binder *bind) {
    hp_machine machine;
    c->rank = hp_world_rank(world);
    c->n_ranks = hp_world_size(world);
    TRY(agree(world, parsed));
    if (c->c->wants_help)
        return HP_OK;
    TRY(agree(world, check_names(c->c->only)));
    TRY(agree(world, check_ranks(c->n_ranks)));
    TRY(agree(world, hp_machine_read(NULL, &machine)));
    double cores = machine.n_cores_allowed;
    TRY(hp_all_reduce(hp_world_group(world), &cores, &cores, 1, HP_FP64, HP_MIN));
    c->is_crowded = cores < c->n_ranks;
    return agree(world, bind(world, PIN_AUTO));
}

static hp_status look(campaign *c, hp_status parsed, binder *bind) {
    hp_world *world;
    unsetenv(OPTION);
    TRY(hp_world_create(NULL, &world));
    const hp_status status = look_in(world, c, parsed, bind);
    hp_world_destroy(world);
    return status;
}

static hp_status tune(campaign *c) {
    char option[256] = "";
    if (c->rank == 0)
        printf("# tune: %d ranks, %s\n# %-12s %-20s %-8s %10s %11s %11s %7s\n", c->n_ranks,
               c->is_crowded ? "crowded" : "roomy", "threshold", "op", "memory", "bytes",
               "beyond us", "from here", "ratio");
    for (int i = 0; hp_coll_threshold_at(i, &c->threshold); i++) {
        uint64_t bytes;
        char value[32];
        if (!is_named(c->c->only, c->threshold.name))
            continue;
        TRY(tune_threshold(c, &bytes));
        bytes_text(value, sizeof value, bytes);
        const size_t used = strlen(option);
        snprintf(option + used, sizeof option - used, "%s%s=%s", used ? "," : "", c->threshold.name,
                 value);
    }
    if (c->rank == 0)
        printf(OPTION "=%s\n", option);
    return HP_OK;
}

int tune_main(int argc, char **argv, binder *bind) {
    static campaign c;
    static command line;
    const hp_status parsed = parse(argc, argv, &line);
    c.c = &line;
    hp_status status = look(&c, parsed, bind);
    if (status >= 0 && line.wants_help && c.rank == 0)
        print_help();
    else if (status >= 0 && !line.wants_help)
        status = tune(&c);
    if (status >= 0 && (fflush(stdout) || ferror(stdout)))
        status = fail(HP_ERR_SYSTEM, "expected to write the results to standard output");
    if (status < 0)
        failure_print(stderr, status, c.rank);
    return status == HP_ERR_ARGUMENT ? 2 : status < 0 ? 1 : 0;
}
