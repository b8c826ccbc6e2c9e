/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/load.c - weights of other programs into the shards.
 *
 * Every rank opens all files and checks all tensors; only when all ranks have is a weight touched.
 * Then each reads its own intervals, straight into the shard where the dtype is the same and
 * through a block otherwise: no staging memory. It reads by pread and not through a mapping, so
 * that a file cut short meanwhile, or a disk that fails, is an error to return and not a SIGBUS;
 * since then some weights are new and some old, the fsdp is given up.
 */
#include "../checkpoint/files.h"
#include "../checkpoint/pieces.h"
#include "../checkpoint/together.h"
#include "../together/between.h"
#include "directory.h"
#include "source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Where a shard is many pieces smaller than this, what lies between them is read as well: a disk
 * reads pages anyway. */
enum { BLOCK_BYTES = 1 << 18, SMALL_BYTES = 4096 };

/* Where a part's values are. */
struct place {
    const hpi_safetensors *file;
    const hpi_tensor *tensor;
};

struct load {
    hp_fsdp *fsdp;
    hpi_weights_source source;
    hpi_parts parts;
    struct place *places;    /* of each part */
    const hpi_param **known; /* every parameter of the model, aliases too, by name */
    uint64_t n_known;
    unsigned char *block; /* two of BLOCK_BYTES */
    hp_status status;     /* of reading, with the record in `error` */
    hp_error error;
};

/* ---- what the files have to hold ------------------------------------------------------------- */

static int compare_params(const void *a, const void *b) {
    return strcmp((*(const hpi_param *const *)a)->name, (*(const hpi_param *const *)b)->name);
}

static hp_status list_known(struct load *load) {
    const hp_fsdp *fsdp = load->fsdp;
    uint64_t n = 0;
    for (uint32_t u = 0; u < fsdp->n_units; u++)
        n += (uint64_t)fsdp->units[u]->n_params;
    load->known = hpi_alloc(n, sizeof *load->known);
    if (!load->known)
        return HP_ERR_MEMORY;
    for (uint32_t u = 0; u < fsdp->n_units; u++)
        for (int j = 0; j < fsdp->units[u]->n_params; j++)
            load->known[load->n_known++] = &fsdp->units[u]->params[j];
    qsort(load->known, n, sizeof *load->known, compare_params);
    return HP_OK;
}

static const hpi_param *find_known(const struct load *load, const char *name) {
    const hpi_param key = {.name = (char *)(uintptr_t)name}, *at = &key;
    const hpi_param **found =
        load->n_known ? bsearch(&at, load->known, load->n_known, sizeof at, compare_params) : NULL;
    return found ? *found : NULL;
}

/* "[10, 3]", cut when it is longer than any that can be. */
enum { SHAPE_BYTES = HP_MAX_DIMS * 22 + 3 };
static const char *shape_text(int n_dims, const uint64_t *shape, char *out_text) {
    int n = snprintf(out_text, SHAPE_BYTES, "[");
    for (int d = 0; d < n_dims; d++)
        n += snprintf(out_text + n, (size_t)(SHAPE_BYTES - n), "%s%" PRIu64, d ? ", " : "",
                      shape[d]);
    snprintf(out_text + n, (size_t)(SHAPE_BYTES - n), "]");
    return out_text;
}

static hp_status check_shape(const char *path, const hpi_tensor *tensor, const hpi_param *p) {
    char expected[SHAPE_BYTES], found[SHAPE_BYTES];
    uint64_t shape[HP_MAX_DIMS];
    bool is_same = tensor->n_dims == p->n_dims;
    for (int d = 0; d < p->n_dims; d++) {
        shape[d] = (uint64_t)p->shape[d];
        is_same = is_same && tensor->shape[d] == shape[d];
    }
    if (is_same)
        return HP_OK;
    return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected shape %s, found %s", path,
                    tensor->name, shape_text(p->n_dims, shape, expected),
                    shape_text(tensor->n_dims, tensor->shape, found));
}

static hp_status check_dtype(const char *path, const hpi_tensor *tensor, const hpi_param *p) {
    const bool is_float = hpi_dtype_is_float(p->master);
    if (is_float ? hpi_dtype_is_float(tensor->dtype) : tensor->dtype == p->master)
        return HP_OK;
    return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected dtype %s, found %s", path,
                    tensor->name,
                    is_float ? "F32, BF16, F16 or F64" : hpi_safetensors_dtype_name(p->master),
                    hpi_safetensors_dtype_name(tensor->dtype));
}

/* ---- names that are missing, names that are too many ----------------------------------------- */

/* A list of a few names for an error, and of how many more there are. */
struct names {
    char text[240];
    int n_bytes;
    uint64_t n;
};

static void add_name(struct names *names, const char *name) {
    enum { MOST_NAMES = 5 };
    const int room = (int)sizeof names->text - names->n_bytes;
    if (names->n++ < MOST_NAMES && (int)strlen(name) + 5 < room)
        names->n_bytes += snprintf(names->text + names->n_bytes, (size_t)room, "%s\"%s\"",
                                   names->n_bytes ? ", " : "", name);
}

static hp_status complain(const struct load *load, const struct names *missing,
                          const struct names *unexpected, const char *unexpected_in) {
    const char *path = load->source.path;
    if (missing->n && unexpected->n)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: expected the model's tensors: %" PRIu64 " are missing, such as tensor "
                        "%s; %" PRIu64 " are not the model's, such as tensor %s in %s",
                        path, missing->n, missing->text, unexpected->n, unexpected->text,
                        unexpected_in);
    if (missing->n)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: expected all of the model's tensors, %" PRIu64
                        " are missing, such as tensor %s",
                        path, missing->n, missing->text);
    return HPI_FAIL(HP_ERR_FORMAT,
                    "%s: expected the model's tensors alone, %" PRIu64
                    " are not the model's, such as tensor %s",
                    unexpected_in, unexpected->n, unexpected->text);
}

/* Find each of our parts, and every tensor that is nobody's. */
static hp_status match_names(struct load *load) {
    struct names missing = {0}, unexpected = {0};
    const char *unexpected_in = NULL;
    for (uint64_t i = 0; i < load->parts.n; i++) {
        struct place *place = &load->places[i];
        place->tensor =
            hpi_weights_source_find(&load->source, load->parts.list[i].name, &place->file);
        if (!place->tensor)
            add_name(&missing, load->parts.list[i].name);
    }
    for (uint64_t f = 0; f < load->source.n_files; f++) {
        const hpi_safetensors *file = &load->source.files[f];
        for (uint64_t i = 0; i < file->n_tensors; i++) {
            if (find_known(load, file->tensors[i].name))
                continue;
            unexpected_in = unexpected_in ? unexpected_in : file->path;
            add_name(&unexpected, file->tensors[i].name);
        }
    }
    return missing.n || unexpected.n ? complain(load, &missing, &unexpected, unexpected_in) : HP_OK;
}

/* An alias has to fit like its owner; what is left to the caller does not concern us. */
static hp_status check_tensors(const struct load *load) {
    for (uint64_t f = 0; f < load->source.n_files; f++) {
        const hpi_safetensors *file = &load->source.files[f];
        for (uint64_t i = 0; i < file->n_tensors; i++) {
            const hpi_param *p = find_known(load, file->tensors[i].name);
            if (p->is_ignored)
                continue;
            HP_TRY(check_dtype(file->path, &file->tensors[i], p));
            HP_TRY(check_shape(file->path, &file->tensors[i], p));
        }
    }
    return HP_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Of one tensor. */
struct reader {
    const hpi_safetensors *file;
    const hpi_tensor *tensor;
    unsigned char *block;
    uint64_t begin, end; /* the bytes of the tensor that are in the block */
    uint64_t last;       /* behind the last byte that is wanted */
    bool reads_ahead;
};

/* Bytes [begin, begin + n) of the tensor; *out_bytes lies in the block. */
static hp_status fetch(struct reader *r, uint64_t begin, uint64_t n, const void **out_bytes) {
    if (begin < r->begin || begin + n > r->end) {
        const uint64_t n_read = r->reads_ahead ? hpi_min(r->last - begin, BLOCK_BYTES) : n;
        r->begin = r->end = 0;
        HP_TRY(
            hpi_file_read(r->file->fd, r->file->path, r->tensor->offset + begin, r->block, n_read));
        r->begin = begin;
        r->end = begin + n_read;
    }
    *out_bytes = r->block + (begin - r->begin);
    return HP_OK;
}

/* Elements [begin, begin + n) of the tensor, in the shard's dtype. */
static hp_status read_run(struct reader *r, uint64_t begin, uint64_t n, unsigned char *out,
                          hp_dtype out_dtype) {
    const hp_dtype in_dtype = r->tensor->dtype;
    const uint64_t in_size = hp_dtype_size(in_dtype), out_size = hp_dtype_size(out_dtype);
    if (in_dtype == out_dtype && !r->reads_ahead)
        return hpi_file_read(r->file->fd, r->file->path, r->tensor->offset + begin * in_size, out,
                             n * in_size);
    for (uint64_t done = 0; done < n;) {
        const void *bytes;
        const uint64_t n_now = hpi_min(n - done, BLOCK_BYTES / in_size);
        HP_TRY(fetch(r, (begin + done) * in_size, n_now * in_size, &bytes));
        HP_TRY(hpi_convert(bytes, in_dtype, out + done * out_size, out_dtype, n_now));
        done += n_now;
    }
    return HP_OK;
}

static struct reader reader_of(const struct place *place, const hpi_piece *mine,
                               unsigned char *block) {
    const uint64_t in_size = hp_dtype_size(place->tensor->dtype);
    return (struct reader){
        .file = place->file,
        .tensor = place->tensor,
        .block = block,
        .last = ((mine->outer - 1) * mine->stride + mine->end) * in_size,
        .reads_ahead = mine->outer > 1 && (mine->end - mine->begin) * in_size < SMALL_BYTES,
    };
}

static hp_status read_part(const struct load *load, uint64_t i) {
    const hpi_part *part = &load->parts.list[i];
    const hpi_piece *mine = &part->mine;
    const uint64_t run = mine->end - mine->begin;
    const uint64_t out_size = hp_dtype_size(part->param->master);
    struct reader reader = reader_of(&load->places[i], mine, load->block);
    for (uint64_t b = 0; b < mine->outer; b++)
        HP_TRY(read_run(&reader, b * mine->stride + mine->begin, run,
                        (unsigned char *)part->data + b * run * out_size, part->param->master));
    return HP_OK;
}

/* ---- two names, one parameter ---------------------------------------------------------------- */

/* Elements [begin, begin + n) of both are the same, bit for bit in the shard's dtype. */
static hp_status compare_run(struct reader *owner, struct reader *alias, uint64_t begin, uint64_t n,
                             hp_dtype dtype) {
    enum { MOST_ELEMENTS = 512 };
    double values[2][MOST_ELEMENTS];
    const uint64_t size = hp_dtype_size(dtype);
    for (uint64_t done = 0; done < n; done += hpi_min(n - done, MOST_ELEMENTS)) {
        const uint64_t n_now = hpi_min(n - done, MOST_ELEMENTS);
        HP_TRY(read_run(owner, begin + done, n_now, (unsigned char *)values[0], dtype));
        HP_TRY(read_run(alias, begin + done, n_now, (unsigned char *)values[1], dtype));
        if (memcmp(values[0], values[1], n_now * size) != 0)
            return HPI_FAIL(HP_ERR_FORMAT,
                            "%s: tensor \"%s\": expected the values of \"%s\", with which the "
                            "model ties it, found others",
                            alias->file->path, alias->tensor->name, owner->tensor->name);
    }
    return HP_OK;
}

static hp_status compare_alias(const struct load *load, uint64_t i, const struct place *place) {
    const hpi_piece *mine = &load->parts.list[i].mine;
    struct reader owner = reader_of(&load->places[i], mine, load->block);
    struct reader alias = reader_of(place, mine, load->block + BLOCK_BYTES);
    owner.reads_ahead = alias.reads_ahead = true;
    for (uint64_t b = 0; load->parts.list[i].n_bytes && b < mine->outer; b++)
        HP_TRY(compare_run(&owner, &alias, b * mine->stride + mine->begin, mine->end - mine->begin,
                           load->parts.list[i].param->master));
    return HP_OK;
}

/* Files that hold both names of a tied parameter were written of an untied model unless they hold
 * the same values: loading one of them would lose the other. */
static hp_status check_aliases(const struct load *load) {
    for (uint64_t i = 0; i < load->parts.n; i++) {
        const hpi_part *part = &load->parts.list[i];
        for (int j = 0; j < part->unit->n_params; j++) {
            const hpi_param *p = &part->unit->params[j];
            struct place place;
            if (p->alias_of < 0 || &part->unit->params[p->alias_of] != part->param)
                continue;
            place.tensor = hpi_weights_source_find(&load->source, p->name, &place.file);
            if (place.tensor)
                HP_TRY(compare_alias(load, i, &place));
        }
    }
    return HP_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Everything that can be known before a weight is touched. */
static hp_status prepare(struct load *load, const char *path) {
    char *found = NULL;
    HP_TRY(hpi_weights_directory_find(path, &found));
    const hp_status status = hpi_weights_source_open(found, &load->source);
    hpi_free(found);
    HP_TRY(status);
    HP_TRY(hpi_parts_make(load->fsdp, NULL, &load->parts));
    HP_TRY(list_known(load));
    load->places = hpi_alloc(load->parts.n, sizeof *load->places);
    load->block = hpi_alloc_aligned(64, 2 * BLOCK_BYTES);
    if (!load->places || !load->block)
        return HP_ERR_MEMORY;
    HP_TRY(match_names(load));
    HP_TRY(check_tensors(load));
    return check_aliases(load);
}

static hp_status read_unit(struct load *load, hp_unit *unit) {
    for (uint64_t i = 0; i < load->parts.n; i++) {
        const hpi_part *part = &load->parts.list[i];
        if (part->unit != unit || !part->n_bytes)
            continue;
        HP_TRY(read_part(load, i));
        HP_TRY(hpi_param_refresh_cast(unit, part->param));
    }
    return HP_OK;
}

/* As an operation it succeeds in any case, so that all ranks come to the agreement behind it. */
static hp_status install_unit(void *context, hp_unit *unit) {
    struct load *load = context;
    if (load->status == HP_OK)
        load->status = read_unit(load, unit);
    if (load->status < 0 && !load->error.status)
        hp_last_error_get(&load->error);
    return HP_OK;
}

static hp_status install(struct load *load) {
    hp_fsdp *fsdp = load->fsdp;
    HP_TRY(hpi_parts_install(fsdp, install_unit, load));
    if (load->status < 0)
        hpi_error_set(&load->error);
    const hp_status agreed = hpi_agree(fsdp, load->status);
    if (agreed < 0)
        fsdp->is_failed = fsdp->has_torn_weights = true;
    return agreed;
}

static hp_status check_arguments(const char *path) {
    if (!path || !*path)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "hp_weights_load: expected a file or directory of weights, given none");
    return HP_OK;
}

hp_status hp_weights_load(hp_fsdp *fsdp, const char *path) {
    HP_TRY(hpi_fsdp_check_idle(fsdp, __func__));
    HP_TRY(hpi_fsdp_check_real(fsdp, __func__));
    HP_TRY(hpi_agree(fsdp, check_arguments(path))); /* so that nobody waits for the one refused */
    const uint64_t began_ns = hpi_now_ns();
    struct load load = {.fsdp = fsdp};
    hp_status status = hpi_agree(fsdp, prepare(&load, path));
    if (status == HP_OK)
        status = install(&load);
    hpi_free(load.block);
    hpi_free(load.places);
    hpi_free(load.known);
    hpi_parts_free(&load.parts);
    hpi_weights_source_close(&load.source);
    hpi_fsdp_trace(fsdp, hpi_span_checkpoint, began_ns, 0);
    return status;
}
