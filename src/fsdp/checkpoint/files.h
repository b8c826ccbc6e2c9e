/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/files.h - files as checkpoints need them: written whole and synced, or not there
 * at all.
 *
 * Every failure is HP_ERR_FILE naming the path and the system's reason. A full disk shows at write,
 * at fsync or at close, so all three are looked at.
 */
#ifndef HPI_FILES_H
#define HPI_FILES_H

#include "../../base/base.h"
#include <sys/uio.h>

/* Create `path`, which must not exist, out of the parts one after the other, and sync it. A failure
 * leaves no file. */
hp_status hpi_file_create(const char *path, const struct iovec *parts, uint64_t n_parts);
/* Create `path`, which must not exist, of n_bytes, which the disk keeps for it, beginning with the
 * parts; for others to write into. A failure leaves no file. */
hp_status hpi_file_reserve(const char *path, const struct iovec *parts, uint64_t n_parts,
                           uint64_t n_bytes);
/* Exactly [offset, offset + n_bytes) of a file that is open for writing. */
hp_status hpi_file_write(int fd, const char *path, uint64_t offset, const void *data,
                         uint64_t n_bytes);
hp_status hpi_file_open_to_write(const char *path, int *out_fd);
/* Sync and close it; closes it in any case. */
hp_status hpi_file_finish(int fd, const char *path);
/* Open a regular file for reading (a fifo or a directory is refused, not waited for). */
hp_status hpi_file_open(const char *path, int *out_fd, uint64_t *out_bytes);
/* Exactly [offset, offset + n_bytes). Errors also: FORMAT when the file ends before. */
hp_status hpi_file_read(int fd, const char *path, uint64_t offset, void *out, uint64_t n_bytes);
/* All of a small file with a NUL behind it; the caller frees it with hpi_free. Errors also: FORMAT
 * when it is larger than most_bytes. */
hp_status hpi_file_read_text(const char *path, uint64_t most_bytes, char **out_text,
                             uint64_t *out_bytes);
hp_status hpi_rename(const char *from, const char *to);
/* Give directory `path` the name `final`. Who bore it takes the name `path` or, where the file
 * system cannot exchange two names, `aside`: then a kill between two renames leaves nobody of that
 * name for a moment, and both whole. After a failure `final` is who it was. */
hp_status hpi_directory_replace(const char *path, const char *final, const char *aside);
/* Make the entries of a directory durable. */
hp_status hpi_directory_sync(const char *path);
/* Remove a directory and the files in it; what cannot be removed stays, silently. */
void hpi_directory_remove(const char *path);

/* "directory/name" in memory that the caller frees with hpi_free; NULL when there is none. */
char *hpi_path_join(const char *directory, const char *name);
/* The name of a file in a directory, and not of a hidden one; NULL is none. */
bool hpi_is_plain_name(const char *name);

#endif
