/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/places.c - making directories, with their parents, and looking what stands there.
 */
#include "places.h"
#include "fail.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Create the directory of a path with its parents; several ranks may do so at once. */
static void make_parents(const char *path, size_t length) {
    char part[4096];
    for (size_t i = 1; i <= length && i < sizeof part; i++)
        if (path[i] == '/' || i == length) {
            memcpy(part, path, i);
            part[i] = 0;
            (void)mkdir(part, 0777); /* access says whether it is there */
        }
}

static hp_status check_directory(const char *option, const char *path) {
    if (!*path)
        return HP_OK;
    make_parents(path, strlen(path));
    if (access(path, W_OK | X_OK) != 0)
        return fail(HP_ERR_FILE, "expected --%s at a place that can be written, given %s: %s",
                    option, path, strerror(errno));
    return HP_OK;
}

/* A file is not created yet: a run that fails early leaves none. */
static hp_status check_file(const char *option, const char *path) {
    struct stat about;
    char directory[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) < sizeof directory - 1)
        snprintf(directory, sizeof directory, "%.*s", (int)(slash - path) + 1, path);
    if (!*path)
        return HP_OK;
    TRY(check_directory(option, directory));
    if (stat(path, &about) != 0)
        return HP_OK;
    if (S_ISDIR(about.st_mode))
        return fail(HP_ERR_FILE, "expected --%s to be a file, given %s, a directory", option, path);
    if (access(path, W_OK) != 0)
        return fail(HP_ERR_FILE, "expected --%s to be a file that can be written, given %s: %s",
                    option, path, strerror(errno));
    return HP_OK;
}

/* The export is exchanged for what stands there. */
static hp_status check_export(const options *o) {
    struct stat about;
    char path[PATH_MAX];
    options_export_path(o, path);
    if (stat(path, &about) != 0)
        return HP_OK;
    if (!S_ISDIR(about.st_mode))
        return fail(HP_ERR_FILE, "expected a directory at %s, for --export, given a file", path);
    if (access(path, R_OK | W_OK | X_OK) != 0)
        return fail(HP_ERR_FILE,
                    "expected %s to be a directory that can be replaced, for --export: %s", path,
                    strerror(errno));
    return HP_OK;
}

static bool is_same_directory(const char *a, const char *b) {
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* The newest step-N in the directory; "": there is none. */
static void find_checkpoint(const char *directory, char out_name[NAME_MAX + 1]) {
    DIR *entries = opendir(directory);
    *out_name = 0;
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (strncmp(entry->d_name, "step-", 5) == 0 && strcmp(entry->d_name, out_name) > 0)
            snprintf(out_name, NAME_MAX + 1, "%s", entry->d_name);
    (void)closedir(entries);
}

bool places_has_checkpoint(const char *directory) {
    char name[NAME_MAX + 1];
    find_checkpoint(directory, name);
    return *name != 0;
}

/* A save makes its checkpoint the latest and removes old ones: not those of another run. */
static hp_status check_save(const options *o) {
    char name[NAME_MAX + 1];
    TRY(check_directory("save", o->save));
    if (!*o->save || (*o->resume && is_same_directory(o->save, o->resume)))
        return HP_OK;
    find_checkpoint(o->save, name);
    if (!*name)
        return HP_OK;
    return fail(HP_ERR_ARGUMENT,
                "expected --save to be a directory without checkpoints, %s has %s: --resume %s "
                "goes on from it, another --save keeps it",
                o->save, name, o->save);
}

/* What --export leaves has no state of an optimizer. */
static hp_status check_resume(const options *o) {
    char name[NAME_MAX + 1], path[PATH_MAX];
    if (!*o->resume)
        return HP_OK;
    find_checkpoint(o->resume, name);
    const int n = snprintf(path, sizeof path, "%s/config.json", o->resume);
    if (!*name && n < (int)sizeof path && access(path, F_OK) == 0)
        return fail(HP_ERR_ARGUMENT,
                    "expected --resume to be a directory of checkpoints, given %s, an export: use "
                    "--model %s",
                    o->resume, o->resume);
    return HP_OK;
}

hp_status places_check(const options *o) {
    TRY(check_resume(o));
    TRY(check_file("log", o->log));
    TRY(check_file("curve", o->curve));
    TRY(check_save(o));
    TRY(check_directory("trace", o->trace));
    return strcmp(o->export, "none") == 0 ? HP_OK : check_export(o);
}
