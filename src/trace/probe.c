/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.c - what becomes of a call that somebody listens to: a span, a line, a count.
 */
#include "probe.h"
#include "record.h"
#include "trace.h"

#include <stdio.h>

_Thread_local hpi_traced hpi_this_thread;

static const struct event_row {
    const char *name, *room;
    hpi_log_level level;
} event_rows[HPI_N_EVENTS] = {
#define X(name, fields, meaning)
#define CALL(name, room, level, meaning) {hpi_span_##name, #room, HPI_LOG_##level},
#include "events.def"
#undef CALL
#undef X
};

/* ---- the calling thread's trace -------------------------------------------------------------- */

hp_status hp_trace_thread(hp_trace *trace, unsigned stream) {
    if (trace && stream >= HP_TRACE_STREAMS)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a stream below %d, given %u", HP_TRACE_STREAMS,
                        stream);
    hpi_this_thread = (hpi_traced){trace, stream};
    return HP_OK;
}

/* A copy that lives as long as the trace: a group may be destroyed before it is written. The
 * stream's own thread alone comes here. */
static const char *keep_detail(hpi_trace_stream *s, const char *text) {
    for (unsigned i = s->n_details; i-- > 0;)
        if (!strncmp(s->details[i], text, sizeof s->details[i] - 1))
            return s->details[i];
    if (s->n_details == HPI_TRACE_DETAILS)
        return "(another group)";
    char *kept = s->details[s->n_details++];
    snprintf(kept, sizeof s->details[0], "%s", text);
    return kept;
}

static void put_span(const hpi_probe *p, uint64_t end_ns) {
    const hpi_traced t = hpi_this_thread;
    if (!t.trace)
        return;
    const hp_span span = {.name = event_rows[p->event].name,
                          .detail =
                              p->group ? keep_detail(&t.trace->streams[t.stream], p->group) : NULL,
                          .begin_ns = p->begin_ns,
                          .end_ns = end_ns,
                          .bytes = p->bytes,
                          .id = p->seq ? (uint32_t)p->seq : UINT32_MAX};
    hp_trace_span(t.trace, t.stream, &span);
}

/* ---- the journal ----------------------------------------------------------------------------- */

hp_status hpi_journal_create(const hpi_options *options, int rank, hpi_journal **out_journal) {
    hpi_journal *journal = hpi_alloc(1, sizeof *journal);
    if (!journal)
        return HP_ERR_MEMORY;
    hpi_log_open(&journal->log, options, rank);
    *out_journal = journal;
    return HP_OK;
}

static void count_call(hpi_journal *journal, const hpi_probe *p, uint64_t ns) {
    atomic_fetch_add_explicit(&journal->calls[p->event].n, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&journal->calls[p->event].bytes, p->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&journal->calls[p->event].ns, ns, memory_order_relaxed);
}

static void tell_counts(hpi_journal *journal) {
    for (int i = 0; i < HPI_N_EVENTS; i++) {
        const uint64_t n = atomic_load_explicit(&journal->calls[i].n, memory_order_relaxed);
        const uint64_t ns = atomic_load_explicit(&journal->calls[i].ns, memory_order_relaxed);
        const uint64_t bytes = atomic_load_explicit(&journal->calls[i].bytes, memory_order_relaxed);
        char moved[40] = "";
        if (bytes)
            snprintf(moved, sizeof moved, ", %llu bytes", (unsigned long long)bytes);
        if (n)
            HPI_SAY(journal, HPI_LOG_INFO, event_rows[i].room, "in all %llu %s%s, %.3f ms",
                    (unsigned long long)n, event_rows[i].name, moved, (double)ns / 1e6);
    }
}

void hpi_journal_destroy(hpi_journal *journal) {
    if (!journal)
        return;
    tell_counts(journal);
    hpi_log_close(&journal->log);
    hpi_free(journal);
}

/* "all_reduce #17 of world, 4096 bytes by push, 23.4 us" */
static void put_line(const hpi_probe *p, uint64_t ns) {
    const struct event_row *row = &event_rows[p->event];
    char number[32] = "", bytes[40] = "";
    if (p->seq)
        snprintf(number, sizeof number, " #%llu", (unsigned long long)p->seq);
    if (p->bytes)
        snprintf(bytes, sizeof bytes, ", %llu bytes", (unsigned long long)p->bytes);
    HPI_SAY(p->journal, row->level, row->room, "%s%s%s%s%s%s%s, %.1f us", row->name, number,
            p->group ? " of " : "", p->group ? p->group : "", bytes, p->note ? " by " : "",
            p->note ? p->note : "", (double)ns / 1e3);
}

void hpi_probe_tell(const hpi_probe *p, hp_status status) {
    const uint64_t now_ns = p->begin_ns ? hpi_now_ns() : 0;
    if (p->begin_ns)
        put_span(p, now_ns);
    if (!p->journal)
        return;
    if (status < 0) {
        hpi_log_failure(&p->journal->log, event_rows[p->event].room);
    } else if (hpi_journal_has(p->journal, HPI_LOG_INFO)) {
        count_call(p->journal, p, now_ns - p->begin_ns);
        if (event_rows[p->event].level != HPI_LOG_OFF)
            put_line(p, now_ns - p->begin_ns);
    }
}
