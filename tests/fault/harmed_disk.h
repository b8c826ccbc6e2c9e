/* SPDX-License-Identifier: Apache-2.0
 *
 * harmed_disk.h - a disk that fails, or a process that is killed, at the n-th call that changes it.
 *
 * The program that includes this supplies the calls by which a save changes the disk (other than
 * creating a file and writing into it): they count, and strike when the count is reached. Ranks may
 * be threads.
 */
#ifndef HARMED_DISK_H
#define HARMED_DISK_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum harm { HARM_NONE, HARM_KILL, HARM_FAIL };

static struct {
    enum harm harm;
    int countdown; /* calls until the harm comes */
    bool cannot_exchange;
} disk;

/* True when this call has to fail. */
static inline bool disk_strikes(void) {
    if (disk.harm == HARM_NONE || __atomic_sub_fetch(&disk.countdown, 1, __ATOMIC_SEQ_CST) != 0)
        return false;
    if (disk.harm == HARM_KILL)
        kill(getpid(), SIGKILL);
    errno = EIO;
    return true;
}

int fsync(int fd) {
    return disk_strikes() ? -1 : (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode) {
    return disk_strikes() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* Memory that ranks share is on no disk: files of a tmpfs have seals too, but that one alone. */
int fallocate(int fd, int mode, off_t offset, off_t n_bytes) {
    const int seals = fcntl(fd, F_GET_SEALS);
    const bool is_memory = seals >= 0 && seals != F_SEAL_SEAL;
    return !is_memory && disk_strikes() ? -1
                                        : (int)syscall(SYS_fallocate, fd, mode, offset, n_bytes);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    return disk_strikes() ? -1 : (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
}

int rename(const char *from, const char *to) {
    return disk_strikes() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    if (disk_strikes())
        return -1;
    if (disk.cannot_exchange) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

int unlinkat(int fd, const char *path, int flags) {
    return disk_strikes() ? -1 : (int)syscall(SYS_unlinkat, fd, path, flags);
}

int rmdir(const char *path) {
    return disk_strikes() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

#endif
