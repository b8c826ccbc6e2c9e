/* SPDX-License-Identifier: Apache-2.0
 *
 * test_strangers.c - another user of the machine, who wants to join a job, read its memory, or
 * harm it.
 *
 * A process of a second user id does what such a user can: opens descriptors and memory of ranks
 * through /proc, sends to every socket of the library that it finds, sits on names beforehand, and
 * takes a rank's place with all that the environment tells. What must hold: nothing is opened, the
 * place is refused by name, and the job goes on. Needs root, to become two users.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <hyperparallel/symm.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_RANKS = 2, STRANGER = 65534, N_MESSAGES = 200 };
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

typedef struct page {
    _Atomic int pids[N_RANKS];
    _Atomic uintptr_t secret_at; /* rank 0's memory with the secret in it */
    _Atomic int is_over;         /* the stranger has done all that it can */
    _Atomic int n_opened, n_sent, n_tried;
} page;
static page *shared;

static int setup(void **state) {
    (void)state;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED;
}

static bool become_stranger(void) {
    return !setresgid(STRANGER, STRANGER, STRANGER) && !setresuid(STRANGER, STRANGER, STRANGER);
}

static void skip_unless_root(void) {
    if (geteuid() == 0)
        return;
    print_message("skipped: two users need root\n");
    skip();
}

/* ---- what a stranger tries ------------------------------------------------------------------- */

static void try_proc(int pid) {
    char path[64], buffer[64];
    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        atomic_fetch_add(&shared->n_tried, 1);
        atomic_fetch_add(&shared->n_opened, open(path, O_RDONLY | O_CLOEXEC) >= 0);
    }
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    atomic_fetch_add(&shared->n_opened, open(path, O_RDONLY | O_CLOEXEC) >= 0);
    snprintf(path, sizeof path, "/proc/%d/map_files", pid);
    DIR *maps = opendir(path);
    atomic_fetch_add(&shared->n_opened, maps && readdir(maps) != NULL);

    const struct iovec here = {buffer, sizeof buffer};
    const struct iovec there = {(void *)atomic_load(&shared->secret_at), sizeof buffer};
    atomic_fetch_add(&shared->n_opened, process_vm_readv(pid, &here, 1, &there, 1, 0) > 0);
    const int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    for (int fd = 3; pidfd >= 0 && fd < 64; fd++)
        atomic_fetch_add(&shared->n_opened, syscall(SYS_pidfd_getfd, pidfd, fd, 0) >= 0);
}

/* A message that guesses, with a descriptor, to the socket of this name. */
static void send_to(const struct sockaddr_un *name, socklen_t length, uint64_t seed) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    uint64_t words[5] = {UINT64_C(0x6572616873504848), hpi_random_next(&seed),
                         hpi_random_next(&seed), seed % 3, 1};
    struct iovec part = {words, sizeof words};
    struct msghdr header = {.msg_name = (void *)(uintptr_t)name,
                            .msg_namelen = length,
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
    const int fd = memfd_create("stranger", MFD_CLOEXEC);
    const int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    atomic_fetch_add(&shared->n_sent, sendmsg(from, &header, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
    close(from);
    close(fd);
}

static void try_sockets(void) {
    char line[256];
    FILE *file = fopen("/proc/net/unix", "re");
    while (file && fgets(line, sizeof line, file)) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        const char *at = strstr(line, "@hyperparallel-");
        if (!at)
            continue;
        const size_t n = strcspn(at + 1, "\n");
        memcpy(name.sun_path + 1, at + 1, hpi_min(n, sizeof name.sun_path - 1));
        for (uint64_t i = 0; i < N_MESSAGES; i++)
            send_to(&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n), i);
    }
    if (file)
        fclose(file);
}

static void stranger_main(void) {
    if (!become_stranger())
        _exit(1);
    for (int i = 0; i < N_RANKS; i++)
        while (!atomic_load(&shared->pids[i]))
            hpi_sleep_ns(1000000);
    for (int i = 0; i < N_RANKS; i++)
        try_proc(atomic_load(&shared->pids[i]));
    try_sockets();
    atomic_store(&shared->is_over, 1);
    _exit(0);
}

/* ---- the job goes on ------------------------------------------------------------------------- */

static void job_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    void *at;
    hp_symm memory;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 4096, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, 0, NULL, &at));
    if (rank == 0)
        atomic_store(&shared->secret_at, (uintptr_t)at);
    atomic_store(&shared->pids[rank], getpid());
    for (uint64_t i = 0, is_over = 0; !is_over; i++) { /* over when rank 0 says so */
        hp_symm span;
        uint64_t all[N_RANKS], mine = (uint64_t)atomic_load(&shared->is_over);
        RANK_OK(hp_symm_alloc_spanning(world, NULL, 4096, &span)); /* descriptors pass meanwhile */
        RANK_OK(hpi_group_exchange(hp_world_group(world), "is it over", &mine, 1, all));
        RANK_OK(hp_symm_free(span));
        is_over = all[0];
    }
    RANK_OK(hp_symm_free(memory));
}

static void test_memory_is_not_read(void **state) {
    int status = 0;
    (void)state;
    skip_unless_root();
    memset(shared, 0, sizeof *shared);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        stranger_main();
    ranks_run(N_RANKS, RANKS_PROCESSES, job_body, NULL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(atomic_load(&shared->n_tried) >= 64 * N_RANKS);
    assert_int_equal(atomic_load(&shared->n_opened), 0);
    /* the queue is open to all, which is why messages carry secrets: the attack took place */
    assert_true(atomic_load(&shared->n_sent) > 0);
    print_message("%d messages of a stranger were passed over\n", atomic_load(&shared->n_sent));
}

/* ---- a rank's place -------------------------------------------------------------------------- */

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* Exit status: 0 joined, 1 was refused, 2 was refused and told that users differ. */
static pid_t start_rank(int rank, bool is_stranger) {
    char text[16];
    hp_world *world;
    const pid_t pid = fork();
    if (pid)
        return pid;
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    if (is_stranger && !become_stranger())
        _exit(9);
    if (hp_world_create(NULL, &world) == HP_OK)
        _exit(0);
    const bool is_told = strstr(hp_last_error(), "as one user");
    hpi_sleep_ns(is_stranger ? 300000000 : 0); /* its end is not what it is refused for */
    _exit(is_told ? 2 : 1);
}

static int exit_of(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_place_is_refused(void **state) {
    char port[16];
    (void)state;
    skip_unless_root();
    snprintf(port, sizeof port, "%d", free_port());
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    const uint64_t begin_ns = hpi_now_ns();
    const pid_t own = start_rank(0, false), other = start_rank(1, true);
    assert_int_equal(exit_of(own), 2);
    assert_int_not_equal(exit_of(other), 0);
    assert_true(hpi_now_ns() - begin_ns < UINT64_C(5000000000));
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

/* ---- R2: names that are taken ---------------------------------------------------------------- */

static void plain_body(hp_world *world, void *argument) {
    hp_symm span;
    (void)argument;
    RANK_OK(hp_symm_alloc_spanning(world, NULL, 4096, &span));
    RANK_OK(hp_symm_free(span));
}

/* Files and sockets of the library's own prefix, of another user and another size: no name of the
 * library's is one that somebody else could have taken. */
static void test_R2_names_that_are_taken(void **state) {
    static const char *const files[] = {"/dev/shm/hyperparallel", "/dev/shm/hyperparallel-span",
                                        "/tmp/hyperparallel"};
    int sockets[16];
    bool is_made[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        const int fd = open(files[i], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0);
        is_made[i] = fd >= 0;
        if (fd >= 0 && geteuid() == 0)
            assert_int_equal(fchown(fd, STRANGER, STRANGER), 0);
        if (fd >= 0)
            close(fd);
    }
    for (int i = 0; i < 16; i++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        const int n = i == 0 ? snprintf(name.sun_path + 1, 60, "hyperparallel-")
                             : snprintf(name.sun_path + 1, 60, "hyperparallel-%016x", (unsigned)i);
        sockets[i] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        (void)bind(sockets[i], (struct sockaddr *)&name,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n));
    }
    ranks_run(N_RANKS, RANKS_PROCESSES, plain_body, NULL);
    for (int i = 0; i < 16; i++)
        close(sockets[i]);
    for (int i = 0; i < 3; i++)
        if (is_made[i])
            unlink(files[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_not_read),
        cmocka_unit_test(test_place_is_refused),
        cmocka_unit_test(test_R2_names_that_are_taken),
    };
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "4M", 1);
    ranks_set_deadline_ms(30000);
    return cmocka_run_group_tests_name("strangers", tests, setup, NULL);
}
