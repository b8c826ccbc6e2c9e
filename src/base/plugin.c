/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - finding and loading a shared object that the library needs only when it is asked for.
 *
 * The folder that the option names, or lib/hyperparallel as it lies in a build tree and in an
 * installed one, seen from the library's file or, with the static library, from the program's.
 * A plug-in stays loaded: threads of its run time may outlive whoever opened it.
 */
#include "base.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, SAID_BYTES = 480 };

/* A search ends at the first file that is there, whether it loads or not. */
typedef struct search {
    const char *file;
    void *handle;
    bool is_found;
    char said[SAID_BYTES]; /* where it was looked for, or why the file did not load */
} search;

static void say(search *s, const char *words, const char *path) {
    const size_t length = strlen(s->said);
    snprintf(s->said + length, sizeof s->said - length, "%s%s%s", length ? " and " : "", words,
             path);
}

static void look_in(search *s, const char *folder, const char *below) {
    char path[PATH_BYTES];
    if (s->is_found || snprintf(path, sizeof path, "%s%s/%s", folder, below, s->file) >= PATH_BYTES)
        return;
    s->is_found = access(path, F_OK) == 0;
    if (!s->is_found)
        return;
    s->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!s->handle) {
        s->said[0] = '\0';
        say(s, dlerror(), "");
    }
}

/* file: the path of a library or program. */
static void look_around(search *s, const char *file) {
    static const char *const belows[] = {"/lib/hyperparallel", "/../lib/hyperparallel",
                                         "/../../lib/hyperparallel", "/../hyperparallel"};
    char folder[PATH_BYTES];
    if (*file != '/')
        return; /* what a relative path is relative to may have changed */
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(file, '/') - file), file);
    for (size_t i = 0; i < sizeof belows / sizeof *belows; i++)
        look_in(s, folder, belows[i]);
    if (!s->is_found)
        say(s, "lib/hyperparallel beside or above ", file);
}

static void look_everywhere(search *s) {
    static const char here = 0; /* an address inside the library */
    char program[PATH_BYTES];
    Dl_info about = {0};
    if (dladdr(&here, &about) && about.dli_fname)
        look_around(s, about.dli_fname);
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length < 0 ? 0 : length] = '\0';
    if (!about.dli_fname || strcmp(program, about.dli_fname) != 0)
        look_around(s, program);
}

hp_status hpi_plugin_find(const char *folder, const char *file, const char *symbol,
                          void **out_symbol) {
    search s = {.file = file};
    if (*folder)
        look_in(&s, folder, "");
    else
        look_everywhere(&s);
    if (!s.is_found)
        return HPI_FAIL(HP_ERR_UNSUPPORTED,
                        "%s is not in %s; HYPER_PARALLEL_PLUGINS may name its folder", file,
                        *folder ? folder : s.said);
    if (!s.handle)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "%s could not be loaded: %s", file, s.said);
    void *const found = dlsym(s.handle, symbol);
    dlclose(s.handle); /* counts down, and unloads nothing: RTLD_NODELETE */
    if (!found)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "expected %s in %s, which has none", symbol, file);
    *out_symbol = found;
    return HP_OK;
}
