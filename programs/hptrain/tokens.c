/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/tokens.c - reading the header of a token file, byte by byte.
 */
#include "tokens.h"
#include "fail.h"

#include <inttypes.h>
#include <string.h>

static const char magic[8] = "HPTOKENS"; /* without a NUL */

static uint64_t read_little(const unsigned char *at, size_t n_bytes) {
    uint64_t value = 0;
    for (size_t i = n_bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

uint32_t tokens_read(const unsigned char *at, size_t token_bytes) {
    return (uint32_t)read_little(at, token_bytes);
}

bool tokens_is_file(const unsigned char *bytes, size_t n_bytes) {
    return n_bytes >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

hp_status tokens_parse(const char *path, const unsigned char *head, uint64_t file_bytes,
                       tokens_header *out_header) {
    if (file_bytes < TOKENS_HEADER_BYTES)
        return fail(HP_ERR_FORMAT,
                    "expected a token file's header of %d bytes, %s ends after %" PRIu64,
                    TOKENS_HEADER_BYTES, path, file_bytes);
    const uint64_t version = read_little(head + 8, 4), width = read_little(head + 12, 4);
    const tokens_header h = {width, read_little(head + 16, 8), (uint32_t)read_little(head + 24, 4)};
    if (version != 1)
        return fail(HP_ERR_FORMAT, "expected a token file of version 1, %s is of version %" PRIu64,
                    path, version);
    if (width != 2 && width != 4)
        return fail(HP_ERR_FORMAT, "expected tokens of 2 or 4 bytes, %s has %" PRIu64, path, width);
    const uint64_t n_id_bytes = file_bytes - TOKENS_HEADER_BYTES;
    if (n_id_bytes % width || h.count != n_id_bytes / width)
        return fail(HP_ERR_FORMAT,
                    "expected the %" PRIu64 " tokens of %" PRIu64
                    " bytes that its header names, %s holds %" PRIu64 " bytes of them",
                    h.count, width, path, n_id_bytes);
    *out_header = h;
    return HP_OK;
}
