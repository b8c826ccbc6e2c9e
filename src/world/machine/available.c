/* SPDX-License-Identifier: Apache-2.0
 *
 * available.c - can this machine run the library?
 *
 * Each thing that a job cannot do without is tried once, the way the library does it, and undone.
 * The first that is missing is named, with what the system says of it: an old kernel, or a sandbox
 * that denies the call.
 */
#include "../inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than Debian 12's headers. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static hp_status missing(const char *what) {
    return HPI_FAIL(HP_ERR_UNSUPPORTED, "expected a system with %s, it says: %s", what,
                    strerror(errno));
}

static hp_status try_segment(void) {
    const int fd = hpi_fd_above_stdio(memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return missing("memfd_create (shared memory without a name)");
    hp_status status = HP_OK;
    if (ftruncate(fd, (off_t)HPI_PAGE_BYTES) || fallocate(fd, 0, 0, (off_t)HPI_PAGE_BYTES))
        status = missing("fallocate on a memfd");
    else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        status = missing("seals on a memfd");
    close(fd);
    return status;
}

/* The end of a process is seen through a pidfd: of a number, or of the other end of a socket. */
static hp_status try_pidfd(void) {
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0), pair[2];
    const int failed = errno;
    if (fd < 0 && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        socklen_t size = sizeof fd;
        if (getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &size))
            fd = -1;
        close(pair[0]);
        close(pair[1]);
    }
    errno = failed;
    if (fd < 0)
        return missing("pidfd_open or SO_PEERPIDFD (to see that a rank has ended)");
    close(fd);
    return HP_OK;
}

static hp_status try_futex(void) {
    uint32_t word = 0; /* another value than is waited at: the answer comes at once */
    if (syscall(SYS_futex, &word, FUTEX_WAIT, 1, NULL, NULL, 0) < 0 && errno != EAGAIN)
        return missing("futex");
    return HP_OK;
}

static hp_status try_fork_page(void) {
    void *page =
        mmap(NULL, HPI_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    hp_status status = HP_OK;
    if (page == MAP_FAILED || madvise(page, HPI_PAGE_BYTES, MADV_WIPEONFORK))
        status = missing("MADV_WIPEONFORK (to notice a fork)");
    if (page != MAP_FAILED)
        munmap(page, HPI_PAGE_BYTES);
    return status;
}

static hp_status try_sockets(void) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int fd = epoll < 0 ? -1 : socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const hp_status status =
        epoll < 0 || fd < 0 ? missing("epoll and unix sockets (to pass memory to ranks)") : HP_OK;
    if (epoll >= 0)
        close(epoll);
    if (fd >= 0)
        close(fd);
    return status;
}

static hp_status try_proc(void) {
    return access("/proc/self/stat", R_OK) ? missing("/proc, mounted") : HP_OK;
}

static hp_status try_all(void) {
    HP_TRY(try_segment());
    HP_TRY(try_pidfd());
    HP_TRY(try_futex());
    HP_TRY(try_fork_page());
    HP_TRY(try_sockets());
    return try_proc();
}

int hp_is_available(void) {
    return try_all() == HP_OK;
}
