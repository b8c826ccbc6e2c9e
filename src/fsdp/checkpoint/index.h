/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/index.h - index.json of a checkpoint: which files hold which piece of which
 * tensor.
 *
 *     {"format": "hyperparallel-checkpoint", "version": 1, "library": "0.1.0", "step": 12,
 *      "mesh": {"replicate": 2, "shard": 4}, "optimizer": {"name": "adamw", "steps": 12},
 *      "files": ["model-00000-of-00004.safetensors", ...],
 *      "weights": {"NAME": {"dtype": "F32", "shape": [10, 7], "outer": 1, "stride": 70,
 *                           "pieces": [[0, 0, 21], [1, 21, 42], ...]}, ...},
 *      "states": {"exp_avg.NAME": {...}, ...}, "xxh3": "0123456789abcdef"}
 *
 * A piece is [file, begin, end]: elements [begin, end) of each of `outer` blocks of `stride`, which
 * the file of that number holds as the tensor of that name. "xxh3" is the checksum of all bytes
 * before its comma. "optimizer" is null when only weights were saved. An index that was read has
 * been checked: names come once, and the pieces of each tensor tile it, with neither gap nor
 * overlap.
 */
#ifndef HPI_INDEX_H
#define HPI_INDEX_H

#include "json.h"
#include "pieces.h"

typedef struct hpi_index_piece {
    uint64_t file, begin, end;
} hpi_index_piece;

typedef struct hpi_entry {
    const char *name;
    hp_dtype dtype;
    int n_dims;
    uint64_t shape[HP_MAX_DIMS];
    uint64_t outer, stride;
    hpi_index_piece *pieces; /* in order of begin */
    uint64_t n_pieces;
} hpi_entry;

typedef struct hpi_entries {
    hpi_entry *list; /* by name */
    uint64_t n;
} hpi_entries;

typedef struct hpi_index {
    char *path;
    char *text;
    hpi_json json;
    uint64_t step;
    const char *optimizer; /* NULL: weights only */
    uint64_t optimizer_steps;
    const char **files; /* plain names in the index's directory */
    uint64_t n_files;
    hpi_entries weights, states;
    hpi_index_piece *pieces; /* of all entries */
} hpi_index;

/* "model-00001-of-00004.safetensors" or "optimizer-...", of a shard rank. */
enum { HPI_FILE_NAME_BYTES = 64 };
void hpi_index_file_name(const char *kind, int rank, int n_ranks, char *out_name);

/* The text for a checkpoint of this fsdp, all ranks' pieces in it; `optimizer` may be NULL. */
hp_status hpi_index_make(const hp_fsdp *fsdp, const hp_optimizer *optimizer, const hpi_parts *parts,
                         uint64_t step, hpi_text *out_text);

/* Read and check directory/index.json. Errors: FILE, FORMAT naming file and tensor. */
hp_status hpi_index_open(const char *directory, hpi_index *out_index);
const hpi_entry *hpi_index_find(const hpi_entries *entries, const char *name);
void hpi_index_close(hpi_index *index);

#endif
