/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - the one place that reads the environment.
 */
#include "base.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

const char *hpi_environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

hp_status hpi_environment_int(const char *name, int64_t least, int64_t most, int64_t fallback,
                              int64_t *out_value) {
    const char *text = hpi_environment(name);
    char *end = NULL;
    errno = 0;
    const int64_t value = text ? strtoll(text, &end, 10) : fallback;
    if (text && (errno || end == text || *end || value < least || value > most))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected %s to be a whole number from %lld to %lld, given \"%s\"", name,
                        (long long)least, (long long)most, text);
    *out_value = value;
    return HP_OK;
}

hp_status hpi_parse_bytes(const char *text, uint64_t *out_bytes) {
    static const char suffixes[] = "KMGT";
    char *end = NULL;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    bool good = !errno && end != text && isdigit((unsigned char)*text);
    const char *suffix = good && *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix) {
        const unsigned shift = 10U * (unsigned)(suffix - suffixes + 1);
        good = value <= UINT64_MAX >> shift;
        value <<= shift;
        end++;
    }
    if (!good || *end)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected bytes like 1048576, 64M or 2G, given \"%s\"",
                        text);
    *out_bytes = value;
    return HP_OK;
}

static hp_status load_number(const char *name, bool in_bytes, uint64_t fallback, uint64_t least,
                             uint64_t most, uint64_t *out) {
    const char *text = hpi_environment(name);
    uint64_t value = fallback;
    if (text) {
        const bool has_suffix = !isdigit((unsigned char)text[strlen(text) - 1]);
        if (hpi_parse_bytes(text, &value) || (has_suffix && !in_bytes) || value < least ||
            value > most)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected %s to be a whole number from %llu to %llu%s, given \"%s\"",
                            name, (unsigned long long)least, (unsigned long long)most,
                            in_bytes ? " (K, M, G or T may follow)" : "", text);
    }
    *out = value;
    return HP_OK;
}

/* The next word of "A|B|C" into `length`; NULL behind the last one. */
static const char *next_choice(const char *at, size_t *out_length) {
    at += *at == '|';
    *out_length = strcspn(at, "|");
    return *out_length ? at : NULL;
}

void hpi_choice_name(const char *names, uint64_t index, char *out_name, size_t size) {
    size_t length = 0;
    const char *at = next_choice(names, &length);
    while (at && index--)
        at = next_choice(at + length, &length);
    snprintf(out_name, size, "%.*s", at ? (int)length : 0, at ? at : "");
}

/* A name of the list, in any case, or its number. */
static hp_status load_choice(const char *name, uint64_t fallback, uint64_t most, const char *names,
                             uint64_t *out) {
    const char *text = hpi_environment(name), *at = names;
    size_t length = 0;
    uint64_t value = fallback;
    bool is_found = !text;
    for (uint64_t i = 0; !is_found && (at = next_choice(at, &length)); i++, at += length) {
        value = i;
        is_found = (strlen(text) == length && !strncasecmp(at, text, length)) ||
                   (i <= 9 && text[0] == (char)('0' + i) && !text[1]);
    }
    if (!is_found)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected %s to be %s, or 0 to %llu, given \"%s\"", name,
                        names, (unsigned long long)most, text);
    *out = value;
    return HP_OK;
}

#define LOAD_UINT(field, name, fallback, least, most, unit)                                        \
    HP_TRY(load_number(name, false, fallback, least, most, &out_options->field))
#define LOAD_FLAG LOAD_UINT
#define LOAD_BYTES(field, name, fallback, least, most, unit)                                       \
    HP_TRY(load_number(name, true, fallback, least, most, &out_options->field))
#define LOAD_CHOICE(field, name, fallback, least, most, unit)                                      \
    HP_TRY(load_choice(name, fallback, most, unit, &out_options->field))
#define LOAD_TEXT(field, name, fallback, least, most, unit)                                        \
    out_options->field = hpi_environment(name) ? hpi_environment(name) : (fallback)

hp_status hpi_options_load(hpi_options *out_options) {
#define X(field, type, name, fallback, least, most, unit, text)                                    \
    LOAD_##type(field, name, fallback, least, most, unit);
#include "options.def"
#undef X
    return HP_OK;
}
