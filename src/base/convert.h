/* SPDX-License-Identifier: Apache-2.0
 *
 * base/convert.h - the loops behind hpi_convert, for who tests each of them.
 */
#ifndef HPI_CONVERT_H
#define HPI_CONVERT_H

#include "base.h"

/* out[k] = in[k] rounded once, k in [0, count); any addresses, apart. */
typedef void hpi_convert_loop(const void *in, void *out, uint64_t count);

/* Version 0 is the one in use; others are slower and every processor has them. NULL: a dtype to
 * itself, not built, or no such version of it. */
hpi_convert_loop *hpi_convert_loop_of(hp_dtype in, hp_dtype out, int version);

#endif
