/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/safetensors.h - files of named tensors, as Hugging Face's safetensors defines
 * them.
 *
 * A file is the size of the header (8 bytes, little endian), the header (JSON: name -> dtype,
 * shape, data_offsets; "__metadata__" -> strings), then the tensors' bytes, row-major and little
 * endian, without gaps. Those of checkpoints have an XXH3 of each tensor in the metadata. A file
 * that is opened has been checked: sizes agree with the file's, the tensors tile the data, no name
 * comes twice.
 * Source: github.com/huggingface/safetensors, "Format".
 */
#ifndef HPI_SAFETENSORS_H
#define HPI_SAFETENSORS_H

#include "json.h"
#include <hyperparallel/fsdp.h>

typedef struct hpi_tensor {
    const char *name;
    hp_dtype dtype;
    int n_dims;
    uint64_t shape[HP_MAX_DIMS];
    uint64_t n_bytes;  /* of all elements */
    const void *data;  /* to write */
    uint64_t offset;   /* in the file */
    uint64_t checksum; /* what it should be */
    bool has_checksum; /* files of others have none */
} hpi_tensor;

/* "F32", "BF16" ...; NULL is no dtype of ours. */
const char *hpi_safetensors_dtype_name(hp_dtype dtype);
bool hpi_safetensors_dtype_parse(const char *name, hp_dtype *out_dtype);

/* The header of a file that holds these tensors in this order; each gets its offset. Larger
 * elements should come first, so that each tensor is aligned. `path` is for errors: FILE when the
 * header is too large, ARGUMENT for the name "__metadata__". The caller frees the text. */
hp_status hpi_safetensors_header(const char *path, hpi_tensor *tensors, uint64_t n_tensors,
                                 hpi_text *out_header);
/* Write and sync a file that does not exist yet, with checksums; a failure leaves none. Larger
 * elements come first, so each tensor is aligned. Errors: FILE naming the path, ARGUMENT for the
 * name "__metadata__". */
hp_status hpi_safetensors_write(const char *path, const hpi_tensor *tensors, uint64_t n_tensors);

typedef struct hpi_safetensors {
    char *path;
    int fd;
    char *header;
    hpi_json json;
    hpi_tensor *tensors; /* by name; names lie in `header` */
    uint64_t n_tensors;
} hpi_safetensors;

/* Errors: FILE, FORMAT naming file and tensor. On failure nothing is left open. */
hp_status hpi_safetensors_open(const char *path, hpi_safetensors *out_file);
const hpi_tensor *hpi_safetensors_find(const hpi_safetensors *file, const char *name);
/* All of a tensor, checked against its checksum when it has one. Errors: FILE, FORMAT. */
hp_status hpi_safetensors_read(const hpi_safetensors *file, const hpi_tensor *tensor, void *out);
void hpi_safetensors_close(hpi_safetensors *file);

#endif
