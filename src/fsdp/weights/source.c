/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/source.c - finding the files of a model, opening all, and holding the index to them.
 */
#include "source.h"
#include "../checkpoint/files.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- the index and the files say the same ---------------------------------------------------- */

static hp_status check_entry(const hpi_weights_source *source, const hpi_weights_entry *entry) {
    const hpi_safetensors *file = &source->files[entry->file];
    if (hpi_safetensors_find(file, entry->tensor))
        return HP_OK;
    return HPI_FAIL(HP_ERR_FORMAT,
                    "%s: tensor \"%s\": expected in %s, which holds none of that name",
                    source->path, entry->tensor, file->path);
}

static hp_status check_tensor(const hpi_weights_source *source, uint64_t file, const char *tensor) {
    const hpi_weights_index *index = &source->index;
    const uint64_t at = hpi_weights_index_find(index, tensor);
    if (at == index->n_entries)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: tensor \"%s\": expected those alone that %s names, found one more",
                        source->files[file].path, tensor, source->path);
    if (index->entries[at].file != file)
        return HPI_FAIL(
            HP_ERR_FORMAT, "%s: tensor \"%s\": expected in %s alone, as %s says, found here too",
            source->files[file].path, tensor, index->files[index->entries[at].file], source->path);
    return HP_OK;
}

static hp_status check_index(const hpi_weights_source *source) {
    for (uint64_t i = 0; i < source->index.n_entries; i++)
        HP_TRY(check_entry(source, &source->index.entries[i]));
    for (uint64_t f = 0; f < source->n_files; f++)
        for (uint64_t i = 0; i < source->files[f].n_tensors; i++)
            HP_TRY(check_tensor(source, f, source->files[f].tensors[i].name));
    return HP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static hp_status open_single(hpi_weights_source *source, const char *path) {
    source->path = hpi_strdup(path);
    source->files = hpi_alloc(1, sizeof *source->files);
    if (!source->path || !source->files)
        return HP_ERR_MEMORY;
    HP_TRY(hpi_safetensors_open(path, source->files));
    source->n_files = 1;
    return HP_OK;
}

static hp_status open_named(hpi_weights_source *source, const char *directory, const char *name) {
    char *path = hpi_path_join(directory, name);
    const hp_status status =
        path ? hpi_safetensors_open(path, &source->files[source->n_files]) : HP_ERR_MEMORY;
    hpi_free(path);
    source->n_files += status == HP_OK;
    return status;
}

static hp_status open_index(hpi_weights_source *source, const char *directory) {
    source->path = hpi_path_join(directory, hpi_weights_index_name);
    if (!source->path)
        return HP_ERR_MEMORY;
    HP_TRY(hpi_weights_index_open(source->path, &source->index));
    source->files = hpi_alloc(source->index.n_files, sizeof *source->files);
    if (!source->files)
        return HP_ERR_MEMORY;
    for (uint64_t i = 0; i < source->index.n_files; i++)
        HP_TRY(open_named(source, directory, source->index.files[i]));
    return check_index(source);
}

static hp_status open_directory(hpi_weights_source *source, const char *directory) {
    char *single = hpi_path_join(directory, hpi_weights_single_name);
    if (!single)
        return HP_ERR_MEMORY;
    const hp_status status =
        access(single, F_OK) == 0 ? open_single(source, single) : open_index(source, directory);
    hpi_free(single);
    return status;
}

hp_status hpi_weights_source_open(const char *path, hpi_weights_source *out_source) {
    struct stat about;
    hpi_weights_source source = {0};
    const bool is_directory = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    const hp_status status =
        is_directory ? open_directory(&source, path) : open_single(&source, path);
    if (status < 0)
        hpi_weights_source_close(&source);
    else
        *out_source = source;
    return status;
}

const hpi_tensor *hpi_weights_source_find(const hpi_weights_source *source, const char *name,
                                          const hpi_safetensors **out_file) {
    uint64_t file = 0;
    if (source->index.n_entries) {
        const uint64_t at = hpi_weights_index_find(&source->index, name);
        if (at == source->index.n_entries)
            return NULL;
        file = source->index.entries[at].file;
    } else if (!source->n_files) {
        return NULL; /* an index without tensors */
    }
    *out_file = &source->files[file];
    return hpi_safetensors_find(*out_file, name);
}

void hpi_weights_source_close(hpi_weights_source *source) {
    for (uint64_t i = 0; i < source->n_files; i++)
        hpi_safetensors_close(&source->files[i]);
    hpi_free(source->files);
    hpi_weights_index_close(&source->index);
    hpi_free(source->path);
    *source = (hpi_weights_source){0};
}
