/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.h - one rank of a job dies, stops, leaves or never comes; what the others saw of it.
 *
 * The victim strikes itself, from a timer, so that the moment falls anywhere to the microsecond and
 * is known. A page that test and ranks share carries what each saw. Survivors do not listen to
 * SIGTERM and the launcher is patient: an error that they note is one that they were given, and a
 * hang shows. The test is the reaper of whatever its jobs leave (PR_SET_CHILD_SUBREAPER).
 */
#ifndef FAULTS_H
#define FAULTS_H

#include "base/base.h"
#include <hyperparallel/hyperparallel.h>

#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FAULT_RANKS = 8, FAULT_LINES = 32, FAULT_LINE_BYTES = 512, FAULT_TEXT_BYTES = 320 };

/* What happens to the victim. */
typedef enum fault {
    FAULT_KILL,   /* SIGKILL */
    FAULT_CRASH,  /* SIGSEGV */
    FAULT_EXIT_0, /* the process ends, as if all were well */
    FAULT_EXIT_3,
    FAULT_LEAVE, /* hp_world_destroy, in order */
    FAULT_STOP,  /* SIGSTOP: alive, and silent */
    FAULT_NEVER, /* does not call hp_world_create */
    N_FAULTS
} fault;

static inline const char *fault_name(fault how) {
    static const char *const names[N_FAULTS] = {"killed", "crashed", "exit(0)",   "exit(3)",
                                                "left",   "stopped", "never came"};
    return names[how];
}

/* Where a rank is. */
typedef enum fault_phase {
    PHASE_BEGIN, /* before hp_world_create */
    PHASE_CREATE,
    PHASE_SETUP, /* what the call needs: memory, groups, streams */
    PHASE_CALL,
    PHASE_DESTROY,
    N_PHASES
} fault_phase;

static inline const char *fault_phase_name(int phase) {
    static const char *const names[N_PHASES] = {"before world_create", "world_create", "set-up",
                                                "the call", "world_destroy"};
    return names[phase];
}

typedef struct fault_seen {
    _Atomic int pid, phase;
    _Atomic int status; /* of the call that failed; 0: none did */
    _Atomic int world_rank;
    _Atomic uint64_t noted_ns;
    char text[FAULT_TEXT_BYTES];
} fault_seen;

typedef struct fault_page {
    fault_seen ranks[FAULT_RANKS];
    _Atomic uint64_t struck_ns;   /* 0: not yet */
    _Atomic int is_time_to_leave; /* FAULT_LEAVE: at the next turn of the loop */
} fault_page;

typedef struct fault_job {
    int n_ranks, victim;
    fault how;
    int (*body)(void *argument); /* of each rank; returns its exit status */
    void *argument;
    fault_page *page;  /* shared by test and ranks */
    uint64_t grace_ms; /* in which a survivor that hangs would have to wake up */
    /* What came of it. */
    int exit_status;
    uint64_t ended_ns;
    int n_lines;
    char lines[FAULT_LINES][FAULT_LINE_BYTES];
} fault_job;

/* ---- in a rank ------------------------------------------------------------------------------- */

static struct {
    fault_page *page;
    fault how;
} fault_striker; /* what the signal handler strikes with */

static inline void fault_strike(int number) {
    (void)number;
    if (fault_striker.how == FAULT_LEAVE) {
        atomic_store(&fault_striker.page->is_time_to_leave, 1);
        return;
    }
    atomic_store(&fault_striker.page->struck_ns, hpi_now_ns());
    switch (fault_striker.how) {
    case FAULT_CRASH:
        signal(SIGSEGV, SIG_DFL); /* a sanitizer has a handler there */
        kill(getpid(), SIGSEGV);
        return;
    case FAULT_EXIT_0:
        _exit(0);
    case FAULT_EXIT_3:
        _exit(3);
    case FAULT_STOP:
        kill(getpid(), SIGSTOP);
        return;
    default:
        kill(getpid(), SIGKILL);
    }
}

/* The calling process will be struck so many nanoseconds from now. */
static inline void fault_arm(fault_page *page, fault how, uint64_t delay_ns) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    const uint64_t ns = hpi_max(delay_ns, 1);
    const struct itimerspec when = {
        .it_value = {(time_t)(ns / 1000000000U), (long)(ns % 1000000000U)}};
    fault_striker.page = page;
    fault_striker.how = how;
    signal(SIGALRM, fault_strike);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, NULL))
        abort();
}

static inline int fault_own_rank(void) {
    const char *text = getenv("RANK");
    return text ? atoi(text) : 0;
}

static inline void fault_phase_set(fault_page *page, int rank, fault_phase phase) {
    atomic_store(&page->ranks[rank].phase, phase);
}

/* This rank's last failure, as the test will see it. */
static inline void fault_note(fault_page *page, int rank, hp_status status) {
    fault_seen *seen = &page->ranks[rank];
    hp_error error;
    hp_last_error_get(&error);
    atomic_store(&seen->noted_ns, hpi_now_ns());
    atomic_store(&seen->world_rank, error.world_rank);
    snprintf(seen->text, sizeof seen->text, "%.*s", (int)sizeof seen->text - 1, error.message);
    atomic_store(&seen->status, status);
}

/* ---- in the test ----------------------------------------------------------------------------- */

static inline fault_page *fault_page_map(void) {
    void *page =
        mmap(NULL, sizeof(fault_page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED ? NULL : page;
}

static inline void fault_say(void *context, const char *line) {
    fault_job *job = context;
    if (job->n_lines < FAULT_LINES)
        snprintf(job->lines[job->n_lines++], FAULT_LINE_BYTES, "%s", line);
}

static inline hp_status fault_launch(fault_job *job) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    memset(job->page, 0, sizeof *job->page);
    job->n_lines = 0;
    config.n_ranks = job->n_ranks;
    config.body = job->body;
    config.argument = job->argument;
    config.say = fault_say;
    config.say_context = job;
    config.grace_ms = job->grace_ms;
    config.deadline_ms = 20000;
    const hp_status status = hp_launch(&config, &job->exit_status);
    job->ended_ns = hpi_now_ns();
    return status;
}

static inline bool fault_was_said(const fault_job *job, const char *begin, const char *within) {
    for (int i = 0; i < job->n_lines; i++)
        if (!strncmp(job->lines[i], begin, strlen(begin)) && strstr(job->lines[i], within))
            return true;
    return false;
}

static inline void fault_print(const fault_job *job) {
    fprintf(stderr, "  %d ranks, rank %d %s in %s; exit status %d\n", job->n_ranks, job->victim,
            fault_name(job->how),
            fault_phase_name(atomic_load(&job->page->ranks[job->victim].phase)), job->exit_status);
    for (int i = 0; i < job->n_lines; i++)
        fprintf(stderr, "  launcher: %s\n", job->lines[i]);
    for (int i = 0; i < job->n_ranks; i++)
        fprintf(stderr, "  rank %d: %s (of rank %d) after %.1f ms: %s\n", i,
                hp_status_name((hp_status)atomic_load(&job->page->ranks[i].status)),
                atomic_load(&job->page->ranks[i].world_rank),
                1e-6 * (double)(int64_t)(atomic_load(&job->page->ranks[i].noted_ns) -
                                         atomic_load(&job->page->struck_ns)),
                job->page->ranks[i].text);
}

/* ---- what must not be left ------------------------------------------------------------------- */

typedef struct fault_leftovers {
    int n_fds, n_shm, n_sockets, n_mappings;
} fault_leftovers;

static inline int fault_count_entries(const char *folder) {
    int n = 0;
    DIR *directory = opendir(folder);
    while (directory && readdir(directory))
        n++;
    if (directory)
        closedir(directory);
    return n;
}

static inline int fault_count_lines(const char *path, const char *within) {
    char line[1024];
    int n = 0;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        n += strstr(line, within) != NULL;
    if (file)
        fclose(file);
    return n;
}

/* A new network namespace has its loopback down. */
static inline bool fault_raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo"};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    const bool is_up = fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &request);
    if (fd >= 0)
        close(fd);
    return is_up;
}

/* To be seen alone: a network namespace has abstract sockets of its own, and a mount namespace an
 * empty /dev/shm. False, and the machine's are seen, where neither root nor user namespaces are
 * to be had. First in main, before there is a thread. */
static inline bool fault_be_alone(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS))
        return false;
    return fault_raise_loopback() && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("none", "/dev/shm", "tmpfs", 0, "size=1m");
}

static inline fault_leftovers fault_look(void) {
    return (fault_leftovers){.n_fds = fault_count_entries("/proc/self/fd"),
                             .n_shm = fault_count_entries("/dev/shm"),
                             .n_sockets = fault_count_lines("/proc/net/unix", "@hyperparallel-"),
                             .n_mappings =
                                 fault_count_lines("/proc/self/maps", "memfd:hyperparallel")};
}

/* What is there now and was not before, in words; false when nothing is. Call it with no job
 * running: any child of ours, and whatever children of ours have started, is a leftover too. */
static inline bool fault_has_left(const fault_leftovers *before, char *text, size_t size) {
    const fault_leftovers now = fault_look();
    const pid_t child = waitpid(-1, NULL, WNOHANG);
    const bool has_child = child >= 0 || errno != ECHILD;
    snprintf(text, size,
             "descriptors %+d, /dev/shm %+d, abstract sockets %+d, mappings %+d, processes %s",
             now.n_fds - before->n_fds, now.n_shm - before->n_shm,
             now.n_sockets - before->n_sockets, now.n_mappings - before->n_mappings,
             has_child ? "some" : "none");
    return has_child || memcmp(&now, before, sizeof now) != 0;
}

#endif
