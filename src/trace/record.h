/* SPDX-License-Identifier: Apache-2.0
 *
 * trace/record.h - the inside of room `trace`: what a trace is made of.
 */
#ifndef HPI_RECORD_H
#define HPI_RECORD_H

#include <hyperparallel/trace.h>
#include <stdatomic.h>

enum { HPI_TRACE_DETAILS = 64 };

typedef struct hpi_trace_stream {
    hp_span *spans; /* [capacity], in the order of recording */
    _Atomic uint64_t count;
    char name[64]; /* "" when it was never named */
    unsigned n_details;
    char details[HPI_TRACE_DETAILS][32]; /* names of groups, kept for spans of calls */
} hpi_trace_stream;

struct hp_trace {
    int rank;
    uint64_t capacity;
    _Atomic uint64_t dropped;
    hpi_trace_stream streams[HP_TRACE_STREAMS];
};

#endif
