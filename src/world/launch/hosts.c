/* SPDX-License-Identifier: Apache-2.0
 *
 * hosts.c - the hosts of a job, and whether they answer.
 *
 * The agent (ssh) runs `cat` on each, which sends back a byte that it is sent every second: no word
 * for a few seconds, and the host is gone, or the way to it. An mpirun whose link is cut would wait
 * for a quarter of an hour. An agent that ends is started again, so a broken connection of its own
 * ends no job. This machine needs no agent.
 */
#include "launch.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { BEAT_MS = 1000, LOOK_MS = 100 };

/* ---- their names ---------------------------------------------------------------------------- */

static bool is_this_machine(const char *name) {
    static const char *const names[] = {"localhost", "127.0.0.1"};
    char own[256] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return true;
    return !gethostname(own, sizeof own - 1) && !strcmp(name, own);
}

static hp_status take_host(hpi_hosts *hosts, char *word) {
    char *colon = strrchr(word, ':'), *end = NULL;
    const long n = colon ? strtol(colon + 1, &end, 10) : 1;
    const bool is_bad = colon && (colon != strchr(word, ':') || end == colon + 1 || *end || n < 1 ||
                                  n > HPI_MAX_LOCAL); /* an address with colons needs a name */
    if (colon == word || !*word || *word == '-' || is_bad)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected hosts as HOST:RANKS,... with 1 to %d ranks each, given \"%s\"",
                        HPI_MAX_LOCAL, word);
    if (colon)
        *colon = '\0';
    for (int i = 0; i < hosts->n; i++)
        if (!strcmp(hosts->host[i].name, word))
            return HPI_FAIL(HP_ERR_ARGUMENT, "expected each host once, given %s twice", word);
    hosts->host[hosts->n++] =
        (hpi_host){.name = word, .n_ranks = (int)n, .is_here = is_this_machine(word), .fd = -1};
    return HP_OK;
}

static hp_status take_all(hpi_hosts *hosts) {
    long n_ranks = 0;
    for (char *word = hosts->text, *next; word; word = next) {
        next = strchr(word, ',');
        if (next)
            *next++ = '\0';
        HP_TRY(take_host(hosts, word));
        n_ranks += hosts->host[hosts->n - 1].n_ranks;
    }
    if (n_ranks > HPI_MAX_RANKS)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected at most %d ranks on all hosts, given %ld",
                        HPI_MAX_RANKS, n_ranks);
    return HP_OK;
}

hp_status hpi_hosts_create(const char *text, const char *agent, hpi_hosts **out_hosts) {
    size_t n = 1;
    for (const char *c = text; *c; c++)
        n += *c == ',';
    hpi_hosts *hosts = hpi_alloc(1, sizeof *hosts + n * sizeof *hosts->host);
    if (!hosts)
        return HP_ERR_MEMORY;
    hosts->agent = agent ? agent : "ssh";
    hosts->text = hpi_strdup(text);
    const hp_status status = hosts->text ? take_all(hosts) : HP_ERR_MEMORY;
    if (status)
        hpi_hosts_destroy(hosts);
    else
        *out_hosts = hosts;
    return status;
}

void hpi_hosts_destroy(hpi_hosts *hosts) {
    if (!hosts)
        return;
    hpi_hosts_rest(hosts);
    hpi_free(hosts->text);
    hpi_free(hosts);
}

/* ---- an agent ------------------------------------------------------------------------------- */

_Noreturn static void agent_main(const hpi_hosts *hosts, const hpi_host *host, int fd,
                                 pid_t launcher) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* a key of the terminal is for the job */
    if (getppid() == launcher && dup2(fd, STDIN_FILENO) >= 0 && dup2(fd, STDOUT_FILENO) >= 0)
        execlp(hosts->agent, hosts->agent, host->name, "cat", (char *)NULL);
    _exit(127);
}

/* One that cannot be started is one that does not answer. */
static void agent_start(const hpi_hosts *hosts, hpi_host *host) {
    int pair[2];
    const pid_t self = getpid();
    if (hpi_fds_above_stdio(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), pair))
        return;
    const pid_t pid = fork();
    if (pid == 0)
        agent_main(hosts, host, pair[1], self);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return;
    }
    setpgid(pid, pid); /* in both: whoever signals it first finds the group */
    host->pid = pid;
    host->fd = pair[0];
}

static void agent_end(hpi_host *host) {
    if (!host->pid)
        return;
    close(host->fd);
    kill(-host->pid, SIGKILL);
    waitpid(host->pid, NULL, 0);
    host->pid = 0;
    host->fd = -1;
}

static void say_beat(hpi_host *host) {
    host->said_ns = hpi_now_ns();
    if (host->pid)
        (void)!send(host->fd, ".", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What comes is no matter: shells greet. */
static void hear(hpi_host *host) {
    char bytes[256];
    ssize_t n = -1;
    while (host->pid && (n = recv(host->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        host->heard_ns = hpi_now_ns();
    if (host->pid && (n == 0 || (errno != EAGAIN && errno != EINTR)))
        agent_end(host);
}

/* ---- asking before a try -------------------------------------------------------------------- */

static int n_open(const hpi_hosts *hosts, uint64_t since_ns) {
    int n = 0;
    for (int i = 0; i < hosts->n; i++)
        n += hosts->host[i].pid && hosts->host[i].heard_ns < since_ns;
    return n;
}

/* Until all have answered or cannot, or a signal has come, which the try will see. */
static void await_answers(hpi_launcher *l, uint64_t begin_ns) {
    hpi_hosts *hosts = l->hosts;
    const uint64_t end_ns = begin_ns + HPI_HOST_PATIENCE_MS * MS;
    struct pollfd signals = {.fd = l->signal_fd, .events = POLLIN};
    while (n_open(hosts, begin_ns) && hpi_now_ns() < end_ns && !poll(&signals, 1, 0)) {
        struct timespec pause = {.tv_nsec = LOOK_MS / 10 * (long)MS};
        nanosleep(&pause, NULL);
        for (int i = 0; i < hosts->n; i++)
            hear(&hosts->host[i]);
    }
}

static void note_answer(hpi_launcher *l, hpi_host *host, uint64_t begin_ns) {
    const bool was_there = host->is_there, is_first = !l->n_restarts;
    host->is_there = host->is_here || host->heard_ns >= begin_ns;
    if (!host->is_there)
        agent_end(host);
    if (!is_first && was_there != host->is_there)
        hpi_say(l, host->is_there ? "host %s is back" : "host %s does not answer: it is left out",
                host->name);
}

hp_status hpi_hosts_ask(hpi_launcher *l) {
    hpi_hosts *hosts = l->hosts;
    const uint64_t begin_ns = hpi_now_ns();
    int n_there = 0;
    for (int i = 0; i < hosts->n; i++) {
        if (!hosts->host[i].is_here)
            agent_start(hosts, &hosts->host[i]);
        say_beat(&hosts->host[i]);
    }
    await_answers(l, begin_ns);
    for (int i = 0; i < hosts->n; i++) {
        hpi_host *host = &hosts->host[i];
        note_answer(l, host, begin_ns);
        n_there += host->is_there;
        if (!host->is_there && !l->n_restarts)
            return HPI_FAIL(HP_ERR_SYSTEM, "expected host %s to answer \"%s %s cat\" within %d s",
                            host->name, hosts->agent, host->name, HPI_HOST_PATIENCE_MS / 1000);
    }
    if (!n_there)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected one of %d hosts to answer, none does", hosts->n);
    return HP_OK;
}

/* ---- while the job runs --------------------------------------------------------------------- */

int hpi_hosts_poll(const hpi_hosts *hosts, struct pollfd *polls) {
    int n = 0;
    for (int i = 0; i < hosts->n; i++)
        if (hosts->host[i].pid)
            polls[n++] = (struct pollfd){.fd = hosts->host[i].fd, .events = POLLIN};
    return n;
}

void hpi_hosts_look(hpi_hosts *hosts) {
    for (int i = 0; i < hosts->n; i++) {
        hpi_host *host = &hosts->host[i];
        if (host->is_here || !host->is_there)
            continue;
        hear(host);
        if (hpi_now_ns() - host->said_ns < BEAT_MS * MS)
            continue;
        if (!host->pid)
            agent_start(hosts, host);
        say_beat(host);
    }
}

const hpi_host *hpi_hosts_silent(const hpi_hosts *hosts) {
    const uint64_t now_ns = hpi_now_ns();
    for (int i = 0; i < hosts->n; i++) {
        const hpi_host *host = &hosts->host[i];
        if (host->is_there && !host->is_here && now_ns - host->heard_ns > HPI_HOST_PATIENCE_MS * MS)
            return host;
    }
    return NULL;
}

void hpi_hosts_rest(hpi_hosts *hosts) {
    for (int i = 0; i < hosts->n; i++)
        agent_end(&hosts->host[i]);
}
