/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/text.c - reading the text, and picking samples of it by a hash.
 */
#include "text.h"
#include "fail.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char shipped_name[] = "genesis_to_deuteronomy.txt";

/* ../../data/NAME from the folder that `file` stands in; the program's is build/bin, that of this
 * source file is programs/hptrain. */
static bool shipped_beside(const char *file, size_t length, char out_path[PATH_MAX]) {
    char path[PATH_MAX];
    while (length > 0 && file[length - 1] != '/')
        length--;
    const int n = snprintf(path, sizeof path, "%.*s../../data/%s", (int)length, file, shipped_name);
    return n > 0 && (size_t)n < sizeof path && realpath(path, out_path) != NULL;
}

static hp_status shipped_path(char out_path[PATH_MAX]) {
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
    if (length > 0 && shipped_beside(program, (size_t)length, out_path))
        return HP_OK;
    if (shipped_beside(__FILE__, strlen(__FILE__), out_path))
        return HP_OK;
    return fail(HP_ERR_FILE,
                "expected the shipped text ../../data/%s beside the program, found none; "
                "--data FILE names another",
                shipped_name);
}

/* A pipe has no size, and every rank must see the same bytes. */
static hp_status read_all(FILE *file, text *t) {
    struct stat about;
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode))
        return fail(HP_ERR_FILE, "expected --data to be a regular file, given %s", t->path);
    t->n_bytes = (size_t)about.st_size;
    t->bytes = malloc(t->n_bytes + 1);
    if (!t->bytes)
        return fail(HP_ERR_MEMORY, "expected %zu bytes of memory for %s", t->n_bytes, t->path);
    if (fread(t->bytes, 1, t->n_bytes, file) != t->n_bytes)
        return fail(HP_ERR_FILE, "expected %zu bytes in %s: %s", t->n_bytes, t->path,
                    ferror(file) ? strerror(errno) : "it became shorter");
    return HP_OK;
}

static hp_status read_file(text *t) {
    FILE *file = fopen(t->path, "rb");
    if (!file)
        return fail(HP_ERR_FILE, "expected --data to be a file that can be read, given %s: %s",
                    t->path, strerror(errno));
    const hp_status status = read_all(file, t);
    (void)fclose(file); /* nothing was written */
    return status;
}

hp_status text_load(const char *path, size_t sample_bytes, text *out_text) {
    text t = {.sample_bytes = sample_bytes};
    if (*path && (size_t)snprintf(t.path, sizeof t.path, "%s", path) >= sizeof t.path)
        return fail(HP_ERR_ARGUMENT, "expected --data to be a path below %zu bytes", sizeof t.path);
    if (!*path)
        TRY(shipped_path(t.path));
    hp_status status = read_file(&t);
    t.n_train = t.n_bytes / 10 * 9;
    if (status == HP_OK && t.n_bytes < 10 * sample_bytes)
        status =
            fail(HP_ERR_FORMAT,
                 "expected --data to hold at least %zu bytes (ten samples of window + seq = %zu "
                 "bytes), given %s of %zu bytes",
                 10 * sample_bytes, sample_bytes, t.path, t.n_bytes);
    if (status < 0) {
        text_free(&t);
        return status;
    }
    *out_text = t;
    return HP_OK;
}

void text_free(text *t) {
    free(t->bytes);
    t->bytes = NULL;
}

/* splitmix64's output function. Source: Steele, Lea, Flood, OOPSLA 2014. */
static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void text_samples(const text *t, uint64_t seed, uint64_t first, int n, unsigned char *out_samples) {
    /* The remainder favours early places by less than one in 2^40. */
    const uint64_t n_places = t->n_train - t->sample_bytes + 1;
    for (int i = 0; i < n; i++) {
        const uint64_t place = mix(mix(seed) ^ (first + (uint64_t)i)) % n_places;
        memcpy(out_samples + (size_t)i * t->sample_bytes, t->bytes + place, t->sample_bytes);
    }
}

void text_held_out(const text *t, int n, unsigned char *out_samples) {
    const uint64_t n_places = t->n_bytes - t->n_train - t->sample_bytes + 1;
    for (int i = 0; i < n; i++) {
        const uint64_t place = t->n_train + n_places * (uint64_t)i / (uint64_t)n;
        memcpy(out_samples + (size_t)i * t->sample_bytes, t->bytes + place, t->sample_bytes);
    }
}
