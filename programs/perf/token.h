/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/token.h - how two jobs take turns on one machine: whoever has no token sits in read(2).
 *
 * hpperf's rank 0 listens on a socket in the abstract namespace; each other rank of it, and each
 * rank of its peer (hpperf-mpi), connects and says who it is: "JOB RANK TEXT". From then on it
 * reads lines. A line is a turn: words that say what to do, answered with a line (of the peer: a
 * JSON object of numbers). No line will come any more: end of file, the end of both. A blocked
 * reader takes no processor from whose turn it is, as a barrier of either library would.
 */
#ifndef PERF_TOKEN_H
#define PERF_TOKEN_H

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TOKEN_LINE = 1024 }; /* bytes of the longest, with its end */

/* The socket's address; 0: the name is too long. */
static inline socklen_t token_address(const char *name, struct sockaddr_un *out_address) {
    const size_t length = strlen(name);
    memset(out_address, 0, sizeof *out_address);
    out_address->sun_family = AF_UNIX;
    if (length + 1 > sizeof out_address->sun_path)
        return 0;
    memcpy(out_address->sun_path + 1, name, length); /* behind a 0: no file anywhere */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* 0, or -1 with errno. The end of the line is put behind `text`. */
static inline int token_write(int fd, const char *text) {
    char line[TOKEN_LINE];
    const int length = snprintf(line, sizeof line, "%s\n", text);
    if (length >= (int)sizeof line) {
        errno = EMSGSIZE;
        return -1;
    }
    for (int done = 0; done < length;) {
        const ssize_t n = send(fd, line + done, (size_t)(length - done), MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return -1;
        done += n > 0 ? (int)n : 0;
    }
    return 0;
}

/* The next line without its end: 1; 0 when there is none any more; -1 with errno. One line is under
 * way at a time, so what was read is that line. */
static inline int token_read(int fd, char out_line[TOKEN_LINE]) {
    size_t length = 0;
    while (length < TOKEN_LINE) {
        const ssize_t n = read(fd, out_line + length, TOKEN_LINE - length);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
        length += n > 0 ? (size_t)n : 0;
        if (length && out_line[length - 1] == '\n') {
            out_line[length - 1] = 0;
            return 1;
        }
    }
    errno = EMSGSIZE;
    return -1;
}

/* A connected socket, or -1 with errno. */
static inline int token_connect(const char *name, const char *job, int rank, const char *text) {
    struct sockaddr_un address;
    char line[TOKEN_LINE];
    const socklen_t length = token_address(name, &address);
    const int fd = length ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0)
        return -1;
    snprintf(line, sizeof line, "%s %d %s", job, rank, text);
    if (connect(fd, (const struct sockaddr *)&address, length) || token_write(fd, line)) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

#endif
