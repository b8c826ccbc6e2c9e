/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c - saving and loading: who writes and reads what, and how all ranks agree on it.
 *
 * Saving: the ranks of replica 0 write one file each of their shards (and one of optimizer state)
 * into a hidden directory, world rank 0 adds the index and, when all have succeeded, gives it its
 * name. Loading: every rank reads the pieces that overlap its own into staging memory, whatever
 * mesh wrote them, and only when all ranks have read and checked everything are weights and state
 * written.
 */
#include "../together/between.h"
#include "files.h"
#include "index.h"
#include "safetensors.h"
#include "steps.h"
#include "together.h"

#include <stdio.h>
#include <stdlib.h>

static hp_status check_arguments(const hp_fsdp *fsdp, const hp_optimizer *optimizer,
                                 const char *directory, const char *call) {
    if (!directory || !*directory)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a directory, given none", call);
    if (optimizer && optimizer->fsdp != fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected an optimizer of this fsdp, given another's",
                        call);
    return HP_OK;
}

/* Arguments that are bad on one rank are refused on all, so that nobody waits for it. */
static hp_status check_call(const hp_fsdp *fsdp, const hp_optimizer *optimizer,
                            const char *directory, const char *call) {
    HP_TRY(hpi_fsdp_check_idle(fsdp, call));
    HP_TRY(hpi_fsdp_check_real(fsdp, call));
    return hpi_agree(fsdp, check_arguments(fsdp, optimizer, directory, call));
}

/* ---- saving --------------------------------------------------------------------------------- */

/* One checkpoint on its way to the disk. */
struct save {
    const hp_fsdp *fsdp;
    const hp_optimizer *optimizer;
    const char *directory;
    uint64_t step;
    char *path; /* the hidden directory */
    hpi_parts parts;
    uint64_t n_bytes;
};

/* This rank's piece as a tensor of its own: the parameter's shape with only our rows, or a plain
 * row of elements where it is cut without regard to rows. */
static hpi_tensor tensor_of(const hp_fsdp *fsdp, const hpi_part *part) {
    const hpi_param *p = part->param;
    uint64_t begin, end;
    hpi_layout_rows(&p->layout, fsdp->shard_rank, &begin, &end);
    hpi_tensor tensor = {.name = part->name,
                         .dtype = p->master,
                         .n_dims = p->n_dims,
                         .n_bytes = part->n_bytes,
                         .data = part->data};
    if (p->layout.is_flat) {
        tensor.n_dims = 1;
        tensor.shape[0] = end - begin;
        return tensor;
    }
    for (int d = 0; d < p->n_dims; d++)
        tensor.shape[d] = d == p->shard_dim ? end - begin : (uint64_t)p->shape[d];
    return tensor;
}

static hp_status write_parts(struct save *save, const char *kind, const hpi_part *list,
                             uint64_t n) {
    char name[HPI_FILE_NAME_BYTES];
    hpi_index_file_name(kind, save->fsdp->shard_rank, save->fsdp->n_shards, name);
    char *path = hpi_path_join(save->path, name);
    hpi_tensor *tensors = hpi_alloc(n, sizeof *tensors);
    hp_status status = HP_ERR_MEMORY;
    if (path && tensors) {
        uint64_t n_tensors = 0;
        for (uint64_t i = 0; i < n; i++)
            if (hpi_part_is_written(save->fsdp, &list[i])) {
                tensors[n_tensors++] = tensor_of(save->fsdp, &list[i]);
                save->n_bytes += list[i].n_bytes;
            }
        status = hpi_safetensors_write(path, tensors, n_tensors);
    }
    hpi_free(tensors);
    hpi_free(path);
    return status;
}

static hp_status write_index(const struct save *save) {
    hpi_text text;
    HP_TRY(hpi_index_make(save->fsdp, save->optimizer, &save->parts, save->step, &text));
    char *path = hpi_path_join(save->path, "index.json");
    const struct iovec part = {text.data, text.n_bytes};
    const hp_status status = path ? hpi_file_create(path, &part, 1) : HP_ERR_MEMORY;
    hpi_free(path);
    hpi_text_free(&text);
    return status;
}

static hp_status write_files(struct save *save) {
    const hpi_parts *parts = &save->parts;
    const uint64_t n_states = parts->n - parts->n_weights;
    if (save->fsdp->replica_rank == 0) {
        HP_TRY(write_parts(save, "model", parts->list, parts->n_weights));
        if (n_states)
            HP_TRY(write_parts(save, "optimizer", parts->list + parts->n_weights, n_states));
    }
    return hp_world_rank(save->fsdp->world) == 0 ? write_index(save) : HP_OK;
}

/* The token of this save, and that all ranks save the same. */
static hp_status meet(const struct save *save, uint64_t *out_token) {
    const int64_t mine[] = {(int64_t)save->step,
                            save->optimizer ? 1 + save->optimizer->n_states : 0};
    int64_t first[] = {mine[0], mine[1]};
    HP_TRY(hpi_token(save->fsdp, out_token));
    HP_TRY(hpi_tell(save->fsdp, first, sizeof first, 0));
    if (first[0] != mine[0] || first[1] != mine[1])
        return HPI_FAIL(HP_ERR_MISMATCH,
                        "expected step %lld as on rank 0, with the same optimizer, given step %lld",
                        (long long)first[0], (long long)mine[0]);
    return HP_OK;
}

/* What has to be there before the first file. */
static hp_status prepare(struct save *save, hp_status met, uint64_t token) {
    HP_TRY(met);
    HP_TRY(hpi_parts_make(save->fsdp, save->optimizer, &save->parts));
    save->path = hpi_steps_path(save->directory, save->step, token);
    if (!save->path)
        return HP_ERR_MEMORY;
    const bool is_first = hp_world_rank(save->fsdp->world) == 0;
    return is_first ? hpi_steps_begin(save->directory, save->path) : HP_OK;
}

static hp_status save_all(struct save *save) {
    const hp_fsdp *fsdp = save->fsdp;
    const bool is_first = hp_world_rank(fsdp->world) == 0;
    uint64_t token = 0;
    const hp_status met = meet(save, &token);
    HP_TRY(hpi_agree(fsdp, prepare(save, met, token)));
    HP_TRY(hpi_agree(fsdp, write_files(save)));
    return hpi_agree(fsdp,
                     is_first ? hpi_steps_publish(save->directory, save->path, save->step) : HP_OK);
}

hp_status hp_checkpoint_save(hp_fsdp *fsdp, hp_optimizer *optimizer, const char *directory,
                             uint64_t step) {
    HP_TRY(check_call(fsdp, optimizer, directory, __func__));
    const uint64_t began_ns = hpi_now_ns();
    struct save save = {fsdp, optimizer, directory, step, NULL, {0}, 0};
    const hp_status status = save_all(&save);
    if (status < 0 && hp_world_rank(fsdp->world) == 0 && save.path)
        hpi_steps_abandon(directory, save.path);
    hpi_parts_free(&save.parts);
    hpi_free(save.path);
    hpi_fsdp_trace(fsdp, hpi_span_checkpoint, began_ns, save.n_bytes);
    return status;
}

/* ---- loading: what fits --------------------------------------------------------------------- */

/* A piece of a file that holds elements of a part of ours. */
struct job {
    uint64_t file, part;
    const hpi_entry *entry;
    hpi_piece piece;
};

/* One checkpoint on its way into memory. */
struct load {
    const hp_fsdp *fsdp;
    const hp_optimizer *optimizer;
    char *path;
    hpi_index index;
    hpi_parts parts;
    unsigned char *staging;
    uint64_t *offsets; /* of each part in the staging memory */
    struct job *jobs;
    uint64_t n_jobs;
};

static bool has_shape(const hpi_entry *entry, const hpi_param *p) {
    bool is_same = entry->n_dims == p->n_dims;
    for (int d = 0; is_same && d < p->n_dims; d++)
        is_same = entry->shape[d] == (uint64_t)p->shape[d];
    return is_same;
}

static hp_status check_entry(const struct load *load, const hpi_part *part,
                             const hpi_entry *entry) {
    const char *path = load->index.path;
    if (!entry)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected tensor \"%s\", found none of that name", path,
                        part->name);
    if (entry->dtype != part->param->master)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected %s, found %s", path, part->name,
                        hp_dtype_name(part->param->master), hp_dtype_name(entry->dtype));
    if (!has_shape(entry, part->param))
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: tensor \"%s\": expected the shape that the model has (%d dimensions, "
                        "%llu elements), found another",
                        path, part->name, part->param->n_dims,
                        (unsigned long long)part->param->layout.n_elements);
    return HP_OK;
}

/* Each of our parts is there and fits, and there is nothing else. */
static hp_status check_entries(const struct load *load, const hpi_entries *entries,
                               const hpi_part *list, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        HP_TRY(check_entry(load, &list[i], hpi_index_find(entries, list[i].name)));
    for (uint64_t e = 0; entries->n > n && e < entries->n; e++) {
        uint64_t i = 0;
        while (i < n && strcmp(list[i].name, entries->list[e].name) != 0)
            i++;
        if (i == n)
            return HPI_FAIL(HP_ERR_FORMAT,
                            "%s: tensor \"%s\": expected the model's tensors alone, found one more",
                            load->index.path, entries->list[e].name);
    }
    return HP_OK;
}

static hp_status check_fit(const struct load *load) {
    const hpi_parts *parts = &load->parts;
    const hpi_index *index = &load->index;
    HP_TRY(check_entries(load, &index->weights, parts->list, parts->n_weights));
    if (!load->optimizer)
        return HP_OK;
    if (!index->optimizer || strcmp(index->optimizer, load->optimizer->name) != 0)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected the state of optimizer %s, found %s",
                        index->path, load->optimizer->name,
                        index->optimizer ? index->optimizer : "weights alone");
    return check_entries(load, &index->states, parts->list + parts->n_weights,
                         parts->n - parts->n_weights);
}

/* ---- loading: reading ----------------------------------------------------------------------- */

static const hpi_entry *entry_of(const struct load *load, uint64_t part) {
    const bool is_weight = part < load->parts.n_weights;
    return hpi_index_find(is_weight ? &load->index.weights : &load->index.states,
                          load->parts.list[part].name);
}

/* The pieces that overlap part number `part`. */
static void add_jobs(struct load *load, uint64_t part) {
    const hpi_entry *entry = entry_of(load, part);
    for (uint64_t k = 0; k < entry->n_pieces; k++) {
        const hpi_index_piece *p = &entry->pieces[k];
        const hpi_piece piece = {entry->outer, entry->stride, p->begin, p->end};
        if (hpi_piece_copy(&piece, NULL, &load->parts.list[part].mine, NULL, 0))
            load->jobs[load->n_jobs++] = (struct job){p->file, part, entry, piece};
    }
}

static int compare_files(const void *a, const void *b) {
    const struct job *x = a, *y = b;
    return (x->file > y->file) - (x->file < y->file);
}

/* Staging memory, and the list of what to read into it, file by file. */
static hp_status make_jobs(struct load *load) {
    uint64_t n_most = 0, n_bytes = 0;
    load->offsets = hpi_alloc(load->parts.n, sizeof *load->offsets);
    if (!load->offsets)
        return HP_ERR_MEMORY;
    for (uint64_t i = 0; i < load->parts.n; i++) {
        load->offsets[i] = n_bytes;
        n_bytes += hpi_align_up(load->parts.list[i].n_bytes, 64);
        n_most += entry_of(load, i)->n_pieces;
    }
    load->staging = hpi_alloc_aligned(64, n_bytes);
    load->jobs = hpi_alloc(n_most, sizeof *load->jobs);
    if (!load->staging || !load->jobs)
        return HP_ERR_MEMORY;
    for (uint64_t i = 0; i < load->parts.n; i++)
        add_jobs(load, i);
    qsort(load->jobs, load->n_jobs, sizeof *load->jobs, compare_files);
    return HP_OK;
}

static hp_status find_tensor(const hpi_safetensors *file, const struct job *job,
                             const hpi_tensor **out_tensor) {
    const hpi_entry *entry = job->entry;
    const uint64_t n_bytes = hpi_piece_count(&job->piece) * hp_dtype_size(entry->dtype);
    const hpi_tensor *tensor = hpi_safetensors_find(file, entry->name);
    if (!tensor || tensor->dtype != entry->dtype || tensor->n_bytes != n_bytes)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected %llu bytes of %s, found %s",
                        file->path, entry->name, (unsigned long long)n_bytes,
                        hp_dtype_name(entry->dtype), tensor ? "something else" : "none");
    if (!tensor->has_checksum)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected a checksum, found none",
                        file->path, entry->name);
    *out_tensor = tensor;
    return HP_OK;
}

static hp_status run_job(const struct load *load, const hpi_safetensors *file,
                         const struct job *job) {
    const hpi_tensor *tensor;
    HP_TRY(find_tensor(file, job, &tensor));
    const hpi_piece *mine = &load->parts.list[job->part].mine;
    unsigned char *target = load->staging + load->offsets[job->part];
    if (memcmp(mine, &job->piece, sizeof *mine) == 0) /* the same mesh wrote it */
        return hpi_safetensors_read(file, tensor, target);
    void *whole = hpi_alloc(tensor->n_bytes, 1);
    if (!whole)
        return HP_ERR_MEMORY;
    const hp_status status = hpi_safetensors_read(file, tensor, whole);
    if (status == HP_OK)
        (void)hpi_piece_copy(&job->piece, whole, mine, target, hp_dtype_size(tensor->dtype));
    hpi_free(whole);
    return status;
}

/* The jobs of one file, from `first` on; *out_next is the first of the next file. */
static hp_status run_file(const struct load *load, uint64_t first, uint64_t *out_next) {
    const uint64_t number = load->jobs[first].file;
    char *path = hpi_path_join(load->path, load->index.files[number]);
    hpi_safetensors file = {.fd = -1};
    hp_status status = path ? hpi_safetensors_open(path, &file) : HP_ERR_MEMORY;
    uint64_t i = first;
    for (; status == HP_OK && i < load->n_jobs && load->jobs[i].file == number; i++)
        status = run_job(load, &file, &load->jobs[i]);
    hpi_safetensors_close(&file);
    hpi_free(path);
    *out_next = i;
    return status;
}

/* Everything from the disk into staging memory; no weight is touched. */
static hp_status read_all(struct load *load) {
    if (!load->path)
        return HP_ERR_MEMORY;
    HP_TRY(hpi_index_open(load->path, &load->index));
    HP_TRY(hpi_parts_make(load->fsdp, load->optimizer, &load->parts));
    HP_TRY(check_fit(load));
    HP_TRY(make_jobs(load));
    for (uint64_t i = 0; i < load->n_jobs;)
        HP_TRY(run_file(load, i, &i));
    return HP_OK;
}

/* ---- loading: all together ------------------------------------------------------------------ */

/* Rank 0 chooses the checkpoint, so that all read the same. */
static hp_status choose(struct load *load, const char *directory) {
    const hp_fsdp *fsdp = load->fsdp;
    char name[HPI_STEP_NAME_BYTES] = {0};
    const bool is_first = hp_world_rank(fsdp->world) == 0;
    HP_TRY(hpi_agree(fsdp, is_first ? hpi_steps_find(directory, name) : HP_OK));
    HP_TRY(hpi_tell(fsdp, name, sizeof name, 0));
    load->path = hpi_path_join(directory, name); /* read_all looks whether there was memory */
    return HP_OK;
}

static hp_status install_unit(void *context, hp_unit *unit) {
    const struct load *load = context;
    for (uint64_t i = 0; i < load->parts.n; i++) {
        const hpi_part *part = &load->parts.list[i];
        if (part->unit != unit || !part->n_bytes)
            continue;
        memcpy(part->data, load->staging + load->offsets[i], part->n_bytes);
        if (i < load->parts.n_weights)
            HP_TRY(hpi_param_refresh_cast(unit, part->param));
    }
    return HP_OK;
}

static hp_status load_all(hp_fsdp *fsdp, struct load *load, const char *directory) {
    HP_TRY(choose(load, directory));
    HP_TRY(hpi_agree(fsdp, read_all(load)));
    return hpi_parts_install(fsdp, install_unit, load);
}

hp_status hp_checkpoint_load(hp_fsdp *fsdp, hp_optimizer *optimizer, const char *directory,
                             uint64_t *out_step) {
    HP_TRY(check_call(fsdp, optimizer, directory, __func__));
    const uint64_t began_ns = hpi_now_ns();
    struct load load = {.fsdp = fsdp, .optimizer = optimizer};
    const hp_status status = load_all(fsdp, &load, directory);
    if (status == HP_OK) {
        if (optimizer)
            optimizer->n_steps = load.index.optimizer_steps;
        if (out_step)
            *out_step = load.index.step;
    }
    hpi_free(load.jobs);
    hpi_free(load.offsets);
    hpi_free(load.staging);
    hpi_parts_free(&load.parts);
    hpi_index_close(&load.index);
    hpi_free(load.path);
    hpi_fsdp_trace(fsdp, hpi_span_checkpoint, began_ns, 0);
    return status;
}
