/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/json.c - values of JSON, whatever bytes and numbers they come from.
 */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Bytes of the UTF-8 character at the front, 0 where there is none. Source: RFC 3629, section 4.
 */
static size_t utf8_length(const unsigned char *s, size_t n) {
    const size_t length = s[0] < 0x80                   ? 1
                          : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                          : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                          : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                        : 0;
    if (!length || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    const unsigned second = length > 1 ? s[1] : 0;
    const bool is_bad = (s[0] == 0xe0 && second < 0xa0) || (s[0] == 0xed && second > 0x9f) ||
                        (s[0] == 0xf0 && second < 0x90) || (s[0] == 0xf4 && second > 0x8f);
    return is_bad ? 0 : length;
}

void json_name(FILE *file, const char *name) {
    fprintf(file, ", \"%s\": ", name);
}

/* A byte that is not part of UTF-8 becomes the replacement character: JSON has no other way. */
void json_string(FILE *file, const char *name, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    json_name(file, name);
    fputc('"', file);
    for (size_t i = 0; i < n;) {
        const size_t length = utf8_length(s + i, n - i);
        if (length == 0)
            fputs("\\ufffd", file);
        else if (s[i] == '"' || s[i] == '\\')
            fprintf(file, "\\%c", s[i]);
        else if (s[i] < 0x20 || s[i] == 0x7f)
            fprintf(file, "\\u%04x", s[i]);
        else
            fwrite(s + i, 1, length, file);
        i += length ? length : 1;
    }
    fputc('"', file);
}

void json_text(FILE *file, const char *name, const char *text) {
    json_string(file, name, text, strlen(text));
}

/* 17 significant digits give every double back. JSON has no NaN: null. */
void json_number(FILE *file, const char *name, double value) {
    json_name(file, name);
    if (isfinite(value))
        fprintf(file, "%.17g", value);
    else
        fputs("null", file);
}

void json_count(FILE *file, const char *name, uint64_t value) {
    json_name(file, name);
    fprintf(file, "%" PRIu64, value);
}
