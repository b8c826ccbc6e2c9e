/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/run.c - a run's folder: trace-R.json of each rank, verdict.json when the run was
 * verified.
 *
 * A rank that was killed has left no trace: what the others saw is still worth a report, which says
 * that one is missing.
 */
#include "run.h"
#include "die.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_ints(const void *left, const void *right) {
    return *(const int *)left - *(const int *)right;
}

/* R of "trace-R.json", written as we write it; -1: another file. */
static int rank_of_file(const char *name) {
    char again[64];
    int rank = -1;
    if (sscanf(name, "trace-%d.json", &rank) != 1 || rank < 0 || rank >= MAX_RANKS)
        return -1;
    snprintf(again, sizeof again, "trace-%d.json", rank);
    return strcmp(again, name) == 0 ? rank : -1;
}

static int *list_ranks(const char *directory, int *out_n) {
    int *ranks = take(MAX_RANKS, sizeof *ranks), n = 0;
    DIR *folder = opendir(directory);
    if (!folder)
        die("expected the folder of a trace, %s: %s", directory, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(folder));)
        if (rank_of_file(entry->d_name) >= 0)
            ranks[n++] = rank_of_file(entry->d_name);
    closedir(folder);
    if (n == 0)
        die("expected trace-0.json and so on in %s, there is none (hptrain --trace writes them)",
            directory);
    qsort(ranks, (size_t)n, sizeof *ranks, compare_ints);
    *out_n = n;
    return ranks;
}

static void read_mesh(reader *r, uint64_t *out_mesh) {
    const char *at = r->at;
    uint32_t n = 0;
    reader_enter(r, '[');
    for (; reader_more(r, ']', n); n++) {
        if (n == 2)
            reader_die(r, at, "expected a mesh of 2 numbers");
        out_mesh[n] = reader_count(r);
    }
    if (n != 2 || out_mesh[0] - 1 >= MAX_RANKS || out_mesh[1] - 1 >= MAX_RANKS ||
        out_mesh[0] * out_mesh[1] > MAX_RANKS)
        reader_die(r, at, "expected a mesh [replicas, shards] of 1 to %d ranks", MAX_RANKS);
}

static void read_verdict_field(run *whole, reader *r, text key) {
    verdict *v = &whole->verdict;
    const struct {
        const char *name;
        uint64_t *count;
    } counts[] = {{"ranks", &v->n_ranks},           {"steps", &v->n_steps},
                  {"operations", &v->n_operations}, {"peak_bytes", &v->peak_bytes},
                  {"bound_bytes", &v->bound_bytes}, {"steady_bytes", &v->steady_bytes},
                  {"prefetch", &v->prefetch}};
    const struct {
        const char *name;
        text *text;
    } texts[] = {
        {"rule", &v->rule}, {"text", &v->text}, {"mode", &v->mode}, {"schedule", &v->schedule}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (text_is(key, counts[i].name)) {
            *counts[i].count = reader_count(r);
            return;
        }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (text_is(key, texts[i].name)) {
            *texts[i].text = names_at(whole->names, names_add(whole->names, reader_string(r)));
            return;
        }
    if (text_is(key, "mesh"))
        read_mesh(r, whole->mesh);
    else
        reader_skip(r);
}

static void read_verdict(run *whole, const char *path) {
    reader r;
    bool has_sound = false;
    reader_open(&r, path);
    reader_enter(&r, '{');
    for (uint32_t n = 0; reader_more(&r, '}', n); n++) {
        const text key = reader_key(&r);
        if (text_is(key, "sound")) {
            whole->verdict.is_sound = reader_flag(&r);
            has_sound = true;
        } else {
            read_verdict_field(whole, &r, key);
        }
    }
    reader_finish(&r);
    if (!has_sound)
        reader_die(&r, r.at, "expected \"sound\" in this verdict");
    whole->verdict.is_there = true;
    reader_close(&r);
}

static bool has_comm(const run *r, uint8_t comm) {
    for (int i = 0; i < r->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++)
            if (r->ranks[i].streams[j].comm == comm && r->ranks[i].streams[j].n)
                return true;
    return false;
}

/* Without a verdict: nothing is replicated in one replica, nothing gathered by one shard. Else the
 * traces do not say it. */
static void guess_mesh(run *r) {
    const uint64_t n = (uint64_t)r->ranks[r->n_ranks - 1].rank + 1;
    if (r->mesh[0])
        return;
    if (!has_comm(r, KIND_REPLICATE)) {
        r->mesh[0] = 1;
        r->mesh[1] = n;
    } else if (!has_comm(r, KIND_UNSHARD) && !has_comm(r, KIND_REDUCE)) {
        r->mesh[0] = n;
        r->mesh[1] = 1;
    }
}

static void measure(run *r) {
    r->begin_ns = UINT64_MAX;
    for (int i = 0; i < r->n_ranks; i++) {
        r->n_dropped += r->ranks[i].n_dropped;
        for (int j = 0; j < MAX_STREAMS; j++) {
            const stream *s = &r->ranks[i].streams[j];
            r->n_spans += s->n;
            for (size_t k = 0; k < s->n; k++) {
                r->begin_ns =
                    s->spans[k].begin_ns < r->begin_ns ? s->spans[k].begin_ns : r->begin_ns;
                r->end_ns = s->spans[k].end_ns > r->end_ns ? s->spans[k].end_ns : r->end_ns;
            }
        }
    }
    if (r->n_spans == 0)
        die("expected spans in these traces, there are none");
}

/* How many ranks there were. */
static void size_up(run *r) {
    const int highest = r->ranks[r->n_ranks - 1].rank;
    const uint64_t by_mesh = r->mesh[0] * r->mesh[1];
    if (by_mesh && by_mesh <= (uint64_t)highest)
        die("expected ranks of a mesh of %llux%llu, given a trace of rank %d",
            (unsigned long long)r->mesh[0], (unsigned long long)r->mesh[1], highest);
    r->world_size = by_mesh ? (int)by_mesh : highest + 1;
}

void run_read(run *r, const char *directory) {
    char path[4096];
    int *ranks = list_ranks(directory, &r->n_ranks);
    r->names = names_create();
    r->ranks = take((size_t)r->n_ranks, sizeof *r->ranks);
    for (int i = 0; i < r->n_ranks; i++) {
        snprintf(path, sizeof path, "%s/trace-%d.json", directory, ranks[i]);
        trace_read(r, path, ranks[i], &r->ranks[i]);
    }
    free(ranks);
    kinds_assign(r);
    measure(r);
    snprintf(path, sizeof path, "%s/verdict.json", directory);
    FILE *file = fopen(path, "re");
    if (file) {
        fclose(file);
        read_verdict(r, path);
    }
    guess_mesh(r);
    size_up(r);
}

void run_release(run *r) {
    for (int i = 0; i < r->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++)
            free(r->ranks[i].streams[j].spans);
    free(r->ranks);
    names_destroy(r->names);
}
