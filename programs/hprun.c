/* SPDX-License-Identifier: Apache-2.0
 *
 * hprun.c - start the ranks of a job, here or on hosts, and watch over them.
 *
 * The command line around hp_launch, which does everything; what it says goes to standard error.
 */
#include "standard.h"

#include <hyperparallel/base.h>
#include <hyperparallel/world.h>

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MPI = 256, KEY_AGENT };
enum { EXIT_USAGE = 64, EXIT_NOT_STARTED = 126, EXIT_NOT_FOUND = 127 };

static const char doc[] =
    "Start N copies of PROG on this machine, or some on each of several hosts, as the ranks of one "
    "job, and watch over them.\v"
    "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
    "in "
    "its environment, as under torchrun. Rank 0 reads this command's standard input, the others "
    "/dev/null. SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP are passed on to the ranks; a second "
    "SIGINT or SIGTERM kills, after the grace, whoever has not ended.\n\n"
    "When a rank is killed or ends with a status other than 0, hprun says which and how, what "
    "every "
    "other rank was waiting for, and ends the others: SIGTERM, then SIGKILL. Where all end with 2, "
    "the status of a wrong command line, PROG has said why and hprun adds nothing. The ranks also "
    "die with hprun.\n\n"
    "With --max-restarts all ranks are then started again, with TORCHELASTIC_RESTART_COUNT raised, "
    "until a try succeeds or K restarts were made; after a try that lasted less than a second "
    "there is a pause before the next, 0.1 s at first, doubled up to 10 s. A job that was told to "
    "end by SIGINT, SIGTERM or SIGHUP, that is over its deadline, or whose ranks all ended with 2 "
    "is not started again.\n\n"
    "With --hosts an mpirun of Open MPI or MPICH starts the ranks, N on each host; it is found in "
    "PATH and reaches the hosts with CMD, as it would by itself. PATH, LD_LIBRARY_PATH and what "
    "begins with HYPER_PARALLEL_, SYMMETRIC_MEMORY_, OMP_, UCX_ and the like are passed on. Each "
    "host is asked by \"CMD HOST cat\" whether it is there, before and all through a try. One that "
    "has been silent for 5 s ends the try, and the next begins on those that answer, with fewer "
    "ranks; a program that trains as replicas of S shards goes on with hptrain --mesh -1xS.\n\n"
    "Exit status, of the last try: 0 when every rank ended with 0; else that of the first rank "
    "that "
    "failed, 128 + N when signal N killed it; 124 when the deadline passed; 127 when there is no "
    "such program, 126 "
    "when the ranks could not be started, 64 for a wrong command line.\n\n"
    "Examples:\n"
    "  hprun -n 8 ./train --steps 100\n"
    "  hprun -n 2 --deadline 60 python3 train.py\n"
    "  hprun -n 4 --max-restarts 3 hptrain --save run --save-every 100\n"
    "  hprun --hosts a:4,b:4 --max-restarts 3 hptrain --mesh -1x4 --save /shared/run\n";

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "How many ranks (default: the cores that this process may use)", 0},
    {"deadline", 'd', "SECONDS", 0, "End the job after this time (default: never)", 0},
    {"grace", 'g', "SECONDS", 0,
     "Between asking the other ranks to end and killing them (default: 0.3)", 0},
    {"max-restarts", 'r', "K", 0,
     "Start all ranks again when one dies or fails, at most K times (default: 0)", 0},
    {"hosts", 'H', "HOST[:N],...", 0, "Start N ranks on each host (default: 1), in place of -n", 1},
    {"mpi", KEY_MPI, "openmpi|mpich", 0,
     "Whose mpirun starts them (default: the first that is there)", 1},
    {"agent", KEY_AGENT, "CMD", 0, "The program that reaches a host (default: ssh)", 1},
    {0, 0, 0, 0, 0, 0}};

static uint64_t parse_ms(struct argp_state *state, const char *name, const char *text) {
    char *end;
    const double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0 && seconds <= 1e9))
        argp_error(state, "expected --%s to be seconds from 0 to 1e9, given \"%s\"", name, text);
    return (uint64_t)ceil(seconds * 1e3);
}

static int parse_count(struct argp_state *state, const char *name, const char *text, int least,
                       int most) {
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < least || n > most)
        argp_error(state, "expected %s to be a number from %d to %d, given \"%s\"", name, least,
                   most, text);
    return (int)n;
}

static int n_cores(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
}

/* -n was given where n_ranks is not 0. */
static void check_hosts(struct argp_state *state, hp_launch_config *config) {
    if (config->hosts && config->n_ranks)
        argp_error(state, "expected -n or --hosts, given both");
    if (!config->hosts && (config->mpi || config->agent))
        argp_error(state, "expected --hosts with --mpi and --agent, given none");
    if (!config->hosts && !config->n_ranks)
        config->n_ranks = n_cores();
}

static error_t parse(int key, char *text, struct argp_state *state) {
    hp_launch_config *config = state->input;
    switch (key) {
    case 'n':
        config->n_ranks = parse_count(state, "-n", text, 1, 1024);
        return 0;
    case 'd':
        config->deadline_ms = parse_ms(state, "deadline", text);
        return 0;
    case 'g':
        config->grace_ms = parse_ms(state, "grace", text);
        return 0;
    case 'r':
        config->max_restarts = parse_count(state, "--max-restarts", text, 0, 1000000);
        return 0;
    case 'H':
        config->hosts = text;
        return 0;
    case KEY_MPI:
        config->mpi = text;
        return 0;
    case KEY_AGENT:
        config->agent = text;
        return 0;
    case ARGP_KEY_ARG: /* the program; everything behind it is the program's */
        config->argv = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "expected a program to start");
        return 0;
    case ARGP_KEY_END:
        check_hosts(state, config);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state) {
    (void)state;
    fprintf(stream, "hprun (HyperParallel in C) %s\n", hp_version());
}

static void say(void *context, const char *line) {
    (void)context;
    fprintf(stderr, "hprun: %s\n", line);
}

int main(int argc, char **argv) {
    const struct argp parser = {options, parse, "PROG [ARGUMENT...]", doc, NULL, NULL, NULL};
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    hp_error error;
    int status = 0;
    open_missing_stdio();
    config.n_ranks = 0;
    config.say = say;
    argp_program_version_hook = print_version;
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &config);
    if (!hp_launch(&config, &status))
        return status;
    hp_last_error_get(&error);
    fprintf(stderr, "hprun: %s\n", hp_last_error());
    if (error.status != HP_ERR_ARGUMENT)
        return EXIT_NOT_STARTED;
    return config.hosts ? EXIT_USAGE : EXIT_NOT_FOUND; /* mpirun looks for the program */
}
