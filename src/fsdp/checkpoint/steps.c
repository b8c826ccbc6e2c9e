/* SPDX-License-Identifier: Apache-2.0
 *
 * steps.c - naming, publishing, finding and removing checkpoints.
 *
 * The order of a save: write and sync the files, sync their directory, write and sync latest.tmp,
 * rename the directory, sync, rename latest.tmp, sync, and only then remove what is too old.
 * Removing begins with a rename to a hidden name, so that no half-removed checkpoint looks whole.
 */
#include "steps.h"
#include "files.h"
#include "index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = HPI_STEP_NAME_BYTES };
static const uint64_t most_latest_bytes = 256;

/* ---- names ---------------------------------------------------------------------------------- */

enum kind { KIND_NONE, KIND_STEP, KIND_OLD, KIND_TEMPORARY };

static void name_step(uint64_t step, char *out_name) {
    snprintf(out_name, NAME_BYTES, "step-%08" PRIu64, step);
}

static void name_hidden(uint64_t step, const char *suffix, uint64_t token, char *out_name) {
    snprintf(out_name, NAME_BYTES, ".step-%08" PRIu64 ".%s-%016" PRIx64, step, suffix, token);
}

/* A name is ours when it is what we would have written for its numbers. */
static enum kind parse_name(const char *name, uint64_t *out_step) {
    static const char *const suffixes[] = {"old", "tmp"};
    static const enum kind kinds[] = {KIND_OLD, KIND_TEMPORARY};
    const bool is_hidden = *name == '.';
    char expected[NAME_BYTES], *rest;
    *out_step = 0;
    if (strncmp(name + is_hidden, "step-", 5) != 0)
        return KIND_NONE;
    *out_step = strtoull(name + is_hidden + 5, &rest, 10);
    name_step(*out_step, expected);
    if (strcmp(name, expected) == 0)
        return KIND_STEP;
    const char *dash = strrchr(rest, '-');
    for (int i = 0; dash && i < 2; i++) {
        name_hidden(*out_step, suffixes[i], strtoull(dash + 1, NULL, 16), expected);
        if (strcmp(name, expected) == 0)
            return kinds[i];
    }
    return KIND_NONE;
}

static int is_ours(const struct dirent *entry) {
    uint64_t step;
    return parse_name(entry->d_name, &step) != KIND_NONE;
}

/* All our names in a directory, which the caller gives back with free_names. */
static hp_status list_names(const char *directory, struct dirent ***out_names, int *out_n) {
    *out_n = scandir(directory, out_names, is_ours, NULL);
    if (*out_n < 0)
        return HPI_FAIL(HP_ERR_FILE, "expected to list %s, the system says: %s", directory,
                        strerror(errno));
    return HP_OK;
}

static void free_names(struct dirent **names, int n) {
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* ---- which is latest ------------------------------------------------------------------------ */

/* Is directory/name there? */
static hp_status look(const char *directory, const char *name, bool *out_is_there) {
    char *path = hpi_path_join(directory, name);
    if (!path)
        return HP_ERR_MEMORY;
    *out_is_there = access(path, F_OK) == 0;
    hpi_free(path);
    return HP_OK;
}

static hp_status read_text_in(const char *directory, const char *name, char **out_text) {
    uint64_t n_bytes;
    char *path = hpi_path_join(directory, name);
    const hp_status status =
        path ? hpi_file_read_text(path, most_latest_bytes, out_text, &n_bytes) : HP_ERR_MEMORY;
    hpi_free(path);
    return status;
}

/* The checkpoint that `latest` names; "" when there is no such file, or it names none that is
 * there. */
static hp_status find_latest(const char *directory, char *out_name) {
    char *text = NULL;
    uint64_t step;
    bool is_there;
    out_name[0] = '\0';
    HP_TRY(look(directory, "latest", &is_there));
    const hp_status status = is_there ? read_text_in(directory, "latest", &text) : HP_OK;
    if (status == HP_ERR_FORMAT || !is_there)
        return HP_OK; /* far too long: no name of ours */
    HP_TRY(status);
    text[strcspn(text, "\n")] = '\0';
    if (parse_name(text, &step) == KIND_STEP)
        name_step(step, out_name);
    hpi_free(text);
    HP_TRY(look(directory, out_name, &is_there));
    if (!is_there)
        out_name[0] = '\0';
    return HP_OK;
}

/* Whole: its index is sound and every file that it names is there. Errors also: FILE, FORMAT. */
static hp_status check_whole(const char *directory, const char *name) {
    hpi_index index;
    bool is_there = true;
    char *path = hpi_path_join(directory, name);
    hp_status status = path ? hpi_index_open(path, &index) : HP_ERR_MEMORY;
    if (status == HP_OK) {
        for (uint64_t i = 0; status == HP_OK && is_there && i < index.n_files; i++)
            status = look(path, index.files[i], &is_there);
        hpi_index_close(&index);
    }
    hpi_free(path);
    if (status == HP_OK && !is_there)
        status = HPI_FAIL(HP_ERR_FILE, "expected every file that %s/%s names", directory, name);
    return status;
}

/* The checkpoint of the largest step other than `except` that is whole; "" when there is none. One
 * that was moved aside counts, but the one with the proper name comes first. */
static hp_status find_newest(const char *directory, const char *except, char *out_name) {
    struct dirent **names;
    int n;
    uint64_t newest = 0;
    hp_status status = list_names(directory, &names, &n);
    out_name[0] = '\0';
    for (int i = 0; status == HP_OK && i < n; i++) {
        const char *name = names[i]->d_name;
        uint64_t step;
        const enum kind kind = parse_name(name, &step);
        const bool is_better = !*out_name || step > newest || (step == newest && kind == KIND_STEP);
        if (kind == KIND_TEMPORARY || !is_better || strcmp(name, except) == 0)
            continue;
        status = check_whole(directory, name);
        if (status == HP_OK) {
            snprintf(out_name, NAME_BYTES, "%s", name);
            newest = step;
        } else if (status == HP_ERR_FILE || status == HP_ERR_FORMAT) {
            status = HP_OK; /* not this one */
        }
    }
    if (n >= 0)
        free_names(names, n);
    return status;
}

hp_status hpi_steps_find(const char *directory, char *out_name) {
    HP_TRY(find_latest(directory, out_name));
    if (!*out_name)
        HP_TRY(find_newest(directory, "", out_name));
    if (!*out_name)
        return HPI_FAIL(HP_ERR_FILE, "expected a checkpoint (latest, or step-N) in %s, found none",
                        directory);
    return HP_OK;
}

/* ---- saving --------------------------------------------------------------------------------- */

static hp_status make_directory(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return HP_OK; /* a file of that name fails at the next step, with its path */
    return HPI_FAIL(HP_ERR_FILE, "expected to make directory %s, the system says: %s", path,
                    strerror(errno));
}

char *hpi_steps_path(const char *directory, uint64_t step, uint64_t token) {
    char name[NAME_BYTES];
    name_hidden(step, "tmp", token, name);
    return hpi_path_join(directory, name);
}

hp_status hpi_steps_begin(const char *directory, const char *path) {
    HP_TRY(make_directory(directory));
    return make_directory(path);
}

/* Give `path` its name. A kill in the middle leaves whoever bore it before under a hidden name,
 * where hpi_steps_find finds it. */
static hp_status take_name(const char *directory, const char *path, const char *final,
                           uint64_t step) {
    char name[NAME_BYTES];
    name_hidden(step, "old", hpi_now_ns(), name);
    char *aside = hpi_path_join(directory, name);
    const hp_status status = aside ? hpi_directory_replace(path, final, aside) : HP_ERR_MEMORY;
    hpi_free(aside);
    return status;
}

static hp_status write_latest(const char *path, const char *name) {
    char text[NAME_BYTES + 1];
    const int n = snprintf(text, sizeof text, "%s\n", name);
    const struct iovec part = {text, (size_t)n};
    unlink(path);
    return hpi_file_create(path, &part, 1);
}

static hp_status publish(const char *directory, const char *path, uint64_t step, const char *name) {
    char *next = hpi_path_join(directory, "latest.tmp");
    char *latest = hpi_path_join(directory, "latest"), *final = hpi_path_join(directory, name);
    hp_status status = next && latest && final ? hpi_directory_sync(path) : HP_ERR_MEMORY;
    if (status == HP_OK)
        status = write_latest(next, name);
    if (status == HP_OK)
        status = take_name(directory, path, final, step);
    if (status == HP_OK)
        status = hpi_directory_sync(directory);
    if (status == HP_OK)
        status = hpi_rename(next, latest);
    if (status == HP_OK)
        status = hpi_directory_sync(directory);
    hpi_free(final);
    hpi_free(latest);
    hpi_free(next);
    return status;
}

/* Remove a checkpoint, hiding it first. */
static void remove_name(const char *directory, const char *name, enum kind kind, uint64_t step) {
    char hidden[NAME_BYTES];
    name_hidden(step, "tmp", hpi_now_ns(), hidden);
    char *path = hpi_path_join(directory, name), *to = hpi_path_join(directory, hidden);
    if (path && to && (kind == KIND_TEMPORARY || rename(path, to) == 0))
        hpi_directory_remove(kind == KIND_TEMPORARY ? path : to);
    hpi_free(to);
    hpi_free(path);
}

/* Keep two; remove every other checkpoint and everything hidden. What cannot be removed stays: the
 * save has succeeded, and the next one tries again. */
static void prune(const char *directory, const char *keep, const char *keep_too) {
    struct dirent **names;
    int n;
    if (list_names(directory, &names, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        uint64_t step;
        const enum kind kind = parse_name(name, &step);
        if (strcmp(name, keep) != 0 && strcmp(name, keep_too) != 0)
            remove_name(directory, name, kind, step);
    }
    free_names(names, n);
}

/* What to keep beside the new checkpoint `name`: what was latest, else the newest other; "": none.
 * One that was moved aside is not kept: it has served its purpose. */
static hp_status choose_companion(const char *directory, const char *name, char *out_name) {
    uint64_t step;
    HP_TRY(find_latest(directory, out_name));
    if (!*out_name || strcmp(out_name, name) == 0)
        HP_TRY(find_newest(directory, name, out_name));
    if (parse_name(out_name, &step) != KIND_STEP)
        out_name[0] = '\0';
    return HP_OK;
}

hp_status hpi_steps_publish(const char *directory, const char *path, uint64_t step) {
    char name[NAME_BYTES], companion[NAME_BYTES];
    name_step(step, name);
    HP_TRY(choose_companion(directory, name, companion));
    HP_TRY(publish(directory, path, step, name));
    prune(directory, name, companion);
    return HP_OK;
}

void hpi_steps_abandon(const char *directory, const char *path) {
    char *latest = hpi_path_join(directory, "latest.tmp");
    if (latest)
        unlink(latest);
    if (path)
        hpi_directory_remove(path);
    hpi_free(latest);
}
