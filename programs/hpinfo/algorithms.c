/* SPDX-License-Identifier: Apache-2.0
 *
 * hpinfo/algorithms.c - which algorithm runs for each collective, size, number of ranks and memory,
 * and why.
 *
 * The library is asked (hp_coll_choice_get) at sizes that double, and between two that differ until
 * the byte is found where one gives way to the other. Settings with the same ranges share a row.
 */
#include "report.h"

#include <hyperparallel/coll.h>

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_BYTES = 8, MOST_RANGES = 8, N_SETTINGS = 2 * 2 * ALGORITHMS_RANKS };
static const uint64_t most_bytes = UINT64_C(64) << 20;

static const struct {
    hp_collective what;
    const char *name;
    bool has_parts; /* the larger operand holds a part for each rank */
    bool has_in_place;
} ops[] = {{HP_ALL_REDUCE, "all_reduce", false, true},
           {HP_REDUCE_SCATTER, "reduce_scatter", true, true},
           {HP_ALL_GATHER, "all_gather", true, true},
           {HP_ALL_TO_ALL, "all_to_all", true, true},
           {HP_BROADCAST, "broadcast", false, false},
           {HP_REDUCE_SCATTER_V, "reduce_scatter_v", true, true},
           {HP_ALL_GATHER_V, "all_gather_v", true, true},
           {HP_ALL_TO_ALL_V, "all_to_all_v", true, false}};
enum { N_OPS = sizeof ops / sizeof *ops };

/* One algorithm from one size to another, both of them included. */
typedef struct range {
    uint64_t from_bytes, to_bytes;
    hp_coll_choice choice;
} range;

typedef struct setting {
    hp_coll_case call;
    int n_ranges;
    range ranges[MOST_RANGES];
} setting;

/* ---- asking ---------------------------------------------------------------------------------- */

static hp_status ask(setting *s, uint64_t count, hp_coll_choice *out) {
    s->call.count = count;
    return hp_coll_choice_get(&s->call, out);
}

static bool is_same(const hp_coll_choice *a, const hp_coll_choice *b) {
    return strcmp(a->algorithm, b->algorithm) == 0;
}

/* `count` is the first that is not as the last range: begin one there, or where it came. */
static hp_status begin_range(setting *s, uint64_t last_count, uint64_t count) {
    const hp_coll_choice *before = s->n_ranges ? &s->ranges[s->n_ranges - 1].choice : NULL;
    hp_coll_choice c;
    hp_status status = HP_OK;
    while (before && last_count + 1 < count && status >= 0) {
        const uint64_t middle = last_count + (count - last_count) / 2;
        status = ask(s, middle, &c);
        *(is_same(&c, before) ? &last_count : &count) = middle;
    }
    if (before && status >= 0) {
        status = ask(s, last_count, &c);
        s->ranges[s->n_ranges - 1].to_bytes = c.bytes;
    }
    if (status >= 0)
        status = ask(s, count, &c);
    if (status >= 0 && s->n_ranges < MOST_RANGES)
        s->ranges[s->n_ranges++] = (range){c.bytes, c.bytes, c};
    return status;
}

static hp_status find_ranges(setting *s, bool has_parts) {
    const uint64_t unit = has_parts ? (uint64_t)s->call.n_ranks : 1;
    const uint64_t least = unit < LEAST_BYTES ? LEAST_BYTES / unit : 1;
    hp_coll_choice c = {0};
    hp_status status = HP_OK;
    for (uint64_t count = least; count * unit <= most_bytes && status >= 0; count *= 2) {
        status = ask(s, count, &c);
        if (status >= 0 && (!s->n_ranges || !is_same(&c, &s->ranges[s->n_ranges - 1].choice)))
            status = begin_range(s, count / 2, count);
    }
    s->ranges[s->n_ranges - 1].to_bytes = c.bytes;
    return status;
}

/* Every number of ranks, roomy and crowded, in place or not. Returns how many. */
static int find_settings(int op, bool is_symmetric, const int *ranks, setting *out,
                         hp_status *out_status) {
    int n = 0;
    for (int i = 0; i < ALGORITHMS_RANKS && ranks[i]; i++)
        for (int crowded = 0; crowded < 2; crowded++)
            for (int in_place = 0; in_place < 1 + ops[op].has_in_place; in_place++) {
                setting *s = &out[n++];
                memset(s, 0, sizeof *s);
                s->call = (hp_coll_case)HP_COLL_CASE_INIT;
                s->call.what = ops[op].what;
                s->call.dtype = HP_UINT8; /* sizes to the byte */
                s->call.n_ranks = ranks[i];
                s->call.is_crowded = crowded;
                s->call.is_in_place = in_place;
                s->call.in_is_symmetric = s->call.out_is_symmetric = is_symmetric;
                if (*out_status >= 0)
                    *out_status = find_ranges(s, ops[op].has_parts);
            }
    return n;
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_bytes(char *out, size_t size, uint64_t bytes) {
    static const char suffixes[] = "KMGT";
    int n = 0;
    for (; n < 4 && bytes && bytes % 1024 == 0; n++)
        bytes /= 1024;
    snprintf(out, size, "%" PRIu64 "%.*s", bytes, n > 0, &suffixes[n - (n > 0)]);
}

/* Where one range ends and the next begins; a multiple of what a rank's part must be is between. */
static bool has_same_end(const setting *a, const setting *b, int i) {
    const bool is_last = i + 1 == a->n_ranges;
    return a->ranges[i].to_bytes == b->ranges[i].to_bytes ||
           (!is_last && a->ranges[i + 1].from_bytes == b->ranges[i + 1].from_bytes);
}

static bool has_same_ranges(const setting *a, const setting *b) {
    bool same = a->n_ranges == b->n_ranges;
    for (int i = 0; same && i < a->n_ranges; i++)
        same = is_same(&a->ranges[i].choice, &b->ranges[i].choice) && has_same_end(a, b, i);
    return same;
}

/* "8 to 32", "33 to below 32K" */
static void print_range(const setting *s, int i, FILE *file) {
    const range *r = &s->ranges[i];
    const bool is_last = i + 1 == s->n_ranges;
    const uint64_t next = is_last ? 0 : s->ranges[i + 1].from_bytes;
    const bool is_round = !is_last && next % 1024 == 0;
    char from[32], to[32], span[80];
    print_bytes(from, sizeof from, r->from_bytes);
    print_bytes(to, sizeof to, is_round ? next : r->to_bytes);
    snprintf(span, sizeof span, "%s to %s%s", from, is_round ? "below " : "", to);
    fprintf(file, "    %-19s %-10s %d step%s; %s\n", span, r->choice.algorithm, r->choice.steps,
            r->choice.steps == 1 ? "" : "s", r->choice.why);
}

/* Of the settings with one number of ranks those that are in the set: "2", "2 roomy",
 * "2 crowded in place". */
static void print_ranks(const setting *s, int n, const bool *is_in, const char **before,
                        FILE *file) {
    int n_in = 0;
    for (int i = 0; i < n; i++)
        n_in += is_in[i];
    for (int i = 0; i < n && n_in; i++) {
        const bool has_both = i + 1 < n && s[i + 1].call.is_crowded == s[i].call.is_crowded;
        const bool is_pair = has_both && is_in[i] && is_in[i + 1];
        if (!is_in[i])
            continue;
        fprintf(file, "%s%d", *before, s[i].call.n_ranks);
        *before = ", ";
        if (n_in == n)
            return;
        fprintf(file, " %s", s[i].call.is_crowded ? "crowded" : "roomy");
        if (!is_pair && n > 2)
            fprintf(file, "%s", s[i].call.is_in_place ? " in place" : " apart");
        i += is_pair;
    }
}

/* Settings with the same ranges are named together. */
static void print_settings(const char *memory, const setting *s, int n, FILE *file) {
    bool is_printed[N_SETTINGS] = {false};
    for (int i = 0; i < n; i++) {
        bool is_in[N_SETTINGS] = {false};
        const char *before = " ranks: ";
        if (is_printed[i])
            continue;
        for (int k = i; k < n; k++)
            is_in[k] = !is_printed[k] && has_same_ranges(&s[i], &s[k]);
        fprintf(file, "  %s memory,", memory);
        for (int k = 0, end; k < n; k = end) {
            for (end = k + 1; end < n && s[end].call.n_ranks == s[k].call.n_ranks;)
                end++;
            print_ranks(&s[k], end - k, &is_in[k], &before, file);
        }
        fprintf(file, "\n");
        for (int k = 0; k < s[i].n_ranges; k++)
            print_range(&s[i], k, file);
        for (int k = i; k < n; k++)
            is_printed[k] |= is_in[k];
    }
}

static void print_thresholds(FILE *file) {
    hp_coll_threshold t;
    hp_option o;
    fprintf(file, "thresholds: bytes of the larger operand of a rank, roomy (a core for each rank) "
                  "and crowded\n");
    for (int i = 0; hp_coll_threshold_at(i, &t); i++) {
        char roomy[32], crowded[32];
        print_bytes(roomy, sizeof roomy, t.roomy_bytes);
        print_bytes(crowded, sizeof crowded, t.crowded_bytes);
        fprintf(file, "  %-14s %8s %8s  %s\n", t.name, roomy, crowded, t.meaning);
    }
    for (int i = 0; hp_option_at(i, &o); i++)
        if (strcmp(o.name, "HYPER_PARALLEL_THRESHOLDS") == 0 && o.value)
            fprintf(file, "  in place of them: %s=%s\n", o.name, o.value);
}

hp_status print_algorithms_text(const int *ranks, FILE *file) {
    static setting settings[N_SETTINGS];
    hp_status status = HP_OK;
    print_thresholds(file);
    for (int op = 0; op < N_OPS; op++) {
        fprintf(file, "\n%s\n", ops[op].name);
        for (int ordinary = 0; ordinary < 2; ordinary++) {
            const int n = find_settings(op, !ordinary, ranks, settings, &status);
            if (status >= 0)
                print_settings(ordinary ? "ordinary" : "symmetric", settings, n, file);
        }
    }
    return status;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_range(cJSON *all, int op, const setting *s, const range *r) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "op", ops[op].name);
    cJSON_AddNumberToObject(o, "ranks", s->call.n_ranks);
    cJSON_AddBoolToObject(o, "crowded", s->call.is_crowded);
    cJSON_AddStringToObject(o, "memory", s->call.in_is_symmetric ? "symm" : "private");
    cJSON_AddBoolToObject(o, "in_place", s->call.is_in_place);
    cJSON_AddNumberToObject(o, "from_bytes", (double)r->from_bytes);
    cJSON_AddNumberToObject(o, "to_bytes", (double)r->to_bytes);
    cJSON_AddStringToObject(o, "algorithm", r->choice.algorithm);
    cJSON_AddNumberToObject(o, "steps", r->choice.steps);
    cJSON_AddStringToObject(o, "moves", r->choice.moves);
    cJSON_AddStringToObject(o, "source", r->choice.source);
    cJSON_AddStringToObject(o, "why", r->choice.why);
    cJSON_AddItemToArray(all, o);
}

hp_status print_algorithms_json(const int *ranks, FILE *file) {
    static setting settings[N_SETTINGS];
    hp_status status = HP_OK;
    cJSON *all = cJSON_CreateArray();
    for (int op = 0; op < N_OPS; op++)
        for (int ordinary = 0; ordinary < 2; ordinary++) {
            const int n = find_settings(op, !ordinary, ranks, settings, &status);
            for (int i = 0; i < n; i++)
                for (int k = 0; k < settings[i].n_ranges; k++)
                    add_range(all, op, &settings[i], &settings[i].ranges[k]);
        }
    char *text = cJSON_Print(all);
    if (status >= 0)
        fprintf(file, "%s\n", text ? text : "null");
    free(text);
    cJSON_Delete(all);
    return status;
}
