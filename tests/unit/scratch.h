/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.h - a directory for a test's files, new for each test and gone after it.
 */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[64];

static inline int scratch_make(void **state) {
    (void)state;
    strcpy(scratch, "/tmp/hp_test.XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static inline int scratch_remove_one(const char *path, const struct stat *about, int type,
                                     struct FTW *place) {
    (void)about;
    (void)type;
    (void)place;
    return remove(path);
}

static inline int scratch_remove(void **state) {
    (void)state;
    return nftw(scratch, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* "SCRATCH/name", in one of a few buffers that are used in turn; for one thread. */
static inline const char *scratch_path(const char *name) {
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static inline int scratch_has(const char *name) {
    return access(scratch_path(name), F_OK) == 0;
}

/* What a save that failed or was killed has left: entries with a hidden name; -1 without the
 * directory. */
static inline int scratch_count_hidden(void) {
    int n = 0;
    DIR *directory = opendir(scratch);
    if (!directory)
        return -1;
    for (struct dirent *entry; (entry = readdir(directory));)
        n += entry->d_name[0] == '.' && strcmp(entry->d_name, ".") != 0 &&
             strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return n;
}

static inline void scratch_write(const char *name, const char *text) {
    FILE *file = fopen(scratch_path(name), "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

#endif
