/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/data.c - opening the tokens, and picking samples of them by a hash.
 */
#include "data.h"
#include "fail.h"
#include "tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char shipped_name[] = "genesis_to_deuteronomy.txt";

/* ---- opening ---- */

/* The text lies in ../share/hyperparallel from the program, in a prefix as in the build tree. */
static hp_status shipped_path(char out_path[PATH_MAX]) {
    char program[PATH_MAX], path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    const int n =
        snprintf(path, sizeof path, "%s/../share/hyperparallel/%s", program, shipped_name);
    if (slash && (size_t)n < sizeof path && realpath(path, out_path))
        return HP_OK;
    return fail(HP_ERR_FILE,
                "expected the shipped text ../share/hyperparallel/%s beside the program, found "
                "none; --data FILE names another",
                shipped_name);
}

/* [begin, begin + n_bytes) of the file. */
static hp_status read_bytes(const data *d, uint64_t begin, unsigned char *out, size_t n_bytes) {
    size_t n_done = 0;
    while (n_done < n_bytes) {
        const ssize_t n = pread(d->fd, out + n_done, n_bytes - n_done, (off_t)(begin + n_done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(HP_ERR_FILE, "expected %zu bytes at %" PRIu64 " of --data %s: %s", n_bytes,
                        begin, d->path, n < 0 ? strerror(errno) : "it became shorter");
        n_done += (size_t)n;
    }
    return HP_OK;
}

/* A file that begins like a token file is one; any other is a text. */
static hp_status find_tokens(data *d, uint64_t file_bytes) {
    unsigned char head[TOKENS_HEADER_BYTES];
    const size_t n_head = file_bytes < sizeof head ? (size_t)file_bytes : sizeof head;
    TRY(read_bytes(d, 0, head, n_head));
    d->token_bytes = 1;
    d->n_tokens = file_bytes;
    d->vocab_size = 256;
    if (tokens_is_file(head, n_head)) {
        tokens_header header;
        TRY(tokens_parse(d->path, head, file_bytes, &header));
        d->tokens_begin = TOKENS_HEADER_BYTES;
        d->token_bytes = header.token_bytes;
        d->n_tokens = header.count;
        d->vocab_size = header.vocab_size;
    }
    d->n_train = d->n_tokens / 10 * 9;
    return HP_OK;
}

/* A pipe has no size, and every rank must see the same bytes. One that nobody writes to would hold
 * the opening up. */
static hp_status open_path(data *d) {
    struct stat about;
    d->fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (d->fd < 0)
        return fail(HP_ERR_FILE, "expected --data to be a file that can be read, given %s: %s",
                    d->path, strerror(errno));
    d->is_open = true;
    if (fstat(d->fd, &about) != 0 || !S_ISREG(about.st_mode))
        return fail(HP_ERR_FILE, "expected --data to be a regular file, given %s", d->path);
    if (about.st_size == 0)
        return fail(HP_ERR_FORMAT, "expected --data to hold something, %s is empty", d->path);
    return find_tokens(d, (uint64_t)about.st_size);
}

hp_status data_open(const char *path, data *out_data) {
    data d = {.is_open = false};
    if ((size_t)snprintf(d.path, sizeof d.path, "%s", path) >= sizeof d.path)
        return fail(HP_ERR_ARGUMENT, "expected --data to be a path below %zu bytes", sizeof d.path);
    if (!*path)
        TRY(shipped_path(d.path));
    const hp_status status = open_path(&d);
    if (status < 0)
        data_close(&d);
    else
        *out_data = d;
    return status;
}

void data_close(data *d) {
    if (d->is_open)
        (void)close(d->fd); /* nothing was written */
    free(d->room);
    *d = (data){.is_open = false};
}

bool data_is_text(const data *d) {
    return d->token_bytes == 1;
}

const char *data_unit(const data *d) {
    return data_is_text(d) ? "byte" : "token";
}

hp_status data_fit(data *d, int sample_tokens, int vocab_size) {
    const uint64_t least = 10 * (uint64_t)sample_tokens;
    d->sample_tokens = (size_t)sample_tokens;
    d->limit = (uint32_t)vocab_size;
    if (d->n_tokens < least)
        return fail(HP_ERR_FORMAT,
                    "expected --data to hold at least %" PRIu64 " %ss (ten samples of %d), given "
                    "%s of %" PRIu64,
                    least, data_unit(d), sample_tokens, d->path, d->n_tokens);
    if (d->vocab_size > d->limit)
        return fail(HP_ERR_FORMAT,
                    "expected tokens below %" PRIu32
                    ", the model's vocab_size; %s has those of a vocabulary of %" PRIu32,
                    d->limit, d->path, d->vocab_size);
    d->room = malloc(d->sample_tokens * d->token_bytes);
    return d->room ? HP_OK
                   : fail(HP_ERR_MEMORY, "expected memory for a sample of %d %ss", sample_tokens,
                          data_unit(d));
}

/* ---- samples ---- */

/* The file may have been written by anyone, so each id is looked at where it is used. */
static hp_status copy_sample(const data *d, uint64_t place, int32_t *out) {
    const uint64_t begin = d->tokens_begin + place * d->token_bytes;
    TRY(read_bytes(d, begin, d->room, d->sample_tokens * d->token_bytes));
    for (size_t i = 0; i < d->sample_tokens; i++) {
        const uint32_t id = tokens_read(d->room + i * d->token_bytes, d->token_bytes);
        if (id >= d->limit)
            return fail(HP_ERR_FORMAT,
                        "expected ids below %" PRIu32 ", the model's vocab_size; in %s token "
                        "%" PRIu64 " is %" PRIu32,
                        d->limit, d->path, place + i, id);
        out[i] = (int32_t)id;
    }
    return HP_OK;
}

/* splitmix64's output function. Source: Steele, Lea, Flood, OOPSLA 2014. */
static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

hp_status data_samples(const data *d, uint64_t seed, uint64_t first, int n, int32_t *out_samples) {
    /* The remainder favours early places by less than one in 2^24, for files below 2^40 tokens. */
    const uint64_t n_places = d->n_train - d->sample_tokens + 1;
    for (int i = 0; i < n; i++)
        TRY(copy_sample(d, mix(mix(seed) ^ (first + (uint64_t)i)) % n_places,
                        out_samples + (size_t)i * d->sample_tokens));
    return HP_OK;
}

hp_status data_held_out(const data *d, int n, int32_t *out_samples) {
    const uint64_t n_places = d->n_tokens - d->n_train - d->sample_tokens + 1;
    for (int i = 0; i < n; i++)
        TRY(copy_sample(d, d->n_train + n_places * (uint64_t)i / (uint64_t)n,
                        out_samples + (size_t)i * d->sample_tokens));
    return HP_OK;
}
