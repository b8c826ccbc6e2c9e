/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.c - recording spans.
 *
 * One array per stream, taken at creation. Its owner writes a span and then raises the count
 * (release), so that whoever reads the count (acquire) sees whole spans. A span without room is
 * counted and dropped: there is no begin without its end.
 */
#include "trace.h"
#include "../base/base.h"
#include "record.h"

#define X(name, fields, meaning) const char hpi_span_##name[] = #name;
#define CALL(name, room, level, meaning) X(name, , )
#include "events.def"
#undef CALL
#undef X

hp_status hp_trace_create(int rank, uint64_t spans_per_stream, hp_trace **out_trace) {
    uint64_t n_spans = 0;
    if (rank < 0 || spans_per_stream == 0 || !out_trace ||
        !hpi_multiply(spans_per_stream, HP_TRACE_STREAMS, &n_spans))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a rank from 0, at least one span per stream and a place for the "
                        "trace, given rank %d and %llu spans",
                        rank, (unsigned long long)spans_per_stream);
    hp_trace *trace = hpi_alloc(1, sizeof *trace);
    hp_span *spans = trace ? hpi_alloc(n_spans, sizeof *spans) : NULL;
    if (!spans) {
        hpi_free(trace);
        return HP_ERR_MEMORY;
    }
    trace->rank = rank;
    trace->capacity = spans_per_stream;
    for (unsigned i = 0; i < HP_TRACE_STREAMS; i++)
        trace->streams[i].spans = spans + i * spans_per_stream;
    *out_trace = trace;
    return HP_OK;
}

void hp_trace_destroy(hp_trace *trace) {
    if (trace)
        hpi_free(trace->streams[0].spans);
    hpi_free(trace);
}

hp_status hp_trace_name_stream(hp_trace *trace, unsigned stream, const char *name) {
    if (!trace || stream >= HP_TRACE_STREAMS || !name ||
        strlen(name) >= sizeof trace->streams[0].name)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a trace, a stream below %d and a name shorter than %zu bytes, "
                        "given stream %u and \"%s\"",
                        HP_TRACE_STREAMS, sizeof trace->streams[0].name, stream,
                        name ? name : "(null)");
    strcpy(trace->streams[stream].name, name);
    return HP_OK;
}

void hp_trace_span(hp_trace *trace, unsigned stream, const hp_span *span) {
    if (!trace)
        return;
    hpi_trace_stream *s = stream < HP_TRACE_STREAMS ? &trace->streams[stream] : NULL;
    const uint64_t n = s ? atomic_load_explicit(&s->count, memory_order_relaxed) : 0;
    if (!s || n == trace->capacity) {
        atomic_fetch_add_explicit(&trace->dropped, 1, memory_order_relaxed);
        return;
    }
    s->spans[n] = *span;
    atomic_store_explicit(&s->count, n + 1, memory_order_release); /* acquired by hp_trace_count */
}

uint64_t hp_trace_count(const hp_trace *trace, unsigned stream) {
    return trace && stream < HP_TRACE_STREAMS
               ? atomic_load_explicit(&trace->streams[stream].count, memory_order_acquire)
               : 0;
}

const hp_span *hp_trace_at(const hp_trace *trace, unsigned stream, uint64_t index) {
    return index < hp_trace_count(trace, stream) ? &trace->streams[stream].spans[index] : NULL;
}

uint64_t hp_trace_dropped(const hp_trace *trace) {
    return trace ? atomic_load_explicit(&trace->dropped, memory_order_relaxed) : 0;
}
