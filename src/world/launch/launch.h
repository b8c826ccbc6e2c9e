/* SPDX-License-Identifier: Apache-2.0
 *
 * world/launch/launch.h - what a launcher and its ranks agree on, and the launcher's record of a
 * rank.
 *
 * A rank inherits two descriptors: its socket to the launcher's store, and the memfd that becomes
 * its segment. The launcher makes the memfd with one page and maps that page, the control block;
 * the rank gives it its size. So the launcher can read what a rank was doing after it was killed.
 */
#ifndef HPI_LAUNCH_H
#define HPI_LAUNCH_H

#include "../control.h"
#include "../start/store.h"
#include <signal.h>
#include <sys/types.h>

#define HPI_LAUNCHER_ENVIRONMENT "HYPER_PARALLEL_LAUNCHER"
#define HPI_LAUNCHER_FORMAT "layout=%d,store=%d,segment=%d"

typedef struct hpi_child {
    pid_t pid; /* 0: not started */
    int pidfd;
    bool has_own_group; /* a process group of its own: what it starts can be ended with it */
    bool has_ended;
    bool was_waiting;         /* `doing` holds a wait */
    int code, value;          /* si_code and si_status of waitid */
    int server_fd;            /* this side of its store socket, until the server takes it */
    int store_fd, segment_fd; /* the rank's side */
    hpi_control *control;
    char doing[256];
} hpi_child;

typedef struct hpi_launcher {
    const hp_launch_config *config;
    int n_ranks;
    int signal_fd;
    sigset_t passed_on, old_mask;
    bool is_told_to_end; /* a signal came that ends a job */
    int n_asked;         /* SIGINT and SIGTERM that came */
    uint64_t asked_ns;   /* when the last of them did */
    uint64_t deadline_ns;
    int n_restarts;    /* made */
    uint64_t pause_ns; /* before the last of them; 0: none */
    /* Of the try that runs, or ran last. */
    hpi_child *children; /* [n_ranks] */
    hpi_store_server *server;
    uint64_t begin_ns;
    uint64_t n_oom_kills; /* before the start */
    int first;            /* the rank that failed first; -1: none */
    bool is_named;        /* and it was reported */
    bool is_late;
    bool is_usage; /* all ranks ended with the status of a wrong command line */
    int exit_status;
} hpi_launcher;

/* spawn.c: from a config to running children, or nothing. */
hp_status hpi_spawn(hpi_launcher *launcher);
/* Does this signal tell a job to end? */
static inline bool hpi_tells_to_end(uint32_t signal) {
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}
/* Send a signal to a rank and to what it started. */
void hpi_child_signal(const hpi_child *child, int signal);

/* restart.c: whether there is another try after one that is over; after the pause before it. */
bool hpi_restart(hpi_launcher *launcher);

/* report.c: lines for config->say. */
void hpi_say(const hpi_launcher *launcher, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void hpi_report_first(const hpi_launcher *launcher);
void hpi_report_others(hpi_launcher *launcher);
void hpi_report_late(hpi_launcher *launcher);
/* Look at what the ranks are doing, and keep it where they wait. */
void hpi_report_look(hpi_launcher *launcher);
/* The exit status of a rank as a shell says it. */
int hpi_child_exit(const hpi_child *child);
uint64_t hpi_oom_kills(void);

#endif
