/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/reader.c - JSON from front to back, one value at a time. Source: RFC 8259.
 */
#include "reader.h"
#include "die.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64 };

void reader_open(reader *r, const char *path) {
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about))
        die("expected to read %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        die("expected %s to be a file", path);
    const size_t n = (size_t)about.st_size;
    const char *p = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : "";
    if (p == MAP_FAILED)
        die("expected to map %s: %s", path, strerror(errno));
    close(fd);
    *r = (reader){.path = path, .begin = p, .at = p, .end = p + n};
}

void reader_close(reader *r) {
    if (r->end != r->begin)
        munmap((void *)(uintptr_t)r->begin, (size_t)(r->end - r->begin));
}

void reader_die(const reader *r, const char *at, const char *format, ...) {
    char what[512];
    size_t line = 1;
    const char *line_begin = r->begin;
    for (const char *p = r->begin; p < at; p++)
        if (*p == '\n') {
            line++;
            line_begin = p + 1;
        }
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    die("%s:%zu:%zu: %s", r->path, line, (size_t)(at - line_begin) + 1, what);
}

/* What stands at the reader, in a few words. */
static _Noreturn void die_expecting(const reader *r, const char *expected) {
    if (r->at == r->end)
        reader_die(r, r->at, "expected %s, but the file ends here: was it cut?", expected);
    const unsigned char c = (unsigned char)*r->at;
    if (c > 0x20 && c < 0x7f)
        reader_die(r, r->at, "expected %s, given \"%c\"", expected, c);
    reader_die(r, r->at, "expected %s, given the byte 0x%02x", expected, c);
}

static void skip_blanks(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

static bool is_next(const reader *r, char c) {
    return r->at < r->end && *r->at == c;
}

static bool is_next_of(const reader *r, const char *set) {
    return r->at < r->end && *r->at && strchr(set, *r->at);
}

void reader_enter(reader *r, char open) {
    skip_blanks(r);
    if (!is_next(r, open))
        die_expecting(r, open == '{' ? "an object" : "an array");
    r->at++;
}

bool reader_more(reader *r, char close, uint32_t n) {
    skip_blanks(r);
    if (is_next(r, close)) {
        r->at++;
        return false;
    }
    if (n == 0)
        return true;
    if (!is_next(r, ','))
        die_expecting(r, close == '}' ? "\",\" or \"}\"" : "\",\" or \"]\"");
    r->at++;
    return true;
}

text reader_key(reader *r) {
    const text key = reader_string(r);
    skip_blanks(r);
    if (!is_next(r, ':'))
        die_expecting(r, "\":\"");
    r->at++;
    return key;
}

/* Passes the escape at the reader: a backslash and what belongs to it. */
static void pass_escape(reader *r) {
    const char *begin = r->at++;
    if (r->at == r->end)
        die_expecting(r, "an escape");
    const char c = *r->at++;
    if (!c || !strchr("\"\\/bfnrtu", c))
        reader_die(r, begin, "expected an escape of JSON in this string");
    for (int i = 0; c == 'u' && i < 4; i++, r->at++)
        if (!is_next_of(r, "0123456789abcdefABCDEF"))
            die_expecting(r, "four hexadecimal digits");
}

text reader_string(reader *r) {
    skip_blanks(r);
    if (!is_next(r, '"'))
        die_expecting(r, "a string");
    const char *begin = ++r->at;
    while (!is_next(r, '"')) {
        if (r->at == r->end || (unsigned char)*r->at < 0x20)
            die_expecting(r, "the end of a string");
        if (*r->at == '\\')
            pass_escape(r);
        else
            r->at++;
    }
    return (text){begin, (size_t)(r->at++ - begin)};
}

static bool is_digit(const reader *r) {
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

/* Digits at the reader, at least one; a number above `most` is refused. */
static uint64_t digits(reader *r, uint64_t most) {
    uint64_t value = 0;
    const char *begin = r->at;
    if (!is_digit(r))
        die_expecting(r, "a number that is not negative");
    for (; is_digit(r); r->at++) {
        const unsigned digit = (unsigned)(*r->at - '0');
        if (value > (most - digit) / 10)
            reader_die(r, begin, "expected a number up to %llu", (unsigned long long)most);
        value = value * 10 + digit;
    }
    return value;
}

/* Neither fraction nor exponent goes on. */
static void end_number(const reader *r) {
    if (is_next_of(r, ".eE+-"))
        die_expecting(r, "the end of the number");
}

uint64_t reader_count(reader *r) {
    skip_blanks(r);
    const uint64_t value = digits(r, UINT64_MAX);
    end_number(r);
    return value;
}

uint64_t reader_us(reader *r) {
    skip_blanks(r);
    uint64_t ns = digits(r, UINT64_MAX / 1000 - 1) * 1000;
    if (is_next(r, '.')) {
        r->at++;
        if (!is_digit(r))
            die_expecting(r, "digits behind the point");
        for (unsigned weight = 100; is_digit(r); r->at++, weight /= 10)
            ns += weight * (unsigned)(*r->at - '0');
    }
    end_number(r);
    return ns;
}

static bool take_word(reader *r, const char *word) {
    const size_t n = strlen(word);
    const bool is_it = (size_t)(r->end - r->at) >= n && memcmp(r->at, word, n) == 0;
    r->at += is_it ? n : 0;
    return is_it;
}

bool reader_flag(reader *r) {
    skip_blanks(r);
    if (take_word(r, "true"))
        return true;
    if (!take_word(r, "false"))
        die_expecting(r, "true or false");
    return false;
}

static void skip_number(reader *r) {
    const char *begin = r->at;
    while (is_digit(r) || is_next_of(r, "+-.eE"))
        r->at++;
    if (r->at == begin)
        die_expecting(r, "a value");
}

static void skip_value(reader *r, int depth) {
    skip_blanks(r);
    const bool is_object = is_next(r, '{');
    if (depth > MAX_DEPTH)
        reader_die(r, r->at, "expected at most %d values inside each other", MAX_DEPTH);
    if (is_object || is_next(r, '[')) {
        reader_enter(r, is_object ? '{' : '[');
        for (uint32_t n = 0; reader_more(r, is_object ? '}' : ']', n); n++) {
            if (is_object)
                (void)reader_key(r);
            skip_value(r, depth + 1);
        }
    } else if (is_next(r, '"')) {
        (void)reader_string(r);
    } else if (!take_word(r, "true") && !take_word(r, "false") && !take_word(r, "null")) {
        skip_number(r);
    }
}

void reader_skip(reader *r) {
    skip_value(r, 1);
}

void reader_finish(reader *r) {
    skip_blanks(r);
    if (r->at != r->end)
        die_expecting(r, "nothing more");
}

bool text_is(text t, const char *word) {
    return strlen(word) == t.n && memcmp(t.s, word, t.n) == 0;
}

bool text_begins(text t, const char *word) {
    const size_t n = strlen(word);
    return n <= t.n && memcmp(t.s, word, n) == 0;
}
