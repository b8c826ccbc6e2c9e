/* SPDX-License-Identifier: Apache-2.0
 *
 * start/hello.h - what a rank says of itself when a job starts, over a store or a transport.
 */
#ifndef HPI_HELLO_H
#define HPI_HELLO_H

#include "../inside.h"
#include "store.h"

#define HELLO_MAGIC UINT64_C(0x6f6c6c6548504848) /* "HHPHello" */
enum {
    VERSION_BYTES = 16,
    BOOT_BYTES = 40,
    HOST_BYTES = 64,
    MESSAGE_BYTES = 512,
    TEXT_BYTES = 256
};

typedef struct hello {
    uint64_t magic;
    char version[VERSION_BYTES];
    uint32_t layout_version;
    int32_t n_ranks;
    uint64_t heap_size; /* the option, as thresholds */
    int32_t status;     /* HP_OK, or why this rank cannot take part */
    int32_t pid;
    uint64_t pid_namespace; /* in which pid means something; 0 unknown */
    char boot_id[BOOT_BYTES];
    char host[HOST_BYTES];
    unsigned char token[HPI_TOKEN_BYTES];
    char message[MESSAGE_BYTES];
    char thresholds[TEXT_BYTES]; /* coll takes none that is longer */
} hello;
_Static_assert(sizeof(hello) == 952, "sent between processes");
_Static_assert(sizeof(hello) <= HPI_STORE_VALUE_BYTES, "fits in a value");

void hpi_hello_fill(const hp_world *world, hello *h);
/* Cut its texts, which may be anybody's. Errors: VERSION, of one that is not of this library. */
hp_status hpi_hello_read(hello *h, int rank, size_t n_bytes);
/* Can all take part, and do they mean the same job? Errors: MISMATCH, VERSION, and why one cannot.
 */
hp_status hpi_hellos_check(const hello *all, const hp_world *world);
/* Room for the segments of all ranks, none of them there yet; false: there is none. */
bool hpi_segments_list(hp_world *world);
/* This rank's segment to those of its node, and theirs to it. */
hp_status hpi_pass_segments(hp_world *world, const hello *all);

#endif
