/* SPDX-License-Identifier: Apache-2.0
 *
 * checksum.c - the checksum of files and of what ranks compare, from xxHash's one header.
 */
#include "base.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hpi_checksum(const void *data, uint64_t n_bytes) {
    return XXH3_64bits(data, n_bytes);
}
