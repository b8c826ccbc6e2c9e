/* SPDX-License-Identifier: Apache-2.0
 *
 * world/launch/launch.h - what a launcher and its ranks agree on, and the launcher's record of a
 * rank.
 *
 * Over several hosts it has one child alone, an mpirun, and its ranks are that one's.
 *
 * A rank inherits two descriptors: its socket to the launcher's store, and the memfd that becomes
 * its segment. The launcher makes the memfd with one page and maps that page, the control block;
 * the rank gives it its size. So the launcher can read what a rank was doing after it was killed.
 */
#ifndef HPI_LAUNCH_H
#define HPI_LAUNCH_H

#include "../control.h"
#include "../start/store.h"
#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#define HPI_LAUNCHER_ENVIRONMENT "HYPER_PARALLEL_LAUNCHER"
#define HPI_LAUNCHER_FORMAT "layout=%d,store=%d,segment=%d"

typedef struct hpi_child {
    pid_t pid; /* 0: not started */
    int pidfd;
    bool has_own_group; /* a process group of its own: what it starts can be ended with it */
    bool passes_on;     /* signals, to those that it has started: it is told alone */
    bool has_ended;
    bool was_waiting;         /* `doing` holds a wait */
    int code, value;          /* si_code and si_status of waitid */
    int server_fd;            /* this side of its store socket, until the server takes it */
    int store_fd, segment_fd; /* the rank's side */
    hpi_control *control;
    char doing[256];
} hpi_child;

typedef struct hpi_hosts hpi_hosts;

typedef struct hpi_launcher {
    const hp_launch_config *config;
    hpi_hosts *hosts; /* NULL: the ranks run here, and are the children */
    int n_children;
    int mpirun; /* with hosts: which one starts the ranks */
    int signal_fd;
    sigset_t passed_on, old_mask;
    bool is_told_to_end; /* a signal came that ends a job */
    int n_asked;         /* SIGINT and SIGTERM that came */
    uint64_t asked_ns;   /* when the last of them did */
    uint64_t deadline_ns;
    int n_restarts;    /* made */
    uint64_t pause_ns; /* before the last of them; 0: none */
    /* Of the try that runs, or ran last. */
    hpi_child *children; /* [n_children] */
    hpi_store_server *server;
    uint64_t begin_ns;
    uint64_t n_oom_kills; /* before the start */
    int first;            /* the child that failed first; -1: none */
    bool is_named;        /* and it was reported */
    bool is_late;
    bool is_split; /* a host has fallen silent, and the job was told to end */
    bool is_usage; /* all children ended with the status of a wrong command line */
    int exit_status;
} hpi_launcher;

/* spawn.c: from a config to running children, or nothing. */
hp_status hpi_spawn(hpi_launcher *launcher);
/* What a child runs. Made before the fork: a child of a program with threads may not allocate. */
typedef struct hpi_program {
    char *const *argv;  /* NULL: the config's body */
    char **environment; /* NULL-terminated */
} hpi_program;
hp_status hpi_start_child(hpi_launcher *launcher, int number, const hpi_program *program);
/* Does a launcher set this entry of an environment? Then a rank does not inherit it. */
bool hpi_is_set_by_launcher(const char *entry);

/* mpirun.c: the same, of an mpirun that starts the ranks on the hosts that are there. */
hp_status hpi_spawn_mpirun(hpi_launcher *launcher);
/* The mpirun of that MPI in PATH; NULL: of any. */
hp_status hpi_mpirun_find(const char *mpi, int *out_which);

/* hosts.c: hosts, and whether they answer. On each that is another machine the agent runs `cat`,
 * which sends back what it is sent. */
enum { HPI_MAX_HOSTS = 1024, HPI_HOST_PATIENCE_MS = 5000 };
typedef struct hpi_host {
    const char *name;
    int n_ranks;
    bool is_here;  /* this machine */
    bool is_there; /* it answers, and takes part */
    pid_t pid;     /* of the agent; 0: none runs */
    int fd;        /* its input and output */
    uint64_t heard_ns, said_ns;
} hpi_host;
struct hpi_hosts {
    char *text; /* the names lie in it */
    const char *agent;
    int n;
    hpi_host host[];
};
/* "HOST[:RANKS],...". Errors: ARGUMENT, MEMORY. */
hp_status hpi_hosts_create(const char *text, const char *agent, hpi_hosts **out_hosts);
void hpi_hosts_destroy(hpi_hosts *hosts);
/* Ask every host, and say who has gone and who is back since the last try. Errors: SYSTEM naming
 * one that has not answered, in the first try; or when none has. */
hp_status hpi_hosts_ask(hpi_launcher *launcher);
/* While the job runs. Fill at most hosts->n polls; then read what came, and ask again. */
int hpi_hosts_poll(const hpi_hosts *hosts, struct pollfd *polls);
void hpi_hosts_look(hpi_hosts *hosts);
/* The first one of this try that has not answered for its patience; NULL: none. */
const hpi_host *hpi_hosts_silent(const hpi_hosts *hosts);
/* Ask no more. */
void hpi_hosts_rest(hpi_hosts *hosts);
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
void hpi_report_silent(const hpi_launcher *launcher);
/* Look at what the ranks are doing, and keep it where they wait. */
void hpi_report_look(hpi_launcher *launcher);
/* The exit status of a rank as a shell says it. */
int hpi_child_exit(const hpi_child *child);
uint64_t hpi_oom_kills(void);

#endif
