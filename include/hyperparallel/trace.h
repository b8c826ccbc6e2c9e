/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - what happened, when, on which stream; and the Chrome trace file of it.
 *
 * A trace belongs to one rank. Each stream is written by one thread only, into memory taken at
 * creation: recording allocates nothing and takes no lock. When a stream's memory is full, further
 * spans are counted and dropped whole, so that in the file each begin has its end.
 */
#ifndef HYPERPARALLEL_TRACE_H
#define HYPERPARALLEL_TRACE_H

#include <hyperparallel/base.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct hp_trace hp_trace;

enum { HP_TRACE_STREAMS = 8 }; /* streams of one trace: 0 .. 7 */

/* One span of one stream. `name` and `detail` must outlive the trace (literals, unit names). */
typedef struct hp_span {
    /* "all_gather", "forward", "wait" ... : a row of src/trace/events.def or an operation's kind.
     */
    const char *name;
    const char *detail; /* the unit's name, or NULL */
    uint64_t begin_ns, end_ns;
    uint64_t bytes; /* moved by it; 0 when nothing moves */
    uint32_t id;    /* of the operation, in its step; UINT32_MAX when it is none */
    uint32_t step;
} hp_span;

/* Room for `spans_per_stream` spans on each stream. `rank` becomes the process id in the file.
 * Owns: the caller; destroy takes NULL. */
HP_MUST_CHECK hp_status hp_trace_create(int rank, uint64_t spans_per_stream, hp_trace **out_trace);
void hp_trace_destroy(hp_trace *trace);

/* Name a stream for the file: "compute", "unshard" ... Threads: set-up only. */
HP_MUST_CHECK hp_status hp_trace_name_stream(hp_trace *trace, unsigned stream, const char *name);

/* Add one finished span. Spans of a stream may nest but not overlap. NULL trace: does nothing.
 * Threads: one per stream. */
void hp_trace_span(hp_trace *trace, unsigned stream, const hp_span *span);

/* What was recorded on a stream, in the order of recording; valid until destroy. */
uint64_t hp_trace_count(const hp_trace *trace, unsigned stream);
const hp_span *hp_trace_at(const hp_trace *trace, unsigned stream, uint64_t index);
uint64_t hp_trace_dropped(const hp_trace *trace);

/* From now on what the calling thread does in symm.h, coll.h and world.h is recorded as spans on
 * that stream of that trace; trace NULL: no more. The thread stops before the trace is destroyed.
 * The spans are the calls of docs/events.md; what is put on an hp_stream is done by the stream's
 * thread, which hp_stream_call lets call this. Threads: any, each its own stream. Errors:
 * ARGUMENT. */
HP_MUST_CHECK hp_status hp_trace_thread(hp_trace *trace, unsigned stream);

/* Write a Chrome trace (JSON object with "traceEvents"; B and E events, ts in microseconds on the
 * node's monotonic clock; pid = rank, tid = stream), written beside and renamed. Perfetto and
 * chrome://tracing open it. Threads: no stream may be recording. Errors: FILE.
 * Source: the Trace Event Format. */
HP_MUST_CHECK hp_status hp_trace_write(const hp_trace *trace, const char *path);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
