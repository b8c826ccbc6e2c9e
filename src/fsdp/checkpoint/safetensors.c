/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors.c - writing and, distrustfully, reading safetensors.
 *
 * A reader believes nothing: the header's size is checked against the file's before memory is
 * taken, each shape against its offsets, and the offsets against each other, so that a tensor that
 * was found can be read without another look.
 */
#include "safetensors.h"
#include "files.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const uint64_t most_header_bytes = 100000000; /* the format's own limit */
static const char metadata_key[] = "__metadata__";
static const char checksum_prefix[] = "xxh3.";

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are stored as they lie in memory");

static const char *const dtype_names[] = {
    [HP_FP64] = "F64",  [HP_FP32] = "F32",  [HP_FP16] = "F16", [HP_BF16] = "BF16",
    [HP_INT64] = "I64", [HP_INT32] = "I32", [HP_INT8] = "I8",  [HP_UINT8] = "U8",
};
enum { N_DTYPES = sizeof dtype_names / sizeof *dtype_names };

const char *hpi_safetensors_dtype_name(hp_dtype dtype) {
    return (unsigned)dtype < N_DTYPES ? dtype_names[dtype] : NULL;
}

bool hpi_safetensors_dtype_parse(const char *name, hp_dtype *out_dtype) {
    for (int i = 0; name && i < N_DTYPES; i++)
        if (strcmp(dtype_names[i], name) == 0) {
            *out_dtype = (hp_dtype)i;
            return true;
        }
    return false;
}

/* ---- writing ------------------------------------------------------------------------------- */

static void add_metadata(hpi_text *text, const hpi_tensor *tensors, uint64_t n) {
    hpi_text_add(text, "{\"%s\":{\"format\":\"pt\"", metadata_key);
    for (uint64_t i = 0; i < n; i++) {
        if (!tensors[i].has_checksum)
            continue;
        hpi_text_add(text, ",\"%s", checksum_prefix);
        hpi_text_add_escaped(text, tensors[i].name);
        hpi_text_add(text, "\":\"%016llx\"", (unsigned long long)tensors[i].checksum);
    }
    hpi_text_add(text, "}");
}

static void add_tensor(hpi_text *text, const hpi_tensor *tensor, uint64_t begin) {
    hpi_text_add(text, ",\"");
    hpi_text_add_escaped(text, tensor->name);
    hpi_text_add(text, "\":{\"dtype\":\"%s\",\"shape\":[", dtype_names[tensor->dtype]);
    for (int d = 0; d < tensor->n_dims; d++)
        hpi_text_add(text, "%s%llu", d ? "," : "", (unsigned long long)tensor->shape[d]);
    hpi_text_add(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                 (unsigned long long)(begin + tensor->n_bytes));
}

/* Padded with spaces so that the data begin at a multiple of 8. */
static hp_status make_header(const char *path, const hpi_tensor *tensors, uint64_t n,
                             hpi_text *text) {
    uint64_t begin = 0;
    add_metadata(text, tensors, n);
    for (uint64_t i = 0; i < n; begin += tensors[i++].n_bytes)
        add_tensor(text, &tensors[i], begin);
    hpi_text_add(text, "}");
    hpi_text_add(text, "%*s", (int)(hpi_align_up(text->n_bytes, 8) - text->n_bytes), "");
    if (text->is_failed)
        return HP_ERR_MEMORY;
    if (text->n_bytes > most_header_bytes)
        return HPI_FAIL(HP_ERR_FILE, "%s: expected a header of at most %llu bytes, needed %llu",
                        path, (unsigned long long)most_header_bytes,
                        (unsigned long long)text->n_bytes);
    return HP_OK;
}

hp_status hpi_safetensors_header(const char *path, hpi_tensor *tensors, uint64_t n_tensors,
                                 hpi_text *out_header) {
    hpi_text header = {0};
    for (uint64_t i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, metadata_key) == 0)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected parameter names other than \"%s\", which the file format "
                            "keeps for itself",
                            metadata_key);
    const hp_status status = make_header(path, tensors, n_tensors, &header);
    if (status < 0) {
        hpi_text_free(&header);
        return status;
    }
    uint64_t next = sizeof(uint64_t) + header.n_bytes;
    for (uint64_t i = 0; i < n_tensors; next += tensors[i++].n_bytes)
        tensors[i].offset = next;
    *out_header = header;
    return HP_OK;
}

/* A copy with checksums, larger elements first, else in the given order. */
static hpi_tensor *order_tensors(const hpi_tensor *tensors, uint64_t n) {
    hpi_tensor *ordered = hpi_alloc(n, sizeof *ordered);
    uint64_t next = 0;
    for (size_t bytes = 8; ordered && bytes; bytes /= 2)
        for (uint64_t i = 0; i < n; i++)
            if (hp_dtype_size(tensors[i].dtype) == bytes) {
                ordered[next] = tensors[i];
                ordered[next].checksum = hpi_checksum(tensors[i].data, tensors[i].n_bytes);
                ordered[next++].has_checksum = true;
            }
    return ordered;
}

hp_status hpi_safetensors_write(const char *path, const hpi_tensor *tensors, uint64_t n_tensors) {
    hp_status status = HP_ERR_MEMORY;
    hpi_text header = {0};
    uint64_t size = 0;
    hpi_tensor *ordered = order_tensors(tensors, n_tensors);
    struct iovec *parts = hpi_alloc(n_tensors + 2, sizeof *parts);
    if (!ordered || !parts)
        goto out;
    status = hpi_safetensors_header(path, ordered, n_tensors, &header);
    if (status < 0)
        goto out;
    size = htole64(header.n_bytes);
    parts[0] = (struct iovec){&size, sizeof size};
    parts[1] = (struct iovec){header.data, header.n_bytes};
    for (uint64_t i = 0; i < n_tensors; i++)
        parts[i + 2] = (struct iovec){(void *)(uintptr_t)ordered[i].data, ordered[i].n_bytes};
    status = hpi_file_create(path, parts, n_tensors + 2);
out:
    hpi_free(parts);
    hpi_free(ordered);
    hpi_text_free(&header);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------- */

static hp_status read_header(hpi_safetensors *file, uint64_t file_bytes, uint64_t *out_bytes) {
    uint64_t n_bytes;
    if (file_bytes < sizeof n_bytes)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected 8 bytes or more, found %llu", file->path,
                        (unsigned long long)file_bytes);
    HP_TRY(hpi_file_read(file->fd, file->path, 0, &n_bytes, sizeof n_bytes));
    n_bytes = le64toh(n_bytes);
    if (n_bytes > most_header_bytes || n_bytes > file_bytes - sizeof n_bytes)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: expected a header of at most %llu bytes and inside the file of %llu, "
                        "it claims %llu",
                        file->path, (unsigned long long)most_header_bytes,
                        (unsigned long long)file_bytes, (unsigned long long)n_bytes);
    file->header = hpi_alloc(n_bytes + 1, 1);
    if (!file->header)
        return HP_ERR_MEMORY;
    *out_bytes = n_bytes;
    return hpi_file_read(file->fd, file->path, sizeof n_bytes, file->header, n_bytes);
}

/* Shape and byte count of a tensor's entry; false when they are no numbers or do not fit. */
static bool parse_shape(const hpi_json *json, hpi_json_at entry, hpi_tensor *tensor) {
    const hpi_json_at shape = hpi_json_find(json, entry, "shape");
    tensor->n_bytes = hp_dtype_size(tensor->dtype);
    if (!hpi_json_is(json, shape, HPI_JSON_ARRAY) || hpi_json_size(json, shape) > HP_MAX_DIMS)
        return false;
    hpi_json_at at = hpi_json_first(json, shape);
    for (; at != HPI_JSON_NONE; at = hpi_json_next(json, shape, at)) {
        uint64_t *size = &tensor->shape[tensor->n_dims++];
        if (!hpi_json_u64(json, at, size) ||
            !hpi_multiply(tensor->n_bytes, *size, &tensor->n_bytes))
            return false;
    }
    return true;
}

static bool parse_offsets(const hpi_json *json, hpi_json_at entry, uint64_t *out_begin,
                          uint64_t *out_end) {
    const hpi_json_at offsets = hpi_json_find(json, entry, "data_offsets");
    if (!hpi_json_is(json, offsets, HPI_JSON_ARRAY) || hpi_json_size(json, offsets) != 2)
        return false;
    return hpi_json_u64(json, offsets + 1, out_begin) && hpi_json_u64(json, offsets + 2, out_end) &&
           *out_begin <= *out_end;
}

static hp_status parse_tensor(hpi_safetensors *file, hpi_json_at key, uint64_t data_begin,
                              hpi_tensor *tensor) {
    uint64_t begin, end;
    const hpi_json *json = &file->json;
    tensor->name = hpi_json_string(json, key);
    const char *dtype = hpi_json_string(json, hpi_json_find(json, key + 1, "dtype"));
    if (!hpi_safetensors_dtype_parse(dtype, &tensor->dtype))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected a dtype such as F32, found %s",
                        file->path, tensor->name, dtype ? dtype : "none");
    if (!parse_shape(json, key + 1, tensor))
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: tensor \"%s\": expected a shape of at most %d sizes, whose "
                        "product in bytes fits into 64 bits",
                        file->path, tensor->name, HP_MAX_DIMS);
    if (!parse_offsets(json, key + 1, &begin, &end) || end - begin != tensor->n_bytes)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: tensor \"%s\": expected data_offsets [begin, end] that span the "
                        "%llu bytes of its shape",
                        file->path, tensor->name, (unsigned long long)tensor->n_bytes);
    tensor->offset = data_begin + begin;
    return HP_OK;
}

static hp_status parse_tensors(hpi_safetensors *file, uint64_t data_begin) {
    const hpi_json *json = &file->json;
    file->tensors = hpi_alloc(hpi_json_size(json, 0), sizeof *file->tensors);
    if (!file->tensors)
        return HP_ERR_MEMORY;
    for (hpi_json_at key = hpi_json_first(json, 0); key != HPI_JSON_NONE;
         key = hpi_json_next(json, 0, key))
        if (strcmp(hpi_json_string(json, key), metadata_key) != 0)
            HP_TRY(parse_tensor(file, key, data_begin, &file->tensors[file->n_tensors++]));
    return HP_OK;
}

static int compare_offsets(const void *a, const void *b) {
    const hpi_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes); /* empty ones first */
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const hpi_tensor *)a)->name, ((const hpi_tensor *)b)->name);
}

/* The tensors tile [data_begin, file_bytes) and have different names; leaves them by name. */
static hp_status check_tensors(hpi_safetensors *file, uint64_t data_begin, uint64_t file_bytes) {
    hpi_tensor *t = file->tensors;
    const uint64_t n = file->n_tensors;
    uint64_t next = data_begin;
    qsort(t, n, sizeof *t, compare_offsets);
    for (uint64_t i = 0; i < n; next += t[i++].n_bytes)
        if (t[i].offset != next || t[i].n_bytes > file_bytes - next)
            return HPI_FAIL(HP_ERR_FORMAT,
                            "%s: tensor \"%s\": expected its %llu bytes at %llu, with neither gap "
                            "nor overlap and inside the file of %llu, the header says %llu",
                            file->path, t[i].name, (unsigned long long)t[i].n_bytes,
                            (unsigned long long)next, (unsigned long long)file_bytes,
                            (unsigned long long)t[i].offset);
    if (next != file_bytes)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected %llu bytes, found %llu", file->path,
                        (unsigned long long)next, (unsigned long long)file_bytes);
    qsort(t, n, sizeof *t, compare_names);
    for (uint64_t i = 1; i < n; i++)
        if (compare_names(&t[i - 1], &t[i]) == 0)
            return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected once, found twice",
                            file->path, t[i].name);
    return HP_OK;
}

static bool parse_checksum(const char *text, uint64_t *out) {
    char *end = NULL;
    if (!text || strspn(text, "0123456789abcdef") != 16 || text[16])
        return false;
    *out = strtoull(text, &end, 16);
    return true;
}

/* Hand the checksums of the metadata to their tensors. */
static hp_status take_checksums(hpi_safetensors *file) {
    const hpi_json *json = &file->json;
    const size_t n_prefix = sizeof checksum_prefix - 1;
    const hpi_json_at metadata = hpi_json_find(json, 0, metadata_key);
    for (hpi_json_at key = hpi_json_first(json, metadata); key != HPI_JSON_NONE;
         key = hpi_json_next(json, metadata, key)) {
        const char *name = hpi_json_string(json, key);
        if (!name || strncmp(name, checksum_prefix, n_prefix) != 0)
            continue;
        hpi_tensor *tensor = (hpi_tensor *)(uintptr_t)hpi_safetensors_find(file, name + n_prefix);
        if (!tensor || !parse_checksum(hpi_json_string(json, key + 1), &tensor->checksum))
            return HPI_FAIL(HP_ERR_FORMAT,
                            "%s: tensor \"%s\": expected 16 hexadecimal digits for a tensor of "
                            "the file in its checksum",
                            file->path, name + n_prefix);
        tensor->has_checksum = true;
    }
    return HP_OK;
}

static hp_status load_header(hpi_safetensors *file, uint64_t file_bytes) {
    uint64_t header_bytes = 0;
    HP_TRY(read_header(file, file_bytes, &header_bytes));
    HP_TRY(hpi_json_parse(file->path, file->header, header_bytes, &file->json));
    if (!hpi_json_is(&file->json, 0, HPI_JSON_OBJECT))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected a header that is a JSON object", file->path);
    const uint64_t data_begin = sizeof header_bytes + header_bytes;
    HP_TRY(parse_tensors(file, data_begin));
    HP_TRY(check_tensors(file, data_begin, file_bytes));
    return take_checksums(file);
}

hp_status hpi_safetensors_open(const char *path, hpi_safetensors *out_file) {
    hpi_safetensors file = {.fd = -1, .path = hpi_strdup(path)};
    uint64_t file_bytes = 0;
    hp_status status = file.path ? hpi_file_open(path, &file.fd, &file_bytes) : HP_ERR_MEMORY;
    if (status == HP_OK)
        status = load_header(&file, file_bytes);
    if (status < 0)
        hpi_safetensors_close(&file);
    else
        *out_file = file;
    return status;
}

const hpi_tensor *hpi_safetensors_find(const hpi_safetensors *file, const char *name) {
    const hpi_tensor key = {.name = name};
    return file->n_tensors
               ? bsearch(&key, file->tensors, file->n_tensors, sizeof key, compare_names)
               : NULL;
}

hp_status hpi_safetensors_read(const hpi_safetensors *file, const hpi_tensor *tensor, void *out) {
    HP_TRY(hpi_file_read(file->fd, file->path, tensor->offset, out, tensor->n_bytes));
    if (tensor->has_checksum && hpi_checksum(out, tensor->n_bytes) != tensor->checksum)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: tensor \"%s\": expected the checksum %016llx, its bytes have another",
                        file->path, tensor->name, (unsigned long long)tensor->checksum);
    return HP_OK;
}

void hpi_safetensors_close(hpi_safetensors *file) {
    if (file->fd >= 0)
        close(file->fd);
    hpi_json_free(&file->json);
    hpi_free(file->tensors);
    hpi_free(file->header);
    hpi_free(file->path);
    *file = (hpi_safetensors){.fd = -1};
}
