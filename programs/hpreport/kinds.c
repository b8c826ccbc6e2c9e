/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/kinds.c - what each span is: by its stream, its name, and for a wait by what it waits
 * for.
 *
 * A wait carries step and id of an operation. The operations of the communication streams, sorted
 * by (step, id), say on which of them that one runs; what is found on none runs on compute.
 */
#include "die.h"
#include "run.h"

#include <stdlib.h>

static const char *const comm_names[N_COMM_KINDS] = {"unshard", "reduce", "replicate"};

typedef struct place {
    uint64_t key; /* step, id */
    uint8_t comm;
} place;

static uint64_t key_of(const span *s) {
    return (uint64_t)s->step << 32 | s->id;
}

static int compare_places(const void *left, const void *right) {
    const place *a = left, *b = right;
    return (a->key > b->key) - (a->key < b->key);
}

/* Where the operations of a rank run, those of communication; sorted. */
static place *places_of(const rank_trace *t, size_t *out_n) {
    place *places = NULL;
    size_t n = 0, capacity = 0;
    for (int i = 0; i < MAX_STREAMS; i++) {
        const stream *s = &t->streams[i];
        for (size_t j = 0; s->comm < N_COMM_KINDS && j < s->n; j++)
            if (s->spans[j].id != NO_ID) {
                places = grow(places, n, &capacity, sizeof *places);
                places[n++] = (place){key_of(&s->spans[j]), s->comm};
            }
    }
    if (n)
        qsort(places, n, sizeof *places, compare_places);
    *out_n = n;
    return places;
}

static uint8_t kind_by_name(const run *r, uint16_t name) {
    static const struct {
        const char *name;
        kind kind;
    } rows[] = {
        {"step", KIND_STEP},       {"wait", KIND_WAIT_OTHER},      {"drain", KIND_WAIT_OTHER},
        {"forward", KIND_FORWARD}, {"backward", KIND_BACKWARD},    {"optimizer", KIND_UPDATE},
        {"clip", KIND_UPDATE},     {"update", KIND_UPDATE},        {"scale", KIND_UPDATE},
        {"divide", KIND_UPDATE},   {"convert", KIND_UPDATE},       {"accumulate", KIND_UPDATE},
        {"fold", KIND_UPDATE},     {"checkpoint", KIND_CHECKPOINT}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (name_is(r, name, rows[i].name))
            return (uint8_t)rows[i].kind;
    return KIND_OTHER;
}

static uint8_t wait_kind(const span *s, const place *places, size_t n) {
    const place wanted = {.key = key_of(s)};
    const place *found =
        n && s->id != NO_ID ? bsearch(&wanted, places, n, sizeof *places, compare_places) : NULL;
    return (uint8_t)(found ? KIND_WAIT_UNSHARD + found->comm : KIND_WAIT_OTHER);
}

static void assign_rank(rank_trace *t, const uint8_t *kind_of_name) {
    size_t n_places;
    place *places = places_of(t, &n_places);
    for (int i = 0; i < MAX_STREAMS; i++)
        for (size_t j = 0; j < t->streams[i].n; j++) {
            span *s = &t->streams[i].spans[j];
            s->kind = s->name == NO_NAME ? (uint8_t)KIND_OTHER : kind_of_name[s->name];
            if (s->kind == KIND_STEP) /* wherever it is: what lies in it is not deeper for it */
                continue;
            if (t->streams[i].comm < N_COMM_KINDS)
                s->kind = t->streams[i].comm;
            else if (s->kind == KIND_WAIT_OTHER)
                s->kind = wait_kind(s, places, n_places);
        }
    free(places);
}

void kinds_assign(run *r) {
    uint8_t *kind_of_name = take(names_count(r->names), 1);
    for (uint16_t i = 0; i < names_count(r->names); i++)
        kind_of_name[i] = kind_by_name(r, i);
    for (int i = 0; i < r->n_ranks; i++) {
        for (int j = 0; j < MAX_STREAMS; j++) {
            stream *s = &r->ranks[i].streams[j];
            s->comm = 0;
            while (s->comm < N_COMM_KINDS && !name_is(r, s->name, comm_names[s->comm]))
                s->comm++;
        }
        assign_rank(&r->ranks[i], kind_of_name);
    }
    free(kind_of_name);
}
