/* SPDX-License-Identifier: Apache-2.0
 *
 * test_available.c - what a sandbox denies is told by hp_is_available, and by hp_world_create.
 *
 * A child denies itself one system call with a seccomp filter written by hand and reports through
 * its exit status what it was told. Nothing may be left open.
 */
#include "support/ranks.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOLD = 0, NO_SANDBOX = 40, NOT_TOLD = 41, LEFT_OPEN = 42, NOT_FAILED = 43 };

static bool deny(int number) {
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, (struct sock_filter *)code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int count_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static int ask(int number, const char *what) {
    hp_world *world;
    const int n_fds = count_fds();
    if (!deny(number))
        return NO_SANDBOX;
    if (hp_is_available() || !strstr(hp_last_error(), what))
        return NOT_TOLD;
    if (count_fds() != n_fds)
        return LEFT_OPEN;
    /* and joining fails with a reason too, where it needs the call at once */
    return number == SYS_memfd_create && hp_world_create(NULL, &world) >= 0 ? NOT_FAILED : TOLD;
}

static void check_denied(int number, const char *what) {
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(ask(number, what));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_SANDBOX) {
        print_message("skipped: this system takes no seccomp filter\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), TOLD);
}

static void test_here(void **state) {
    (void)state;
    const int n_fds = count_fds();
    if (!hp_is_available())
        fail_msg("%s", hp_last_error());
    assert_int_equal(count_fds(), n_fds);
}

static void test_without_memfd(void **state) {
    (void)state;
    check_denied(SYS_memfd_create, "memfd_create");
}

static void test_without_fallocate(void **state) {
    (void)state;
    check_denied(SYS_fallocate, "fallocate");
}

static void test_without_futex(void **state) {
    (void)state;
    check_denied(SYS_futex, "futex");
}

static void test_without_epoll(void **state) {
    (void)state;
    check_denied(SYS_epoll_create1, "epoll");
}

/* Where a socket tells its peer's pidfd, that is enough. */
static void test_without_pidfd(void **state) {
    int status = 0;
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        if (!deny(SYS_pidfd_open))
            _exit(NO_SANDBOX);
        _exit(hp_is_available() || strstr(hp_last_error(), "pidfd_open") ? TOLD : NOT_TOLD);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SANDBOX)
        skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == TOLD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_here),
        cmocka_unit_test(test_without_memfd),
        cmocka_unit_test(test_without_fallocate),
        cmocka_unit_test(test_without_futex),
        cmocka_unit_test(test_without_epoll),
        cmocka_unit_test(test_without_pidfd),
    };
    return cmocka_run_group_tests_name("available", tests, NULL, NULL);
}
