/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/start.c - how each peer is started, at its best known setting.
 *
 * The launcher becomes the leader of a process group and dies with this rank. It sees neither what
 * another launcher has told us in the environment, nor our standard input; what it prints goes to
 * standard error, so that rows stay rows.
 */
#include "../fail.h"
#include "beside.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Open MPI: copies across processes (CMA); with fewer cores than ranks it must yield. UCX: through
 * shared memory and CMA as well. MPICH has no way to yield. */
#define OPENMPI "--allow-run-as-root --quiet --mca btl_base_warn_component_unused 0 "
#define OPENMPI_PINNED "--bind-to core --map-by core"
#define OPENMPI_SHARED "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
static const beside_row rows[] = {
    {"openmpi", "mpirun.openmpi", "hpperf-mpi.openmpi",
     OPENMPI "--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism cma",
     OPENMPI_PINNED, OPENMPI_SHARED},
    {"openmpi-ucx", "mpirun.openmpi", "hpperf-mpi.openmpi",
     OPENMPI "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any "
             "-x UCX_TLS=self,sm",
     OPENMPI_PINNED, OPENMPI_SHARED},
    {"mpich", "mpirun.mpich", "hpperf-mpi.mpich", "", "-bind-to core", "-bind-to none"},
};

enum { N_ROWS = sizeof rows / sizeof *rows, MOST_WORDS = 128 };

const beside_row *beside_find(const char *name) {
    char names[200] = "";
    size_t length = 0;
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i ? ", " : "",
                                   rows[i].name);
    }
    (void)fail(HP_ERR_ARGUMENT, "expected --beside to be one of %s, given \"%s\"", names, name);
    return NULL;
}

/* ---- the child ---- */

/* The folder of this program, with its last slash. */
static void own_folder(char *out, size_t size) {
    const ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        slash[1] = 0;
}

/* What a launcher that has started us wants its children, and no other launcher, to know. */
static void forget_launchers(void) {
    static const char *const prefixes[] = {"OMPI_",  "PMIX_", "PMI_", "PMI2_",
                                           "HYDRA_", "MPI_",  "PRTE_"};
    extern char **environ;
    for (char **e = environ; *e;) {
        char name[256];
        bool is_theirs = false;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            is_theirs |= strncmp(*e, prefixes[i], strlen(prefixes[i])) == 0;
        if (is_theirs && unsetenv(name) == 0)
            e = environ; /* it has moved */
        else
            e++;
    }
}

static int add_words(char *text, char **words, int n) {
    char *rest = NULL;
    for (char *w = strtok_r(text, " ", &rest); w && n < MOST_WORDS; w = strtok_r(NULL, " ", &rest))
        words[n++] = w;
    return n;
}

static int n_cores(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
}

static void become(const beside_row *row, int n_ranks, const char *token, const char *arguments) {
    char line[8192], folder[4096];
    char *words[MOST_WORDS + 1] = {0};
    own_folder(folder, sizeof folder);
    snprintf(line, sizeof line, "%s -n %d %s %s %s%s %s --token %s", row->launcher, n_ranks,
             row->options, n_cores() >= n_ranks ? row->pinned : row->shared, folder, row->program,
             arguments, token);
    add_words(line, words, 0);
    if (words[0]) /* a row has a launcher */
        execvp(words[0], words);
}

int beside_start(const beside_row *row, int n_ranks, const char *token, const char *arguments) {
    const pid_t parent = getpid(), pid = fork();
    if (pid)
        return pid;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 &&
        getppid() == parent) {
        forget_launchers();
        become(row, n_ranks, token, arguments);
    }
    _exit(127);
}

/* ---- its end ---- */

int beside_has_ended(int pid, char *out_how, size_t size) {
    int status;
    const pid_t who = waitpid(pid, &status, WNOHANG);
    if (who == 0)
        return 0;
    if (who < 0)
        snprintf(out_how, size, "it is gone");
    else if (WIFSIGNALED(status))
        snprintf(out_how, size, "signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == 127)
        snprintf(out_how, size, "it is not in PATH");
    else
        snprintf(out_how, size, "exit status %d", WEXITSTATUS(status));
    return 1;
}

static int ends_within(int pid, int ms) {
    char how[32];
    for (int waited = 0; waited <= ms; waited += 5) {
        if (beside_has_ended(pid, how, sizeof how))
            return 1;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return 0;
}

void beside_stop(int pid, int grace_ms) {
    if (ends_within(pid, grace_ms))
        return;
    kill(-pid, SIGTERM);
    if (ends_within(pid, 200))
        return;
    kill(-pid, SIGKILL);
    (void)ends_within(pid, 1000);
}
