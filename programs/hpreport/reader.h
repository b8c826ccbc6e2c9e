/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/reader.h - JSON from front to back, one value at a time.
 *
 * The file is mapped and nothing is kept of it: a trace may have hundreds of megabytes. The caller
 * asks for what it expects; whatever else stands there ends the program with file, line and column.
 *
 *     reader_enter(r, '{');
 *     for (uint32_t n = 0; reader_more(r, '}', n); n++) {
 *         const text key = reader_key(r);
 *         if (text_is(key, "step")) step = reader_count(r); else reader_skip(r);
 *     }
 *
 * Strings stay as they stand in the file, escapes and all, since they go into JSON again.
 */
#ifndef HPREPORT_READER_H
#define HPREPORT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct text {
    const char *s;
    size_t n;
} text;

typedef struct reader {
    const char *path;
    const char *begin, *at, *end;
} reader;

/* Maps the file. */
void reader_open(reader *r, const char *path);
void reader_close(reader *r);
/* "PATH:LINE:COLUMN: " and the text, for where the reader stands or stood. */
_Noreturn void reader_die(const reader *r, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void reader_enter(reader *r, char open); /* '{' or '[' */
/* Is there another element after n of them? The comma or the closing character is passed. */
bool reader_more(reader *r, char close, uint32_t n);
text reader_key(reader *r); /* and the colon */

text reader_string(reader *r);
uint64_t reader_count(reader *r); /* an integer from 0 to 2^64 - 1 */
bool reader_flag(reader *r);
/* A number of microseconds, in nanoseconds: exact to the third digit behind the point. */
uint64_t reader_us(reader *r);
void reader_skip(reader *r);
/* Nothing but blanks is left. */
void reader_finish(reader *r);

bool text_is(text t, const char *word);
bool text_begins(text t, const char *word);

#endif
