/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/weights/index.h - model.safetensors.index.json: which file holds which tensor.
 *
 *     {"metadata": {"total_size": 123},
 *      "weight_map": {"TENSOR": "model-00001-of-00002.safetensors", ...}}
 *
 * An index that was read has been checked: every file has a plain name, so nothing outside the
 * directory can be meant, and no tensor comes twice. Source: Hugging Face Transformers, "Big
 * models".
 */
#ifndef HPI_WEIGHTS_INDEX_H
#define HPI_WEIGHTS_INDEX_H

#include "../checkpoint/json.h"

extern const char hpi_weights_index_name[];  /* "model.safetensors.index.json" */
extern const char hpi_weights_single_name[]; /* "model.safetensors" */

typedef struct hpi_weights_entry {
    const char *tensor;
    uint64_t file; /* number in `files` */
} hpi_weights_entry;

typedef struct hpi_weights_index {
    char *text;
    hpi_json json;
    const char **files; /* in the order of the alphabet */
    uint64_t n_files;
    hpi_weights_entry *entries; /* by tensor */
    uint64_t n_entries;
} hpi_weights_index;

/* Read and check a file. Errors: FILE, FORMAT naming it and the tensor. */
hp_status hpi_weights_index_open(const char *path, hpi_weights_index *out_index);
/* The same of a text that begins with n_bytes of hpi_alloc memory, one more than n_bytes long,
 * which the index owns from now on, whatever comes. `path` is for errors. */
hp_status hpi_weights_index_parse(const char *path, char *text, uint64_t n_bytes,
                                  hpi_weights_index *out_index);
/* The number of a tensor's entry; n_entries when there is none. */
uint64_t hpi_weights_index_find(const hpi_weights_index *index, const char *tensor);
void hpi_weights_index_close(hpi_weights_index *index);

/* "model-00001-of-00003.safetensors", counted from 0 here; of one file "model.safetensors". */
enum { HPI_WEIGHTS_NAME_BYTES = 64 };
void hpi_weights_file_name(uint64_t file, uint64_t n_files, char *out_name);
/* Is it a name that hpi_weights_file_name could give, or the index's? */
bool hpi_weights_is_ours(const char *name);

#endif
