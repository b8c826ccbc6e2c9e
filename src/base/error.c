/* SPDX-License-Identifier: Apache-2.0
 *
 * error.c - the status table and the thread's error record.
 *
 * The record is thread-local and written once, by the first function that knows the cause. The
 * sentence of hp_last_error is put together on demand from the record and the status table.
 */
#include "base.h"

#include <stdarg.h>
#include <stdio.h>

#define X(name, number, text, hint)                                                                \
    _Static_assert(name == (number), #name " differs from status.def");
#include "status.def"
#undef X

static const struct status_row {
    hp_status status;
    const char *name, *text, *hint;
} status_rows[] = {
#define X(name, number, text, hint) {name, #name, text, hint},
#include "status.def"
#undef X
};

static _Thread_local hp_error last_error;
static _Thread_local char last_sentence[1200];
static _Thread_local bool is_untold; /* no log has written last_error down yet */

static const struct status_row *status_find(hp_status status) {
    static const struct status_row unknown = {HP_OK, "HP_STATUS_?", "not a status of this library",
                                              "check that headers and library agree"};
    for (size_t i = 0; i < sizeof status_rows / sizeof *status_rows; i++)
        if (status_rows[i].status == status)
            return &status_rows[i];
    return &unknown;
}

const char *hp_status_name(hp_status status) {
    return status_find(status)->name;
}
const char *hp_status_text(hp_status status) {
    return status_find(status)->text;
}
const char *hp_status_hint(hp_status status) {
    return status_find(status)->hint;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

hp_status hpi_fail(hp_status status, int world_rank, const char *call, const char *file, int line,
                   const char *format, ...) {
    hp_error *e = &last_error;
    e->status = status;
    e->world_rank = world_rank;
    e->line = line;
    snprintf(e->file, sizeof e->file, "%s", base_name(file));
    snprintf(e->call, sizeof e->call, "%s", call);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(e->message, sizeof e->message, format, arguments);
    va_end(arguments);
    is_untold = true;
    return status;
}

hp_status hp_error_set(hp_status status, const char *call, const char *format, ...) {
    hp_error *e = &last_error;
    *e = (hp_error){.status = status, .world_rank = -1};
    snprintf(e->call, sizeof e->call, "%s", call ? call : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(e->message, sizeof e->message, format, arguments);
    va_end(arguments);
    is_untold = true;
    return status;
}

hp_status hpi_error_set(const hp_error *error) {
    last_error = *error;
    is_untold = true;
    return error->status;
}

bool hpi_error_take_untold(void) {
    const bool was_untold = is_untold;
    is_untold = false;
    return was_untold;
}

void hp_last_error_get(hp_error *out_error) {
    *out_error = last_error;
}

const char *hp_last_error(void) {
    const hp_error *e = &last_error;
    if (e->status == HP_OK)
        return "";
    /* a public call is a name that the caller knows; an inner one would only puzzle */
    const bool is_public = strncmp(e->call, "hp_", 3) == 0 || (!*e->file && *e->call);
    char place[80] = "";
    if (*e->file)
        snprintf(place, sizeof place, " at %s:%d", e->file, (int)e->line);
    snprintf(last_sentence, sizeof last_sentence, "%s%s%s (%s%s; try: %s)",
             is_public ? e->call : "", is_public ? ": " : "", e->message, hp_status_name(e->status),
             place, hp_status_hint(e->status));
    return last_sentence;
}
