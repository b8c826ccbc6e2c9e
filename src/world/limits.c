/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.c - how much memory there is, as the machine, its cgroups and the resource limits say.
 *
 * What counts is the tightest of: MemAvailable, and for every cgroup from ours up to the root (v1
 * and v2) its limit less what it uses, file pages that can be dropped not counted as used. Cgroup
 * paths that are not visible in this mount are passed over: in a container the mount's root is the
 * container's own group. Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
 */
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define NO_LIMIT UINT64_MAX
/* cgroup v1 says "no limit" with the largest multiple of a page in 63 bits. */
#define V1_NO_LIMIT (UINT64_C(1) << 62)

/* The number behind `key` in a file of "key number" lines, or alone in the file when key is "". */
static bool read_number(const char *path, const char *key, uint64_t *out_value) {
    FILE *file = fopen(path, "re");
    char line[256];
    bool is_found = false;
    while (file && !is_found && fgets(line, sizeof line, file)) {
        const size_t length = strlen(key);
        char *end = line + length;
        if (strncmp(line, key, length))
            continue;
        const char *digits = end;
        *out_value = strtoull(digits, &end, 10);
        is_found = end != digits;
    }
    if (file)
        fclose(file);
    return is_found;
}

static void read_machine(const char *root, hpi_memory *m) {
    char path[512];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kib;
    m->total_bytes = read_number(path, "MemTotal:", &kib) ? kib * 1024 : NO_LIMIT;
    m->available_bytes = read_number(path, "MemAvailable:", &kib) ? kib * 1024 : m->total_bytes;
}

/* One memory cgroup: what its limit still leaves, kept when it is the least so far. */
static void read_cgroup(const char *folder, bool is_v2, hpi_memory *m) {
    char path[640];
    uint64_t limit, used, file_pages;
    snprintf(path, sizeof path, "%s/%s", folder, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    if (!read_number(path, "", &limit) || limit >= V1_NO_LIMIT)
        return;
    snprintf(path, sizeof path, "%s/%s", folder,
             is_v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!read_number(path, "", &used))
        return;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_number(path, is_v2 ? "inactive_file " : "total_inactive_file ", &file_pages))
        used -= hpi_min(used, file_pages);
    const uint64_t left = limit - hpi_min(limit, used);
    if (left < m->cgroup_bytes) {
        m->cgroup_bytes = left;
        snprintf(m->cgroup, sizeof m->cgroup, "%.*s", (int)sizeof m->cgroup - 1, folder);
    }
}

/* From `group` up to the root of the mount. */
static void read_cgroups(const char *mount, char *group, bool is_v2, hpi_memory *m) {
    char folder[600];
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, strcmp(group, "/") ? group : "");
        read_cgroup(folder, is_v2, m);
        char *slash = strrchr(group, '/');
        if (!slash || !*group)
            return;
        *slash = '\0';
    }
}

static void read_all_cgroups(const char *root, hpi_memory *m) {
    char path[512], line[512];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        const bool is_v2 = !strcmp(controllers, ":");
        if (!is_v2 && !strstr(controllers, "memory"))
            continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, is_v2 ? "" : "/memory");
        read_cgroups(path, group, is_v2, m);
    }
    if (file)
        fclose(file);
}

void hpi_memory_read(const char *root, hpi_memory *out_memory) {
    struct rlimit limit;
    *out_memory = (hpi_memory){.cgroup_bytes = NO_LIMIT, .file_bytes = NO_LIMIT};
    read_machine(root, out_memory);
    read_all_cgroups(root, out_memory);
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY)
        out_memory->file_bytes = limit.rlim_cur;
}

hp_status hpi_memory_check(const hpi_memory *m, uint64_t bytes, const char *what) {
    if (bytes <= m->available_bytes && bytes <= m->cgroup_bytes)
        return HP_OK;
    char cgroup[256] = "no cgroup limits it";
    if (*m->cgroup)
        snprintf(cgroup, sizeof cgroup, "cgroup %s leaves %llu", m->cgroup,
                 (unsigned long long)m->cgroup_bytes);
    return HPI_FAIL(HP_ERR_LIMIT,
                    "expected room for %llu bytes (%s), the machine has %llu of %llu bytes "
                    "available; %s",
                    (unsigned long long)bytes, what, (unsigned long long)m->available_bytes,
                    (unsigned long long)m->total_bytes, cgroup);
}

hp_status hpi_heap_bytes(const hpi_options *options, int n_local, uint64_t *out_bytes) {
    hpi_memory m;
    struct rlimit limit;
    hpi_memory_read("", &m);
    if (m.file_bytes <= HPI_HEAP_OFFSET || options->heap_size > m.file_bytes - HPI_HEAP_OFFSET)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected RLIMIT_FSIZE (ulimit -f) to allow a segment of %llu bytes, it "
                        "allows %llu",
                        (unsigned long long)(HPI_HEAP_OFFSET + options->heap_size),
                        (unsigned long long)m.file_bytes);
    uint64_t bytes = options->heap_size;
    if (!bytes) {
        /* every rank maps all segments: stay well inside the address space and its limit */
        uint64_t space = UINT64_C(1) << 45;
        if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
            space = hpi_min(space, limit.rlim_cur / 2);
        bytes = hpi_min(m.total_bytes, space / (uint64_t)n_local);
        bytes = hpi_min(bytes, m.file_bytes - HPI_HEAP_OFFSET);
    }
    *out_bytes = hpi_max(bytes / HPI_PAGE_BYTES, 1) * HPI_PAGE_BYTES;
    return HP_OK;
}

hp_status hpi_heap_check(const hpi_options *options, int n_local) {
    hpi_memory m;
    uint64_t bytes;
    if (!hpi_multiply(options->heap_size, (uint64_t)n_local, &bytes))
        bytes = UINT64_MAX;
    hpi_memory_read("", &m);
    return hpi_memory_check(&m, bytes, "SYMMETRIC_MEMORY_HEAP_SIZE of all ranks of this node");
}
