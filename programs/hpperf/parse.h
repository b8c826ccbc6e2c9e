/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/parse.h - values of options: a name for the message and the text, checked.
 *
 * Errors of all: ARGUMENT, saying what was expected and given; the output is untouched then.
 */
#ifndef HPPERF_PARSE_H
#define HPPERF_PARSE_H

#include "options.h"

enum { PARSE_MOST_NUMBERS = OPTIONS_MOST_SIZES }; /* of a list */

hp_status parse_count(const char *name, const char *text, uint64_t least, uint64_t most,
                      uint64_t *out);
hp_status parse_int(const char *name, const char *text, int least, int most, int *out);
/* K, M and G are powers of 1024. */
hp_status parse_bytes(const char *name, const char *text, uint64_t *out);
/* 1 to `most` of them, ascending, separated by commas. *out_n: how many. */
hp_status parse_bytes_list(const char *name, const char *text, int most, uint64_t *out, int *out_n);
/* One of two words. */
hp_status parse_flag(const char *name, const char *text, const char *no, const char *yes,
                     bool *out);
hp_status parse_pin(const char *text, pin *out);
enum { PARSE_MOST_MS = 60000 };
/* Milliseconds, 0 to PARSE_MOST_MS, separated by commas: 1 to `most` of them. *out_n: how many. */
hp_status parse_ms_list(const char *name, const char *text, int most, double *out, int *out_n);
/* The same of ratios, 1 to 1000000. */
hp_status parse_ratio_list(const char *name, const char *text, int most, double *out, int *out_n);

#endif
