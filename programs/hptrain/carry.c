/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/carry.c - reading the files that are carried over, before the first step: a directory
 * that is gone after hours of training costs no export.
 */
#include "carry.h"
#include "fail.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const carried_names[CARRIED_MOST] = {
    "tokenizer.json",      "tokenizer_config.json",   "vocab.json",
    "merges.txt",          "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "generation_config.json"};

/* A text ends at its first 0, so one inside would cut the file. */
static hp_status read_text(FILE *file, const char *path, char **out_text) {
    struct stat about;
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode))
        return fail(HP_ERR_FILE, "expected %s to be a regular file", path);
    const size_t n_bytes = (size_t)about.st_size;
    char *text = *out_text = calloc(n_bytes + 1, 1);
    if (!text)
        return fail(HP_ERR_MEMORY, "expected memory for the %zu bytes of %s", n_bytes, path);
    if (fread(text, 1, n_bytes, file) != n_bytes)
        return fail(HP_ERR_FILE, "expected %zu bytes of %s: %s", n_bytes, path, strerror(errno));
    if (strlen(text) != n_bytes)
        return fail(HP_ERR_FORMAT, "expected %s to be a text, byte %zu of it is 0", path,
                    strlen(text));
    return HP_OK;
}

/* Not blocking: a FIFO is to be refused, not waited for. */
static FILE *open_text(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? NULL : fdopen(fd, "r");
}

static hp_status read_named(const char *directory, const char *name, carried *files) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) >= sizeof path)
        return fail(HP_ERR_ARGUMENT, "expected --model to be a path below %zu bytes", sizeof path);
    FILE *file = open_text(path);
    if (!file && errno == ENOENT)
        return HP_OK;
    if (!file)
        return fail(HP_ERR_FILE, "expected to carry %s over to the export: %s", path,
                    strerror(errno));
    files->names[files->n] = name;
    const hp_status status = read_text(file, path, &files->texts[files->n++]);
    (void)fclose(file); /* nothing was written */
    return status;
}

hp_status carried_read(const char *directory, carried *out_files) {
    for (int i = 0; i < CARRIED_MOST; i++)
        TRY(read_named(directory, carried_names[i], out_files));
    return HP_OK;
}

void carried_free(carried *files) {
    for (int i = 0; i < files->n; i++)
        free(files->texts[i]);
    *files = (carried){.n = 0};
}
