/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/index.c - model.safetensors.index.json, read distrustfully, and the names of its files.
 *
 * Files are numbered by sorting the names that the map gives and dropping repetitions, so a map of
 * many tensors and many files is read in n log n.
 */
#include "index.h"
#include "../checkpoint/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

const char hpi_weights_index_name[] = "model.safetensors.index.json";
const char hpi_weights_single_name[] = "model.safetensors";
static const uint64_t most_index_bytes = UINT64_C(1) << 28;

/* ---- names ----------------------------------------------------------------------------------- */

void hpi_weights_file_name(uint64_t file, uint64_t n_files, char *out_name) {
    if (n_files == 1)
        snprintf(out_name, HPI_WEIGHTS_NAME_BYTES, "%s", hpi_weights_single_name);
    else
        snprintf(out_name, HPI_WEIGHTS_NAME_BYTES,
                 "model-%05" PRIu64 "-of-%05" PRIu64 ".safetensors", file + 1, n_files);
}

bool hpi_weights_is_ours(const char *name) {
    uint64_t file, n_files;
    char expected[HPI_WEIGHTS_NAME_BYTES];
    if (strcmp(name, hpi_weights_index_name) == 0 || strcmp(name, hpi_weights_single_name) == 0)
        return true;
    if (sscanf(name, "model-%20" SCNu64 "-of-%20" SCNu64 ".", &file, &n_files) != 2 || n_files < 2)
        return false;
    hpi_weights_file_name(file - 1, n_files, expected);
    return strcmp(name, expected) == 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const hpi_weights_entry *)a)->tensor, ((const hpi_weights_entry *)b)->tensor);
}

/* All names of files, sorted, each once. */
static hp_status collect_files(const char *path, hpi_weights_index *index, hpi_json_at map) {
    const hpi_json *json = &index->json;
    for (hpi_json_at key = hpi_json_first(json, map); key != HPI_JSON_NONE;
         key = hpi_json_next(json, map, key)) {
        const char *name = hpi_json_string(json, key + 1);
        if (!hpi_is_plain_name(name))
            return HPI_FAIL(HP_ERR_FORMAT,
                            "%s: tensor \"%s\": expected the plain name of a file beside the "
                            "index, found \"%s\"",
                            path, hpi_json_string(json, key), name ? name : "");
        index->files[index->n_files++] = name;
    }
    qsort(index->files, index->n_files, sizeof *index->files, compare_texts);
    uint64_t n = 0;
    for (uint64_t i = 0; i < index->n_files; i++)
        if (n == 0 || strcmp(index->files[n - 1], index->files[i]) != 0)
            index->files[n++] = index->files[i];
    index->n_files = n;
    return HP_OK;
}

static hp_status collect_entries(const char *path, hpi_weights_index *index, hpi_json_at map) {
    const hpi_json *json = &index->json;
    for (hpi_json_at key = hpi_json_first(json, map); key != HPI_JSON_NONE;
         key = hpi_json_next(json, map, key)) {
        const char *name = hpi_json_string(json, key + 1);
        const char **file =
            bsearch(&name, index->files, index->n_files, sizeof name, compare_texts);
        index->entries[index->n_entries++] =
            (hpi_weights_entry){hpi_json_string(json, key), (uint64_t)(file - index->files)};
    }
    qsort(index->entries, index->n_entries, sizeof *index->entries, compare_entries);
    for (uint64_t i = 1; i < index->n_entries; i++)
        if (compare_entries(&index->entries[i - 1], &index->entries[i]) == 0)
            return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected once, found twice", path,
                            index->entries[i].tensor);
    return HP_OK;
}

static hp_status parse(const char *path, hpi_weights_index *index, uint64_t n_bytes) {
    HP_TRY(hpi_json_parse(path, index->text, n_bytes, &index->json));
    const hpi_json_at map = hpi_json_find(&index->json, 0, "weight_map");
    if (!hpi_json_is(&index->json, map, HPI_JSON_OBJECT))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected a weight_map from tensors to files", path);
    const uint32_t n = hpi_json_size(&index->json, map);
    index->files = hpi_alloc(n, sizeof *index->files);
    index->entries = hpi_alloc(n, sizeof *index->entries);
    if (!index->files || !index->entries)
        return HP_ERR_MEMORY;
    HP_TRY(collect_files(path, index, map));
    return collect_entries(path, index, map);
}

hp_status hpi_weights_index_parse(const char *path, char *text, uint64_t n_bytes,
                                  hpi_weights_index *out_index) {
    hpi_weights_index index = {.text = text};
    const hp_status status = parse(path, &index, n_bytes);
    if (status < 0)
        hpi_weights_index_close(&index);
    else
        *out_index = index;
    return status;
}

hp_status hpi_weights_index_open(const char *path, hpi_weights_index *out_index) {
    char *text;
    uint64_t n_bytes;
    HP_TRY(hpi_file_read_text(path, most_index_bytes, &text, &n_bytes));
    return hpi_weights_index_parse(path, text, n_bytes, out_index);
}

uint64_t hpi_weights_index_find(const hpi_weights_index *index, const char *tensor) {
    const hpi_weights_entry key = {.tensor = tensor};
    const hpi_weights_entry *entry =
        index->n_entries
            ? bsearch(&key, index->entries, index->n_entries, sizeof key, compare_entries)
            : NULL;
    return entry ? (uint64_t)(entry - index->entries) : index->n_entries;
}

void hpi_weights_index_close(hpi_weights_index *index) {
    hpi_free(index->entries);
    hpi_free(index->files);
    hpi_json_free(&index->json);
    hpi_free(index->text);
    *index = (hpi_weights_index){0};
}
