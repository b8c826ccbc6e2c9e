/* SPDX-License-Identifier: Apache-2.0
 *
 * trace/trace.h - the door of room `trace`: the public header, and the names of spans that are no
 * operations.
 */
#ifndef HPI_TRACE_H
#define HPI_TRACE_H

#include <hyperparallel/trace.h>

/* hpi_span_wait is "wait", and so on for each row of events.def. */
#define X(name, fields, meaning) extern const char hpi_span_##name[];
#include "events.def"
#undef X

#endif
