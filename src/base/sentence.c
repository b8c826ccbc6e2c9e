/* SPDX-License-Identifier: Apache-2.0
 *
 * sentence.c - sentences for people, put together piece by piece in memory of the caller.
 */
#include "base.h"

#include <stdarg.h>
#include <stdio.h>

void hpi_sentence_add(hpi_sentence *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(s->at + s->used, s->size - s->used, format, arguments);
    va_end(arguments);
    s->used = hpi_min(s->used + (size_t)(length < 0 ? 0 : length), s->size - 1);
}
