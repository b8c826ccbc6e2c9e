/* SPDX-License-Identifier: Apache-2.0
 *
 * world/machine/limits.h - reading the files of /proc and /sys that say what a process may use.
 *
 * What a file does not say, or says in an unknown way, is "not found", never an error: these files
 * differ between kernels, containers and machines.
 */
#ifndef HPI_LIMITS_H
#define HPI_LIMITS_H

#include "../../base/base.h"

/* The number behind `key` in a file of "key number" lines, or alone in the file when key is "". */
bool hpi_read_number(const char *path, const char *key, uint64_t *out_value);

/* See each cgroup of ours that has `controller` ("memory", "cpu"), from the innermost up to the
 * root of the mount, those of version 1 and of version 2. */
typedef void hpi_cgroup_see(void *context, const char *folder, bool is_v2);
void hpi_cgroups_walk(const char *root, const char *controller, hpi_cgroup_see *see, void *context);

/* The memory limit of one cgroup, and what it still leaves; false where it has no limit. */
bool hpi_cgroup_memory(const char *folder, bool is_v2, uint64_t *out_limit, uint64_t *out_left);

#endif
