/* SPDX-License-Identifier: Apache-2.0
 *
 * programs/standard.h - the first line of every main.
 *
 * A program may be started with standard input, output or error closed (>&-). The next file that
 * it opens would get that number, and all that is printed would go into it.
 */
#ifndef PROGRAMS_STANDARD_H
#define PROGRAMS_STANDARD_H

#include <fcntl.h>
#include <unistd.h>

/* What is closed of descriptors 0 to 2 becomes /dev/null, here and in programs that are started. */
static inline void open_missing_stdio(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

#endif
