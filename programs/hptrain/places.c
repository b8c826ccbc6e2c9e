/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/places.c - making directories, with their parents.
 */
#include "places.h"
#include "fail.h"

#include <dirent.h>
#include <errno.h>
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

static bool is_directory(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode);
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

/* The export is exchanged for what stands there, which takes files alone. */
static hp_status check_export(const options *o) {
    char path[PATH_MAX], name[PATH_MAX + 256];
    options_export_path(o, path);
    DIR *entries = opendir(path);
    if (!entries && errno == ENOENT)
        return HP_OK;
    if (!entries)
        return fail(HP_ERR_FILE, "expected to list %s, for --export: %s", path, strerror(errno));
    hp_status status = HP_OK;
    for (struct dirent *entry; status == HP_OK && (entry = readdir(entries));) {
        const bool is_dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (!is_dots && is_directory(name))
            status =
                fail(HP_ERR_FILE, "expected files alone in %s, for --export, found directory %s",
                     path, entry->d_name);
    }
    (void)closedir(entries);
    return status;
}

hp_status places_check(const options *o) {
    TRY(check_file("log", o->log));
    TRY(check_file("curve", o->curve));
    TRY(check_directory("save", o->save));
    TRY(check_directory("trace", o->trace));
    return strcmp(o->export, "none") == 0 ? HP_OK : check_export(o);
}
