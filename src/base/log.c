/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c - lines of a rank, each with one write(2).
 *
 * Nothing is kept between lines but the descriptor, and nothing is buffered: what a killed rank had
 * said is in the file. A line that cannot be written (a full disk, a reader that has gone) is lost,
 * silently; SIGPIPE is kept from the program, which did not write.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1536 };

/* ---- writing ------------------------------------------------------------------------------- */

/* write(2), and no SIGPIPE: it is blocked, and taken where the write has raised it. */
static void write_quietly(int fd, const char *line, size_t n) {
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    if (pthread_sigmask(SIG_BLOCK, &pipe, &before))
        return;
    const bool is_broken = write(fd, line, n) < 0 && errno == EPIPE;
    if (is_broken && !sigismember(&pending, SIGPIPE))
        (void)sigtimedwait(&pipe, NULL, &(struct timespec){0});
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static size_t put_head(const hpi_log *log, hpi_log_level level, const char *room, char *line,
                       size_t size) {
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t length = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &utc);
    return length + (size_t)snprintf(line + length, size - length, ".%06ldZ rank %d %-7s %-6s ",
                                     now.tv_nsec / 1000, log->rank, names[level], room);
}

/* ---- the file ------------------------------------------------------------------------------ */

static int open_file(const char *path) {
    /* O_NOFOLLOW, O_NONBLOCK: whatever lies at that name already, nothing is written elsewhere and
     * nobody is waited for */
    return hpi_fd_above_stdio(
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
             0666));
}

static void give_up(hpi_log *log) {
    char line[sizeof log->path + 200];
    const int n =
        snprintf(line, sizeof line, "hyperparallel: rank %d goes on without a log, %s: %s\n",
                 log->rank, log->path, strerror(errno));
    atomic_store_explicit(&log->loudness, 0, memory_order_relaxed);
    write_quietly(STDERR_FILENO, line, (size_t)n);
}

/* The descriptor that lines go to, made by the first one; -1: the log has been given up. */
static int descriptor(hpi_log *log) {
    int fd = atomic_load_explicit(&log->fd, memory_order_acquire);
    if (fd >= 0)
        return fd;
    pthread_mutex_lock(&log->lock);
    fd = atomic_load_explicit(&log->fd, memory_order_relaxed);
    if (fd < 0 && hpi_log_has(log, HPI_LOG_ERROR)) {
        fd = open_file(log->path);
        if (fd < 0)
            give_up(log);
        atomic_store_explicit(&log->fd, fd, memory_order_release); /* acquired above */
    }
    pthread_mutex_unlock(&log->lock);
    return fd;
}

/* ---- the door ------------------------------------------------------------------------------ */

void hpi_log_open(hpi_log *log, const hpi_options *options, int rank) {
    *log = (hpi_log){.rank = rank};
    if (options->log_level >= HPI_LOG_OFF || pthread_mutex_init(&log->lock, NULL))
        return;
    const bool is_to_stdout = options->log_to_stdout;
    if (!is_to_stdout) /* a name that is cut here is too long for the system */
        snprintf(log->path, sizeof log->path, "%s/hyperparallel.rank%d.%d.log", options->log_folder,
                 rank, (int)getpid());
    log->is_open = true;
    atomic_store_explicit(&log->fd, is_to_stdout ? STDOUT_FILENO : -1, memory_order_relaxed);
    atomic_store_explicit(&log->loudness, HPI_LOG_OFF - (int)options->log_level,
                          memory_order_relaxed);
}

void hpi_log_close(hpi_log *log) {
    if (!log->is_open)
        return;
    const int fd = atomic_load_explicit(&log->fd, memory_order_relaxed);
    if (fd >= 0 && *log->path)
        close(fd);
    pthread_mutex_destroy(&log->lock);
    *log = (hpi_log){0};
}

void hpi_log_mute(hpi_log *log) {
    atomic_store_explicit(&log->loudness, 0, memory_order_relaxed);
}

void hpi_log_write(hpi_log *log, hpi_log_level level, const char *room, const char *format, ...) {
    char line[LINE_BYTES];
    va_list arguments;
    const int reason = errno;
    const int fd = descriptor(log);
    size_t n = put_head(log, level, room, line, sizeof line);
    va_start(arguments, format);
    const int length = vsnprintf(line + n, sizeof line - n, format, arguments);
    va_end(arguments);
    n = hpi_min(n + (size_t)(length > 0 ? length : 0), sizeof line - 1);
    for (size_t i = 0; i < n; i++) /* a name that a user gave may hold anything */
        if ((unsigned char)line[i] < 0x20)
            line[i] = ' ';
    line[n] = '\n';
    if (fd >= 0)
        write_quietly(fd, line, n + 1);
    errno = reason;
}

void hpi_log_failure(hpi_log *log, const char *room) {
    if (!hpi_log_has(log, HPI_LOG_ERROR) || !hpi_error_take_untold())
        return;
    hpi_log_write(log, HPI_LOG_ERROR, room, "%s", hp_last_error());
}
