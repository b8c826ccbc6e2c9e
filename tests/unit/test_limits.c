/* SPDX-License-Identifier: Apache-2.0
 *
 * test_limits.c - reading what the machine and its cgroups leave, from files made here.
 */
#include "world/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fake {
    char root[64];
    char paths[32][160]; /* what was made, in order */
    int n_paths;
} fake;

static void remember(fake *f, const char *path) {
    assert_true(f->n_paths < 32);
    snprintf(f->paths[f->n_paths++], sizeof f->paths[0], "%s", path);
}

static void put(fake *f, const char *name, const char *text) {
    char path[160];
    snprintf(path, sizeof path, "%s%s", f->root, name);
    for (char *slash = path + strlen(f->root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (!mkdir(path, 0700))
            remember(f, path);
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    remember(f, path);
}

static fake begin(void) {
    fake f = {.root = "/tmp/hyperparallel-limits-XXXXXX"};
    assert_non_null(mkdtemp(f.root));
    put(&f, "/proc/meminfo",
        "MemTotal:        1000000 kB\nMemFree:  5 kB\nMemAvailable:     600000 kB\n");
    return f;
}

static hpi_memory end(fake *f) {
    hpi_memory m;
    hpi_memory_read(f->root, &m);
    while (f->n_paths)
        assert_int_equal(remove(f->paths[--f->n_paths]), 0);
    assert_int_equal(rmdir(f->root), 0);
    return m;
}

static void test_machine(void **state) {
    (void)state;
    fake f = begin();
    const hpi_memory m = end(&f);
    assert_int_equal(m.total_bytes, UINT64_C(1000000) * 1024);
    assert_int_equal(m.available_bytes, UINT64_C(600000) * 1024);
    assert_string_equal(m.cgroup, "");
    assert_int_equal(hpi_memory_check(&m, m.available_bytes, "all"), HP_OK);
    assert_int_equal(hpi_memory_check(&m, m.available_bytes + 1, "a little more"), HP_ERR_LIMIT);
    assert_non_null(strstr(hp_last_error(), "a little more"));
    assert_non_null(strstr(hp_last_error(), "614400000"));
}

/* The tightest group above ours counts, less what it uses, file pages given back. */
static void test_cgroup_v2(void **state) {
    (void)state;
    fake f = begin();
    put(&f, "/proc/self/cgroup", "0::/job/step\n");
    put(&f, "/sys/fs/cgroup/job/memory.max", "5000000\n");
    put(&f, "/sys/fs/cgroup/job/memory.current", "4000000\n");
    put(&f, "/sys/fs/cgroup/job/memory.stat", "anon 7\ninactive_file 500000\n");
    put(&f, "/sys/fs/cgroup/job/step/memory.max", "max\n");
    put(&f, "/sys/fs/cgroup/job/step/memory.current", "1\n");
    const hpi_memory m = end(&f);
    assert_int_equal(m.cgroup_bytes, 1500000);
    assert_non_null(strstr(m.cgroup, "/job"));
    assert_int_equal(hpi_memory_check(&m, 1500001, "it"), HP_ERR_LIMIT);
    assert_non_null(strstr(hp_last_error(), "leaves 1500000"));
}

/* In a container the path is the host's, and only the mount's root is visible. */
static void test_cgroup_v1_container(void **state) {
    (void)state;
    fake f = begin();
    put(&f, "/proc/self/cgroup", "7:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n");
    put(&f, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
    put(&f, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "3500000\n");
    const hpi_memory m = end(&f);
    assert_int_equal(m.cgroup_bytes, 0); /* uses more than its limit: nothing is left */
}

static void test_cgroup_v1_unlimited(void **state) {
    (void)state;
    fake f = begin();
    put(&f, "/proc/self/cgroup", "4:memory:/\n");
    put(&f, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(&f, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
    const hpi_memory m = end(&f);
    assert_string_equal(m.cgroup, "");
    assert_true(m.cgroup_bytes == UINT64_MAX);
}

static void test_this_machine(void **state) {
    hpi_memory m;
    (void)state;
    hpi_memory_read("", &m);
    assert_true(m.total_bytes >= m.available_bytes && m.available_bytes > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine), cmocka_unit_test(test_cgroup_v2),
        cmocka_unit_test(test_cgroup_v1_container), cmocka_unit_test(test_cgroup_v1_unlimited),
        cmocka_unit_test(test_this_machine)};
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
