/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/save.c - the shards as files that other programs read.
 *
 * World rank 0 makes the directory, the files in their full size with their headers, and all that
 * stands beside; then the ranks of replica 0 write their shards into them, a block at a time, so no
 * rank holds a whole tensor; and when all have succeeded rank 0 exchanges the directory for the old
 * one.
 */
#include "../checkpoint/files.h"
#include "../checkpoint/together.h"
#include "../together/between.h"
#include "directory.h"
#include "index.h"
#include "write.h"

#include <endian.h>

struct save {
    const hp_fsdp *fsdp;
    hp_weights_config config;
    const char *path; /* as it was given */
    hpi_weights_plan plan;
    hpi_weights_directory directory;
    hpi_weights_writer writer;
};

/* ---- what was asked for ---------------------------------------------------------------------- */

static hp_status check_file(const hp_weights_config *config, int i) {
    const char *name = config->file_names[i];
    if (!hpi_is_plain_name(name) || hpi_weights_is_ours(name))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "hp_weights_save: expected plain names of files beside the weights, given "
                        "\"%s\"",
                        name ? name : "");
    if (!config->file_texts[i])
        return HPI_FAIL(HP_ERR_ARGUMENT, "hp_weights_save: expected a text for file %s, given none",
                        name);
    for (int j = 0; j < i; j++)
        if (strcmp(config->file_names[j], name) == 0)
            return HPI_FAIL(HP_ERR_ARGUMENT, "hp_weights_save: expected file %s once, given twice",
                            name);
    return HP_OK;
}

static hp_status check_config(const hp_weights_config *config) {
    if (config->size != sizeof *config)
        return HPI_FAIL(HP_ERR_VERSION,
                        "hp_weights_save: expected a config of %zu bytes, given %zu; build against "
                        "the headers of this library",
                        sizeof *config, config->size);
    if (config->dtype != HP_FP32 && config->dtype != HP_BF16 && config->dtype != HP_FP16)
        return HPI_FAIL(HP_ERR_ARGUMENT, "hp_weights_save: expected fp32, bf16 or fp16, given %s",
                        hp_dtype_name(config->dtype));
    if (config->max_file_bytes == 0)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "hp_weights_save: expected max_file_bytes above 0, given 0");
    if (config->n_files < 0 ||
        (config->n_files > 0 && (!config->file_names || !config->file_texts)))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "hp_weights_save: expected names and texts of %d files, given none",
                        config->n_files);
    for (int i = 0; i < config->n_files; i++)
        HP_TRY(check_file(config, i));
    return HP_OK;
}

static hp_status check_arguments(const char *directory, const hp_weights_config *config) {
    if (!directory || !*directory)
        return HPI_FAIL(HP_ERR_ARGUMENT, "hp_weights_save: expected a directory, given none");
    return check_config(config);
}

/* Equal on ranks that ask for the same files. */
static uint64_t fingerprint(const hp_weights_config *config) {
    uint64_t sum[] = {(uint64_t)config->dtype, config->max_file_bytes, (uint64_t)config->n_files,
                      0};
    for (int i = 0; i < config->n_files; i++) {
        const char *name = config->file_names[i], *text = config->file_texts[i];
        const uint64_t file[] = {sum[3], hpi_checksum(name, strlen(name)),
                                 hpi_checksum(text, strlen(text))};
        sum[3] = hpi_checksum(file, sizeof file);
    }
    return hpi_checksum(sum, sizeof sum);
}

static hp_status meet(const struct save *save, uint64_t *out_token) {
    const uint64_t mine = fingerprint(&save->config);
    uint64_t first = mine;
    HP_TRY(hpi_token(save->fsdp, out_token));
    HP_TRY(hpi_tell(save->fsdp, &first, sizeof first, 0));
    if (first != mine)
        return HPI_FAIL(HP_ERR_MISMATCH,
                        "hp_weights_save: expected the configuration of rank 0 (dtype, "
                        "max_file_bytes, files beside), given another");
    return HP_OK;
}

/* ---- what rank 0 makes ----------------------------------------------------------------------- */

static bool is_replaced(const void *context, const char *name) {
    const hp_weights_config *config = context;
    for (int i = 0; i < config->n_files; i++)
        if (strcmp(config->file_names[i], name) == 0)
            return true;
    return hpi_weights_is_ours(name);
}

static hp_status make_text(const struct save *save, const char *name, const char *text,
                           uint64_t n_bytes) {
    const struct iovec part = {(void *)(uintptr_t)text, n_bytes};
    char *path = hpi_path_join(save->directory.hidden, name);
    const hp_status status = path ? hpi_file_create(path, &part, 1) : HP_ERR_MEMORY;
    hpi_free(path);
    return status;
}

static hp_status make_index(const struct save *save) {
    hpi_text text;
    if (save->plan.n_files == 1)
        return HP_OK;
    HP_TRY(hpi_weights_plan_index(&save->plan, &text));
    const hp_status status = make_text(save, hpi_weights_index_name, text.data, text.n_bytes);
    hpi_text_free(&text);
    return status;
}

static char *path_of(const struct save *save, uint64_t file) {
    char name[HPI_WEIGHTS_NAME_BYTES];
    hpi_weights_file_name(file, save->plan.n_files, name);
    return hpi_path_join(save->directory.hidden, name);
}

static hp_status make_file(const struct save *save, uint64_t f) {
    const hpi_weights_file *file = &save->plan.files[f];
    const uint64_t size = htole64(file->header.n_bytes);
    const struct iovec parts[] = {{(void *)(uintptr_t)&size, sizeof size},
                                  {file->header.data, file->header.n_bytes}};
    char *path = path_of(save, f);
    const hp_status status = path ? hpi_file_reserve(path, parts, 2, file->n_bytes) : HP_ERR_MEMORY;
    hpi_free(path);
    return status;
}

static hp_status make_files(const struct save *save) {
    const hp_weights_config *config = &save->config;
    HP_TRY(hpi_weights_directory_begin(&save->directory, is_replaced, config));
    for (int i = 0; i < config->n_files; i++)
        HP_TRY(make_text(save, config->file_names[i], config->file_texts[i],
                         strlen(config->file_texts[i])));
    HP_TRY(make_index(save));
    for (uint64_t f = 0; f < save->plan.n_files; f++)
        HP_TRY(make_file(save, f));
    return HP_OK;
}

static hp_status prepare(struct save *save, hp_status met, uint64_t token) {
    HP_TRY(met);
    HP_TRY(hpi_weights_writer_make(save->fsdp, &save->plan, &save->writer));
    HP_TRY(hpi_weights_plan_make(save->fsdp, save->config.dtype, save->config.max_file_bytes,
                                 &save->plan));
    HP_TRY(hpi_weights_directory_name(save->path, token, &save->directory));
    return hp_world_rank(save->fsdp->world) == 0 ? make_files(save) : HP_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

static hp_status save_all(struct save *save) {
    const hp_fsdp *fsdp = save->fsdp;
    const bool is_first = hp_world_rank(fsdp->world) == 0;
    uint64_t token = 0;
    const hp_status met = meet(save, &token);
    HP_TRY(hpi_agree(fsdp, prepare(save, met, token)));
    const bool is_writer = fsdp->replica_rank == 0;
    HP_TRY(hpi_agree(fsdp,
                     is_writer ? hpi_weights_write(&save->writer, save->directory.hidden) : HP_OK));
    return hpi_agree(fsdp, is_first ? hpi_weights_directory_publish(&save->directory) : HP_OK);
}

hp_status hp_weights_save(hp_fsdp *fsdp, const char *directory, const hp_weights_config *config) {
    const hp_weights_config usual = HP_WEIGHTS_CONFIG_INIT;
    HP_TRY(hpi_fsdp_check_idle(fsdp, __func__));
    HP_TRY(hpi_fsdp_check_real(fsdp, __func__));
    /* Together, so that nobody waits for the one refused. */
    HP_TRY(hpi_agree(fsdp, check_arguments(directory, config ? config : &usual)));
    const uint64_t began_ns = hpi_now_ns();
    struct save save = {.fsdp = fsdp, .config = config ? *config : usual, .path = directory};
    const hp_status status = save_all(&save);
    if (status < 0 && hp_world_rank(fsdp->world) == 0)
        hpi_weights_directory_abandon(&save.directory);
    hpi_weights_directory_free(&save.directory);
    hpi_weights_plan_free(&save.plan);
    hpi_weights_writer_free(&save.writer);
    hpi_fsdp_trace(fsdp, hpi_span_checkpoint, began_ns, save.writer.n_written_bytes);
    return status;
}
