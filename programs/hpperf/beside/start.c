/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/start.c - how a peer is started, and how it ends.
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

enum { MOST_WORDS = 128, PATH_SIZE = 4096, LINE_SIZE = 32768 };

/* ---- what is where ---- */

/* The folder of this program, with its last slash; n_up folders above it. */
static void own_folder(int n_up, char *out, size_t size) {
    const ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = 0;
    for (char *slash; n_up-- >= 0 && (slash = strrchr(out, '/')) != NULL;)
        *slash = 0;
    strcat(out, "/"); /* in place of one that was there */
}

/* Of a row's file, where it is; as it stands, when it is looked for in PATH. */
static void place_of(const char *file, char *out, size_t size) {
    char folder[PATH_SIZE] = "";
    const bool is_own = strncmp(file, "./", 2) == 0, is_in_peers = !is_own && strchr(file, '/');
    if (is_own || is_in_peers)
        own_folder(is_in_peers, folder, sizeof folder);
    snprintf(out, size, "%s%s%s", folder, is_in_peers ? "peers/" : "", is_own ? file + 2 : file);
}

static hp_status look_for(const beside_row *row, const char *file, const char *then) {
    char place[2 * PATH_SIZE];
    place_of(file, place, sizeof place);
    if (!strchr(place, '/') || access(place, R_OK) == 0)
        return HP_OK;
    return fail(HP_ERR_STATE,
                "expected %s for --beside %s, there is none; tools/setup.sh %s installs it%s",
                place, row->name, row->group, then);
}

/* A bare name is looked for by execvp, which fails in the child. */
hp_status beside_look(const beside_row *row) {
    TRY(look_for(row, row->launcher, ""));
    TRY(look_for(row, row->interpreter ? row->interpreter : row->launcher, ""));
    return look_for(row, row->program, ", then build again");
}

/* ---- the child ---- */

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

int beside_n_cores(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
}

/* A library that allocates in each call would else give the pages back and fault them in again: a
 * reduce_scatter of 256 KiB takes five times as long then (Open MPI, MPICH, Intel MPI). */
#define KEEPS_PAGES "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432"

static void set_environment(const beside_row *row, char *text) {
    char *rest = NULL;
    snprintf(text, PATH_SIZE, KEEPS_PAGES " %s", row->environment ? row->environment : "");
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        putenv(w);
}

/* Behind what is there, with a space. */
static void append(char *line, const char *words) {
    const size_t length = strlen(line);
    snprintf(line + length, LINE_SIZE - length, "%s ", words ? words : "");
}

static void append_file(char *line, const char *file) {
    char place[2 * PATH_SIZE] = "";
    if (file)
        place_of(file, place, sizeof place);
    append(line, place);
}

static void become(const beside_row *row, int n_ranks, const char *token, const char *arguments) {
    char line[LINE_SIZE] = "", environment[PATH_SIZE], numbers[128];
    char *words[MOST_WORDS + 1] = {0};
    set_environment(row, environment);
    append_file(line, row->launcher);
    snprintf(numbers, sizeof numbers, "-n %d", n_ranks);
    append(line, numbers);
    append(line, row->options);
    append(line, beside_n_cores() >= n_ranks ? row->pinned : row->shared);
    append_file(line, row->interpreter);
    append_file(line, row->program);
    append(line, arguments);
    snprintf(numbers, sizeof numbers, "--token %s", token);
    append(line, numbers);
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
        snprintf(out_how, size, BESIDE_NO_LAUNCHER);
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
