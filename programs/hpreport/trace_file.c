/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/trace_file.c - the spans of one rank, from the Chrome trace that hp_trace_write wrote.
 *
 * Begins and ends are in stack order on each stream (tid), at times that never fall: a stack of the
 * open spans of each stream pairs them. Whatever breaks that promise ends the program with file and
 * position, and so does a trace of another library or of another major version.
 */
#include "die.h"
#include "run.h"

#include <hyperparallel/base.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTED = 64 };
#define MAX_BYTES (UINT64_C(1) << 53) /* what the page's numbers hold exactly */

/* What one event says; what is not there keeps what it had. */
typedef struct event {
    char phase;
    uint64_t pid, tid, ns;
    bool has_time;
    text name, unit, arg_name;
    uint64_t step, bytes, id;
} event;

/* The open spans of a stream, innermost last. */
typedef struct open_spans {
    size_t at[MAX_NESTED];
    int n, n_counted; /* n_counted: without steps */
    uint64_t now_ns;
} open_spans;

typedef struct trace_reader {
    run *run;
    reader r;
    rank_trace *trace;
    open_spans open[MAX_STREAMS];
    uint16_t step_name;
    bool has_library;
} trace_reader;

static void read_args(reader *r, event *e) {
    reader_enter(r, '{');
    for (uint32_t n = 0; reader_more(r, '}', n); n++) {
        const text key = reader_key(r);
        if (text_is(key, "step"))
            e->step = reader_count(r);
        else if (text_is(key, "bytes"))
            e->bytes = reader_count(r);
        else if (text_is(key, "id"))
            e->id = reader_count(r);
        else if (text_is(key, "unit"))
            e->unit = reader_string(r);
        else if (text_is(key, "name"))
            e->arg_name = reader_string(r);
        else
            reader_skip(r);
    }
}

static event read_event(reader *r) {
    event e = {.phase = '?', .id = NO_ID};
    reader_enter(r, '{');
    for (uint32_t n = 0; reader_more(r, '}', n); n++) {
        const text key = reader_key(r);
        if (text_is(key, "ph")) {
            const text phase = reader_string(r);
            e.phase = phase.n == 1 ? *phase.s : '?';
        } else if (text_is(key, "pid")) {
            e.pid = reader_count(r);
        } else if (text_is(key, "tid")) {
            e.tid = reader_count(r);
        } else if (text_is(key, "ts")) {
            e.ns = reader_us(r);
            e.has_time = true;
        } else if (text_is(key, "name")) {
            e.name = reader_string(r);
        } else if (text_is(key, "args")) {
            read_args(r, &e);
        } else {
            reader_skip(r);
        }
    }
    return e;
}

static uint16_t name_of(trace_reader *t, text name) {
    return name.s ? names_add(t->run->names, name) : (uint16_t)NO_NAME;
}

static void begin_span(trace_reader *t, const char *at, const event *e) {
    stream *s = &t->trace->streams[e->tid];
    open_spans *open = &t->open[e->tid];
    if (open->n == MAX_NESTED)
        reader_die(&t->r, at, "expected at most %d spans inside each other", MAX_NESTED);
    if (e->step > UINT32_MAX || e->id > UINT32_MAX || e->bytes > MAX_BYTES)
        reader_die(&t->r, at, "expected step and id below 2^32, and bytes up to 2^53");
    s->spans = grow(s->spans, s->n, &s->capacity, sizeof *s->spans);
    s->spans[s->n] = (span){.begin_ns = e->ns,
                            .bytes = e->bytes,
                            .id = (uint32_t)e->id,
                            .step = (uint32_t)e->step,
                            .name = name_of(t, e->name),
                            .unit = name_of(t, e->unit),
                            .depth = (uint8_t)open->n_counted};
    open->n_counted += s->spans[s->n].name != t->step_name;
    open->at[open->n++] = s->n++;
}

static void end_span(trace_reader *t, const char *at, const event *e) {
    open_spans *open = &t->open[e->tid];
    if (open->n == 0)
        reader_die(&t->r, at, "expected a begin before this end");
    span *s = &t->trace->streams[e->tid].spans[open->at[--open->n]];
    s->end_ns = e->ns;
    open->n_counted -= s->name != t->step_name;
}

static void take_event(trace_reader *t, const char *at, const event *e) {
    const bool is_span = e->phase == 'B' || e->phase == 'E';
    if (!is_span && e->phase != 'M')
        reader_die(&t->r, at, "expected an event of phase B, E or M");
    if (e->pid != (uint64_t)t->trace->rank)
        reader_die(&t->r, at, "expected pid %d, as the file's name says, given %llu",
                   t->trace->rank, (unsigned long long)e->pid);
    if (e->tid >= MAX_STREAMS)
        reader_die(&t->r, at, "expected a tid below %d, given %llu", MAX_STREAMS,
                   (unsigned long long)e->tid);
    if (!is_span) {
        if (text_is(e->name, "thread_name"))
            t->trace->streams[e->tid].name = name_of(t, e->arg_name);
        return;
    }
    if (!e->has_time || e->ns < t->open[e->tid].now_ns)
        reader_die(&t->r, at, "expected a time (ts) that is not before the last one's");
    t->open[e->tid].now_ns = e->ns;
    (e->phase == 'B' ? begin_span : end_span)(t, at, e);
}

static void read_events(trace_reader *t) {
    reader_enter(&t->r, '[');
    for (uint32_t n = 0; reader_more(&t->r, ']', n); n++) {
        const char *at = t->r.at;
        while (at < t->r.end && (*at == '\n' || *at == ' '))
            at++;
        const event e = read_event(&t->r);
        take_event(t, at, &e);
    }
    for (int i = 0; i < MAX_STREAMS; i++)
        if (t->open[i].n)
            reader_die(&t->r, t->r.at, "expected every span to end, %d of stream %d did not",
                       t->open[i].n, i);
}

/* "hyperparallel 1.2.3": the major version has to be ours. */
static void take_library(trace_reader *t, const char *at, text library) {
    char ours[64];
    snprintf(ours, sizeof ours, "hyperparallel %d.", HP_VERSION_MAJOR);
    if (!text_begins(library, ours))
        reader_die(&t->r, at, "expected a trace of %sx, given one of \"%.*s\"", ours,
                   (int)(library.n < 60 ? library.n : 60), library.s);
    snprintf(t->run->library, sizeof t->run->library, "%.*s", (int)library.n, library.s);
    t->has_library = true;
}

static void read_other_data(trace_reader *t) {
    reader_enter(&t->r, '{');
    for (uint32_t n = 0; reader_more(&t->r, '}', n); n++) {
        const text key = reader_key(&t->r);
        const char *at = t->r.at;
        if (text_is(key, "library"))
            take_library(t, at, reader_string(&t->r));
        else if (text_is(key, "dropped_spans"))
            t->trace->n_dropped = reader_count(&t->r);
        else
            reader_skip(&t->r);
    }
}

void trace_read(run *r, const char *path, int rank, rank_trace *out_trace) {
    trace_reader t = {.run = r, .trace = out_trace};
    bool has_events = false;
    memset(out_trace, 0, sizeof *out_trace);
    out_trace->rank = rank;
    for (int i = 0; i < MAX_STREAMS; i++)
        out_trace->streams[i].name = NO_NAME;
    t.step_name = names_add(r->names, (text){"step", 4});
    reader_open(&t.r, path);
    reader_enter(&t.r, '{');
    for (uint32_t n = 0; reader_more(&t.r, '}', n); n++) {
        const text key = reader_key(&t.r);
        if (text_is(key, "traceEvents")) {
            read_events(&t);
            has_events = true;
        } else if (text_is(key, "otherData")) {
            read_other_data(&t);
        } else {
            reader_skip(&t.r);
        }
    }
    reader_finish(&t.r);
    if (!has_events || !t.has_library)
        reader_die(&t.r, t.r.at, "expected %s in this trace, there is none",
                   has_events ? "otherData.library" : "traceEvents");
    reader_close(&t.r);
}
