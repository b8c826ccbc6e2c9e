/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c - watching over the ranks of a job: hp_launch, which hprun is made of.
 *
 * One loop serves the start-up store, passes signals on and notices the end of a rank. The first
 * rank that fails decides: it is named at once, the others get a moment to notice by themselves,
 * what they waited for is reported, and those still there are asked to end, then killed. Ranks are
 * reaped at the very end, so no signal can reach a stranger that got a rank's number.
 *
 * Over several hosts one mpirun is the child, and nobody here sees its ranks; it names them itself.
 * It hears of a host that has died where a connection is closed, and waits for ever where none is,
 * so the hosts are listened to beside it (hosts.c).
 *
 * That is one try. Where restarts are left (restart.c) there is another, which shares nothing with
 * it but the signals and the deadline.
 */
#include "launch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
/* Waits look for dead peers every 50 ms; survivors that fail by themselves do it in this time. */
enum { MOMENT_MS = 250, LOOK_MS = 10, AGAIN_MS = 100, HOSTS_MS = 500, IDLE_MS = 60000 };
enum { MPIRUN_GRACE_MS = 3000 };
enum { EXIT_USAGE = 2, EXIT_LATE = 124 };

typedef enum launch_phase {
    RUNNING, /* no rank has failed */
    MOMENT,  /* one has, and the others may still say why they cannot go on */
    ENDING,  /* the others were asked to end */
    KILLED
} launch_phase;

typedef struct launch_loop {
    hpi_launcher *l;
    launch_phase phase;
    uint64_t phase_end_ns;
    struct pollfd *polls; /* signals, the children's ends, the store's connections, the hosts */
} launch_loop;

static int n_running(const hpi_launcher *l) {
    int n = 0;
    for (int i = 0; i < l->n_children; i++)
        n += !l->children[i].has_ended;
    return n;
}

static void signal_all(hpi_launcher *l, int signal) {
    for (int i = 0; i < l->n_children; i++)
        hpi_child_signal(&l->children[i], signal);
}

static void enter(launch_loop *loop, launch_phase phase, uint64_t ms) {
    loop->phase = phase;
    loop->phase_end_ns = hpi_add_saturated(hpi_now_ns(), hpi_ms_to_ns(ms));
}

/* An mpirun has to tell its daemons, and waits a second itself before it kills. */
static uint64_t grace_ms(const hpi_launcher *l) {
    return l->hosts ? hpi_max(l->config->grace_ms, MPIRUN_GRACE_MS) : l->config->grace_ms;
}

static void ask_to_end(launch_loop *loop) {
    signal_all(loop->l, SIGTERM);
    enter(loop, ENDING, grace_ms(loop->l));
}

/* ---- what happens --------------------------------------------------------------------------- */

/* Count a signal that asks to end. Whoever ends a whole job may send one signal twice in a row, to
 * the process and to its group (timeout does): that is asking once. */
static bool is_asked_anew(hpi_launcher *l) {
    const uint64_t now_ns = hpi_now_ns();
    const bool is_anew = !l->n_asked || now_ns - l->asked_ns > AGAIN_MS * MS;
    l->asked_ns = now_ns;
    l->n_asked += is_anew;
    return is_anew;
}

static void pass_signals_on(hpi_launcher *l) {
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        const bool asks = info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM;
        l->is_told_to_end |= hpi_tells_to_end(info.ssi_signo);
        if (asks && !is_asked_anew(l))
            continue;
        for (int i = 0; i < l->n_children; i++) {
            const hpi_child *c = &l->children[i];
            /* a key of the terminal has already reached whoever is in our process group */
            const bool has_it = info.ssi_code == SI_KERNEL && !c->has_own_group;
            if (!c->has_ended && !has_it)
                hpi_child_signal(c, (int)info.ssi_signo);
        }
    }
}

/* Note how a rank ended. It stays a zombie, and keeps its number, until the job is over. */
static void note_end(hpi_launcher *l, int rank) {
    hpi_child *c = &l->children[rank];
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT | WNOHANG) || info.si_pid != c->pid)
        return;
    c->has_ended = true;
    c->code = info.si_code;
    c->value = info.si_status;
}

/* The rank whose end made this one give up; -1 when it failed by itself. */
static int blamed_by(const hpi_launcher *l, int rank) {
    if (l->hosts)
        return -1;
    const uint64_t blamed =
        atomic_load_explicit(&l->children[rank].control->blamed, memory_order_acquire);
    return blamed && blamed <= (uint64_t)l->n_children ? (int)blamed - 1 : -1;
}

/* How likely a rank's end is what began it all: a kill, a failure of its own, one that followed. */
static int weight(const hpi_launcher *l, int rank) {
    const hpi_child *c = &l->children[rank];
    if (!c->has_ended || !hpi_child_exit(c))
        return 0;
    if (c->code != CLD_EXITED)
        return 3;
    return blamed_by(l, rank) < 0 ? 2 : 1;
}

static void choose_first(hpi_launcher *l) {
    for (int i = 0; i < l->n_children; i++)
        if (weight(l, i) > (l->first < 0 ? 0 : weight(l, l->first)))
            l->first = i;
}

static bool ended_of_usage(const hpi_child *c) {
    return c->has_ended && c->code == CLD_EXITED && c->value == EXIT_USAGE;
}

/* A wrong command line of the program is wrong for all ranks, and the program has said so. */
static bool is_all_usage(const hpi_launcher *l) {
    for (int i = 0; i < l->n_children; i++)
        if (!ended_of_usage(&l->children[i]))
            return false;
    return true;
}

/* Name the first rank that failed, as soon as it is clear that it did not follow one that is just
 * ending: such a rank may give itself up a little before its process ends. */
static void name_first(hpi_launcher *l, bool is_last_call) {
    choose_first(l);
    const bool may_not_matter = weight(l, l->first) < 2 || ended_of_usage(&l->children[l->first]);
    if (may_not_matter && !is_last_call)
        return;
    l->is_named = true;
    hpi_report_first(l);
}

/* Who failed is said as soon as that is clear, who waited for whom at the last look. */
static void report_moment(hpi_launcher *l, bool is_last_look) {
    hpi_report_look(l);
    if (is_last_look && is_all_usage(l))
        return;
    if (!l->is_named)
        name_first(l, is_last_look);
    if (is_last_look)
        hpi_report_others(l);
}

static bool is_over(const launch_loop *loop) {
    return hpi_now_ns() >= loop->phase_end_ns || !n_running(loop->l);
}

static void advance(launch_loop *loop) {
    hpi_launcher *l = loop->l;
    if (loop->phase == RUNNING) {
        choose_first(l);
        if (l->first >= 0) {
            enter(loop, MOMENT, MOMENT_MS);
        } else if (l->n_asked > 1) { /* asked twice: ranks that do not listen are killed */
            enter(loop, ENDING, grace_ms(l));
        } else if (hpi_now_ns() >= l->deadline_ns) {
            l->is_late = true;
            hpi_report_look(l);
            hpi_report_late(l);
            ask_to_end(loop);
        } else if (l->hosts && hpi_hosts_silent(l->hosts)) {
            l->is_split = true;
            hpi_report_silent(l);
            ask_to_end(loop);
        }
    }
    if (loop->phase == MOMENT) {
        const bool is_last_look = is_over(loop);
        report_moment(l, is_last_look);
        if (is_last_look)
            ask_to_end(loop);
    }
    if (loop->phase == ENDING && is_over(loop)) {
        signal_all(l, SIGKILL);
        enter(loop, KILLED, IDLE_MS);
    }
}

static int poll_ms(const launch_loop *loop) {
    const uint64_t now_ns = hpi_now_ns();
    uint64_t until_ns = loop->phase == RUNNING ? loop->l->deadline_ns : loop->phase_end_ns;
    if (loop->phase == MOMENT)
        until_ns = hpi_min(until_ns, now_ns + LOOK_MS * MS);
    if (loop->l->hosts)
        until_ns = hpi_min(until_ns, now_ns + HOSTS_MS * MS);
    return (int)hpi_min(until_ns > now_ns ? (until_ns - now_ns) / MS + 1 : 0, IDLE_MS);
}

static void turn(launch_loop *loop) {
    hpi_launcher *l = loop->l;
    const int n_connections = hpi_store_server_count(l->server);
    struct pollfd *ends = loop->polls + 1, *connections = ends + l->n_children;
    loop->polls[0] = (struct pollfd){.fd = l->signal_fd, .events = POLLIN};
    for (int i = 0; i < l->n_children; i++) {
        const hpi_child *c = &l->children[i];
        ends[i] = (struct pollfd){.fd = c->has_ended ? -1 : c->pidfd, .events = POLLIN};
    }
    for (int i = 0; i < n_connections; i++)
        connections[i] = (struct pollfd){.fd = hpi_store_server_fd(l->server, i), .events = POLLIN};
    const int n_hosts = l->hosts ? hpi_hosts_poll(l->hosts, connections + n_connections) : 0;
    const int n = 1 + l->n_children + n_connections + n_hosts;
    if (poll(loop->polls, (nfds_t)n, poll_ms(loop)) > 0) {
        pass_signals_on(l);
        for (int i = 0; i < l->n_children; i++)
            if (ends[i].revents)
                note_end(l, i);
        for (int i = 0; i < n_connections; i++)
            if (connections[i].revents)
                hpi_store_server_read(l->server, i);
    }
    if (l->hosts)
        hpi_hosts_look(l->hosts);
    advance(loop);
}

static void watch(launch_loop *loop) {
    while (n_running(loop->l) || loop->phase == MOMENT || loop->phase == ENDING)
        turn(loop);
}

/* ---- begin and end -------------------------------------------------------------------------- */

static hp_status block_signals(hpi_launcher *l) {
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
    sigemptyset(&l->passed_on);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&l->passed_on, signals[i]);
    pthread_sigmask(SIG_BLOCK, &l->passed_on, &l->old_mask);
    l->signal_fd = hpi_fd_above_stdio(signalfd(-1, &l->passed_on, SFD_CLOEXEC | SFD_NONBLOCK));
    if (l->signal_fd < 0)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a signalfd: %s", strerror(errno));
    return HP_OK;
}

static void unblock_signals(const hpi_launcher *l) {
    if (l->signal_fd >= 0)
        close(l->signal_fd);
    pthread_sigmask(SIG_SETMASK, &l->old_mask, NULL);
}

static void try_close(hpi_launcher *l) {
    for (int i = 0; l->children && i < l->n_children; i++) {
        const hpi_child *c = &l->children[i];
        const int fds[] = {c->pidfd, c->server_fd, c->store_fd, c->segment_fd};
        if (c->pid > 0)
            waitpid(c->pid, NULL, 0);
        for (size_t k = 0; k < sizeof fds / sizeof *fds; k++)
            if (fds[k] >= 0)
                close(fds[k]);
        if (c->control)
            munmap(c->control, HPI_PAGE_BYTES);
    }
    if (l->hosts)
        hpi_hosts_rest(l->hosts);
    hpi_store_server_destroy(l->server);
    hpi_free(l->children);
    l->server = NULL;
    l->children = NULL;
}

static hp_status try_open(hpi_launcher *l) {
    l->first = -1;
    l->is_named = l->is_late = l->is_usage = l->is_split = false;
    l->begin_ns = hpi_now_ns();
    l->n_oom_kills = hpi_oom_kills();
    l->children = hpi_alloc((size_t)l->n_children, sizeof *l->children);
    if (!l->children)
        return HP_ERR_MEMORY;
    for (int i = 0; i < l->n_children; i++)
        l->children[i] =
            (hpi_child){.pidfd = -1, .server_fd = -1, .store_fd = -1, .segment_fd = -1};
    HP_TRY(hpi_store_server_create(l->n_children, &l->server));
    if (l->hosts)
        HP_TRY(hpi_hosts_ask(l));
    return hpi_spawn(l);
}

static int exit_status(hpi_launcher *l) {
    if (l->first < 0)
        choose_first(l); /* of those that were ended after a second signal */
    if (l->is_late)
        return EXIT_LATE;
    if (l->first >= 0)
        return hpi_child_exit(&l->children[l->first]);
    return l->is_split ? EXIT_FAILURE : 0;
}

static size_t n_polls(const hpi_launcher *l) {
    const size_t n_hosts = l->hosts ? (size_t)l->hosts->n : 0;
    return 1 + 3 * (size_t)l->n_children + 16 + n_hosts;
}

/* Run the job once; what came of it stays in the launcher. */
static hp_status try_once(hpi_launcher *l) {
    launch_loop loop = {.l = l, .phase_end_ns = UINT64_MAX};
    hp_status status = try_open(l);
    if (!status) {
        loop.polls = hpi_alloc(n_polls(l), sizeof *loop.polls);
        status = loop.polls ? HP_OK : HP_ERR_MEMORY;
        if (status)
            signal_all(l, SIGKILL);
        else
            watch(&loop);
        l->exit_status = exit_status(l);
        l->is_usage = !l->is_split && is_all_usage(l);
    }
    try_close(l);
    hpi_free(loop.polls);
    return status;
}

static hp_status check(const hp_launch_config *config, const int *out_exit) {
    if (!config || !out_exit || config->size != sizeof *config)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a config made with HP_LAUNCH_CONFIG_INIT and a "
                                         "place for the exit status");
    if (!config->hosts && (config->n_ranks < 1 || config->n_ranks > HPI_MAX_LOCAL))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected 1 to %d ranks, given %d", HPI_MAX_LOCAL,
                        config->n_ranks);
    if (config->hosts && !config->argv)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a program to start on hosts, given none");
    if (config->argv ? !config->argv[0] : !config->body)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a program or a body, given neither");
    if (config->max_restarts < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected max_restarts of 0 or more, given %d",
                        config->max_restarts);
    return HP_OK;
}

static hp_status open_hosts(hpi_launcher *l) {
    HP_TRY(hpi_mpirun_find(l->config->mpi, &l->mpirun));
    l->n_children = 1;
    return hpi_hosts_create(l->config->hosts, l->config->agent, &l->hosts);
}

hp_status hp_launch(const hp_launch_config *config, int *out_exit) {
    HP_TRY(check(config, out_exit));
    hpi_launcher l = {.config = config, .n_children = config->n_ranks, .signal_fd = -1};
    if (config->hosts)
        HP_TRY(open_hosts(&l));
    l.deadline_ns = config->deadline_ms
                        ? hpi_add_saturated(hpi_now_ns(), hpi_ms_to_ns(config->deadline_ms))
                        : UINT64_MAX;
    hp_status status = block_signals(&l);
    if (!status)
        do
            status = try_once(&l);
        while (!status && hpi_restart(&l));
    unblock_signals(&l);
    hpi_hosts_destroy(l.hosts);
    if (!status)
        *out_exit = l.exit_status;
    return status;
}
