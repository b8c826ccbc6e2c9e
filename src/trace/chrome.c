/* SPDX-License-Identifier: Apache-2.0
 *
 * chrome.c - a trace as a Chrome trace file.
 *
 * Spans are recorded when they end; the file wants begins and ends in stack order. So the spans of
 * a stream are sorted by begin, parents first, and walked with a stack of the open ones: before a
 * span begins, everything that ended by then is closed. Each begin has its end, and on each
 * (pid, tid) timestamps never fall.
 * Source: "Trace Event Format", duration and metadata events.
 */
#include "../base/base.h"
#include "record.h"
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct writer {
    FILE *file;
    const hp_trace *trace;
    uint64_t n_events;
};

/* Bytes of the UTF-8 sequence at `p`, 0 when there is no valid one. */
static unsigned utf8_length(const unsigned char *p) {
    const unsigned n = p[0] < 0x80   ? 1
                       : p[0] < 0xc2 ? 0
                       : p[0] < 0xe0 ? 2
                       : p[0] < 0xf0 ? 3
                       : p[0] < 0xf5 ? 4
                                     : 0;
    for (unsigned i = 1; i < n; i++)
        if (p[i] >> 6 != 2)
            return 0;
    /* the overlong forms, the surrogates, and what lies above U+10FFFF */
    const bool is_bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
                        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return is_bad ? 0 : n;
}

/* A JSON string; bytes that are not UTF-8 become U+FFFD, since one of them spoils a whole file. */
static void put_string(struct writer *w, const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    fputc('"', w->file);
    while (*p) {
        const unsigned n = utf8_length(p);
        if (*p == '"' || *p == '\\')
            fprintf(w->file, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(w->file, "\\u%04x", *p);
        else if (n == 0)
            fputs("\\ufffd", w->file);
        else
            fwrite(p, 1, n, w->file);
        p += n ? n : 1;
    }
    fputc('"', w->file);
}

static void put_event(struct writer *w, char phase, unsigned tid) {
    fprintf(w->file, "%s{\"ph\":\"%c\",\"pid\":%d,\"tid\":%u", w->n_events++ ? ",\n" : "\n", phase,
            w->trace->rank, tid);
}

static void put_time(struct writer *w, uint64_t ns) {
    fprintf(w->file, ",\"ts\":%llu.%03u", (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static void put_begin(struct writer *w, unsigned tid, const hp_span *span) {
    put_event(w, 'B', tid);
    put_time(w, span->begin_ns);
    fputs(",\"name\":", w->file);
    put_string(w, span->name ? span->name : "?");
    fprintf(w->file, ",\"args\":{\"step\":%u,\"bytes\":%llu", span->step,
            (unsigned long long)span->bytes);
    if (span->id != UINT32_MAX)
        fprintf(w->file, ",\"id\":%u", span->id);
    if (span->detail) {
        fputs(",\"unit\":", w->file);
        put_string(w, span->detail);
    }
    fputs("}}", w->file);
}

static void put_end(struct writer *w, unsigned tid, uint64_t ns) {
    put_event(w, 'E', tid);
    put_time(w, ns);
    fputc('}', w->file);
}

/* Parents first. A parent is recorded after its children, and an instant before whatever else
 * begins at that time, which settles every tie. */
static int compare_spans(const void *left, const void *right) {
    const hp_span *a = *(const hp_span *const *)left, *b = *(const hp_span *const *)right;
    const bool a_is_instant = a->end_ns <= a->begin_ns, b_is_instant = b->end_ns <= b->begin_ns;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a_is_instant != b_is_instant)
        return a_is_instant ? -1 : 1;
    if (a_is_instant)
        return a < b ? -1 : a > b;
    if (a->end_ns != b->end_ns)
        return a->end_ns > b->end_ns ? -1 : 1;
    return a > b ? -1 : a < b;
}

/* Close the open spans that have ended by `now_ns`, innermost first; returns how many stay open. */
static uint64_t close_spans(struct writer *w, unsigned tid, const uint64_t *ends_ns,
                            uint64_t n_open, uint64_t now_ns) {
    while (n_open && ends_ns[n_open - 1] <= now_ns)
        put_end(w, tid, ends_ns[--n_open]);
    return n_open;
}

/* `spans` are sorted; `ends_ns` is room for as many. */
static void put_nested(struct writer *w, unsigned tid, const hp_span *const *spans, uint64_t n,
                       uint64_t *ends_ns) {
    uint64_t n_open = 0;
    for (uint64_t i = 0; i < n; i++) {
        const hp_span *span = spans[i];
        n_open = close_spans(w, tid, ends_ns, n_open, span->begin_ns);
        put_begin(w, tid, span);
        /* A child that outlasts its parent breaks the caller's promise, not the file. */
        const uint64_t limit_ns = n_open ? ends_ns[n_open - 1] : UINT64_MAX;
        ends_ns[n_open++] = hpi_min(hpi_max(span->end_ns, span->begin_ns), limit_ns);
    }
    close_spans(w, tid, ends_ns, n_open, UINT64_MAX);
}

static hp_status put_stream(struct writer *w, unsigned stream) {
    const uint64_t n = hp_trace_count(w->trace, stream);
    const hp_span **spans = hpi_alloc(n, sizeof *spans);
    uint64_t *ends_ns = spans ? hpi_alloc(n, sizeof *ends_ns) : NULL;
    if (ends_ns) {
        for (uint64_t i = 0; i < n; i++)
            spans[i] = hp_trace_at(w->trace, stream, i);
        qsort(spans, n, sizeof *spans, compare_spans);
        put_nested(w, stream, spans, n, ends_ns);
    }
    const hp_status status = ends_ns ? HP_OK : HP_ERR_MEMORY;
    hpi_free(ends_ns);
    hpi_free(spans);
    return status;
}

static void put_stream_name(struct writer *w, unsigned stream) {
    const char *name = w->trace->streams[stream].name;
    if (!*name && !hp_trace_count(w->trace, stream))
        return;
    put_event(w, 'M', stream);
    fputs(",\"name\":\"thread_name\",\"args\":{\"name\":", w->file);
    if (*name)
        put_string(w, name);
    else
        fprintf(w->file, "\"stream %u\"", stream);
    fputs("}}", w->file);
    put_event(w, 'M', stream);
    fprintf(w->file, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%u}}", stream);
}

static hp_status put_trace(struct writer *w) {
    fprintf(w->file, "{\"otherData\":{\"library\":\"hyperparallel %s\",\"dropped_spans\":%llu},\n",
            hp_version(), (unsigned long long)hp_trace_dropped(w->trace));
    fputs("\"traceEvents\":[", w->file);
    put_event(w, 'M', 0);
    fprintf(w->file, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", w->trace->rank);
    for (unsigned i = 0; i < HP_TRACE_STREAMS; i++)
        put_stream_name(w, i);
    for (unsigned i = 0; i < HP_TRACE_STREAMS; i++)
        HP_TRY(put_stream(w, i));
    fputs("\n]}\n", w->file);
    return HP_OK;
}

static hp_status fail_file(const hp_trace *trace, const char *path, const char *call) {
    return HPI_FAIL_RANK(HP_ERR_FILE, trace->rank,
                         "expected to write the trace of rank %d to %s, but %s failed: %s",
                         trace->rank, path, call, strerror(errno));
}

static FILE *open_file(const char *path) {
    const int fd = hpi_fd_above_stdio(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file && fd >= 0)
        close(fd);
    return file;
}

static hp_status write_file(const hp_trace *trace, const char *path) {
    struct writer w = {.file = open_file(path), .trace = trace};
    if (!w.file)
        return fail_file(trace, path, "open");
    hp_status status = put_trace(&w);
    if (status == HP_OK && (fflush(w.file) != 0 || ferror(w.file)))
        status = fail_file(trace, path, "write");
    if (fclose(w.file) != 0 && status == HP_OK)
        status = fail_file(trace, path, "close");
    return status;
}

hp_status hp_trace_write(const hp_trace *trace, const char *path) {
    char beside[4096];
    if (!trace || !path || !*path)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a trace and a path, given %s",
                        trace ? "no path" : "no trace");
    const int n = snprintf(beside, sizeof beside, "%s.tmp-%d", path, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof beside)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a path shorter than %zu bytes, given one of %zu",
                        sizeof beside - 20, strlen(path));
    hp_status status = write_file(trace, beside);
    if (status == HP_OK && rename(beside, path) != 0)
        status = fail_file(trace, path, "rename");
    if (status != HP_OK)
        unlink(beside);
    return status;
}
