/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/run.h - what the files of a run say: the spans of every rank, and the verdict.
 *
 * Names (of spans, units, streams) are kept once and known by number. A span's kind says what it is
 * for the report; a wait has the kind of what it waits for. Times are of the node's monotonic
 * clock, the same on all ranks.
 */
#ifndef HPREPORT_RUN_H
#define HPREPORT_RUN_H

#include "reader.h"

enum { NO_ID = UINT32_MAX, NO_NAME = UINT16_MAX, MAX_STREAMS = 8, MAX_RANKS = 1024 };

/* What a span is. The first three are streams of communication, waits for them follow in the same
 * order; page/panels.js has the same list. */
typedef enum kind {
    KIND_UNSHARD,
    KIND_REDUCE,
    KIND_REPLICATE,
    N_COMM_KINDS,
    KIND_WAIT_UNSHARD = N_COMM_KINDS,
    KIND_WAIT_REDUCE,
    KIND_WAIT_REPLICATE,
    KIND_WAIT_OTHER,
    KIND_FORWARD,
    KIND_BACKWARD,
    KIND_UPDATE, /* optimizer, clipping, and what is done to gradients on compute */
    KIND_CHECKPOINT,
    KIND_OTHER,
    KIND_STEP, /* a whole pass: no lane of the timeline shows it */
    N_KINDS
} kind;

typedef struct span {
    uint64_t begin_ns, end_ns, bytes;
    uint32_t id, step; /* id NO_ID: no operation */
    uint16_t name, unit;
    uint8_t kind, depth; /* depth: inside how many others, step apart */
} span;

typedef struct stream {
    uint16_t name;
    uint8_t comm; /* unshard, reduce or replicate, or N_COMM_KINDS */
    span *spans;  /* by begin, parents first */
    size_t n, capacity;
} stream;

typedef struct rank_trace {
    int rank;
    uint64_t n_dropped;
    stream streams[MAX_STREAMS];
} rank_trace;

typedef struct verdict {
    bool is_there, is_sound, has_mesh;
    text rule, text, mode, schedule; /* as they stand in the file; s NULL: not there */
    uint64_t n_ranks, n_steps, n_operations;
    uint64_t peak_bytes, bound_bytes; /* 0: not there */
    uint64_t steady_bytes;            /* held all the time, beside what steps allocate */
    uint64_t prefetch;
} verdict;

typedef struct run {
    char library[64]; /* what wrote the traces */
    rank_trace *ranks;
    int n_ranks;      /* traces that are there, by rank */
    int world_size;   /* by the highest rank or the mesh */
    uint64_t mesh[2]; /* replicas, shards; 0: not known */
    verdict verdict;
    uint64_t begin_ns, end_ns;
    uint64_t n_spans, n_dropped;
    struct names *names;
} run;

/* names.c */
struct names *names_create(void);
void names_destroy(struct names *names);
uint16_t names_add(struct names *names, text name);
text names_at(const struct names *names, uint16_t number);
uint16_t names_count(const struct names *names);
bool name_is(const run *r, uint16_t number, const char *word);

/* trace_file.c: the spans of one rank, kinds not yet said. */
void trace_read(run *r, const char *path, int rank, rank_trace *out_trace);
/* kinds.c: says the kind of every span. */
void kinds_assign(run *r);
/* run.c: DIR/trace-R.json and DIR/verdict.json. */
void run_read(run *r, const char *directory);
void run_release(run *r);

#endif
