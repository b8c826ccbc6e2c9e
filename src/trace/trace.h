/* SPDX-License-Identifier: Apache-2.0
 *
 * trace/trace.h - the door of room `trace`. The public header says it all.
 */
#ifndef HPI_TRACE_H
#define HPI_TRACE_H

#include <hyperparallel/trace.h>

#endif
