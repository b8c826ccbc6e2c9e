/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/parse.c - values of options.
 */
#include "parse.h"
#include "fail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

hp_status parse_count(const char *name, const char *text, uint64_t least, uint64_t most,
                      uint64_t *out) {
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || value < least || value > most)
        return fail(HP_ERR_ARGUMENT,
                    "expected %s to be a whole number from %llu to %llu, given "
                    "\"%s\"",
                    name, (unsigned long long)least, (unsigned long long)most, text);
    *out = value;
    return HP_OK;
}

hp_status parse_int(const char *name, const char *text, int least, int most, int *out) {
    uint64_t value;
    TRY(parse_count(name, text, (uint64_t)least, (uint64_t)most, &value));
    *out = (int)value;
    return HP_OK;
}

hp_status parse_bytes(const char *name, const char *text, uint64_t *out) {
    static const char units[] = "KMG";
    const size_t n = strlen(text);
    const char *unit = n > 1 ? strchr(units, text[n - 1] & ~0x20) : NULL;
    const int shift = unit && *unit ? 10 * (int)(unit - units + 1) : 0;
    char digits[24];
    uint64_t value;
    snprintf(digits, sizeof digits, "%.*s", (int)(shift ? n - 1 : n), text);
    if (n >= sizeof digits ||
        parse_count(name, digits, 1, (UINT64_C(1) << 40) >> shift, &value) < 0)
        return fail(HP_ERR_ARGUMENT,
                    "expected %s to be bytes from 1 to 1024G, like 4096 or 64K, given \"%s\"", name,
                    text);
    *out = value << shift;
    return HP_OK;
}

hp_status parse_bytes_list(const char *name, const char *text, int most, uint64_t *out,
                           int *out_n) {
    uint64_t found[PARSE_MOST_NUMBERS];
    const char *at = text;
    for (int n = 0; n < most && n < PARSE_MOST_NUMBERS; at++) {
        char word[24];
        const size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        TRY(parse_bytes(name, word, &found[n]));
        if (n > 0 && found[n] <= found[n - 1])
            return fail(HP_ERR_ARGUMENT, "expected %s to ascend, given \"%s\"", name, text);
        n++;
        at += length;
        if (!*at) {
            *out_n = n;
            memcpy(out, found, sizeof *out * (size_t)n);
            return HP_OK;
        }
    }
    return fail(HP_ERR_ARGUMENT, "expected %s to be at most %d sizes, given \"%s\"", name, most,
                text);
}

hp_status parse_flag(const char *name, const char *text, const char *no, const char *yes,
                     bool *out) {
    const bool is_yes = strcmp(text, yes) == 0;
    if (!is_yes && strcmp(text, no) != 0)
        return fail(HP_ERR_ARGUMENT, "expected %s to be %s or %s, given \"%s\"", name, no, yes,
                    text);
    *out = is_yes;
    return HP_OK;
}

hp_status parse_pin(const char *text, pin *out) {
    bool is_pinned;
    TRY(parse_flag("--pin", text, "no", "yes", &is_pinned));
    *out = is_pinned ? PIN_YES : PIN_NO;
    return HP_OK;
}

typedef struct kind {
    const char *what, *unit;
    double least, most;
} kind;

static hp_status parse_numbers(const char *name, const char *text, const kind *k, int most,
                               double *out, int *out_n) {
    double found[PARSE_MOST_NUMBERS];
    const char *at = text;
    for (int n = 0; n < most && n < PARSE_MOST_NUMBERS; n++) {
        char *end = NULL;
        found[n] = strtod(at, &end);
        if (end == at || !(found[n] >= k->least && found[n] <= k->most))
            break;
        if (*end == '\0') {
            *out_n = n + 1;
            memcpy(out, found, sizeof *out * (size_t)*out_n);
            return HP_OK;
        }
        if (*end != ',')
            break;
        at = end + 1;
    }
    return fail(HP_ERR_ARGUMENT,
                "expected %s to be 1 to %d %s from %.0f to %.0f%s, with commas, given \"%s\"", name,
                most, k->what, k->least, k->most, k->unit, text);
}

hp_status parse_ms_list(const char *name, const char *text, int most, double *out, int *out_n) {
    static const kind times = {"times", " ms", 0, PARSE_MOST_MS};
    return parse_numbers(name, text, &times, most, out, out_n);
}

hp_status parse_ratio_list(const char *name, const char *text, int most, double *out, int *out_n) {
    static const kind ratios = {"ratios", "", 1, 1e6};
    return parse_numbers(name, text, &ratios, most, out, out_n);
}
