/* SPDX-License-Identifier: Apache-2.0
 *
 * trace/trace.h - the door of room `trace`: the public header, the names of spans that are no
 * operations, and the probes that stand at both ends of public calls.
 */
#ifndef HPI_TRACE_H
#define HPI_TRACE_H

#include "probe.h"
#include <hyperparallel/trace.h>

/* hpi_span_wait is "wait", and so on for each row of events.def. */
#define X(name, fields, meaning) extern const char hpi_span_##name[];
#define CALL(name, room, level, meaning) X(name, , )
#include "events.def"
#undef CALL
#undef X

#endif
