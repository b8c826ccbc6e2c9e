/* SPDX-License-Identifier: Apache-2.0
 *
 * base/descriptor.c - descriptors above the three that programs print to.
 *
 * A program that was started with standard output closed (>&-) gives the number 1 to the next file
 * that is opened, and then prints into it: into a shared segment, that is into weights. So every
 * descriptor that lives on, or that is written to, is moved to 3 or above as soon as it is there.
 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int hpi_fd_above_stdio(int fd) {
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int reason = errno;
    close(fd);
    errno = reason;
    return above;
}

int hpi_fds_above_stdio(int failed, int fds[2]) {
    if (failed)
        return failed;
    fds[0] = hpi_fd_above_stdio(fds[0]);
    int reason = errno;
    fds[1] = hpi_fd_above_stdio(fds[1]);
    if (fds[0] >= 0 && fds[1] >= 0)
        return 0;
    if (fds[1] < 0)
        reason = errno;
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    errno = reason;
    return -1;
}
