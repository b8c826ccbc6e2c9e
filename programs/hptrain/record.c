/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/record.c - writing the record, and holding a run against one.
 *
 * All values are texts, as they stand on a command line. A record is replaced by a rename, so it is
 * whole at any moment; one that is missing or broken costs the note alone.
 */
#include "record.h"
#include "fail.h"
#include "json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What decides how the weights go on, beside the tokens of a step. */
static const enum option_number rows[] = {
    OPTION_data,
    OPTION_seed,
    OPTION_seq,
    OPTION_steps,
    OPTION_lr,
    OPTION_warmup,
    OPTION_lr_decay,
    OPTION_lr_min,
    OPTION_optimizer,
    OPTION_beta2,
    OPTION_weight_decay,
    OPTION_momentum,
    OPTION_clip,
    OPTION_param_dtype,
    OPTION_reduce_dtype,
    OPTION_replicate_wire,
    OPTION_accumulate_mode,
};
enum { N_ROWS = sizeof rows / sizeof *rows, MOST_BYTES = 65536 };

static hp_status path_in(const char *directory, const char *name, char out_path[PATH_MAX]) {
    if (snprintf(out_path, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
        return fail(HP_ERR_ARGUMENT, "expected a path below %d bytes, given %s/%s", PATH_MAX,
                    directory, name);
    return HP_OK;
}

/* ---- writing ---- */

static void write_fields(FILE *file, const trainer *t) {
    char text[OPTION_TEXT_BYTES];
    fprintf(file, "{\"version\": \"%s\"", hp_version());
    json_text(file, "sizes", t->model.sizes);
    json_count(file, RECORD_TOKENS, tokens_per_step(t));
    for (size_t i = 0; i < N_ROWS; i++)
        json_text(file, options_name(rows[i]), options_text(t->o, rows[i], text));
    fputs("}\n", file);
}

hp_status record_write(const trainer *t) {
    char path[PATH_MAX], next[PATH_MAX];
    TRY(path_in(t->o->save, "hptrain.json", path));
    TRY(path_in(t->o->save, ".hptrain.json.tmp", next));
    FILE *file = fopen(next, "w");
    if (!file)
        return fail(HP_ERR_FILE, "could not write %s: %s", next, strerror(errno));
    write_fields(file, t);
    const bool is_written = fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0 || !is_written || rename(next, path) != 0)
        return fail(HP_ERR_FILE, "could not write %s: %s", path, strerror(errno));
    return HP_OK;
}

/* ---- comparing ---- */

/* NULL: there is none. */
static cJSON *read_record(const char *directory) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/hptrain.json", directory) >= (int)sizeof path)
        return NULL;
    FILE *file = fopen(path, "r");
    char *text = file ? malloc(MOST_BYTES) : NULL;
    cJSON *record = text ? cJSON_ParseWithLength(text, fread(text, 1, MOST_BYTES, file)) : NULL;
    free(text);
    if (file)
        (void)fclose(file); /* nothing was written */
    return record;
}

/* ", NAME 1 -> 2" behind the note, if the record has another value. */
static void note_value(const cJSON *record, const char *name, const char *now,
                       char note[NOTE_BYTES]) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(record, name);
    char *before = !item                  ? NULL
                   : cJSON_IsString(item) ? strdup(item->valuestring)
                                          : cJSON_PrintUnformatted(item);
    const size_t length = strlen(note);
    if (before && strcmp(before, now) != 0)
        snprintf(note + length, NOTE_BYTES - length, "%s%s %s -> %s", length ? ", " : "", name,
                 *before ? before : "(none)", *now ? now : "(none)");
    free(before);
}

static hp_status check_sizes(const trainer *t, const cJSON *record) {
    const cJSON *sizes = cJSON_GetObjectItemCaseSensitive(record, "sizes");
    if (!cJSON_IsString(sizes) || strcmp(sizes->valuestring, t->model.sizes) == 0)
        return HP_OK;
    return fail(HP_ERR_ARGUMENT,
                "expected the model of the checkpoint in --resume %s, %.300s; given %s",
                t->o->resume, sizes->valuestring, t->model.sizes);
}

static void note_all(const trainer *t, const cJSON *record, char note[NOTE_BYTES]) {
    char text[OPTION_TEXT_BYTES];
    snprintf(text, sizeof text, "%" PRIu64, tokens_per_step(t));
    note_value(record, RECORD_TOKENS, text, note);
    for (size_t i = 0; i < N_ROWS; i++)
        note_value(record, options_name(rows[i]), options_text(t->o, rows[i], text), note);
}

uint64_t record_tokens(const trainer *t) {
    cJSON *record = read_record(t->o->resume);
    const double n = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(record, RECORD_TOKENS));
    cJSON_Delete(record);
    return n >= 1 && n < 0x1p53 ? (uint64_t)n : 0;
}

hp_status record_compare(const trainer *t, char out_note[NOTE_BYTES]) {
    cJSON *record = read_record(t->o->resume);
    const hp_status status = record ? check_sizes(t, record) : HP_OK;
    *out_note = 0;
    if (record && status == HP_OK)
        note_all(t, record, out_note);
    cJSON_Delete(record);
    return status;
}
