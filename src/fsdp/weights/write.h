/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/weights/write.h - the ranks of replica 0 put their shards into files that are
 * there.
 *
 * Each rank writes its own intervals, a block at a time. Shards that are many small runs would be
 * as many system calls: those the ranks exchange in blocks, and take turns at writing whole rows.
 */
#ifndef HPI_WEIGHTS_WRITE_H
#define HPI_WEIGHTS_WRITE_H

#include "../engine.h"
#include "plan.h"

typedef struct hpi_weights_writer {
    const hp_fsdp *fsdp;
    const hpi_weights_plan *plan;
    unsigned char *converted, *shards, *rows; /* blocks */
    uint64_t row_bytes;                       /* room in each of the last two */
    uint64_t n_written_bytes;
    hp_status status; /* the first failure, with its record in `error` */
    hp_error error;
} hpi_weights_writer;

/* Take the memory. Errors: MEMORY. */
hp_status hpi_weights_writer_make(const hp_fsdp *fsdp, const hpi_weights_plan *plan,
                                  hpi_weights_writer *out_writer);
/* Write into the plan's files in `directory` and sync them. Collective over replica 0, every rank
 * of which must have its memory; a rank that fails goes on with the others and returns its failure
 * in the end. Errors: FILE naming the path, MEMORY, those of hp_all_gather. */
hp_status hpi_weights_write(hpi_weights_writer *writer, const char *directory);
void hpi_weights_writer_free(hpi_weights_writer *writer);

#endif
