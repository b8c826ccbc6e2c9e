/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/skew.c - when the ranks of a group come to a collective: who is last, by how much.
 *
 * A collective is the same operation of the same step on every rank of its group; a rank arrives
 * when its span begins. Groups follow from the mesh [R, S], rank = replica * S + shard: unshard and
 * reduce have the S ranks of a replica, replicate has the R ranks of a shard. Without a mesh all
 * ranks are compared. The lists of a group's ranks are sorted by (step, id) and merged.
 */
#include "die.h"
#include "figures.h"

#include <stdlib.h>
#include <string.h>

typedef struct list {
    const span **spans; /* the collectives of one rank and kind, by (step, id) */
    size_t n, at;
    int rank;
} list;

static bool is_collective(text name) {
    static const char *const begins[] = {"all_gather", "reduce_scatter", "all_reduce",
                                         "all_to_all", "broadcast",      "barrier"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (text_begins(name, begins[i]))
            return true;
    return false;
}

static uint64_t key_of(const span *s) {
    return (uint64_t)s->step << 32 | s->id;
}

static int compare_spans(const void *left, const void *right) {
    const uint64_t a = key_of(*(const span *const *)left), b = key_of(*(const span *const *)right);
    return (a > b) - (a < b);
}

static list list_of(const run *r, const rank_trace *t, uint8_t comm) {
    list l = {.rank = t->rank};
    size_t capacity = 0;
    for (int i = 0; i < MAX_STREAMS; i++) {
        const stream *s = &t->streams[i];
        for (size_t j = 0; s->comm == comm && j < s->n; j++) {
            const span *one = &s->spans[j];
            if (one->depth || one->id == NO_ID || !is_collective(names_at(r->names, one->name)))
                continue;
            l.spans = grow(l.spans, l.n, &capacity, sizeof *l.spans);
            l.spans[l.n++] = one;
        }
    }
    if (l.n)
        qsort(l.spans, l.n, sizeof *l.spans, compare_spans);
    return l;
}

/* Which group of a kind a rank is in. */
static uint64_t group_of(const run *r, int rank, uint8_t comm) {
    if (r->mesh[0] == 0)
        return 0;
    const uint64_t n_shards = r->mesh[1];
    return comm == KIND_REPLICATE ? (uint64_t)rank % n_shards : (uint64_t)rank / n_shards;
}

/* The next (step, id) of any list; UINT64_MAX: all are at their end. */
static uint64_t next_key(const list *lists, int n) {
    uint64_t key = UINT64_MAX;
    for (int i = 0; i < n; i++)
        if (lists[i].at < lists[i].n && key_of(lists[i].spans[lists[i].at]) < key)
            key = key_of(lists[i].spans[lists[i].at]);
    return key;
}

static void add_arrival(figures *f, list *lists, int n, uint64_t key, uint8_t comm) {
    arrival a = {.first_ns = UINT64_MAX, .comm = comm};
    for (int i = 0; i < n; i++) {
        if (lists[i].at == lists[i].n || key_of(lists[i].spans[lists[i].at]) != key)
            continue;
        const span *s = lists[i].spans[lists[i].at++];
        if (a.n_ranks == 0 || s->begin_ns > a.last_ns) {
            a.last_ns = s->begin_ns;
            a.last_rank = (int16_t)lists[i].rank;
        }
        if (s->begin_ns < a.first_ns) {
            a.first_ns = s->begin_ns;
            a.first_rank = (int16_t)lists[i].rank;
        }
        a.step = s->step;
        a.id = s->id;
        a.name = s->name;
        a.unit = s->unit;
        a.bytes = s->bytes;
        a.n_ranks++;
    }
    if (a.n_ranks < 2)
        return;
    f->arrivals = grow(f->arrivals, f->n_arrivals, &f->capacity_arrivals, sizeof a);
    f->arrivals[f->n_arrivals++] = a;
}

static void merge_group(figures *f, list *all, uint64_t group, uint8_t comm) {
    const run *r = f->run;
    list *lists = take((size_t)r->n_ranks, sizeof *lists);
    int n = 0;
    for (int i = 0; i < r->n_ranks; i++)
        if (group_of(r, all[i].rank, comm) == group)
            lists[n++] = all[i];
    for (uint64_t key; (key = next_key(lists, n)) != UINT64_MAX;)
        add_arrival(f, lists, n, key, comm);
    free(lists);
}

static void merge_kind(figures *f, uint8_t comm) {
    const run *r = f->run;
    list *all = take((size_t)r->n_ranks, sizeof *all);
    const uint64_t n_groups = r->mesh[0] ? r->mesh[comm == KIND_REPLICATE ? 1 : 0] : 1;
    for (int i = 0; i < r->n_ranks; i++)
        all[i] = list_of(r, &r->ranks[i], comm);
    for (uint64_t group = 0; group < n_groups; group++)
        merge_group(f, all, group, comm);
    for (int i = 0; i < r->n_ranks; i++)
        free(all[i].spans);
    free(all);
}

static uint64_t skew_of(const arrival *a) {
    return a->last_ns - a->first_ns;
}

static bool took_part(const run *r, const arrival *a, int rank) {
    return group_of(r, rank, a->comm) == group_of(r, a->last_rank, a->comm);
}

/* Nobody is late where all come at one time, as in virtual time. */
static void rate_rank(figures *f, int trace, uint64_t *room) {
    const int rank = f->run->ranks[trace].rank;
    rank_skew *out = &f->rank_skews[trace];
    for (size_t i = 0; i < f->n_arrivals; i++) {
        const arrival *a = &f->arrivals[i];
        const uint64_t ns = skew_of(a);
        out->n += took_part(f->run, a, rank);
        if (a->last_rank != rank || ns == 0)
            continue;
        room[out->n_last++] = ns;
        out->total_ns += ns;
        out->max_ns = ns > out->max_ns ? ns : out->max_ns;
    }
    out->median_ns = median_of(room, out->n_last);
}

static int compare_arrivals(const void *left, const void *right) {
    const arrival *a = left, *b = right;
    if (a->comm != b->comm)
        return a->comm < b->comm ? -1 : 1;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    if (a->name != b->name)
        return a->name < b->name ? -1 : 1;
    const uint64_t key_a = (uint64_t)a->step << 32 | a->id;
    const uint64_t key_b = (uint64_t)b->step << 32 | b->id;
    if (key_a != key_b)
        return key_a < key_b ? -1 : 1;
    return (a->first_rank > b->first_rank) - (a->first_rank < b->first_rank);
}

static skew_row row_of(const arrival *a, size_t n, uint64_t *room) {
    skew_row row = {.comm = a->comm, .name = a->name, .unit = a->unit, .n = n, .last_rank = -1};
    uint64_t n_last[MAX_RANKS] = {0};
    for (size_t i = 0; i < n; i++) {
        const uint64_t ns = skew_of(&a[i]);
        room[i] = ns;
        row.total_ns += ns;
        row.max_ns = ns > row.max_ns ? ns : row.max_ns;
        n_last[a[i].last_rank] += ns != 0;
    }
    for (int i = 0; i < MAX_RANKS; i++)
        if (n_last[i] > row.n_last) {
            row.n_last = n_last[i];
            row.last_rank = i;
        }
    row.median_ns = median_of(room, n);
    return row;
}

static int compare_rows(const void *left, const void *right) {
    const skew_row *a = left, *b = right;
    if (a->total_ns != b->total_ns)
        return a->total_ns > b->total_ns ? -1 : 1;
    if (a->comm != b->comm)
        return a->comm < b->comm ? -1 : 1;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    return (a->name > b->name) - (a->name < b->name);
}

/* Arrivals are sorted by what makes a row. */
static void make_rows(figures *f, uint64_t *room) {
    size_t capacity = 0;
    for (size_t i = 0, n; i < f->n_arrivals; i += n) {
        const arrival *a = &f->arrivals[i];
        for (n = 1; i + n < f->n_arrivals && a[n].comm == a->comm && a[n].unit == a->unit &&
                    a[n].name == a->name;)
            n++;
        f->skew_rows = grow(f->skew_rows, f->n_skew_rows, &capacity, sizeof *f->skew_rows);
        f->skew_rows[f->n_skew_rows++] = row_of(a, n, room);
    }
    if (f->n_skew_rows)
        qsort(f->skew_rows, f->n_skew_rows, sizeof *f->skew_rows, compare_rows);
}

static void rate_passes(figures *f) {
    for (size_t i = 0; i < f->n_arrivals; i++) {
        const arrival *a = &f->arrivals[i];
        pass *p = pass_of(f, a->step);
        p->n_skews++;
        if (skew_of(a) > p->skew_ns) {
            p->skew_ns = skew_of(a);
            p->last_rank = a->last_rank;
        }
    }
}

void skew_compute(figures *f) {
    for (int comm = 0; comm < N_COMM_KINDS; comm++)
        merge_kind(f, (uint8_t)comm);
    uint64_t *room = take(f->n_arrivals, sizeof *room);
    f->rank_skews = take((size_t)f->run->n_ranks, sizeof *f->rank_skews);
    for (int i = 0; i < f->run->n_ranks; i++)
        rate_rank(f, i, room);
    if (f->n_arrivals)
        qsort(f->arrivals, f->n_arrivals, sizeof *f->arrivals, compare_arrivals);
    make_rows(f, room);
    rate_passes(f);
    for (size_t i = 0; i < f->n_arrivals; i++)
        room[i] = skew_of(&f->arrivals[i]);
    f->skew_median_ns = median_of(room, f->n_arrivals);
    f->skew_max_ns = f->n_arrivals ? room[f->n_arrivals - 1] : 0;
    free(room);
}
