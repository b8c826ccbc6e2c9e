/* SPDX-License-Identifier: Apache-2.0
 *
 * base/log.h - the log of one rank: off unless the environment asks for it.
 *
 * HYPER_PARALLEL_SHMEM_LOG_LEVEL asks, and says from which level on. A line is one write(2), so
 * lines of ranks that share a file or a terminal do not mix:
 *
 *     2026-11-29T23:54:35.123456Z rank 3 INFO    world  text
 *
 * It goes to hyperparallel.rank<R>.<pid>.log in HYPER_PARALLEL_LOG_DIR, created at the first line,
 * or to standard output where SHMEM_LOG_TO_STDOUT is 1. A log never fails a job: where the file
 * cannot be made, one line on standard error says so and the log is off.
 */
#ifndef HPI_LOG_H
#define HPI_LOG_H

#include "base.h"

#include <pthread.h>
#include <stdatomic.h>

/* As the option counts them. */
typedef enum hpi_log_level {
    HPI_LOG_DEBUG = 0,
    HPI_LOG_INFO = 1,
    HPI_LOG_WARNING = 2,
    HPI_LOG_ERROR = 3,
    HPI_LOG_OFF = 4
} hpi_log_level;

/* All zero is a log that is off, which need not be closed. */
typedef struct hpi_log {
    _Atomic int loudness; /* HPI_LOG_OFF less the least level that is written; 0: off */
    int rank;
    bool is_open;
    pthread_mutex_t lock; /* of the creation of the file */
    _Atomic int fd;       /* -1: none yet */
    char path[4200];      /* of the file, longer than any can be; "": lines go to standard output */
} hpi_log;

void hpi_log_open(hpi_log *log, const hpi_options *options, int rank);
void hpi_log_close(hpi_log *log);
/* No more lines: in a forked child, which shares the file with its parent. */
void hpi_log_mute(hpi_log *log);

/* The one branch that a call pays when the log is off. */
static inline bool hpi_log_has(const hpi_log *log, hpi_log_level level) {
    return __builtin_expect(
        atomic_load_explicit(&log->loudness, memory_order_relaxed) >= HPI_LOG_OFF - (int)level, 0);
}

/* A line; who calls has asked whether the level is written. `room` is a literal: "world". Threads:
 * any. */
void hpi_log_write(hpi_log *log, hpi_log_level level, const char *room, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* This thread's last failure as an ERROR line, unless it has been written before: a failure passes
 * several doors on its way out and is told once. */
void hpi_log_failure(hpi_log *log, const char *room);

#endif
