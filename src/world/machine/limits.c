/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.c - how much memory there is, as the machine, its cgroups and the resource limits say.
 *
 * What counts is the tightest of: MemAvailable, and for every cgroup from ours up to the root (v1
 * and v2) its limit less what it uses, file pages that can be dropped not counted as used. Cgroup
 * paths that are not visible in this mount are passed over: in a container the mount's root is the
 * container's own group. Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
 */
#include "limits.h"
#include "../inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define NO_LIMIT UINT64_MAX
/* cgroup v1 says "no limit" with the largest multiple of a page in 63 bits. */
#define V1_NO_LIMIT (UINT64_C(1) << 62)

bool hpi_read_number(const char *path, const char *key, uint64_t *out_value) {
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
    m->total_bytes = hpi_read_number(path, "MemTotal:", &kib) ? kib * 1024 : NO_LIMIT;
    m->available_bytes = hpi_read_number(path, "MemAvailable:", &kib) ? kib * 1024 : m->total_bytes;
}

bool hpi_cgroup_memory(const char *folder, bool is_v2, uint64_t *out_limit, uint64_t *out_left) {
    char path[640];
    uint64_t limit, used, file_pages;
    snprintf(path, sizeof path, "%s/%s", folder, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    if (!hpi_read_number(path, "", &limit) || limit >= V1_NO_LIMIT)
        return false;
    snprintf(path, sizeof path, "%s/%s", folder,
             is_v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!hpi_read_number(path, "", &used))
        return false;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (hpi_read_number(path, is_v2 ? "inactive_file " : "total_inactive_file ", &file_pages))
        used -= hpi_min(used, file_pages);
    *out_limit = limit;
    *out_left = limit - hpi_min(limit, used);
    return true;
}

/* From `group` up to the root of the mount. */
static void walk_up(const char *mount, char *group, bool is_v2, hpi_cgroup_see *see,
                    void *context) {
    char folder[600];
    if (!strcmp(group, "/"))
        *group = '\0';
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        see(context, folder, is_v2);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Is `controller` one of "cpu,cpuacct"? */
static bool lists(const char *controllers, const char *controller) {
    const size_t length = strlen(controller);
    for (const char *at = controllers; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, controller, length) && (at[length] == ',' || !at[length]))
            return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup are "ID:CONTROLLERS:PATH"; version 2 has no controllers there. */
void hpi_cgroups_walk(const char *root, const char *controller, hpi_cgroup_see *see,
                      void *context) {
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
        const bool is_v2 = !*++controllers;
        if (!is_v2 && !lists(controllers, controller))
            continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, is_v2 ? "" : "/",
                 is_v2 ? "" : controller);
        walk_up(path, group, is_v2, see, context);
    }
    if (file)
        fclose(file);
}

/* Kept when it leaves the least so far. */
static void see_memory(void *context, const char *folder, bool is_v2) {
    hpi_memory *m = context;
    uint64_t limit, left;
    if (!hpi_cgroup_memory(folder, is_v2, &limit, &left) || left >= m->cgroup_bytes)
        return;
    m->cgroup_bytes = left;
    snprintf(m->cgroup, sizeof m->cgroup, "%.*s", (int)sizeof m->cgroup - 1, folder);
}

void hpi_memory_read(const char *root, hpi_memory *out_memory) {
    struct rlimit limit;
    *out_memory =
        (hpi_memory){.cgroup_bytes = NO_LIMIT, .file_bytes = NO_LIMIT, .address_bytes = NO_LIMIT};
    read_machine(root, out_memory);
    hpi_cgroups_walk(root, "memory", see_memory, out_memory);
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY)
        out_memory->file_bytes = limit.rlim_cur;
    if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
        out_memory->address_bytes = limit.rlim_cur;
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

hp_status hpi_heap_of(const hpi_memory *m, uint64_t heap_size, int n_local, uint64_t *out_bytes) {
    if (m->file_bytes <= HPI_HEAP_OFFSET || heap_size > m->file_bytes - HPI_HEAP_OFFSET)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected RLIMIT_FSIZE (ulimit -f) to allow a segment of %llu bytes, it "
                        "allows %llu",
                        (unsigned long long)(HPI_HEAP_OFFSET + heap_size),
                        (unsigned long long)m->file_bytes);
    uint64_t bytes = heap_size;
    if (!bytes) {
        /* every rank maps all segments: stay well inside the address space and its limit */
        uint64_t space = UINT64_C(1) << 45;
        if (m->address_bytes != NO_LIMIT)
            space = hpi_min(space, m->address_bytes / 2);
        bytes = hpi_min(m->total_bytes, space / (uint64_t)n_local);
        bytes = hpi_min(bytes, m->file_bytes - HPI_HEAP_OFFSET);
    }
    *out_bytes = hpi_max(bytes / HPI_PAGE_BYTES, 1) * HPI_PAGE_BYTES;
    return HP_OK;
}

hp_status hpi_heap_bytes(const hpi_options *options, int n_local, uint64_t *out_bytes) {
    hpi_memory m;
    hpi_memory_read("", &m);
    return hpi_heap_of(&m, options->heap_size, n_local, out_bytes);
}

hp_status hpi_heap_check(const hpi_options *options, int n_local) {
    hpi_memory m;
    uint64_t bytes;
    if (!hpi_multiply(options->heap_size, (uint64_t)n_local, &bytes))
        bytes = UINT64_MAX;
    hpi_memory_read("", &m);
    return hpi_memory_check(&m, bytes, "SYMMETRIC_MEMORY_HEAP_SIZE of all ranks of this node");
}
