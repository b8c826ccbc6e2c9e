/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c - what a machine has, read from /proc and /sys, and what a job on it can have.
 *
 * Every file is read whole into a small buffer and looked through; a number that is not there, or
 * is no number, leaves the field at "unknown". Names of folders are taken from the folders, never
 * from numbers that some file gave: a NUMA node without memory or without cores is a node as any.
 * Source: Documentation/admin-guide/mm/numaperf.rst, ABI/stable/sysfs-devices-node,
 * ABI/testing/sysfs-devices-system-cpu, proc(5).
 */
#include "../inside.h"
#include "limits.h"

#include <hyperparallel/machine.h>

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { ROOT_BYTES = 256, TEXT_BYTES = 8192, MAX_CORES = 1 << 16 };

/* ---- files ---------------------------------------------------------------------------------- */

/* The first bytes of ROOT/NAME as a string; "" when it cannot be read. O_NONBLOCK: a FIFO has
 * nothing to say. */
static void read_text(const char *root, const char *name, char *out_text, size_t size) {
    char path[ROOT_BYTES + 512];
    size_t used = 0;
    ssize_t n = 1;
    snprintf(path, sizeof path, "%s%s", root, name);
    const int fd = hpi_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    while (fd >= 0 && n > 0 && used < size - 1) {
        n = read(fd, out_text + used, size - 1 - used);
        used += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    out_text[used] = '\0';
}

/* The number behind `key` in a text, which begins a line or follows a blank; false: none. */
static bool find_number(const char *text, const char *key, uint64_t *out_value) {
    const char *at = text;
    while ((at = strstr(at, key)) && at > text && !isspace((unsigned char)at[-1]))
        at++;
    if (!at)
        return false;
    at += strlen(key);
    at += strspn(at, " \t");
    if (!isdigit((unsigned char)*at))
        return false;
    *out_value = strtoull(at, NULL, 10);
    return true;
}

static bool find_kib(const char *text, const char *key, uint64_t *out_bytes) {
    uint64_t kib;
    return find_number(text, key, &kib) && hpi_multiply(kib, 1024, out_bytes);
}

/* The number that is all of a small file, with K, M or G behind it or not. */
static bool read_size(const char *root, const char *name, uint64_t *out_value) {
    char text[64], *end;
    read_text(root, name, text, sizeof text);
    if (!isdigit((unsigned char)*text))
        return false;
    const uint64_t number = strtoull(text, &end, 10);
    const uint64_t unit = *end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : *end == 'G' ? 1 << 30 : 1;
    return hpi_multiply(number, unit, out_value);
}

static int read_int(const char *root, const char *name, int fallback) {
    uint64_t value;
    return read_size(root, name, &value) && value <= INT32_MAX ? (int)value : fallback;
}

/* How many cores "0-3,8,10-11" names, as far as it makes sense. */
static int count_cores(const char *text) {
    int n = 0;
    while (isdigit((unsigned char)*text) && n < MAX_CORES) {
        char *end;
        const unsigned long first = strtoul(text, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        if (last < first || last >= MAX_CORES)
            break;
        n += (int)(last - first) + 1;
        text = *end == ',' ? end + 1 : "";
    }
    return n;
}

/* A line of a file into a field, without what surrounds it. */
static void keep_line(const char *from, char *out_text, size_t size) {
    from += strspn(from, " \t:");
    snprintf(out_text, size, "%.*s", (int)strcspn(from, "\n"), from);
}

/* ---- cores ---------------------------------------------------------------------------------- */

static void read_cores(const char *root, hp_machine *m) {
    char text[TEXT_BYTES];
    struct utsname name;
    cpu_set_t allowed;
    read_text(root, "/proc/cpuinfo", text, sizeof text);
    const char *model = strstr(text, "model name");
    if (model)
        keep_line(model + strlen("model name"), m->cpu, sizeof m->cpu);
    read_text(root, "/sys/devices/system/cpu/online", text, sizeof text);
    m->n_cores = count_cores(text);
    if (!sched_getaffinity(0, sizeof allowed, &allowed))
        m->n_cores_allowed = CPU_COUNT(&allowed);
    if (!uname(&name)) {
        snprintf(m->architecture, sizeof m->architecture, "%s", name.machine);
        snprintf(m->kernel, sizeof m->kernel, "%s %s", name.sysname, name.release);
    }
}

/* Version 2 has "QUOTA PERIOD" or "max PERIOD" in one file, version 1 a file for each. */
static void see_quota(void *context, const char *folder, bool is_v2) {
    hp_machine *m = context;
    char text[64];
    uint64_t quota = 0, period = 0;
    if (is_v2) {
        read_text(folder, "/cpu.max", text, sizeof text);
        char *rest = text;
        quota = isdigit((unsigned char)*text) ? strtoull(text, &rest, 10) : 0;
        period = strtoull(rest, NULL, 10);
    } else if (!read_size(folder, "/cpu.cfs_quota_us", &quota) ||
               !read_size(folder, "/cpu.cfs_period_us", &period)) {
        return; /* the quota "-1" is none */
    }
    if (!quota || !period)
        return;
    const double cores = (double)quota / (double)period;
    if (m->cpu_quota == 0 || cores < m->cpu_quota)
        m->cpu_quota = cores;
}

static void read_caches(const char *root, hp_machine *m) {
    for (int i = 0; i < HP_MACHINE_CACHES; i++) {
        char name[128], text[256];
        hp_cache c = {0};
        const int length =
            snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu0/cache/index%d/", i);
        char *end = name + length;
        const size_t room = sizeof name - (size_t)length;
        snprintf(end, room, "size");
        if (!read_size(root, name, &c.bytes))
            continue;
        snprintf(end, room, "level");
        c.level = read_int(root, name, 0);
        snprintf(end, room, "coherency_line_size");
        (void)read_size(root, name, &c.line_bytes);
        snprintf(end, room, "type");
        read_text(root, name, text, sizeof text);
        keep_line(text, c.type, sizeof c.type);
        snprintf(end, room, "shared_cpu_list");
        read_text(root, name, text, sizeof text);
        c.n_sharing = count_cores(text);
        m->caches[m->n_caches++] = c;
    }
}

/* ---- NUMA nodes ----------------------------------------------------------------------------- */

/* "node12" -> 12; -1 for any other name. */
static int node_id(const char *name) {
    char *end;
    if (strncmp(name, "node", 4) || !isdigit((unsigned char)name[4]))
        return -1;
    const unsigned long id = strtoul(name + 4, &end, 10);
    return *end || id >= MAX_CORES ? -1 : (int)id;
}

static hp_numa_node read_node(const char *root, int id) {
    char name[96], text[TEXT_BYTES];
    hp_numa_node node = {.id = id};
    snprintf(name, sizeof name, "/sys/devices/system/node/node%d/cpulist", id);
    read_text(root, name, text, sizeof text);
    node.n_cores = count_cores(text);
    snprintf(name, sizeof name, "/sys/devices/system/node/node%d/meminfo", id);
    read_text(root, name, text, sizeof text);
    (void)find_kib(text, "MemTotal:", &node.memory_bytes);
    (void)find_kib(text, "MemFree:", &node.free_bytes);
    return node;
}

static void read_nodes(const char *root, hp_machine *m) {
    char path[ROOT_BYTES + 64];
    snprintf(path, sizeof path, "%s/sys/devices/system/node", root);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)) && m->n_nodes < HP_MACHINE_NODES) {
        const int id = node_id(entry->d_name);
        if (id < 0)
            continue;
        int at = m->n_nodes++;
        for (; at > 0 && m->nodes[at - 1].id > id; at--) /* folders come in any order */
            m->nodes[at] = m->nodes[at - 1];
        m->nodes[at] = read_node(root, id);
    }
    if (folder)
        closedir(folder);
}

/* ---- memory and limits ---------------------------------------------------------------------- */

/* The word in brackets: "always [never] force". */
static void keep_choice(const char *text, char *out_word, size_t size) {
    const char *begin = strchr(text, '[');
    const char *end = begin ? strchr(begin, ']') : NULL;
    if (end)
        snprintf(out_word, size, "%.*s", (int)(end - begin) - 1, begin + 1);
}

static void read_memory(const char *root, hp_machine *m) {
    char text[TEXT_BYTES];
    read_text(root, "/proc/meminfo", text, sizeof text);
    m->total_bytes = m->available_bytes = HP_NO_LIMIT;
    if (find_kib(text, "MemTotal:", &m->total_bytes))
        m->available_bytes = m->total_bytes;
    (void)find_kib(text, "MemAvailable:", &m->available_bytes);
    (void)find_kib(text, "SwapFree:", &m->swap_bytes);
    (void)find_kib(text, "Hugepagesize:", &m->huge_page_bytes);
    (void)find_number(text, "HugePages_Total:", &m->n_huge_pages);
    (void)find_number(text, "HugePages_Free:", &m->n_huge_pages_free);
    read_text(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text);
    keep_choice(text, m->huge_shared, sizeof m->huge_shared);
    m->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
}

static void see_memory(void *context, const char *folder, bool is_v2) {
    hp_machine *m = context;
    hp_cgroup c = {0};
    if (m->n_cgroups == HP_MACHINE_CGROUPS ||
        !hpi_cgroup_memory(folder, is_v2, &c.limit_bytes, &c.left_bytes))
        return;
    snprintf(c.folder, sizeof c.folder, "%s", folder);
    m->cgroups[m->n_cgroups++] = c;
}

static uint64_t resource_limit(int which) {
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)which, &limit) || limit.rlim_cur == RLIM_INFINITY
               ? HP_NO_LIMIT
               : limit.rlim_cur;
}

/* Does the kernel, or a sandbox, let us have such a descriptor? */
static int can_open(int fd) {
    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

static void read_limits(const char *root, hp_machine *m) {
    char text[TEXT_BYTES];
    uint64_t seccomp = 0;
    m->file_bytes = resource_limit(RLIMIT_FSIZE);
    m->address_bytes = resource_limit(RLIMIT_AS);
    m->locked_bytes = resource_limit(RLIMIT_MEMLOCK);
    m->n_descriptors = resource_limit(RLIMIT_NOFILE);
    m->n_processes = resource_limit(RLIMIT_NPROC);
    m->has_memfd = can_open(memfd_create("hyperparallel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    m->has_huge_segments = hpi_can_make_huge();
    m->has_pidfd = can_open((int)syscall(SYS_pidfd_open, getpid(), 0));
    read_text(root, "/proc/self/status", text, sizeof text);
    m->seccomp = find_number(text, "Seccomp:", &seccomp) && seccomp <= 2 ? (int)seccomp : -1;
    m->ptrace_scope = read_int(root, "/proc/sys/kernel/yama/ptrace_scope", -1);
}

hp_status hp_machine_read(const char *root, hp_machine *out_machine) {
    if (!root)
        root = "";
    if (!out_machine || strlen(root) >= ROOT_BYTES)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a place for the result and a root shorter than %d bytes, given "
                        "%p and %zu bytes",
                        ROOT_BYTES, (void *)out_machine, strlen(root));
    memset(out_machine, 0, sizeof *out_machine);
    read_cores(root, out_machine);
    hpi_cgroups_walk(root, "cpu", see_quota, out_machine);
    read_caches(root, out_machine);
    read_nodes(root, out_machine);
    read_memory(root, out_machine);
    hpi_cgroups_walk(root, "memory", see_memory, out_machine);
    read_limits(root, out_machine);
    return HP_OK;
}

/* ---- a job on it ---------------------------------------------------------------------------- */

/* What a start checks, of this machine. */
static hpi_memory memory_of(const hp_machine *m) {
    hpi_memory memory = {.total_bytes = m->total_bytes,
                         .available_bytes = m->available_bytes,
                         .cgroup_bytes = HP_NO_LIMIT,
                         .file_bytes = m->file_bytes,
                         .address_bytes = m->address_bytes};
    for (int i = 0; i < m->n_cgroups; i++) {
        if (m->cgroups[i].left_bytes >= memory.cgroup_bytes)
            continue;
        memory.cgroup_bytes = m->cgroups[i].left_bytes;
        snprintf(memory.cgroup, sizeof memory.cgroup, "%s", m->cgroups[i].folder);
    }
    return memory;
}

static void limit_job(hp_machine_job *job, uint64_t bytes, const char *why, const char *which) {
    bytes = bytes / HPI_PAGE_BYTES * HPI_PAGE_BYTES;
    if (bytes > job->heap_bytes)
        return;
    job->heap_bytes = bytes;
    snprintf(job->limited_by, sizeof job->limited_by, "%s%s", why, which);
}

/* A launcher holds 4 descriptors for each rank while it starts them, a rank one for each peer. */
static int most_ranks(const hp_machine *m) {
    enum { PER_RANK = 4, BESIDE = 8 };
    const uint64_t n = m->n_descriptors > BESIDE ? (m->n_descriptors - BESIDE) / PER_RANK : 0;
    return (int)hpi_min(n, HPI_MAX_LOCAL);
}

hp_status hp_machine_plan(const hp_machine *machine, int n_ranks, hp_machine_job *out_job) {
    hpi_options options;
    uint64_t all_bytes;
    if (!machine || !out_job || n_ranks < 1)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a machine, 1 rank or more and a place for the result, given %p, "
                        "%d, %p",
                        (const void *)machine, n_ranks, (void *)out_job);
    HP_TRY(hpi_options_load(&options));
    const hpi_memory memory = memory_of(machine);
    const uint64_t n = (uint64_t)n_ranks;
    hp_machine_job job = {.n_ranks = n_ranks, .most_ranks = most_ranks(machine)};
    job.can_spin = n_ranks <= machine->n_cores_allowed;
    HP_TRY(hpi_heap_of(&memory, options.heap_size, n_ranks, &job.reserved_bytes));
    if (!hpi_multiply(options.heap_size, n, &all_bytes))
        all_bytes = UINT64_MAX;
    HP_TRY(hpi_memory_check(&memory, all_bytes,
                            "SYMMETRIC_MEMORY_HEAP_SIZE of all ranks of this node"));
    job.heap_bytes = job.reserved_bytes;
    snprintf(job.limited_by, sizeof job.limited_by, "%s",
             options.heap_size ? "SYMMETRIC_MEMORY_HEAP_SIZE" : "MemTotal and the address space");
    limit_job(&job, memory.available_bytes / n, "MemAvailable", "");
    limit_job(&job, memory.cgroup_bytes / n, "cgroup ", memory.cgroup);
    limit_job(&job, memory.file_bytes - HPI_HEAP_OFFSET, "RLIMIT_FSIZE", "");
    *out_job = job;
    return HP_OK;
}
