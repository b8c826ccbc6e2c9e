/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/weights/source.h - the weights of a model as they lie on the disk: one file, or
 * several with an index.
 *
 * A source that was opened has been checked: each file by itself (safetensors.h), and the index
 * against the files, so that each tensor is in one file and the index says in which. The files stay
 * open: what was checked is what is read, even if their names are given to others meanwhile.
 */
#ifndef HPI_WEIGHTS_SOURCE_H
#define HPI_WEIGHTS_SOURCE_H

#include "../checkpoint/safetensors.h"
#include "index.h"

typedef struct hpi_weights_source {
    char *path; /* of the file, or of the index */
    hpi_safetensors *files;
    uint64_t n_files;
    hpi_weights_index index; /* empty when there is one file and no index */
} hpi_weights_source;

/* `path` is a file, or a directory with model.safetensors or else model.safetensors.index.json: the
 * order in which Transformers looks. Errors: FILE, FORMAT naming file and tensor. */
hp_status hpi_weights_source_open(const char *path, hpi_weights_source *out_source);
/* NULL when no file has it. */
const hpi_tensor *hpi_weights_source_find(const hpi_weights_source *source, const char *name,
                                          const hpi_safetensors **out_file);
void hpi_weights_source_close(hpi_weights_source *source);

#endif
