/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/plan.c - tensors in order, cut into files, each with its header.
 */
#include "plan.h"
#include "index.h"

#include <inttypes.h>

/* The whole parameter; floating ones in the dtype of the file, others in their own. */
static hpi_tensor tensor_of(const hpi_part *part, hp_dtype dtype) {
    const hpi_param *p = part->param;
    hpi_tensor tensor = {.name = part->name,
                         .dtype = hpi_dtype_is_float(p->master) ? dtype : p->master,
                         .n_dims = p->n_dims};
    for (int d = 0; d < p->n_dims; d++)
        tensor.shape[d] = (uint64_t)p->shape[d];
    tensor.n_bytes = p->layout.n_elements * hp_dtype_size(tensor.dtype);
    return tensor;
}

static hp_status list_tensors(hpi_weights_plan *plan, hp_dtype dtype) {
    const uint64_t n = plan->parts.n;
    plan->tensors = hpi_alloc(n, sizeof *plan->tensors);
    plan->part_of = hpi_alloc(n, sizeof *plan->part_of);
    plan->files = hpi_alloc(n, sizeof *plan->files);
    if (!plan->tensors || !plan->part_of || !plan->files)
        return HP_ERR_MEMORY;
    for (size_t bytes = 8; bytes; bytes /= 2)
        for (uint64_t i = 0; i < n; i++) {
            const hpi_tensor tensor = tensor_of(&plan->parts.list[i], dtype);
            if (hp_dtype_size(tensor.dtype) != bytes)
                continue;
            plan->tensors[plan->n_tensors] = tensor;
            plan->part_of[plan->n_tensors++] = &plan->parts.list[i];
            plan->n_bytes += tensor.n_bytes;
        }
    return HP_OK;
}

/* A tensor larger than a file may be gets one of its own; without tensors there is one file. */
static void cut_files(hpi_weights_plan *plan, uint64_t max_file_bytes) {
    hpi_weights_file *file = plan->files;
    for (uint64_t i = 0; i < plan->n_tensors; i++) {
        const uint64_t n_bytes = plan->tensors[i].n_bytes;
        if (file->n_bytes && n_bytes > max_file_bytes - hpi_min(max_file_bytes, file->n_bytes)) {
            file++;
            file->first = i;
        }
        file->end = i + 1;
        file->n_bytes += n_bytes;
    }
    plan->n_files = (uint64_t)(file - plan->files) + 1;
}

static hp_status make_headers(hpi_weights_plan *plan) {
    char name[HPI_WEIGHTS_NAME_BYTES];
    for (uint64_t f = 0; f < plan->n_files; f++) {
        hpi_weights_file *file = &plan->files[f];
        hpi_weights_file_name(f, plan->n_files, name);
        HP_TRY(hpi_safetensors_header(name, plan->tensors + file->first, file->end - file->first,
                                      &file->header));
        file->n_bytes += sizeof(uint64_t) + file->header.n_bytes;
    }
    return HP_OK;
}

static hp_status make(hpi_weights_plan *plan, hp_dtype dtype, uint64_t max_file_bytes) {
    HP_TRY(list_tensors(plan, dtype));
    cut_files(plan, max_file_bytes);
    return make_headers(plan);
}

hp_status hpi_weights_plan_make(const hp_fsdp *fsdp, hp_dtype dtype, uint64_t max_file_bytes,
                                hpi_weights_plan *out_plan) {
    hpi_weights_plan plan = {0};
    HP_TRY(hpi_parts_make(fsdp, NULL, &plan.parts));
    const hp_status status = make(&plan, dtype, max_file_bytes);
    if (status < 0)
        hpi_weights_plan_free(&plan);
    else
        *out_plan = plan;
    return status;
}

hp_status hpi_weights_plan_index(const hpi_weights_plan *plan, hpi_text *out_text) {
    hpi_text text = {0};
    char name[HPI_WEIGHTS_NAME_BYTES];
    hpi_text_add(&text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n",
                 plan->n_bytes);
    hpi_text_add(&text, "  \"weight_map\": {");
    for (uint64_t f = 0; f < plan->n_files; f++) {
        hpi_weights_file_name(f, plan->n_files, name);
        for (uint64_t i = plan->files[f].first; i < plan->files[f].end; i++) {
            hpi_text_add(&text, "%s\n    \"", i ? "," : "");
            hpi_text_add_escaped(&text, plan->tensors[i].name);
            hpi_text_add(&text, "\": \"%s\"", name);
        }
    }
    hpi_text_add(&text, "\n  }\n}\n");
    if (text.is_failed) {
        hpi_text_free(&text);
        return HP_ERR_MEMORY;
    }
    *out_text = text;
    return HP_OK;
}

void hpi_weights_plan_free(hpi_weights_plan *plan) {
    for (uint64_t f = 0; f < plan->n_files; f++)
        hpi_text_free(&plan->files[f].header);
    hpi_free(plan->files);
    hpi_free(plan->part_of);
    hpi_free(plan->tensors);
    hpi_parts_free(&plan->parts);
    *plan = (hpi_weights_plan){0};
}
