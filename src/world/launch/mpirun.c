/* SPDX-License-Identifier: Apache-2.0
 *
 * mpirun.c - the mpirun that starts the ranks of a job on its hosts.
 *
 * The host list and the number of ranks are told on its command line, the agent by the variables
 * that each MPI knows, so that what a person has set there for this cluster holds as well. Open MPI
 * takes no environment along but what it is told; MPICH takes all.
 */
#include "launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

/* ---- which ---------------------------------------------------------------------------------- */

/* In order of preference. Where a name may be either's, what --version says tells. */
static const struct {
    const char *mpi, *name, *says;
} known[] = {
    {"openmpi", "mpirun.openmpi", NULL}, {"openmpi", "mpirun", "Open MPI"},
    {"mpich", "mpirun.mpich", NULL},     {"mpich", "mpiexec.hydra", NULL},
    {"mpich", "mpirun", "HYDRA"},
};
enum { N_KNOWN = sizeof known / sizeof *known };

static bool is_in_path(const char *name) {
    const char *path = hpi_environment("PATH");
    char file[4096];
    for (const char *next; path; path = next) {
        const char *end = strchrnul(path, ':');
        next = *end ? end + 1 : NULL;
        const int n = snprintf(file, sizeof file, "%.*s/%s", (int)(end - path), path, name);
        if (n < (int)sizeof file && !access(file, X_OK))
            return true;
    }
    return false;
}

static bool says_so(const char *name, const char *words) {
    char command[256], line[256];
    bool is_said = false;
    snprintf(command, sizeof command, "%s --version 2>/dev/null", name);
    FILE *out = popen(command, "re");
    while (out && fgets(line, sizeof line, out))
        is_said |= strstr(line, words) != NULL;
    if (out)
        pclose(out);
    return is_said;
}

static int find(const char *mpi) {
    for (int i = 0; i < N_KNOWN; i++)
        if ((!mpi || !strcmp(mpi, known[i].mpi)) && is_in_path(known[i].name) &&
            (!known[i].says || says_so(known[i].name, known[i].says)))
            return i;
    return -1;
}

hp_status hpi_mpirun_find(const char *mpi, int *out_which) {
    if (mpi && strcmp(mpi, "openmpi") != 0 && strcmp(mpi, "mpich") != 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected openmpi or mpich, given \"%s\"", mpi);
    *out_which = find(mpi);
    if (*out_which < 0)
        return HPI_FAIL(
            HP_ERR_ARGUMENT,
            "expected %s in PATH: mpirun.openmpi, mpirun.mpich, mpiexec.hydra or mpirun",
            mpi ? mpi : "an MPI");
    return HP_OK;
}

/* ---- lists of words ------------------------------------------------------------------------- */

typedef struct words {
    char **all; /* NULL-terminated */
    size_t n, n_most;
    bool has_failed;
} words;

static void words_open(words *w, size_t n_most) {
    *w = (words){.all = hpi_alloc(n_most + 1, sizeof *w->all), .n_most = n_most};
    w->has_failed = !w->all;
}

static void words_close(words *w) {
    for (size_t i = 0; i < w->n; i++)
        hpi_free(w->all[i]);
    hpi_free(w->all);
}

__attribute__((format(printf, 2, 3))) static void add(words *w, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const size_t bytes = (size_t)vsnprintf(NULL, 0, format, arguments) + 1;
    char *word = w->has_failed || w->n == w->n_most ? NULL : hpi_alloc(bytes, 1);
    if (word)
        vsnprintf(word, bytes, format, again);
    w->has_failed |= !word;
    if (word)
        w->all[w->n++] = word;
    va_end(again);
    va_end(arguments);
}

/* ---- what is said to it --------------------------------------------------------------------- */

static const char *const agent_names[] = {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent",
                                          "HYDRA_LAUNCHER_EXEC"};
enum { N_AGENT_NAMES = sizeof agent_names / sizeof *agent_names };

static bool is_agent(const char *entry) {
    for (int i = 0; i < N_AGENT_NAMES; i++) {
        const size_t length = strlen(agent_names[i]);
        if (!strncmp(entry, agent_names[i], length) && entry[length] == '=')
            return true;
    }
    return false;
}

/* Its own environment: ours, but for what makes a rank of an hprun above. */
static void fill_environment(const hpi_launcher *l, words *w) {
    const char *agent = l->config->agent;
    for (char **entry = environ; *entry; entry++)
        if (!hpi_is_set_by_launcher(*entry) && !(agent && is_agent(*entry)))
            add(w, "%s", *entry);
    add(w, "TORCHELASTIC_RESTART_COUNT=%d", l->n_restarts);
    add(w, "TORCHELASTIC_MAX_RESTARTS=%d", l->config->max_restarts);
    for (int i = 0; agent && i < N_AGENT_NAMES; i++)
        add(w, "%s=%s", agent_names[i], agent);
    /* Over UCX and TCP the answer of a rendezvous waits behind what goes the other way: see
     * docs/decisions/0016. Open MPI would not look at it. */
    if (!strcmp(known[l->mpirun].mpi, "mpich") && !hpi_environment("UCX_RNDV_THRESH"))
        add(w, "UCX_RNDV_THRESH=65536");
}

/* Is it for the ranks? Of what belongs to a host, as HOSTNAME or TMPDIR, nothing is. */
static bool is_for_ranks(const char *entry) {
    static const char *const begins[] = {"PATH=",
                                         "LD_LIBRARY_PATH=",
                                         "HYPER_PARALLEL_",
                                         "SYMMETRIC_MEMORY_",
                                         "SHMEM_",
                                         "OMP_",
                                         "TORCHELASTIC_",
                                         "UCX_",
                                         "FI_",
                                         "PYTHON"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (!strncmp(entry, begins[i], strlen(begins[i])))
            return true;
    return false;
}

static void fill_host_list(const hpi_hosts *hosts, words *w, int *out_n_ranks) {
    char *list;
    size_t bytes;
    FILE *text = open_memstream(&list, &bytes);
    *out_n_ranks = 0;
    w->has_failed |= !text;
    if (!text)
        return;
    for (int i = 0; i < hosts->n; i++) {
        const hpi_host *host = &hosts->host[i];
        if (host->is_there)
            fprintf(text, "%s%s:%d", *out_n_ranks ? "," : "", host->name, host->n_ranks);
        *out_n_ranks += host->is_there ? host->n_ranks : 0;
    }
    if (fclose(text) == 0)
        add(w, "%s", list);
    else
        w->has_failed = true;
    free(list);
}

/* Unbound: both bind ranks to cores in their own ways, and where two jobs share a host, to the same
 * ones. By slots: the ranks of a host follow each other. */
static void fill_openmpi(const words *environment, words *w) {
    static const char *const fixed[] = {
        "--bind-to", "none", "--map-by", "slot", "--mca", "btl_base_warn_component_unused", "0"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        add(w, "%s", fixed[i]);
    if (!geteuid())
        add(w, "--allow-run-as-root");
    for (size_t i = 0; i < environment->n; i++)
        if (is_for_ranks(environment->all[i])) {
            const char *entry = environment->all[i];
            add(w, "-x");
            add(w, "%.*s", (int)(strchrnul(entry, '=') - entry), entry);
        }
}

static void fill_argv(const hpi_launcher *l, const words *environment, words *w) {
    const bool is_openmpi = !strcmp(known[l->mpirun].mpi, "openmpi");
    int n_ranks;
    add(w, "%s", known[l->mpirun].name);
    if (is_openmpi)
        fill_openmpi(environment, w);
    add(w, is_openmpi ? "-H" : "-hosts");
    fill_host_list(l->hosts, w, &n_ranks);
    add(w, "-n");
    add(w, "%d", n_ranks);
    for (char *const *word = l->config->argv; *word; word++)
        add(w, "%s", *word);
}

static size_t count(char *const *list) {
    size_t n = 0;
    while (list[n])
        n++;
    return n;
}

hp_status hpi_spawn_mpirun(hpi_launcher *l) {
    enum { N_MORE = 32 }; /* words beside the program's and those of the environment */
    words environment, argv;
    words_open(&environment, count(environ) + N_MORE);
    words_open(&argv, 2 * environment.n_most + count(l->config->argv) + N_MORE);
    fill_environment(l, &environment);
    fill_argv(l, &environment, &argv);
    hp_status status = HP_ERR_MEMORY;
    if (!environment.has_failed && !argv.has_failed) {
        const hpi_program program = {.argv = argv.all, .environment = environment.all};
        l->children[0].passes_on = true;
        status = hpi_start_child(l, 0, &program);
    }
    words_close(&argv);
    words_close(&environment);
    return status;
}
