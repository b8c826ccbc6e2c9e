/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/directory.c - a directory that is the old or the new one at any moment.
 *
 * The order: link, write and sync the files (others do), sync the directory, exchange, sync the
 * parent, move the old one's directories over, and only then remove it. Links of files cost nothing
 * and are the same file, so a kill loses neither. Directories cannot be linked: a kill may leave
 * them in the old one, from where the next save takes them.
 */
#include "directory.h"
#include "../checkpoint/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------- */

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* `path` without links and without slashes at its end, in memory of its own. */
static char *resolve(const char *path) {
    char resolved[PATH_MAX];
    char *copy = hpi_strdup(realpath(path, resolved) ? resolved : path);
    for (size_t n = copy ? strlen(copy) : 0; n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    return copy;
}

static char *parent_of(const char *path) {
    const size_t n = (size_t)(last_name(path) - path);
    char *parent = hpi_strdup(n ? path : ".");
    if (parent && n)
        parent[n > 1 ? n - 1 : 1] = '\0';
    return parent;
}

static char *other_name(const char *parent, const char *name, const char *what, uint64_t token) {
    char other[PATH_MAX];
    snprintf(other, sizeof other, ".%s.%s-%016" PRIx64, name, what, token);
    return hpi_path_join(parent, other);
}

/* Is `entry` one of the other names of `name`? */
static bool is_other_name(const char *entry, const char *name, const char *what) {
    char prefix[PATH_MAX];
    const int n = snprintf(prefix, sizeof prefix, ".%s.%s-", name, what);
    return strncmp(entry, prefix, (size_t)n) == 0 && strspn(entry + n, "0123456789abcdef") == 16 &&
           entry[n + 16] == '\0';
}

hp_status hpi_weights_directory_name(const char *path, uint64_t token,
                                     hpi_weights_directory *out_directory) {
    hpi_weights_directory d = {.final = resolve(path)};
    d.parent = d.final ? parent_of(d.final) : NULL;
    const char *name = d.final ? last_name(d.final) : NULL;
    hp_status status = HP_ERR_MEMORY;
    if (name && !*name) {
        status = HPI_FAIL(HP_ERR_FILE, "expected a directory that can be replaced, given %s", path);
    } else if (d.parent) {
        d.hidden = other_name(d.parent, name, "tmp", token);
        d.aside = other_name(d.parent, name, "old", token);
        status = d.hidden && d.aside ? HP_OK : HP_ERR_MEMORY;
    }
    if (status < 0)
        hpi_weights_directory_free(&d);
    else
        *out_directory = d;
    return status;
}

void hpi_weights_directory_free(hpi_weights_directory *directory) {
    hpi_free(directory->aside);
    hpi_free(directory->hidden);
    hpi_free(directory->parent);
    hpi_free(directory->final);
    *directory = (hpi_weights_directory){0};
}

/* ---- what a kill left ------------------------------------------------------------------------ */

/* The first entry of `parent` that is another name of `name`, as a path; NULL: there is none. */
static hp_status find_other(const char *parent, const char *name, const char *what,
                            char **out_path) {
    *out_path = NULL;
    DIR *entries = opendir(parent);
    if (!entries)
        return HPI_FAIL(HP_ERR_FILE,
                        "expected %s, the directory in which %s is or will be, the system says: %s",
                        parent, name, strerror(errno));
    struct dirent *entry;
    hp_status status = HP_OK;
    while (!*out_path && status == HP_OK && (entry = readdir(entries)))
        if (is_other_name(entry->d_name, name, what)) {
            *out_path = hpi_path_join(parent, entry->d_name);
            status = *out_path ? HP_OK : HP_ERR_MEMORY;
        }
    closedir(entries);
    return status;
}

static bool is_directory(int parent, const char *name) {
    struct stat about;
    return fstatat(parent, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(about.st_mode);
}

static bool is_dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static hp_status move_durably(const char *from, const char *to, const char *name) {
    char *old = hpi_path_join(from, name), *new = hpi_path_join(to, name);
    hp_status status = old && new ? hpi_rename(old, new) : HP_ERR_MEMORY;
    if (status == HP_OK)
        status = hpi_directory_sync(to);
    hpi_free(new);
    hpi_free(old);
    return status;
}

/* Move the directories in `old` to `d->final`, and remove `old` with what is left in it. */
static hp_status retire(const hpi_weights_directory *d, const char *old) {
    DIR *entries = opendir(old);
    hp_status status = HP_OK;
    if (!entries)
        return HP_OK; /* nobody is there */
    for (struct dirent *entry; status == HP_OK && (entry = readdir(entries));)
        if (!is_dots(entry->d_name) && is_directory(dirfd(entries), entry->d_name))
            status = move_durably(old, d->final, entry->d_name);
    closedir(entries);
    if (status == HP_OK)
        hpi_directory_remove(old);
    return status;
}

/* What cannot be removed stays: the save does not depend on it. */
static hp_status remove_others(const hpi_weights_directory *d, const char *what) {
    for (;;) {
        char *path;
        HP_TRY(find_other(d->parent, last_name(d->final), what, &path));
        if (!path)
            return HP_OK;
        (void)retire(d, path);
        const bool is_gone = access(path, F_OK) != 0;
        hpi_free(path);
        if (!is_gone)
            return HP_OK;
    }
}

/* A save was killed between its two renames: undo the first. */
static hp_status recover(const hpi_weights_directory *d) {
    char *aside;
    if (access(d->final, F_OK) == 0)
        return HP_OK;
    HP_TRY(find_other(d->parent, last_name(d->final), "old", &aside));
    const hp_status status = aside ? hpi_rename(aside, d->final) : HP_OK;
    hpi_free(aside);
    return status;
}

hp_status hpi_weights_directory_find(const char *path, char **out_path) {
    *out_path = NULL;
    if (access(path, F_OK) != 0) {
        hpi_weights_directory d;
        HP_TRY(hpi_weights_directory_name(path, 0, &d));
        const hp_status status = find_other(d.parent, last_name(d.final), "old", out_path);
        hpi_weights_directory_free(&d);
        if (status == HP_ERR_MEMORY)
            return status; /* without a parent there is nothing: opening it will say so */
    }
    if (!*out_path)
        *out_path = hpi_strdup(path);
    return *out_path ? HP_OK : HP_ERR_MEMORY;
}

/* ---- the new one ----------------------------------------------------------------------------- */

typedef bool is_replaced_by(const void *context, const char *name);

/* A directory is moved after the exchange; what would hinder that is found here. */
static hp_status check_movable(const hpi_weights_directory *d, int directory, const char *name,
                               bool is_taken) {
    if (is_taken)
        return HPI_FAIL(HP_ERR_FILE, "expected a file or nothing at %s/%s, found a directory",
                        d->final, name);
    if (faccessat(directory, name, W_OK, AT_EACCESS) != 0)
        return HPI_FAIL(HP_ERR_FILE,
                        "expected to be allowed to move directory %s/%s, the system says: %s",
                        d->final, name, strerror(errno));
    return HP_OK;
}

static hp_status link_file(const hpi_weights_directory *d, int directory, const char *name) {
    char *to = hpi_path_join(d->hidden, name);
    hp_status status = to ? HP_OK : HP_ERR_MEMORY;
    if (to && linkat(directory, name, AT_FDCWD, to, 0) != 0)
        status = HPI_FAIL(HP_ERR_FILE, "expected to link %s of %s to %s, the system says: %s", name,
                          d->final, to, strerror(errno));
    hpi_free(to);
    return status;
}

static hp_status link_files(const hpi_weights_directory *d, is_replaced_by *is_replaced,
                            const void *context) {
    DIR *entries = opendir(d->final);
    if (!entries)
        return HPI_FAIL(HP_ERR_FILE, "expected to list %s, the system says: %s", d->final,
                        strerror(errno));
    hp_status status = HP_OK;
    for (struct dirent *entry; status == HP_OK && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (is_dots(name))
            continue;
        const bool is_taken = is_replaced(context, name);
        if (is_directory(dirfd(entries), name))
            status = check_movable(d, dirfd(entries), name, is_taken);
        else if (!is_taken)
            status = link_file(d, dirfd(entries), name);
    }
    closedir(entries);
    return status;
}

static hp_status make_hidden(const hpi_weights_directory *d) {
    if (mkdir(d->hidden, 0777) == 0)
        return HP_OK;
    return HPI_FAIL(HP_ERR_FILE, "expected to make directory %s, the system says: %s", d->hidden,
                    strerror(errno));
}

hp_status hpi_weights_directory_begin(const hpi_weights_directory *d, is_replaced_by *is_replaced,
                                      const void *context) {
    struct stat about;
    HP_TRY(recover(d));
    const bool is_there = lstat(d->final, &about) == 0;
    if (is_there && !S_ISDIR(about.st_mode))
        return HPI_FAIL(HP_ERR_FILE, "expected %s to be a directory, it is a file", d->final);
    HP_TRY(remove_others(d, "tmp"));
    HP_TRY(remove_others(d, "old"));
    HP_TRY(make_hidden(d));
    if (!is_there)
        return HP_OK;
    if (chmod(d->hidden, about.st_mode & 07777) != 0)
        return HPI_FAIL(HP_ERR_FILE, "expected to give %s the rights of %s, the system says: %s",
                        d->hidden, d->final, strerror(errno));
    return link_files(d, is_replaced, context);
}

hp_status hpi_weights_directory_publish(hpi_weights_directory *d) {
    HP_TRY(hpi_directory_sync(d->hidden));
    HP_TRY(hpi_directory_replace(d->hidden, d->final, d->aside));
    d->is_replaced = true;
    HP_TRY(hpi_directory_sync(d->parent));
    HP_TRY(retire(d, d->hidden)); /* one of the two is the old one, if there was one */
    return retire(d, d->aside);
}

void hpi_weights_directory_abandon(const hpi_weights_directory *d) {
    if (d->hidden && !d->is_replaced)
        hpi_directory_remove(d->hidden);
}
