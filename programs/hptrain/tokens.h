/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/tokens.h - the header of a token file. docs/token-files.md describes it for those who
 * write one.
 *
 *     0   8  "HPTOKENS"
 *     8   4  version, 1
 *    12   4  bytes of a token, 2 or 4
 *    16   8  count of tokens
 *    24   4  vocabulary size: every id is below it; 0: not known
 *    28  36  zeros
 *    64      ids
 *
 * All numbers are unsigned and little-endian, whatever the machine.
 */
#ifndef HPTRAIN_TOKENS_H
#define HPTRAIN_TOKENS_H

#include <hyperparallel/base.h>
#include <stdbool.h>

enum { TOKENS_HEADER_BYTES = 64 };

typedef struct tokens_header {
    size_t token_bytes;
    uint64_t count;
    uint32_t vocab_size;
} tokens_header;

/* Does a file of these first bytes say that it is a token file? */
bool tokens_is_file(const unsigned char *bytes, size_t n_bytes);

/* head: the first TOKENS_HEADER_BYTES, or the whole file if it is shorter. Errors: FORMAT naming
 * `path`, where the header does not fit itself or the file's size. */
hp_status tokens_parse(const char *path, const unsigned char *head, uint64_t file_bytes,
                       tokens_header *out_header);

uint32_t tokens_read(const unsigned char *at, size_t token_bytes);

#endif
