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

enum { NAME_BYTES = 64 };
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
    char expected[NAME_BYTES];
    uint64_t token = 0;
    if (sscanf(name, "step-%" SCNu64, out_step) == 1) {
        name_step(*out_step, expected);
        return strcmp(name, expected) == 0 ? KIND_STEP : KIND_NONE;
    }
    static const struct {
        const char *suffix;
        enum kind kind;
    } hidden[] = {{"old", KIND_OLD}, {"tmp", KIND_TEMPORARY}};
    for (int i = 0; i < 2; i++) {
        const char *dash = strrchr(name, '-');
        if (sscanf(name, ".step-%" SCNu64, out_step) != 1 ||
            sscanf(dash + 1, "%" SCNx64, &token) != 1)
            return KIND_NONE;
        name_hidden(*out_step, hidden[i].suffix, token, expected);
        if (strcmp(name, expected) == 0)
            return hidden[i].kind;
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

/* The step that `latest` names; false when there is no such file or it names none. */
static bool read_latest(const char *directory, uint64_t *out_step) {
    char *path = hpi_path_join(directory, "latest"), *text = NULL;
    uint64_t n_bytes;
    bool is_found = false;
    if (path && hpi_file_read_text(path, most_latest_bytes, &text, &n_bytes) == HP_OK) {
        text[strcspn(text, "\n")] = '\0';
        is_found = parse_name(text, out_step) == KIND_STEP;
    }
    hpi_free(text);
    hpi_free(path);
    return is_found;
}

/* The checkpoint that `latest` names, if it is there; its path, or NULL. */
static char *find_latest(const char *directory, uint64_t *out_step) {
    char name[NAME_BYTES];
    if (!read_latest(directory, out_step))
        return NULL;
    name_step(*out_step, name);
    char *path = hpi_path_join(directory, name);
    if (path && access(path, F_OK) == 0)
        return path;
    hpi_free(path);
    return NULL;
}

/* Whole: its index is sound and every file that it names is there. */
static bool is_whole(const char *path) {
    hpi_index index;
    if (hpi_index_open(path, &index) < 0)
        return false;
    bool is_good = true;
    for (uint64_t i = 0; is_good && i < index.n_files; i++) {
        char *file = hpi_path_join(path, index.files[i]);
        is_good = file && access(file, R_OK) == 0;
        hpi_free(file);
    }
    hpi_index_close(&index);
    return is_good;
}

/* The whole checkpoint of the largest step other than `except`; its path, or NULL. */
static char *find_newest(const char *directory, const uint64_t *except) {
    struct dirent **names;
    int n;
    uint64_t newest = 0;
    char *found = NULL;
    if (list_names(directory, &names, &n) < 0)
        return NULL;
    for (int i = 0; i < n; i++) {
        uint64_t step;
        const enum kind kind = parse_name(names[i]->d_name, &step);
        if (kind == KIND_TEMPORARY || (found && step < newest) || (except && step == *except))
            continue;
        if (found && step == newest && kind == KIND_OLD)
            continue; /* the one with the proper name wins */
        char *path = hpi_path_join(directory, names[i]->d_name);
        if (path && is_whole(path)) {
            hpi_free(found);
            found = path;
            newest = step;
        } else {
            hpi_free(path);
        }
    }
    free_names(names, n);
    return found;
}

hp_status hpi_steps_find(const char *directory, char **out_path) {
    uint64_t step;
    char *path = find_latest(directory, &step);
    if (!path)
        path = find_newest(directory, NULL);
    if (!path)
        return HPI_FAIL(HP_ERR_FILE, "expected a checkpoint (latest, or step-N) in %s, found none",
                        directory);
    *out_path = path;
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

/* Give `path` the name `final`, whose old bearer, if any, gets a hidden name. */
static bool take_name(const char *directory, const char *path, const char *final, uint64_t step) {
    char name[NAME_BYTES];
    if (renameat2(AT_FDCWD, path, AT_FDCWD, final, RENAME_EXCHANGE) == 0)
        return true;
    if (errno != ENOENT && errno != EINVAL && errno != ENOSYS)
        return false;
    name_hidden(step, "old", hpi_now_ns(), name);
    char *old = hpi_path_join(directory, name);
    const bool has_old = old && rename(final, old) == 0;
    const bool is_done = old && rename(path, final) == 0;
    const int cause = errno;
    if (has_old && !is_done && rename(old, final) != 0) {
        /* It stays under its hidden name, where hpi_steps_find finds it. */
    }
    hpi_free(old);
    errno = cause;
    return is_done;
}

static hp_status write_latest(const char *path, const char *name) {
    char text[NAME_BYTES + 1];
    const int n = snprintf(text, sizeof text, "%s\n", name);
    const struct iovec part = {text, (size_t)n};
    unlink(path);
    return hpi_file_create(path, &part, 1);
}

static hp_status publish(const char *directory, const char *path, uint64_t step, const char *final,
                         const char *name) {
    char *next = hpi_path_join(directory, "latest.tmp"),
         *latest = hpi_path_join(directory, "latest");
    hp_status status = next && latest ? hpi_directory_sync(path) : HP_ERR_MEMORY;
    if (status == HP_OK)
        status = write_latest(next, name);
    if (status == HP_OK && !take_name(directory, path, final, step))
        status = HPI_FAIL(HP_ERR_FILE, "expected to rename %s to %s, the system says: %s", path,
                          final, strerror(errno));
    if (status == HP_OK)
        status = hpi_directory_sync(directory);
    if (status == HP_OK && rename(next, latest) != 0)
        status = HPI_FAIL(HP_ERR_FILE, "expected to rename %s to %s, the system says: %s", next,
                          latest, strerror(errno));
    if (status == HP_OK)
        status = hpi_directory_sync(directory);
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
static void prune(const char *directory, uint64_t keep, uint64_t keep_too) {
    struct dirent **names;
    int n;
    if (list_names(directory, &names, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        uint64_t step;
        const enum kind kind = parse_name(names[i]->d_name, &step);
        if (kind != KIND_STEP || (step != keep && step != keep_too))
            remove_name(directory, names[i]->d_name, kind, step);
    }
    free_names(names, n);
}

/* The step to keep beside a new one: what was latest, else the newest other; else the same. */
static uint64_t choose_companion(const char *directory, uint64_t step) {
    uint64_t companion = step;
    char *path = find_latest(directory, &companion);
    if (!path || companion == step) {
        hpi_free(path);
        path = find_newest(directory, &step);
        const char *slash = path ? strrchr(path, '/') : NULL;
        if (!slash || parse_name(slash + 1, &companion) != KIND_STEP)
            companion = step;
    }
    hpi_free(path);
    return companion;
}

hp_status hpi_steps_publish(const char *directory, const char *path, uint64_t step) {
    char name[NAME_BYTES];
    name_step(step, name);
    const uint64_t companion = choose_companion(directory, step);
    char *final = hpi_path_join(directory, name);
    const hp_status status = final ? publish(directory, path, step, final, name) : HP_ERR_MEMORY;
    hpi_free(final);
    if (status == HP_OK)
        prune(directory, step, companion);
    return status;
}

void hpi_steps_abandon(const char *directory, const char *path) {
    char *latest = hpi_path_join(directory, "latest.tmp");
    if (latest)
        unlink(latest);
    if (path)
        hpi_directory_remove(path);
    hpi_free(latest);
}
