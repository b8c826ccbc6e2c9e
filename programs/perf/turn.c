/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/turn.c - see turn.h. The names are the library's, which peers do without.
 */
#include "turn.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    hp_collective what;
} collectives[] = {
    {"all_reduce", HP_ALL_REDUCE},
    {"all_gather", HP_ALL_GATHER},
    {"reduce_scatter", HP_REDUCE_SCATTER},
    {"all_to_all", HP_ALL_TO_ALL},
    {"broadcast", HP_BROADCAST},
    {"send_recv", HP_SEND},
    {"barrier", HP_BARRIER},
};
static const char *const dtypes[] = {"fp64",  "fp32",  "fp16", "bf16",
                                     "int64", "int32", "int8", "uint8"};
static const char *const reductions[] = {"sum", "avg", "max", "min"};

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

static int collective_at(hp_collective what) {
    int i = 0;
    while (i < COUNT(collectives) - 1 && collectives[i].what != what)
        i++;
    return i;
}

static int find(const char *const *names, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static int find_collective(const char *name) {
    for (int i = 0; i < COUNT(collectives); i++)
        if (strcmp(collectives[i].name, name) == 0)
            return i;
    return -1;
}

void turn_print(const turn *t, char *out, size_t size) {
    snprintf(out, size, "%s %s %s %llu %s %s root=%d batch=%d iterations=%d %s",
             collectives[collective_at(t->what)].name, dtypes[t->dtype], reductions[t->reduce],
             t->count, t->is_classic ? "classic" : "touched",
             t->is_in_place ? "in_place" : "out_of_place", t->root, t->batch, t->iterations,
             t->checks ? "check" : "no_check");
}

bool turn_parse(const char *line, turn *out_turn) {
    char op[24], dtype[8], reduce[8], mode[12], place[16], check[12];
    turn t;
    if (sscanf(line, "%23s %7s %7s %llu %11s %15s root=%d batch=%d iterations=%d %11s", op, dtype,
               reduce, &t.count, mode, place, &t.root, &t.batch, &t.iterations, check) != 10)
        return false;
    const int at = find_collective(op), type = find(dtypes, COUNT(dtypes), dtype),
              how = find(reductions, COUNT(reductions), reduce);
    if (at < 0 || type < 0 || how < 0 || t.root < 0 || t.batch < 1 || t.iterations < 1)
        return false;
    t.what = collectives[at].what;
    t.dtype = (hp_dtype)type;
    t.reduce = (hp_reduce)how;
    t.is_classic = strcmp(mode, "classic") == 0;
    t.is_in_place = strcmp(place, "in_place") == 0;
    t.checks = strcmp(check, "check") == 0;
    *out_turn = t;
    return true;
}
