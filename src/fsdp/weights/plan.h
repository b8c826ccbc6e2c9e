/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/weights/plan.h - which tensor goes where when weights are saved for other
 * programs.
 *
 * Pure: every rank makes the same plan without a word to others, so each knows where its intervals
 * lie. Tensors come in the order of units, larger elements first so that each is aligned; a file is
 * full when the next tensor would take it over the limit.
 */
#ifndef HPI_WEIGHTS_PLAN_H
#define HPI_WEIGHTS_PLAN_H

#include "../checkpoint/pieces.h"
#include "../checkpoint/safetensors.h"

typedef struct hpi_weights_file {
    uint64_t first, end; /* its tensors */
    uint64_t n_bytes;    /* of the whole file */
    hpi_text header;
} hpi_weights_file;

typedef struct hpi_weights_plan {
    hpi_parts parts;
    hpi_tensor *tensors;      /* whole ones; offsets are in their files */
    const hpi_part **part_of; /* tensor: what this rank holds of it */
    uint64_t n_tensors;
    hpi_weights_file *files;
    uint64_t n_files;
    uint64_t n_bytes; /* of all tensors */
} hpi_weights_plan;

/* Errors: MEMORY, and those of hpi_safetensors_header. */
hp_status hpi_weights_plan_make(const hp_fsdp *fsdp, hp_dtype dtype, uint64_t max_file_bytes,
                                hpi_weights_plan *out_plan);
/* The text of model.safetensors.index.json. Errors: MEMORY. */
hp_status hpi_weights_plan_index(const hpi_weights_plan *plan, hpi_text *out_text);
void hpi_weights_plan_free(hpi_weights_plan *plan);

#endif
