/* SPDX-License-Identifier: Apache-2.0
 *
 * test_machine.c - hp_machine_read and hp_machine_plan, of machines that are made here of files:
 * whole ones, odd ones, damaged ones; and of the machine that runs the test.
 */
#include "../../src/world/control.h"
#include <hyperparallel/machine.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB (UINT64_C(1) << 30)

static char root[64];

static void make_folder_of(char *path) {
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        (void)mkdir(path, 0700);
    }
}

static void put(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, name);
    make_folder_of(path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/hyperparallel-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int end(void **state) {
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static hp_machine read_it(void) {
    hp_machine m;
    assert_int_equal(hp_machine_read(root, &m), HP_OK);
    return m;
}

static void test_whole_machine(void **state) {
    (void)state;
    put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 3000\nflags: a b\n");
    put("/proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n"
                         "SwapFree: 1024 kB\nHugePages_Total: 5\nHugePages_Free: 3\n"
                         "Hugepagesize: 2048 kB\n");
    put("/sys/devices/system/cpu/online", "0-3,6,8-9\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/level", "1\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size", "64\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0,4\n");
    put("/sys/devices/system/cpu/cpu0/cache/index3/size", "32M\n");
    put("/sys/devices/system/cpu/cpu0/cache/index3/level", "3\n");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n");
    put("/proc/self/status", "Name: x\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n");
    put("/proc/sys/kernel/yama/ptrace_scope", "1\n");
    const hp_machine m = read_it();
    assert_string_equal(m.cpu, "Some CPU 3000");
    assert_int_equal(m.n_cores, 7);
    assert_true(m.n_cores_allowed >= 1);
    assert_int_equal(m.total_bytes, 8 * GIB);
    assert_int_equal(m.available_bytes, 4 * GIB);
    assert_int_equal(m.swap_bytes, 1 << 20);
    assert_int_equal(m.huge_page_bytes, 2 << 20);
    assert_int_equal(m.n_huge_pages, 5);
    assert_int_equal(m.n_huge_pages_free, 3);
    assert_string_equal(m.huge_shared, "advise");
    assert_int_equal(m.n_caches, 2);
    assert_int_equal(m.caches[0].bytes, 32 << 10);
    assert_int_equal(m.caches[0].line_bytes, 64);
    assert_int_equal(m.caches[0].n_sharing, 2);
    assert_string_equal(m.caches[0].type, "Data");
    assert_int_equal(m.caches[1].level, 3);
    assert_int_equal(m.caches[1].bytes, 32 << 20);
    assert_int_equal(m.caches[1].n_sharing, 0);
    assert_int_equal(m.seccomp, 2);
    assert_int_equal(m.ptrace_scope, 1);
    assert_int_equal(m.n_nodes, 0);
}

static void test_empty_root_is_unknown(void **state) {
    (void)state;
    const hp_machine m = read_it();
    assert_string_equal(m.cpu, "");
    assert_int_equal(m.n_cores, 0);
    assert_int_equal(m.n_nodes, 0);
    assert_int_equal(m.n_caches, 0);
    assert_int_equal(m.n_cgroups, 0);
    assert_true(m.total_bytes == HP_NO_LIMIT && m.available_bytes == HP_NO_LIMIT);
    assert_true(m.cpu_quota == 0);
    assert_int_equal(m.huge_page_bytes, 0);
    assert_int_equal(m.seccomp, -1);
    assert_int_equal(m.ptrace_scope, -1);
}

/* One node without memory, one without cores, and they stay in the order of their numbers. */
static void test_node_without_memory(void **state) {
    (void)state;
    put("/sys/devices/system/node/node10/cpulist", "\n");
    put("/sys/devices/system/node/node10/meminfo", "Node 10 MemTotal: 1048576 kB\n"
                                                   "Node 10 MemFree: 1024 kB\n");
    put("/sys/devices/system/node/node2/cpulist", "4-7\n");
    put("/sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 0 kB\nNode 2 MemFree: 0 kB\n");
    put("/sys/devices/system/node/node0/cpulist", "0-3\n"); /* and no meminfo */
    const hp_machine m = read_it();
    assert_int_equal(m.n_nodes, 3);
    assert_int_equal(m.nodes[0].id, 0);
    assert_int_equal(m.nodes[0].n_cores, 4);
    assert_int_equal(m.nodes[0].memory_bytes, 0);
    assert_int_equal(m.nodes[1].id, 2);
    assert_int_equal(m.nodes[1].n_cores, 4);
    assert_int_equal(m.nodes[1].memory_bytes, 0);
    assert_int_equal(m.nodes[2].id, 10);
    assert_int_equal(m.nodes[2].n_cores, 0);
    assert_int_equal(m.nodes[2].memory_bytes, GIB);
    assert_int_equal(m.nodes[2].free_bytes, 1 << 20);
}

static void test_damaged_files(void **state) {
    char path[128], big[9000];
    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    put("/proc/cpuinfo", big);
    put("/proc/meminfo", "MemTotal: lots kB\nMemAvailable:\nHugepagesize: -3 kB\n");
    put("/proc/self/cgroup", "\n:\n::\n9:memory\nxxxxxxxx\n0::no-slash\n");
    put("/sys/fs/cgroup/memory.max", "ten\n");
    put("/sys/fs/cgroup/cpu.max", "100000\n");
    put("/sys/devices/system/cpu/online", "0-99999999999999999999\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/size", "18446744073709551615G\n");
    put("/sys/devices/system/node/node", "a file\n");
    put("/sys/devices/system/node/nodeX/meminfo", "Node X MemTotal: 5 kB\n");
    put("/sys/devices/system/node/node-1/meminfo", "Node -1 MemTotal: 5 kB\n");
    put("/sys/devices/system/node/node18446744073709551616/cpulist", "0\n");
    put("/sys/devices/system/node/node3", "a file, no folder\n");
    put("/sys/devices/system/node/node4/cpulist", "7-3,1\n");
    put("/sys/devices/system/node/node5/cpulist", "1,2,oops,9\n");
    put("/sys/devices/system/node/node5/meminfo", big);
    snprintf(path, sizeof path, "%s/sys/kernel/mm/transparent_hugepage/shmem_enabled", root);
    make_folder_of(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes: reading must not wait */
    const hp_machine m = read_it();
    assert_string_equal(m.cpu, "");
    assert_int_equal(m.n_cores, 0);
    assert_int_equal(m.n_caches, 0);
    assert_int_equal(m.n_cgroups, 0);
    assert_true(m.total_bytes == HP_NO_LIMIT && m.available_bytes == HP_NO_LIMIT);
    assert_true(m.cpu_quota == 0);
    assert_int_equal(m.n_nodes, 3);
    assert_int_equal(m.nodes[0].id, 3);
    assert_int_equal(m.nodes[0].n_cores, 0);
    assert_int_equal(m.nodes[1].n_cores, 0);
    assert_int_equal(m.nodes[2].n_cores, 2);
    assert_int_equal(m.nodes[2].memory_bytes, 0);
    assert_string_equal(m.huge_shared, "");
}

static void test_more_nodes_than_fit(void **state) {
    char name[96];
    (void)state;
    for (int i = 0; i < HP_MACHINE_NODES + 3; i++) {
        snprintf(name, sizeof name, "/sys/devices/system/node/node%d/cpulist", i);
        put(name, "0\n");
    }
    assert_int_equal(read_it().n_nodes, HP_MACHINE_NODES);
}

static void test_cgroups_of_version_2(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/outer/inner\n");
    put("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
    put("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/outer/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/outer/memory.current", "536870912\n");
    put("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 268435456\n");
    put("/sys/fs/cgroup/outer/cpu.max", "250000 100000\n");
    const hp_machine m = read_it();
    assert_int_equal(m.n_cgroups, 1);
    assert_non_null(strstr(m.cgroups[0].folder, "/sys/fs/cgroup/outer"));
    assert_int_equal(m.cgroups[0].limit_bytes, GIB);
    assert_int_equal(m.cgroups[0].left_bytes, GIB / 4 * 3);
    assert_true(m.cpu_quota == 2.5);
}

static void test_cgroups_of_version_1(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/\n3:cpuset:/other\n2:cpu,cpuacct:/job\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741825\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    const hp_machine m = read_it();
    assert_int_equal(m.n_cgroups, 1); /* the root once */
    assert_int_equal(m.cgroups[0].left_bytes, 0);
    assert_true(m.cpu_quota == 0.5);
}

static void test_this_machine(void **state) {
    hp_machine m;
    (void)state;
    assert_int_equal(hp_machine_read("", &m), HP_OK);
    assert_true(m.n_cores >= 1 && m.n_cores_allowed >= 1);
    assert_true(m.total_bytes >= m.available_bytes && m.available_bytes > 0);
    assert_true(m.page_bytes >= 4096);
    assert_true(m.has_memfd && m.n_descriptors > 3);
    assert_int_equal(hp_machine_read(NULL, NULL), HP_ERR_ARGUMENT);
    char long_root[300];
    memset(long_root, 'r', sizeof long_root - 1);
    long_root[sizeof long_root - 1] = '\0';
    assert_int_equal(hp_machine_read(long_root, &m), HP_ERR_ARGUMENT);
}

static hp_machine planned(void) {
    hp_machine m;
    memset(&m, 0, sizeof m);
    m.n_cores_allowed = 2;
    m.total_bytes = 64 * GIB;
    m.available_bytes = 32 * GIB;
    m.file_bytes = m.address_bytes = HP_NO_LIMIT;
    m.n_descriptors = 1024;
    return m;
}

static void test_plan_of_a_job(void **state) {
    hp_machine m = planned();
    hp_machine_job job;
    (void)state;
    assert_int_equal(hp_machine_plan(&m, 4, &job), HP_OK);
    assert_int_equal(job.heap_bytes, 8 * GIB);
    assert_int_equal(job.reserved_bytes, 64 * GIB);
    assert_string_equal(job.limited_by, "MemAvailable");
    assert_int_equal(job.can_spin, 0);
    assert_int_equal(job.most_ranks, 254);
    assert_int_equal(hp_machine_plan(&m, 2, &job), HP_OK);
    assert_int_equal(job.can_spin, 1);

    m.n_cgroups = 2;
    m.cgroups[0] = (hp_cgroup){"/inner", 4 * GIB, 4 * GIB};
    m.cgroups[1] = (hp_cgroup){"/outer", 8 * GIB, 2 * GIB};
    assert_int_equal(hp_machine_plan(&m, 2, &job), HP_OK);
    assert_int_equal(job.heap_bytes, GIB);
    assert_string_equal(job.limited_by, "cgroup /outer");

    m.file_bytes = GIB / 2;
    assert_int_equal(hp_machine_plan(&m, 2, &job), HP_OK);
    assert_int_equal(job.heap_bytes, GIB / 2 - HPI_HEAP_OFFSET);
    assert_string_equal(job.limited_by, "RLIMIT_FSIZE");
}

static void test_plan_that_cannot_be(void **state) {
    hp_machine m = planned();
    hp_machine_job job = {.n_ranks = -7};
    (void)state;
    assert_int_equal(hp_machine_plan(&m, 0, &job), HP_ERR_ARGUMENT);
    assert_int_equal(hp_machine_plan(NULL, 1, &job), HP_ERR_ARGUMENT);
    m.file_bytes = 4096;
    assert_int_equal(hp_machine_plan(&m, 1, &job), HP_ERR_LIMIT);
    assert_non_null(strstr(hp_last_error(), "RLIMIT_FSIZE"));
    m = planned();
    assert_int_equal(setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "17G", 1), 0);
    assert_int_equal(hp_machine_plan(&m, 1, &job), HP_OK);
    assert_string_equal(job.limited_by, "SYMMETRIC_MEMORY_HEAP_SIZE");
    assert_int_equal(job.heap_bytes, 17 * GIB);
    assert_int_equal(hp_machine_plan(&m, 2, &job), HP_ERR_LIMIT);
    assert_int_equal(job.n_ranks, 1); /* as it was */
    assert_int_equal(unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE"), 0);
}

int main(void) {
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE"); /* plans are of what the machine gives */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole_machine, begin, end),
        cmocka_unit_test_setup_teardown(test_empty_root_is_unknown, begin, end),
        cmocka_unit_test_setup_teardown(test_node_without_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_damaged_files, begin, end),
        cmocka_unit_test_setup_teardown(test_more_nodes_than_fit, begin, end),
        cmocka_unit_test_setup_teardown(test_cgroups_of_version_2, begin, end),
        cmocka_unit_test_setup_teardown(test_cgroups_of_version_1, begin, end),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_plan_of_a_job),
        cmocka_unit_test(test_plan_that_cannot_be)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
