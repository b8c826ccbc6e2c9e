/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.c - starting the children of a launcher, which are its ranks or one mpirun.
 *
 * Everything that can fail is made before the first fork: a memfd and a socket pair per rank, and
 * each rank's environment, because a child of a program with threads may not allocate. A child dies
 * with its launcher (PR_SET_PDEATHSIG). It leads a process group of its own, so that what it starts
 * can be ended with it; rank 0 stays in the launcher's where it reads a terminal. A pipe that
 * closes on exec tells whether the program was found.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- the environment of a rank -------------------------------------------------------------- */

enum { N_SET = 9, SET_BYTES = 160 };
static const char *const set_names[N_SET] = {"RANK",
                                             "WORLD_SIZE",
                                             "LOCAL_RANK",
                                             "LOCAL_WORLD_SIZE",
                                             "MASTER_ADDR",
                                             "MASTER_PORT",
                                             "TORCHELASTIC_RESTART_COUNT",
                                             "TORCHELASTIC_MAX_RESTARTS",
                                             HPI_LAUNCHER_ENVIRONMENT};

typedef struct rank_environment {
    char **all; /* NULL-terminated, what environ becomes */
    char set[N_SET][SET_BYTES];
} rank_environment;

bool hpi_is_set_by_launcher(const char *entry) {
    for (int i = 0; i < N_SET; i++) {
        const size_t length = strlen(set_names[i]);
        if (!strncmp(entry, set_names[i], length) && entry[length] == '=')
            return true;
    }
    return false;
}

/* A port that nobody has now, for programs that open one of their own on MASTER_PORT. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 29500; /* torchrun's */
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) &&
        !getsockname(fd, (struct sockaddr *)&address, &length))
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void format_set(const hpi_launcher *l, int rank, int port, rank_environment *e) {
    const hpi_child *c = &l->children[rank];
    const char *address = hpi_environment("MASTER_ADDR"), *text = hpi_environment("MASTER_PORT");
    snprintf(e->set[0], SET_BYTES, "RANK=%d", rank);
    snprintf(e->set[1], SET_BYTES, "WORLD_SIZE=%d", l->n_children);
    snprintf(e->set[2], SET_BYTES, "LOCAL_RANK=%d", rank);
    snprintf(e->set[3], SET_BYTES, "LOCAL_WORLD_SIZE=%d", l->n_children);
    snprintf(e->set[4], SET_BYTES, "MASTER_ADDR=%s", address ? address : "127.0.0.1");
    if (text)
        snprintf(e->set[5], SET_BYTES, "MASTER_PORT=%s", text);
    else
        snprintf(e->set[5], SET_BYTES, "MASTER_PORT=%d", port);
    snprintf(e->set[6], SET_BYTES, "TORCHELASTIC_RESTART_COUNT=%d", l->n_restarts);
    snprintf(e->set[7], SET_BYTES, "TORCHELASTIC_MAX_RESTARTS=%d", l->config->max_restarts);
    snprintf(e->set[8], SET_BYTES, HPI_LAUNCHER_ENVIRONMENT "=" HPI_LAUNCHER_FORMAT,
             HPI_LAYOUT_VERSION, c->store_fd, c->segment_fd);
}

static hp_status make_environment(const hpi_launcher *l, int rank, int port, rank_environment *e) {
    size_t n = 0, at = 0;
    while (environ[n])
        n++;
    e->all = hpi_alloc(n + N_SET + 1, sizeof *e->all);
    if (!e->all)
        return HP_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        if (!hpi_is_set_by_launcher(environ[i]))
            e->all[at++] = environ[i];
    format_set(l, rank, port, e);
    for (int i = 0; i < N_SET; i++)
        e->all[at++] = e->set[i];
    return HP_OK;
}

/* ---- what a rank inherits ------------------------------------------------------------------- */

/* Else the kernel would end the launcher by SIGXFSZ. */
static hp_status check_file_limit(void) {
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < HPI_PAGE_BYTES)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected RLIMIT_FSIZE (ulimit -f) to allow %llu bytes for the control "
                        "block of a rank, it allows %llu",
                        (unsigned long long)HPI_PAGE_BYTES, (unsigned long long)limit.rlim_cur);
    return HP_OK;
}

static hp_status make_segment(hpi_child *c) {
    HP_TRY(check_file_limit());
    c->segment_fd =
        hpi_fd_above_stdio(memfd_create("hyperparallel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (c->segment_fd < 0 || ftruncate(c->segment_fd, (off_t)HPI_PAGE_BYTES))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a shared segment for a rank: %s", strerror(errno));
    void *page = mmap(NULL, HPI_PAGE_BYTES, PROT_READ, MAP_SHARED, c->segment_fd, 0);
    if (page == MAP_FAILED)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected to map a rank's control block: %s",
                        strerror(errno));
    c->control = page;
    return HP_OK;
}

static hp_status make_inherited(hpi_child *c) {
    int pair[2];
    HP_TRY(make_segment(c));
    if (hpi_fds_above_stdio(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), pair))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a socket pair for a rank: %s", strerror(errno));
    c->server_fd = pair[0];
    c->store_fd = pair[1];
    return HP_OK;
}

/* ---- inside the child ----------------------------------------------------------------------- */

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Before exec: only calls that are allowed after a fork. Returns false when the launcher is gone.
 */
static bool child_prepare(const hpi_launcher *l, int rank, pid_t launcher_pid) {
    hpi_child *c = &l->children[rank];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher_pid) /* it died before the line above */
        return false;
    if (c->has_own_group)
        setpgid(0, 0);
    for (int i = 0; i < l->n_children; i++) {
        close_fd(&l->children[i].server_fd);
        close_fd(&l->children[i].pidfd);
        if (i != rank) {
            close_fd(&l->children[i].store_fd);
            close_fd(&l->children[i].segment_fd);
        }
    }
    close(l->signal_fd);
    fcntl(c->store_fd, F_SETFD, 0);
    fcntl(c->segment_fd, F_SETFD, 0);
    if (rank > 0) {
        const int null = open("/dev/null", O_RDONLY);
        if (null > 0) {
            dup2(null, STDIN_FILENO);
            close(null);
        }
    }
    return !pthread_sigmask(SIG_SETMASK, &l->old_mask, NULL);
}

_Noreturn static void child_main(const hpi_launcher *l, int rank, pid_t launcher_pid,
                                 const hpi_program *program, int report_fd) {
    if (!child_prepare(l, rank, launcher_pid))
        _exit(128 + SIGKILL);
    environ = program->environment;
    if (program->argv) {
        execvp(program->argv[0], program->argv);
        const int reason = errno;
        (void)!write(report_fd, &reason, sizeof reason);
        _exit(127);
    }
    close(report_fd);
    const int status = l->config->body(l->config->argument);
    fflush(NULL);
    _exit(status);
}

/* ---- starting ------------------------------------------------------------------------------- */

void hpi_child_signal(const hpi_child *c, int signal) {
    /* the process is reaped last of all, so its number cannot be another's yet */
    const bool is_whole = c->has_own_group && (!c->passes_on || signal == SIGKILL);
    if (c->pid > 0)
        kill(is_whole ? -c->pid : c->pid, signal);
}

/* The pipe closes without a word when exec succeeds. */
static hp_status check_exec(const hpi_program *program, int report_fd) {
    int reason = 0;
    ssize_t n;
    do
        n = read(report_fd, &reason, sizeof reason);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof reason)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a program to start, %s: %s", program->argv[0],
                        strerror(reason));
    return HP_OK;
}

hp_status hpi_start_child(hpi_launcher *l, int rank, const hpi_program *program) {
    int report[2];
    hpi_child *c = &l->children[rank];
    const pid_t self = getpid();
    c->has_own_group = rank > 0 || !isatty(STDIN_FILENO);
    if (hpi_fds_above_stdio(pipe2(report, O_CLOEXEC), report))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a pipe: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        close(report[0]);
        child_main(l, rank, self, program, report[1]);
    }
    const int reason = errno;
    close(report[1]);
    const hp_status status = pid < 0 ? HP_OK : check_exec(program, report[0]);
    close(report[0]);
    if (pid < 0)
        return HPI_FAIL(HP_ERR_LIMIT, "expected to start rank %d, fork: %s", rank,
                        strerror(reason));
    c->pid = pid;
    if (c->has_own_group)
        setpgid(pid, pid); /* in both processes: whoever signals it first finds the group */
    c->pidfd = hpi_fd_above_stdio((int)syscall(SYS_pidfd_open, pid, 0));
    if (c->pidfd < 0)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected to watch rank %d, pidfd_open: %s", rank,
                        strerror(errno));
    return status;
}

static void undo(hpi_launcher *l) {
    for (int i = 0; i < l->n_children; i++) {
        hpi_child *c = &l->children[i];
        hpi_child_signal(c, SIGKILL);
        if (c->pid > 0)
            waitpid(c->pid, NULL, 0);
        c->pid = 0;
    }
}

static hp_status start_all(hpi_launcher *l, rank_environment *environments) {
    fflush(NULL); /* else a body's stdio would write it again */
    for (int i = 0; i < l->n_children; i++)
        HP_TRY(hpi_start_child(
            l, i, &(hpi_program){.argv = l->config->argv, .environment = environments[i].all}));
    for (int i = 0; i < l->n_children; i++) {
        hpi_child *c = &l->children[i];
        const int server_fd = c->server_fd;
        close_fd(&c->store_fd);
        close_fd(&c->segment_fd);
        c->server_fd = -1;
        HP_TRY(hpi_store_server_add(l->server, server_fd, i));
    }
    return HP_OK;
}

static hp_status spawn_ranks(hpi_launcher *l) {
    const int port = free_port();
    rank_environment *environments = hpi_alloc((size_t)l->n_children, sizeof *environments);
    hp_status status = environments ? HP_OK : HP_ERR_MEMORY;
    for (int i = 0; i < l->n_children && !status; i++)
        status = make_inherited(&l->children[i]);
    for (int i = 0; i < l->n_children && !status; i++)
        status = make_environment(l, i, port, &environments[i]);
    if (!status)
        status = start_all(l, environments);
    for (int i = 0; environments && i < l->n_children; i++)
        hpi_free(environments[i].all);
    hpi_free(environments);
    return status;
}

hp_status hpi_spawn(hpi_launcher *l) {
    const hp_status status = l->hosts ? hpi_spawn_mpirun(l) : spawn_ranks(l);
    if (status)
        undo(l);
    return status;
}
