/* SPDX-License-Identifier: Apache-2.0
 *
 * trace/probe.h - a public call tells of itself: to a debugger, to a trace, to the log.
 *
 *     hpi_probe probe = hpi_probe_begin(HPI_EVENT_put, journal, group_name, seq, bytes);
 *     return hpi_probe_end(&probe, put(...));
 *
 * At both ends stands a USDT probe, a nop until perf, bpftrace or gdb attaches:
 * hyperparallel:put__begin(rank, seq, bytes) and put__end(rank, seq, bytes, status). When the
 * calling thread is traced, or the rank's log wants it, the call is timed, and told at its end.
 * When nobody listens a call pays two predictable branches. Source: sys/sdt.h of SystemTap.
 */
#ifndef HPI_PROBE_H
#define HPI_PROBE_H

#include "../base/base.h"

#include <hyperparallel/trace.h>

#ifdef HP_HAS_SDT
#include <sys/sdt.h>
#define HPI_USDT_BEGIN(name, p) STAP_PROBE3(hyperparallel, name, (p)->rank, (p)->seq, (p)->bytes)
#define HPI_USDT_END(name, p, status)                                                              \
    STAP_PROBE4(hyperparallel, name, (p)->rank, (p)->seq, (p)->bytes, status)
#else
#define HPI_USDT_BEGIN(name, p) ((void)0)
#define HPI_USDT_END(name, p, status) ((void)0)
#endif

typedef enum hpi_event {
#define X(name, fields, meaning)
#define CALL(name, room, level, meaning) HPI_EVENT_##name,
#include "events.def"
#undef CALL
#undef X
    HPI_N_EVENTS
} hpi_event;

/* What a rank writes of its calls; hangs from its world. */
typedef struct hpi_journal {
    hpi_log log;
    struct {
        _Atomic uint64_t n, bytes, ns;
    } calls[HPI_N_EVENTS]; /* counted while the log has INFO, and told when the world ends */
} hpi_journal;
hp_status hpi_journal_create(const hpi_options *options, int rank, hpi_journal **out_journal);
/* Tells the counts, then closes the log. Takes NULL. */
void hpi_journal_destroy(hpi_journal *journal);

/* A line of a rank's log; journal NULL: none. */
static inline bool hpi_journal_has(const hpi_journal *journal, hpi_log_level level) {
    return journal && hpi_log_has(&journal->log, level);
}
#define HPI_SAY(journal, level, room, ...)                                                         \
    do {                                                                                           \
        if (hpi_journal_has((journal), (level)))                                                   \
            hpi_log_write(&(journal)->log, (level), (room), __VA_ARGS__);                          \
    } while (0)

typedef struct hpi_probe {
    hpi_event event;
    int rank;             /* -1: not known (yet) */
    hpi_journal *journal; /* NULL: of no world */
    const char *group;    /* its name; NULL: none */
    uint64_t seq, bytes;
    uint64_t begin_ns; /* 0: nobody listens */
    const char *note;  /* how it was done: an algorithm; NULL: nothing to say */
} hpi_probe;

/* The calling thread's trace, set by hp_trace_thread. Not initial-exec, though that is a load where
 * this is a call in the shared library: then all that the library keeps for each thread, error
 * texts too, would have to fit into the room that the loader has for what is loaded late. */
typedef struct hpi_traced {
    hp_trace *trace;
    unsigned stream;
} hpi_traced;
extern _Thread_local hpi_traced hpi_this_thread;

/* With an event that the compiler knows one nop is left of the switch, whatever its rows expand to:
 * so its size is not looked at.
 * NOLINTBEGIN(readability-function-size) */
__attribute__((always_inline)) static inline void hpi_usdt_begin(const hpi_probe *p) {
    switch (p->event) {
#define X(name, fields, meaning)
#define CALL(name, room, level, meaning)                                                           \
    case HPI_EVENT_##name:                                                                         \
        HPI_USDT_BEGIN(name##__begin, p);                                                          \
        break;
#include "events.def"
#undef CALL
#undef X
    case HPI_N_EVENTS:
        break;
    }
}

__attribute__((always_inline)) static inline void hpi_usdt_end(const hpi_probe *p, int status) {
    (void)status;
    switch (p->event) {
#define X(name, fields, meaning)
#define CALL(name, room, level, meaning)                                                           \
    case HPI_EVENT_##name:                                                                         \
        HPI_USDT_END(name##__end, p, status);                                                      \
        break;
#include "events.def"
#undef CALL
#undef X
    case HPI_N_EVENTS:
        break;
    }
}

/* NOLINTEND(readability-function-size) */

/* Span, line and counts of a call that has ended. */
void hpi_probe_tell(const hpi_probe *probe, hp_status status);

/* `group` has to be there until the end; seq 0: the call has none. */
__attribute__((always_inline)) static inline hpi_probe
hpi_probe_begin(hpi_event event, hpi_journal *journal, const char *group, uint64_t seq,
                uint64_t bytes) {
    hpi_probe p = {.event = event,
                   .rank = journal ? journal->log.rank : -1,
                   .journal = journal,
                   .group = group,
                   .seq = seq,
                   .bytes = bytes};
    hpi_usdt_begin(&p);
    if (__builtin_expect(hpi_this_thread.trace != NULL, 0) ||
        hpi_journal_has(journal, HPI_LOG_INFO))
        p.begin_ns = hpi_now_ns();
    return p;
}

/* Passes the status on, and tells a failure that no log has told yet: for what fails before its
 * probe begins. */
static inline hp_status hpi_tell_failure(hpi_journal *journal, const char *room, hp_status status) {
    if (__builtin_expect(status < 0, 0) && journal)
        hpi_log_failure(&journal->log, room);
    return status;
}

/* Passes the status on. A failure that no log has told yet is told here. */
__attribute__((always_inline)) static inline hp_status hpi_probe_end(const hpi_probe *p,
                                                                     hp_status status) {
    hpi_usdt_end(p, status);
    if (__builtin_expect(p->begin_ns || status < 0, 0)) {
        const hpi_probe copy = *p; /* so that the caller's need not lie in memory */
        hpi_probe_tell(&copy, status);
    }
    return status;
}

#endif
