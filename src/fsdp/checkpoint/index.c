/* SPDX-License-Identifier: Apache-2.0
 *
 * index.c - index.json of a checkpoint: written whole, read distrustfully.
 *
 * Writing needs no word from other ranks: their pieces follow from the layouts. Reading checks the
 * checksum first and then, so that a bad writer cannot harm either, every number: file names stay
 * in the directory, products fit, pieces tile.
 */
#include "index.h"
#include "../together/between.h"
#include "files.h"
#include "safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char format_name[] = "hyperparallel-checkpoint";
static const uint64_t most_index_bytes = UINT64_C(1) << 30;
enum { FORMAT_VERSION = 1, TAIL_BYTES = sizeof ",\n\"xxh3\": \"0123456789abcdef\"}\n" - 1 };

/* ---- writing -------------------------------------------------------------------------------- */

void hpi_index_file_name(const char *kind, int rank, int n_ranks, char *out_name) {
    snprintf(out_name, HPI_FILE_NAME_BYTES, "%s-%05d-of-%05d.safetensors", kind, rank, n_ranks);
}

static void add_files(hpi_text *text, const char *kind, int n, bool is_first) {
    for (int r = 0; r < n; r++) {
        char name[HPI_FILE_NAME_BYTES];
        hpi_index_file_name(kind, r, n, name);
        hpi_text_add(text, "%s\n  \"%s\"", is_first && r == 0 ? "" : ",", name);
    }
}

/* One tensor with the pieces of all shard ranks; the file of shard rank r is first_file + r. */
static void add_entry(hpi_text *text, const hpi_part *part, int first_file) {
    const hpi_param *p = part->param;
    hpi_text_add(text, "\n  \"");
    hpi_text_add_escaped(text, part->name);
    hpi_text_add(text, "\": {\"dtype\": \"%s\", \"shape\": [",
                 hpi_safetensors_dtype_name(p->master));
    for (int d = 0; d < p->n_dims; d++)
        hpi_text_add(text, "%s%" PRId64, d ? ", " : "", p->shape[d]);
    hpi_text_add(text, "], \"outer\": %" PRIu64 ", \"stride\": %" PRIu64 ", \"pieces\": [",
                 part->mine.outer, part->mine.stride);
    const char *comma = "";
    for (int r = 0; r < (int)p->layout.n_shards; r++) {
        const hpi_piece piece = hpi_piece_of(&p->layout, r);
        if (!hpi_piece_count(&piece))
            continue;
        hpi_text_add(text, "%s[%d, %" PRIu64 ", %" PRIu64 "]", comma, first_file + r, piece.begin,
                     piece.end);
        comma = ", ";
    }
    hpi_text_add(text, "]}");
}

static void add_entries(hpi_text *text, const char *key, const hpi_part *list, uint64_t n,
                        int first_file) {
    hpi_text_add(text, ",\n\"%s\": {", key);
    for (uint64_t i = 0; i < n; i++) {
        hpi_text_add(text, i ? "," : "");
        add_entry(text, &list[i], first_file);
    }
    hpi_text_add(text, "}");
}

static void add_head(hpi_text *text, const hp_fsdp *fsdp, const hp_optimizer *optimizer,
                     uint64_t step) {
    hpi_text_add(text,
                 "{\"format\": \"%s\",\n\"version\": %d,\n\"library\": \"%s\",\n\"step\": %" PRIu64
                 ",\n\"mesh\": {\"replicate\": %d, \"shard\": %d},\n\"optimizer\": ",
                 format_name, FORMAT_VERSION, hp_version(), step, fsdp->n_replicas, fsdp->n_shards);
    if (optimizer)
        hpi_text_add(text, "{\"name\": \"%s\", \"steps\": %" PRIu64 "}", optimizer->name,
                     optimizer->n_steps);
    else
        hpi_text_add(text, "null");
}

hp_status hpi_index_make(const hp_fsdp *fsdp, const hp_optimizer *optimizer, const hpi_parts *parts,
                         uint64_t step, hpi_text *out_text) {
    hpi_text text = {0};
    add_head(&text, fsdp, optimizer, step);
    hpi_text_add(&text, ",\n\"files\": [");
    add_files(&text, "model", fsdp->n_shards, true);
    if (parts->n > parts->n_weights)
        add_files(&text, "optimizer", fsdp->n_shards, false);
    hpi_text_add(&text, "]");
    add_entries(&text, "weights", parts->list, parts->n_weights, 0);
    add_entries(&text, "states", parts->list + parts->n_weights, parts->n - parts->n_weights,
                fsdp->n_shards);
    if (!text.is_failed)
        hpi_text_add(&text, ",\n\"xxh3\": \"%016" PRIx64 "\"}\n",
                     hpi_checksum(text.data, text.n_bytes));
    if (text.is_failed) {
        hpi_text_free(&text);
        return HP_ERR_MEMORY;
    }
    *out_text = text;
    return HP_OK;
}

/* ---- reading -------------------------------------------------------------------------------- */

static hp_status check_text(const hpi_index *index, uint64_t n_bytes) {
    char tail[TAIL_BYTES + 1];
    if (n_bytes <= TAIL_BYTES)
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected an index, found %" PRIu64 " bytes",
                        index->path, n_bytes);
    const uint64_t n_checked = n_bytes - TAIL_BYTES;
    snprintf(tail, sizeof tail, ",\n\"xxh3\": \"%016" PRIx64 "\"}\n",
             hpi_checksum(index->text, n_checked));
    if (memcmp(index->text + n_checked, tail, TAIL_BYTES) != 0)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: expected its own checksum at its end, its bytes have another",
                        index->path);
    return HP_OK;
}

static hp_status parse_head(hpi_index *index) {
    const hpi_json *json = &index->json;
    const char *format = hpi_json_string(json, hpi_json_find(json, 0, "format"));
    uint64_t version = 0;
    (void)hpi_json_u64(json, hpi_json_find(json, 0, "version"), &version);
    if (!format || strcmp(format, format_name) != 0 || version != FORMAT_VERSION)
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: expected format %s version %d, found %s version %" PRIu64, index->path,
                        format_name, FORMAT_VERSION, format ? format : "none", version);
    if (!hpi_json_u64(json, hpi_json_find(json, 0, "step"), &index->step))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected a step", index->path);
    const hpi_json_at optimizer = hpi_json_find(json, 0, "optimizer");
    index->optimizer = hpi_json_string(json, hpi_json_find(json, optimizer, "name"));
    if (index->optimizer &&
        !hpi_json_u64(json, hpi_json_find(json, optimizer, "steps"), &index->optimizer_steps))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected how many steps the optimizer made",
                        index->path);
    return HP_OK;
}

static hp_status parse_files(hpi_index *index) {
    const hpi_json *json = &index->json;
    const hpi_json_at files = hpi_json_find(json, 0, "files");
    index->files = hpi_alloc(hpi_json_size(json, files), sizeof *index->files);
    if (!index->files)
        return HP_ERR_MEMORY;
    for (hpi_json_at at = hpi_json_first(json, files); at != HPI_JSON_NONE;
         at = hpi_json_next(json, files, at)) {
        const char *name = hpi_json_string(json, at);
        if (!hpi_is_plain_name(name))
            return HPI_FAIL(HP_ERR_FORMAT, "%s: expected plain file names, found \"%s\"",
                            index->path, name ? name : "");
        index->files[index->n_files++] = name;
    }
    return HP_OK;
}

static bool parse_shape(const hpi_json *json, hpi_json_at at, hpi_entry *entry,
                        uint64_t *out_elements) {
    const hpi_json_at shape = hpi_json_find(json, at, "shape");
    *out_elements = 1;
    if (!hpi_json_is(json, shape, HPI_JSON_ARRAY) || hpi_json_size(json, shape) > HP_MAX_DIMS)
        return false;
    for (hpi_json_at d = hpi_json_first(json, shape); d != HPI_JSON_NONE;
         d = hpi_json_next(json, shape, d)) {
        uint64_t *size = &entry->shape[entry->n_dims++];
        if (!hpi_json_u64(json, d, size) || !hpi_multiply(*out_elements, *size, out_elements))
            return false;
    }
    return *out_elements <= INT64_MAX / 8;
}

static int compare_pieces(const void *a, const void *b) {
    const hpi_index_piece *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The pieces of a tensor tile [0, stride); without elements there are none. */
static bool parse_pieces(const hpi_index *index, hpi_json_at at, hpi_entry *entry,
                         uint64_t n_elements) {
    const hpi_json *json = &index->json;
    const hpi_json_at pieces = hpi_json_find(json, at, "pieces");
    for (hpi_json_at p = hpi_json_first(json, pieces); p != HPI_JSON_NONE;
         p = hpi_json_next(json, pieces, p)) {
        hpi_index_piece *piece = &entry->pieces[entry->n_pieces++];
        if (!hpi_json_is(json, p, HPI_JSON_ARRAY) || hpi_json_size(json, p) != 3 ||
            !hpi_json_u64(json, p + 1, &piece->file) || !hpi_json_u64(json, p + 2, &piece->begin) ||
            !hpi_json_u64(json, p + 3, &piece->end) || piece->file >= index->n_files ||
            piece->begin >= piece->end)
            return false;
    }
    qsort(entry->pieces, entry->n_pieces, sizeof *entry->pieces, compare_pieces);
    uint64_t next = 0;
    for (uint64_t i = 0; i < entry->n_pieces; next = entry->pieces[i++].end)
        if (entry->pieces[i].begin != next)
            return false;
    return next == (n_elements ? entry->stride : 0);
}

static hp_status parse_entry(const hpi_index *index, hpi_json_at key, hpi_entry *entry) {
    const hpi_json *json = &index->json;
    uint64_t n_elements, n_blocked;
    entry->name = hpi_json_string(json, key);
    const char *dtype = hpi_json_string(json, hpi_json_find(json, key + 1, "dtype"));
    if (!hpi_safetensors_dtype_parse(dtype, &entry->dtype) ||
        !parse_shape(json, key + 1, entry, &n_elements))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected a dtype and a shape",
                        index->path, entry->name);
    if (!hpi_json_u64(json, hpi_json_find(json, key + 1, "outer"), &entry->outer) ||
        !hpi_json_u64(json, hpi_json_find(json, key + 1, "stride"), &entry->stride) ||
        !hpi_multiply(entry->outer, entry->stride, &n_blocked) || n_blocked != n_elements ||
        !parse_pieces(index, key + 1, entry, n_elements))
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: tensor \"%s\": expected pieces that hold each of its %" PRIu64
                        " elements once",
                        index->path, entry->name, n_elements);
    return HP_OK;
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const hpi_entry *)a)->name, ((const hpi_entry *)b)->name);
}

/* `pieces` is where the pieces of these entries go; moved on. */
static hp_status parse_entries(const hpi_index *index, const char *key, hpi_entries *entries,
                               hpi_index_piece **pieces) {
    const hpi_json *json = &index->json;
    const hpi_json_at table = hpi_json_find(json, 0, key);
    if (!hpi_json_is(json, table, HPI_JSON_OBJECT))
        return HPI_FAIL(HP_ERR_FORMAT, "%s: expected a table of %s", index->path, key);
    entries->list = hpi_alloc(hpi_json_size(json, table), sizeof *entries->list);
    if (!entries->list)
        return HP_ERR_MEMORY;
    for (hpi_json_at at = hpi_json_first(json, table); at != HPI_JSON_NONE;
         at = hpi_json_next(json, table, at)) {
        hpi_entry *entry = &entries->list[entries->n++];
        entry->pieces = *pieces;
        HP_TRY(parse_entry(index, at, entry));
        *pieces += entry->n_pieces;
    }
    qsort(entries->list, entries->n, sizeof *entries->list, compare_entries);
    for (uint64_t i = 1; i < entries->n; i++)
        if (compare_entries(&entries->list[i - 1], &entries->list[i]) == 0)
            return HPI_FAIL(HP_ERR_FORMAT, "%s: tensor \"%s\": expected once, found twice",
                            index->path, entries->list[i].name);
    return HP_OK;
}

static hp_status load(hpi_index *index) {
    uint64_t n_bytes;
    HP_TRY(hpi_file_read_text(index->path, most_index_bytes, &index->text, &n_bytes));
    HP_TRY(check_text(index, n_bytes));
    HP_TRY(hpi_json_parse(index->path, index->text, n_bytes, &index->json));
    HP_TRY(parse_head(index));
    HP_TRY(parse_files(index));
    /* A piece is an array of 3 numbers, so there are at most a quarter as many as nodes. */
    index->pieces = hpi_alloc(index->json.n_nodes / 4 + 1, sizeof *index->pieces);
    if (!index->pieces)
        return HP_ERR_MEMORY;
    hpi_index_piece *pieces = index->pieces;
    HP_TRY(parse_entries(index, "weights", &index->weights, &pieces));
    return parse_entries(index, "states", &index->states, &pieces);
}

hp_status hpi_index_open(const char *directory, hpi_index *out_index) {
    hpi_index index = {.path = hpi_path_join(directory, "index.json")};
    const hp_status status = index.path ? load(&index) : HP_ERR_MEMORY;
    if (status < 0)
        hpi_index_close(&index);
    else
        *out_index = index;
    return status;
}

const hpi_entry *hpi_index_find(const hpi_entries *entries, const char *name) {
    const hpi_entry key = {.name = name};
    return entries->n ? bsearch(&key, entries->list, entries->n, sizeof key, compare_entries)
                      : NULL;
}

void hpi_index_close(hpi_index *index) {
    hpi_free(index->weights.list);
    hpi_free(index->states.list);
    hpi_free(index->pieces);
    hpi_free(index->files);
    hpi_json_free(&index->json);
    hpi_free(index->text);
    hpi_free(index->path);
    *index = (hpi_index){0};
}
