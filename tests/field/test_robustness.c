/* SPDX-License-Identifier: Apache-2.0
 *
 * test_robustness.c - what has broken the starts and ends of other libraries, a test for each.
 *
 * Names begin with the row of the list that each comes from; comments say where it was seen. R8,
 * R16 and R17 change what their process may do, so they run in a child of their own.
 */
#include "fault/faults.h"
#include "field/flat_memory.h"
#include "unit/scratch.h"

#include <fcntl.h>
#include <hyperparallel/machine.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cmocka.h>

static fault_page *page;

/* ---- what is the same for many --------------------------------------------------------------- */

/* Ordinary memory, long enough to be staged: out = sum over ranks of rank + i % 100. */
enum { N_FLOATS = 30000 };

static bool sums_well(hp_world *world) {
    float *in = malloc(N_FLOATS * sizeof *in), *out = malloc(N_FLOATS * sizeof *out);
    const int n = hp_world_size(world);
    bool is_good = in && out;
    for (int i = 0; is_good && i < N_FLOATS; i++)
        in[i] = (float)(hp_world_rank(world) + i % 100);
    is_good = is_good &&
              hp_all_reduce(hp_world_group(world), in, out, N_FLOATS, HP_FP32, HP_SUM) == HP_OK;
    for (int i = 0; is_good && i < N_FLOATS; i++)
        is_good = out[i] == (float)(n * (n - 1) / 2 + n * (i % 100));
    free(in);
    free(out);
    return is_good;
}

static int sum_main(void *argument) {
    hp_world *world;
    (void)argument;
    if (hp_world_create(NULL, &world) || !sums_well(world)) {
        fprintf(stderr, "rank %d: %s\n", fault_own_rank(), hp_last_error());
        return 1;
    }
    hp_world_destroy(world);
    return 0;
}

/* The exit status of a job of n ranks that sum; -1 when it could not be started. */
static int sum_over(int n) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int status = -1;
    config.n_ranks = n;
    config.body = sum_main;
    config.deadline_ms = 30000;
    return hp_launch(&config, &status) ? -1 : status;
}

enum { CHILD_CANNOT = 77 }; /* what the test needs is not to be had here */

/* Run it in a child; its exit status. */
static int in_a_child(int (*body)(void)) {
    int status;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect_child(int (*body)(void), const char *needed) {
    const int status = in_a_child(body);
    if (status == CHILD_CANNOT) {
        print_message("%s\n", needed);
        skip();
    }
    assert_int_equal(status, 0);
}

/* ---- R1: segments left in /dev/shm after a crash ----------------------------------------------
 */

static int all_die_main(void *argument) {
    uint64_t random = *(const uint64_t *)argument * 64 + (uint64_t)fault_own_rank();
    hp_world *world;
    fault_arm(page, FAULT_KILL, hpi_random_next(&random) % 5000000);
    if (hp_world_create(NULL, &world))
        return 5;
    for (;;) /* one that is not struck yet may see the end of another */
        if (!sums_well(world))
            return 5;
}

/* ompi #6322, #7220, #7394, #10040 */
static void R1_killed_ranks_leave_nothing(void **state) {
    char text[160];
    (void)state;
    const fault_leftovers before = fault_look();
    for (uint64_t seed = 0; seed < 50; seed++) {
        fault_job job = {.n_ranks = 3, .page = page, .body = all_die_main, .argument = &seed};
        assert_int_equal(fault_launch(&job), HP_OK);
        assert_int_not_equal(job.exit_status, 0);
        if (fault_has_left(&before, text, sizeof text))
            fail_msg("left: %s", text);
    }
}

/* ---- R2: names of another run ------------------------------------------------------------------
 */

static bool are_names_forced;

/* Tokens are random; forced, they collide. */
ssize_t getrandom(void *bytes, size_t n_bytes, unsigned flags) {
    if (!are_names_forced)
        return syscall(SYS_getrandom, bytes, n_bytes, flags);
    memset(bytes, 0x5a, n_bytes);
    return (ssize_t)n_bytes;
}

static void make_colliding_file(const char *name, size_t n_bytes) {
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    const int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0600);
    if (fd >= 0 && (ftruncate(fd, (off_t)n_bytes) || fchown(fd, 12345, 12345)))
        print_message("%s keeps its owner: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* ompi #7308: files of any owner and size where a library could look for its own. */
static void R2_names_of_another_run(void **state) {
    static const char *const names[] = {"hyperparallel", "hyperparallel-0", "hyperparallel-1",
                                        "hyperparallel.0", "sem.hyperparallel"};
    char path[64];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        make_colliding_file(names[i], i * 1000);
    assert_int_equal(sum_over(2), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "/dev/shm/%s", names[i]);
        unlink(path);
    }
}

static void R2_a_socket_name_that_is_taken(void **state) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    hp_world *world;
    (void)state;
    const int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                           "hyperparallel-5a5a5a5a5a5a5a5a");
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, length), 0);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "49321", 1);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "200", 1);
    const fault_leftovers before = fault_look();
    are_names_forced = true;
    assert_int_equal(hp_world_create(NULL, &world), HP_ERR_SYSTEM);
    are_names_forced = false;
    assert_non_null(strstr(hp_last_error(), strerror(EADDRINUSE)));
    const fault_leftovers after = fault_look();
    assert_memory_equal(&before, &after, sizeof before);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    unsetenv("HYPER_PARALLEL_START_TIMEOUT_MS");
    close(fd);
}

/* ---- R6: many jobs on one machine ---------------------------------------------------------------
 */

/* ucx #392, #871 */
static void R6_sixty_four_jobs_at_once(void **state) {
    enum { N_JOBS = 64 };
    pid_t jobs[N_JOBS];
    char text[160];
    int n_failed = 0;
    (void)state;
    const fault_leftovers before = fault_look();
    fflush(NULL);
    for (int i = 0; i < N_JOBS; i++) {
        jobs[i] = fork();
        assert_true(jobs[i] >= 0);
        if (jobs[i] == 0)
            _exit(sum_over(2));
    }
    for (int i = 0; i < N_JOBS; i++) {
        int status;
        assert_int_equal(waitpid(jobs[i], &status, 0), jobs[i]);
        n_failed += !WIFEXITED(status) || WEXITSTATUS(status);
    }
    assert_int_equal(n_failed, 0);
    if (fault_has_left(&before, text, sizeof text))
        fail_msg("left: %s", text);
}

/* ---- R7: a NUMA node without memory -------------------------------------------------------------
 */

static void put(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    for (char *slash = path + strlen(scratch) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        (void)!mkdir(path, 0700);
    }
    scratch_write(name, text);
}

/* nccl #2059: the node's files are there, and hold nothing that can be used. */
static void R7_a_numa_node_without_memory(void **state) {
    hp_machine *machine = malloc(sizeof *machine);
    hp_machine_job job;
    (void)state;
    assert_non_null(machine);
    put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n");
    put("sys/devices/system/node/node0/cpulist", "0-3\n");
    put("sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal: 8000000 kB\nNode 0 MemFree: 7000000 kB\n");
    put("sys/devices/system/node/node1/cpulist", "4-7\n");
    put("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n");
    put("sys/devices/system/node/node2/cpulist", "\n");
    put("sys/devices/system/node/node2/meminfo", "");
    put("sys/devices/system/node/has_memory", "0\n");
    assert_int_equal(hp_machine_read(scratch, machine), HP_OK);
    assert_int_equal(machine->n_nodes, 3);
    assert_int_equal(machine->nodes[0].memory_bytes, UINT64_C(8000000) * 1024);
    assert_int_equal(machine->nodes[1].n_cores, 4);
    assert_int_equal(machine->nodes[1].memory_bytes, 0);
    assert_int_equal(machine->nodes[2].n_cores, 0);
    assert_int_equal(machine->nodes[2].memory_bytes, 0);
    assert_int_equal(hp_machine_plan(machine, 4, &job), HP_OK);
    assert_true(job.heap_bytes > 0);
    free(machine);
}

/* ---- R8: reading across processes is forbidden --------------------------------------------------
 */

static int without_process_vm(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return CHILD_CANNOT;
    if (syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0) != -1 || errno != EPERM)
        return 2; /* the filter does nothing */
    return sum_over(3);
}

/* ompi #4948, ucx #3046: containers refuse it. */
static void R8_no_reading_across_processes(void **state) {
    (void)state;
    expect_child(without_process_vm, "needs a seccomp filter, which this sandbox refuses");
}

/* ---- R11: groups in different orders, and different groups ----------------------------------- */

static void groups_in_any_order(hp_world *world, void *argument) {
    static const int lists[3][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}};
    hp_group *groups[3];
    (void)argument;
    for (int k = 0; k < 3; k++) {
        const int which = (k + hp_world_rank(world)) % 3; /* each rank in an order of its own */
        RANK_OK(hp_group_create(world, lists[which], 3, &groups[which]));
    }
    for (int k = 0; k < 3; k++) {
        int64_t all[3], mine = hp_world_rank(world);
        RANK_OK(hp_all_gather(groups[k], &mine, all, 1, HP_INT64));
        for (int i = 0; i < 3; i++)
            RANK_CHECK(all[i] == lists[k][i]);
    }
    for (int k = 0; k < 3; k++)
        hp_group_destroy(groups[(k + 2 * hp_world_rank(world)) % 3]);
}

/* pytorch #130102, #25390: ids come from the members. */
static void R11_groups_in_another_order_on_each_rank(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, groups_in_any_order, NULL);
    ranks_run(3, RANKS_PROCESSES, groups_in_any_order, NULL);
}

static void groups_that_disagree(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    /* rank 1 knows nothing of rank 2 */
    RANK_OK(hp_group_create(world, (int[]){0, 1, 2}, hp_world_rank(world) == 1 ? 2 : 3, &group));
    const hp_status status = hp_barrier(group);
    RANK_CHECK(status == HP_ERR_TIMEOUT || status == HP_ERR_PEER || status == HP_ERR_MISMATCH);
    hp_group_destroy(group);
}

static void R11_ranks_that_disagree_about_members(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "300", 1);
    ranks_run(3, RANKS_THREADS, groups_that_disagree, NULL);
    ranks_run(3, RANKS_PROCESSES, groups_that_disagree, NULL);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

/* ---- R14: many collectives ------------------------------------------------------------------- */

/* ompi #3251, #4314; a million of each in test_robustness_full */
static void R14_many_barriers_in_flat_memory(void **state) {
    uint64_t n = 10000;
    (void)state;
    ranks_run(3, RANKS_PROCESSES, flat_memory_body, &n);
}

/* ---- R16: no System V shared memory ---------------------------------------------------------- */

static bool write_zero(const char *path, const char *zero) {
    FILE *file = fopen(path, "we");
    const bool is_written = file && fputs(zero, file) >= 0;
    return file && !fclose(file) && is_written;
}

static int without_sysv(void) {
    if (unshare(CLONE_NEWIPC) && unshare(CLONE_NEWUSER | CLONE_NEWIPC))
        return CHILD_CANNOT;
    if (!write_zero("/proc/sys/kernel/shmmni", "0") ||
        !write_zero("/proc/sys/kernel/shmall", "0") ||
        !write_zero("/proc/sys/kernel/sem", "0 0 0 0") ||
        !write_zero("/proc/sys/kernel/msgmni", "0"))
        return CHILD_CANNOT;
    return sum_over(3);
}

/* ucx #5280, #9347 */
static void R16_no_system_v_memory(void **state) {
    (void)state;
    expect_child(without_sysv, "needs root, or user namespaces, for an ipc namespace");
}

/* ---- R17: more ranks than cores -------------------------------------------------------------- */

static int on_two_cores(void) {
    cpu_set_t allowed, two;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return CHILD_CANNOT;
    CPU_ZERO(&two);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; i++)
        if (CPU_ISSET(i, &allowed))
            CPU_SET(i, &two);
    if (sched_setaffinity(0, sizeof two, &two))
        return CHILD_CANNOT;
    return sum_over(16);
}

/* torch symm_mem #136494 */
static void R17_sixteen_ranks_on_two_cores(void **state) {
    (void)state;
    expect_child(on_two_cores, "needs to choose its cores");
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
        cmocka_unit_test(R1_killed_ranks_leave_nothing),
        cmocka_unit_test(R2_names_of_another_run),
        cmocka_unit_test(R2_a_socket_name_that_is_taken),
        cmocka_unit_test(R6_sixty_four_jobs_at_once),
        cmocka_unit_test_setup_teardown(R7_a_numa_node_without_memory, scratch_make,
                                        scratch_remove),
        cmocka_unit_test(R8_no_reading_across_processes),
        cmocka_unit_test(R11_groups_in_another_order_on_each_rank),
        cmocka_unit_test(R11_ranks_that_disagree_about_members),
        cmocka_unit_test(R14_many_barriers_in_flat_memory),
        cmocka_unit_test(R16_no_system_v_memory),
        cmocka_unit_test(R17_sixteen_ranks_on_two_cores),
    };
    (void)fault_be_alone();
    return cmocka_run_group_tests_name("robustness", tests, setup, teardown);
}
