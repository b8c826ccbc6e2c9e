/* SPDX-License-Identifier: Apache-2.0
 *
 * option_list.c - the table of options as data, for who shows it to people.
 */
#include "base.h"

#include <stdio.h>

/* A number of bytes as the parser takes it: 64M, with the largest suffix that divides it. */
static void print_bytes(uint64_t bytes, char *out_text, size_t size) {
    static const char suffixes[] = "KMGT";
    int n = 0;
    for (; n < 4 && bytes != 0 && bytes % 1024 == 0; n++)
        bytes /= 1024;
    snprintf(out_text, size, "%llu%.*s", (unsigned long long)bytes, n > 0, &suffixes[n - (n > 0)]);
}

static void print_number(uint64_t number, char *out_text, size_t size) {
    snprintf(out_text, size, "%llu", (unsigned long long)number);
}

typedef void printer(uint64_t number, char *out_text, size_t size);

static void show_range(hp_option *o, printer *print, uint64_t fallback, uint64_t least,
                       uint64_t most, const char *unit) {
    char from[32], to[32];
    print(fallback, o->fallback, sizeof o->fallback);
    print(least, from, sizeof from);
    print(most, to, sizeof to);
    snprintf(o->takes, sizeof o->takes, "%s to %s%s%s", from, to, *unit ? " " : "", unit);
}

static void show_choice(hp_option *o, uint64_t fallback, uint64_t most, const char *names) {
    snprintf(o->takes, sizeof o->takes, "%s, or 0 to %llu", names, (unsigned long long)most);
    if (fallback <= most)
        hpi_choice_name(names, fallback, o->fallback, sizeof o->fallback);
}

static void show_text(hp_option *o, const char *fallback, const char *unit) {
    snprintf(o->fallback, sizeof o->fallback, "%s", fallback);
    snprintf(o->takes, sizeof o->takes, "text%s%s", *unit ? ", " : "", unit);
}

#define SHOW_UINT(fallback, least, most, unit)                                                     \
    show_range(out_option, print_number, fallback, least, most, unit)
#define SHOW_FLAG SHOW_UINT
#define SHOW_BYTES(fallback, least, most, unit)                                                    \
    show_range(out_option, print_bytes, fallback, least, most, unit)
#define SHOW_CHOICE(fallback, least, most, unit) show_choice(out_option, fallback, most, unit)
#define SHOW_TEXT(fallback, least, most, unit) show_text(out_option, fallback, unit)

/* A few statements for each row. */
/* NOLINTNEXTLINE(readability-function-size) */
int hp_option_at(int index, hp_option *out_option) {
    int at = 0;
    if (!out_option)
        return 0;
#define X(field, type, option_name, default_value, least, most, unit, text)                        \
    if (index == at++) {                                                                           \
        *out_option = (hp_option){.name = option_name, .meaning = text};                           \
        SHOW_##type(default_value, least, most, unit);                                             \
        out_option->value = hpi_environment(option_name);                                          \
        return 1;                                                                                  \
    }
#include "options.def"
#undef X
    return 0;
}
