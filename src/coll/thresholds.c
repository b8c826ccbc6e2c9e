/* SPDX-License-Identifier: Apache-2.0
 *
 * thresholds.c - where algorithms give way to each other: the table, and the option in its place.
 *
 * All members of a group must choose alike, so both are the same on all of them: world says whether
 * ranks have a core each with one voice, and refuses ranks whose options differ.
 */
#include "inside.h"

static const struct row {
    const char *name;
    uint64_t roomy, crowded;
    const char *meaning;
} rows[] = {
#define X(NAME, name, roomy, crowded, meaning) {#name, roomy, crowded, meaning},
#include "thresholds.def"
#undef X
};
#define OPTION "HYPER_PARALLEL_THRESHOLDS"
enum { MOST_TEXT = 255 }; /* so much of it the ranks compare when they start */

/* "stream, direct" */
static void list_names(char *out_text, size_t size) {
    hpi_sentence t = {out_text, size, 0};
    for (int i = 0; i < HPI_N_THRESHOLDS; i++)
        hpi_sentence_add(&t, "%s%s", i ? ", " : "", rows[i].name);
}

static hp_status fail_text(const char *text, const char *item, size_t length) {
    char names[200];
    list_names(names, sizeof names);
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected " OPTION " to be NAME=BYTES,... with NAME one of %s and BYTES like "
                    "2048, 64K or 16M, given \"%.*s\" in \"%.120s\"",
                    names, (int)hpi_min(length, 60), item, text);
}

/* One NAME=BYTES, of `length` characters. */
static bool take_item(const char *item, size_t length, uint64_t *thresholds) {
    const char *equals = memchr(item, '=', length);
    char number[32];
    if (!equals)
        return false;
    const size_t name_length = (size_t)(equals - item), number_length = length - name_length - 1;
    if (number_length >= sizeof number)
        return false;
    memcpy(number, equals + 1, number_length);
    number[number_length] = '\0';
    for (int i = 0; i < HPI_N_THRESHOLDS; i++)
        if (strlen(rows[i].name) == name_length && !memcmp(rows[i].name, item, name_length))
            return hpi_parse_bytes(number, &thresholds[i]) == HP_OK;
    return false;
}

hp_status hpi_thresholds_fill(const char *text, bool is_crowded, uint64_t *out_thresholds) {
    for (int i = 0; i < HPI_N_THRESHOLDS; i++)
        out_thresholds[i] = is_crowded ? rows[i].crowded : rows[i].roomy;
    if (strlen(text) > MOST_TEXT)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected " OPTION " of at most %d characters, given %zu",
                        MOST_TEXT, strlen(text));
    for (const char *item = text; *item;) {
        const size_t length = strcspn(item, ",");
        if (!take_item(item, length, out_thresholds))
            return fail_text(text, item, length);
        item += length + (item[length] == ',');
    }
    return HP_OK;
}

const char *hpi_threshold_name(hpi_threshold threshold) {
    return rows[threshold].name;
}

int hp_coll_threshold_at(int index, hp_coll_threshold *out_threshold) {
    if (!out_threshold || index < 0 || index >= HPI_N_THRESHOLDS)
        return 0;
    const struct row *r = &rows[index];
    *out_threshold = (hp_coll_threshold){r->name, r->meaning, r->roomy, r->crowded};
    return 1;
}
