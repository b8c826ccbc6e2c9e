/* SPDX-License-Identifier: Apache-2.0
 *
 * weights/write.c - intervals of tensors to the disk, without a system call for each row.
 *
 * A shard along an inner dimension is a run of each row. Where runs are small, a block of rows is
 * gathered from all shards, woven together and written by one rank, the next block by the next
 * rank. Every rank takes part in every gather, also when it has failed to write, so nobody waits.
 */
#include "write.h"
#include "../checkpoint/files.h"
#include "index.h"

#include <hyperparallel/coll.h>

/* A run of SMALL_BYTES is worth a system call of its own. */
enum { BLOCK_BYTES = 1 << 18, SMALL_BYTES = 4096 };

hp_status hpi_weights_writer_make(const hp_fsdp *fsdp, const hpi_weights_plan *plan,
                                  hpi_weights_writer *out_writer) {
    hpi_weights_writer writer = {.fsdp = fsdp, .plan = plan};
    /* At least one row, whose runs are all small. */
    writer.row_bytes = hpi_max(BLOCK_BYTES, (uint64_t)fsdp->n_shards * SMALL_BYTES);
    writer.converted = hpi_alloc_aligned(64, BLOCK_BYTES);
    writer.shards = hpi_alloc_aligned(64, writer.row_bytes);
    writer.rows = hpi_alloc_aligned(64, writer.row_bytes);
    if (!writer.converted || !writer.shards || !writer.rows) {
        hpi_weights_writer_free(&writer);
        return HP_ERR_MEMORY;
    }
    *out_writer = writer;
    return HP_OK;
}

void hpi_weights_writer_free(hpi_weights_writer *writer) {
    hpi_free(writer->rows);
    hpi_free(writer->shards);
    hpi_free(writer->converted);
    writer->rows = writer->shards = writer->converted = NULL;
}

static void keep(hpi_weights_writer *writer, hp_status status) {
    if (status < 0 && writer->status == HP_OK) {
        writer->status = status;
        hp_last_error_get(&writer->error);
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* A tensor on its way into a file. */
struct target {
    int fd;
    const char *path;
    const hpi_tensor *tensor;
};

static hp_status write_elements(hpi_weights_writer *writer, const struct target *t, uint64_t begin,
                                const unsigned char *data, hp_dtype dtype, uint64_t n) {
    const uint64_t in_size = hp_dtype_size(dtype), out_size = hp_dtype_size(t->tensor->dtype);
    const uint64_t offset = t->tensor->offset + begin * out_size;
    writer->n_written_bytes += n * out_size;
    if (dtype == t->tensor->dtype)
        return hpi_file_write(t->fd, t->path, offset, data, n * out_size);
    for (uint64_t done = 0; done < n;) {
        const uint64_t n_now = hpi_min(n - done, BLOCK_BYTES / out_size);
        HP_TRY(
            hpi_convert(data + done * in_size, dtype, writer->converted, t->tensor->dtype, n_now));
        HP_TRY(hpi_file_write(t->fd, t->path, offset + done * out_size, writer->converted,
                              n_now * out_size));
        done += n_now;
    }
    return HP_OK;
}

/* n elements at `data`, in the tensor's dtype, from element `begin` of the tensor on; nothing once
 * something has failed. */
static void write_run(hpi_weights_writer *writer, const struct target *t, uint64_t begin,
                      const unsigned char *data, hp_dtype dtype, uint64_t n) {
    if (writer->status == HP_OK)
        keep(writer, write_elements(writer, t, begin, data, dtype, n));
}

static void write_own(hpi_weights_writer *writer, const struct target *t, const hpi_part *part) {
    const hpi_piece *mine = &part->mine;
    const hp_dtype dtype = part->param->master;
    const bool is_whole = mine->end - mine->begin == mine->stride;
    const uint64_t n_runs = is_whole ? 1 : mine->outer;
    const uint64_t run = hpi_piece_count(mine) / n_runs, run_bytes = run * hp_dtype_size(dtype);
    for (uint64_t b = 0; b < n_runs; b++)
        write_run(writer, t, b * mine->stride + mine->begin,
                  (const unsigned char *)part->data + b * run_bytes, dtype, run);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Every rank holds one small run of each of several rows; the same answer on all ranks. */
static bool is_scattered(const hpi_part *part) {
    const hpi_layout *l = &part->param->layout;
    return part->n_bytes && l->n_shards > 1 && l->outer > 1 &&
           part->n_bytes / l->outer < SMALL_BYTES;
}

/* n rows, from one shard behind the other to as they stand in the parameter. */
static void weave(hpi_weights_writer *writer, const hpi_layout *layout, uint64_t n, size_t size) {
    const uint64_t n_elements = n * layout->rows * layout->inner;
    const hpi_piece all = {1, n_elements, 0, n_elements};
    const unsigned char *from = writer->shards;
    for (int s = 0; s < writer->fsdp->n_shards; s++) {
        hpi_piece shard = hpi_piece_of(layout, s);
        shard.outer = n;
        (void)hpi_piece_copy(&shard, from, &all, writer->rows, size);
        from += hpi_piece_count(&shard) * size;
    }
}

static void write_in_turns(hpi_weights_writer *writer, const struct target *t,
                           const hpi_part *part) {
    const hpi_layout *layout = &part->param->layout;
    const hp_dtype dtype = part->param->master;
    const uint64_t stride = layout->rows * layout->inner, size = hp_dtype_size(dtype);
    const uint64_t run_bytes = part->n_bytes / layout->outer;
    const uint64_t most = writer->row_bytes / (stride * size);
    int whose_turn = 0;
    for (uint64_t row = 0; row < layout->outer; row += most) {
        const uint64_t n = hpi_min(most, layout->outer - row);
        const hp_status status =
            hp_all_gather(writer->fsdp->shard, (const unsigned char *)part->data + row * run_bytes,
                          writer->shards, n * run_bytes, HP_UINT8);
        keep(writer, status);
        if (status < 0)
            return; /* the group has failed, for everybody */
        if (whose_turn == writer->fsdp->shard_rank) {
            weave(writer, layout, n, size);
            write_run(writer, t, row * stride, writer->rows, dtype, n * stride);
        }
        whose_turn = (whose_turn + 1) % writer->fsdp->n_shards;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_parts(hpi_weights_writer *writer, const hpi_weights_file *file, int fd,
                        const char *path) {
    for (uint64_t i = file->first; i < file->end; i++) {
        const hpi_part *part = writer->plan->part_of[i];
        const struct target target = {fd, path, &writer->plan->tensors[i]};
        if (is_scattered(part))
            write_in_turns(writer, &target, part);
        else if (hpi_part_is_written(writer->fsdp, part))
            write_own(writer, &target, part);
    }
}

static void write_file(hpi_weights_writer *writer, const char *directory, uint64_t f) {
    int fd = -1;
    char name[HPI_WEIGHTS_NAME_BYTES];
    hpi_weights_file_name(f, writer->plan->n_files, name);
    char *path = hpi_path_join(directory, name);
    keep(writer, path ? hpi_file_open_to_write(path, &fd) : HP_ERR_MEMORY);
    write_parts(writer, &writer->plan->files[f], fd, path);
    if (fd >= 0)
        keep(writer, hpi_file_finish(fd, path));
    hpi_free(path);
}

hp_status hpi_weights_write(hpi_weights_writer *writer, const char *directory) {
    for (uint64_t f = 0; f < writer->plan->n_files; f++)
        write_file(writer, directory, f);
    return writer->status < 0 ? hpi_error_set(&writer->error) : HP_OK;
}
