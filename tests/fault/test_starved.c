/* SPDX-License-Identifier: Apache-2.0
 *
 * test_starved.c - a machine, a cgroup or a limit that does not give what a job asks for.
 *
 * Every rank gets an error that says what was asked, what there is and which limit it was; nobody
 * hangs, nothing is killed by a signal, and what fits works afterwards. Each case runs in a child,
 * which changes its own limits.
 */
#include "fault/faults.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
enum { N_RANKS = 3, CHILD_CANNOT = 77 };

static fault_page *page;

/* ---- jobs in a child ----------------------------------------------------------------------------
 */

static int complain(const char *what) {
    fprintf(stderr, "%s: %s\n", what, hp_last_error());
    return 1;
}

/* Run it in a child; its exit status. */
static int in_a_child(int (*body)(const void *), const void *argument) {
    int status;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGXFSZ, SIG_DFL);
        _exit(body(argument));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect_child(int (*body)(const void *), const void *argument, const char *needed) {
    const int status = in_a_child(body, argument);
    if (status == CHILD_CANNOT) {
        print_message("%s\n", needed);
        skip();
    }
    assert_int_equal(status, 0);
}

/* The job's exit status, 0 when all ranks' bodies return 0; -1 when it could not start. */
static int launch(int n, int (*body)(void *), void *argument) {
    fault_job job = {.n_ranks = n, .page = page, .body = body, .argument = argument};
    if (fault_launch(&job))
        return -1;
    if (job.exit_status)
        fault_print(&job);
    return job.exit_status;
}

/* ---- more than there is ---------------------------------------------------------------------- */

typedef struct wish {
    uint64_t too_much, enough; /* bytes of each rank */
    const char *text;          /* in the refusal */
} wish;

/* Refused on every rank, with the numbers; then what fits works. */
static int wish_main(void *argument) {
    const wish *w = argument;
    hp_world *world;
    hp_symm memory;
    void *bytes;
    signal(SIGTERM, SIG_IGN);
    if (hp_world_create(NULL, &world))
        return complain("world");
    if (hp_symm_alloc(world, NULL, w->too_much, 0, &memory) != HP_ERR_LIMIT ||
        !strstr(hp_last_error(), w->text))
        return complain("too much");
    if (hp_symm_alloc(world, NULL, w->enough, 0, &memory))
        return complain("enough");
    if (hp_symm_pointer(memory, hp_world_rank(world), NULL, &bytes))
        return complain("pointer");
    memset(bytes, 1, w->enough); /* no SIGBUS */
    if (hp_barrier(hp_world_group(world)) || hp_symm_free(memory))
        return complain("barrier, free");
    hp_world_destroy(world);
    return 0;
}

static int more_than_the_machine(const void *argument) {
    const uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    wish w = {total / 4 * 3, MIB, "available"}; /* each has room for it, all together have not */
    (void)argument;
    return launch(N_RANKS, wish_main, &w);
}

static void more_memory_than_the_machine_has(void **state) {
    (void)state;
    expect_child(more_than_the_machine, NULL, "");
}

static bool write_text(const char *folder, const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return is_written;
}

/* In a cgroup of 64 MiB: three ranks ask for 40 MiB each. */
static int more_than_the_cgroup(const void *argument) {
    wish w = {40 * MIB, MIB, "leaves"};
    return write_text(argument, "cgroup.procs", "0") ? launch(N_RANKS, wish_main, &w)
                                                     : CHILD_CANNOT;
}

static void more_memory_than_the_cgroup_has(void **state) {
    char folder[96];
    (void)state;
    const bool is_v1 = !access("/sys/fs/cgroup/memory/memory.limit_in_bytes", F_OK);
    snprintf(folder, sizeof folder, "/sys/fs/cgroup/%shp_test_%d", is_v1 ? "memory/" : "",
             (int)getpid());
    if (mkdir(folder, 0700) ||
        !write_text(folder, is_v1 ? "memory.limit_in_bytes" : "memory.max", "67108864")) {
        rmdir(folder);
        print_message("no memory cgroup can be made here; unit.limits reads made-up ones\n");
        skip();
    }
    const int status = in_a_child(more_than_the_cgroup, folder);
    for (int n = 0; rmdir(folder) && n < 100; n++) /* the last of it may still be ending */
        hpi_sleep_ns(10000000);
    assert_int_equal(status, 0);
}

/* ---- RLIMIT_FSIZE: segments are files to it -------------------------------------------------- */

static int file_limit_main(void *argument) {
    hp_world *world;
    hp_symm memory;
    const uint64_t *limit = argument;
    const hp_status status = hp_world_create(NULL, &world);
    if (status)
        return status == HP_ERR_LIMIT && strstr(hp_last_error(), "RLIMIT_FSIZE")
                   ? 9
                   : complain("world under a limit of files");
    if (hp_symm_alloc(world, NULL, *limit, 0, &memory) != HP_ERR_LIMIT)
        return complain("as much as the limit, besides the signal lines");
    if (hp_symm_alloc(world, NULL, 4096, 0, &memory) || hp_symm_free(memory))
        return complain("a page");
    hp_world_destroy(world);
    return 0;
}

/* The job either works within its limit (0) or says which limit it was (9, or no start). */
static int under_file_limit(const void *argument) {
    uint64_t limit = *(const uint64_t *)argument;
    if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit}))
        return CHILD_CANNOT;
    fault_job job = {.n_ranks = N_RANKS, .page = page, .body = file_limit_main, .argument = &limit};
    const hp_status status = fault_launch(&job);
    if (status)
        return status == HP_ERR_LIMIT || status == HP_ERR_SYSTEM ? 9 : complain("launch");
    return job.exit_status;
}

static void a_tiny_limit_of_file_sizes(void **state) {
    const uint64_t limits[] = {0, 1, 4095, 4096, 65536, MIB, 4 * MIB, 256 * MIB};
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const int status = in_a_child(under_file_limit, &limits[i]);
        if (status != (limits[i] == 256 * MIB ? 0 : 9))
            fail_msg("RLIMIT_FSIZE %llu: exit status %d", (unsigned long long)limits[i], status);
    }
}

/* ---- a full /dev/shm ------------------------------------------------------------------------- */

static int memory_main(void *argument) {
    hp_world *world;
    hp_symm memory;
    void *bytes;
    (void)argument;
    if (hp_world_create(NULL, &world) || hp_symm_alloc(world, NULL, 8 * MIB, 0, &memory) ||
        hp_symm_pointer(memory, hp_world_rank(world), NULL, &bytes))
        return complain("8 MiB");
    memset(bytes, 1, 8 * MIB);
    if (hp_all_reduce(hp_world_group(world), bytes, bytes, 2 * MIB, HP_INT32, HP_SUM))
        return complain("all_reduce");
    hp_world_destroy(world);
    return 0;
}

static int with_full_shm(const void *argument) {
    char block[4096] = {1};
    (void)argument;
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return CHILD_CANNOT;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/dev/shm", "tmpfs", 0, "size=64k"))
        return CHILD_CANNOT;
    const int fd = open("/dev/shm/full", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    while (write(fd, block, sizeof block) == (ssize_t)sizeof block) {
    }
    if (fd < 0 || errno != ENOSPC)
        return complain("/dev/shm is not full");
    return launch(N_RANKS, memory_main, NULL);
}

static void a_full_dev_shm_matters_to_nobody(void **state) {
    (void)state;
    expect_child(with_full_shm, NULL, "needs root, or user namespaces, to mount a /dev/shm");
}

/* ---- RLIMIT_NOFILE --------------------------------------------------------------------------- */

static int descriptors_main(void *argument) {
    hp_world *world;
    (void)argument;
    const hp_status status = hp_world_create(NULL, &world);
    if (!status) {
        hp_world_destroy(world);
        return 0;
    }
    fault_note(page, fault_own_rank(), status);
    return 9;
}

static bool is_of_descriptors(const char *text) {
    return strstr(text, "RLIMIT_NOFILE") || strstr(text, strerror(EMFILE));
}

/* 0: it worked; 9: somebody said that descriptors were short; 1: nobody did. */
static int under_descriptor_limit(const void *argument) {
    const rlim_t limit = *(const rlim_t *)argument;
    fault_job job = {.n_ranks = 6, .page = page, .body = descriptors_main};
    bool is_said = false;
    if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit}))
        return CHILD_CANNOT;
    if (fault_launch(&job))
        return is_of_descriptors(hp_last_error()) ? 9 : complain("launch");
    if (!job.exit_status)
        return 0;
    for (int i = 0; i < job.n_ranks; i++)
        is_said |= is_of_descriptors(page->ranks[i].text);
    if (!is_said)
        fault_print(&job);
    return is_said ? 9 : 1;
}

static void too_few_descriptors_for_the_ranks(void **state) {
    int n_refused = 0, status = -1;
    rlim_t limit = 5;
    (void)state;
    for (; limit < 100 && status; limit += 2) {
        status = in_a_child(under_descriptor_limit, &limit);
        if (status != 0 && status != 9)
            fail_msg("RLIMIT_NOFILE %d: exit status %d", (int)limit, status);
        n_refused += status == 9;
    }
    print_message("6 ranks start with %d descriptors\n", (int)limit - 2);
    assert_int_equal(status, 0);
    assert_true(n_refused > 3);
}

/* ---- all ------------------------------------------------------------------------------------- */

static int setup(void **state) {
    (void)state;
    page = fault_page_map();
    return !page;
}

static int teardown(void **state) {
    (void)state;
    return munmap(page, sizeof *page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_memory_than_the_machine_has),
        cmocka_unit_test(more_memory_than_the_cgroup_has),
        cmocka_unit_test(a_tiny_limit_of_file_sizes),
        cmocka_unit_test(a_full_dev_shm_matters_to_nobody),
        cmocka_unit_test(too_few_descriptors_for_the_ranks),
    };
    return cmocka_run_group_tests_name("starved", tests, setup, teardown);
}
