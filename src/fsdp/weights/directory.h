/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/weights/directory.h - replacing a directory of weights in one stroke.
 *
 * The new one is filled under a hidden name beside the old one and exchanged for it when it is
 * whole and durable. Files of the old one that the new one does not have are linked into it before,
 * directories (such as the .cache of `hf download`) are moved into it after. All of it is done by
 * one rank.
 *
 *     NAME                   the old one or the new one, whole
 *     .NAME.tmp-TOKEN        being written, or replaced and being removed: anything may be missing
 *     .NAME.old-TOKEN        whole, moved aside for a moment where a file system cannot exchange
 */
#ifndef HPI_WEIGHTS_DIRECTORY_H
#define HPI_WEIGHTS_DIRECTORY_H

#include "../../base/base.h"

typedef struct hpi_weights_directory {
    char *final, *parent;
    char *hidden, *aside; /* final's other names */
    bool is_replaced;     /* hidden is the old one now */
} hpi_weights_directory;

/* The names; nothing is made. Links in `path` are followed. Errors: FILE. */
hp_status hpi_weights_directory_name(const char *path, uint64_t token,
                                     hpi_weights_directory *out_directory);
/* Make `hidden`, with links to the old one's files except for those that `is_replaced` is true of;
 * remove what a killed save left, but for directories, which `final` gets back. Errors: FILE, also
 * when `final` is no directory, or holds one that has the name of a new file or cannot be moved. */
hp_status hpi_weights_directory_begin(const hpi_weights_directory *directory,
                                      bool (*is_replaced)(const void *context, const char *name),
                                      const void *context);
/* Sync `hidden`, exchange it for `final`, give it the old one's directories and remove the old one.
 * Errors: FILE. */
hp_status hpi_weights_directory_publish(hpi_weights_directory *directory);
/* Remove what a failed save leaves. */
void hpi_weights_directory_abandon(const hpi_weights_directory *directory);
void hpi_weights_directory_free(hpi_weights_directory *directory);

/* Where to read: `path`, or the one moved aside when a kill left nobody of that name. The caller
 * frees it with hpi_free. Errors: FILE. */
hp_status hpi_weights_directory_find(const char *path, char **out_path);

#endif
