/* SPDX-License-Identifier: Apache-2.0
 *
 * ranks.c - n ranks of a test, as threads on a hub or as processes under hp_launch.
 *
 * A failing rank jumps out of its body to its runner, which notes the text and gives the world up.
 * A world that was given up is not destroyed: groups and buffers of the body still hang on it.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 2048 };

typedef struct rank_run {
    struct ranks_job *job;
    int rank;
    pthread_t thread;
    bool has_failed, has_died;
    char text[TEXT_BYTES];
} rank_run;

typedef struct ranks_job {
    int n, per_node; /* 0: all on one */
    ranks_body body;
    void *argument;
    hp_hub *hub; /* NULL for processes */
    rank_run *runs;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int n_ended;
    int n_failed, n_died;   /* died: without failure, ranks_die */
    char first[TEXT_BYTES]; /* text of the first failure */
} ranks_job;

/* Worlds and hubs of failed runs: reachable, so that they are no leaks. */
static struct kept {
    struct kept *next;
    void *what;
} * _Atomic kept;

static void keep(void *what) {
    struct kept *one = malloc(sizeof *one);
    if (!one)
        return;
    one->what = what;
    one->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &one->next, one)) {
    }
}

static uint64_t deadline_ms = 60000;
void ranks_set_deadline_ms(uint64_t ms) {
    deadline_ms = ms;
}

/* ---- inside a rank ------------------------------------------------------------------------- */

enum { JUMP_FAILED = 1, JUMP_DIED = 2 };
static _Thread_local jmp_buf jump;
static _Thread_local rank_run *current; /* NULL outside a rank's own thread */

_Noreturn static void end_body(int how, const char *text) {
    if (!current) {
        fprintf(stderr, "outside a rank's thread: %s\n", text);
        abort();
    }
    snprintf(current->text, sizeof current->text, "%s", text);
    longjmp(jump, how);
}

void ranks_die(void) {
    end_body(JUMP_DIED, "");
}

void ranks_fail(const char *file, int line, const char *what, int has_record) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d: %s:%d: %s%s%s", current ? current->rank : -1, file, line,
             what, has_record ? ": " : " does not hold", has_record ? hp_last_error() : "");
    end_body(JUMP_FAILED, text);
}

void ranks_fail_status(const char *file, int line, const char *what, hp_status status,
                       hp_status expected) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d: %s:%d: %s gives %s, expected %s%s%s",
             current ? current->rank : -1, file, line, what, hp_status_name(status),
             hp_status_name(expected), status < 0 ? ": " : "", status < 0 ? hp_last_error() : "");
    end_body(JUMP_FAILED, text);
}

/* Before the world is given up: what peers then report comes later. */
static void note_failure(rank_run *run) {
    ranks_job *job = run->job;
    pthread_mutex_lock(&job->lock);
    run->has_failed = true;
    if (!job->n_failed++)
        snprintf(job->first, sizeof job->first, "%s", run->text);
    pthread_mutex_unlock(&job->lock);
}

/* Returns true when the body ended well. `world` is volatile: it changes between the jumps. */
static bool rank_main(rank_run *run) {
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *volatile world = NULL;
    hp_world *created = NULL;
    config.hub = run->job->hub;
    config.rank = run->job->hub ? run->rank : -1;
    current = run;
    const int how = setjmp(jump);
    if (how) {
        if (how == JUMP_FAILED)
            note_failure(run);
        if (world) {
            hpi_world_abandon(world);
            keep(world);
        }
        current = NULL;
        run->has_died = how == JUMP_DIED;
        return run->has_died;
    }
    RANK_OK(hp_world_create(&config, &created));
    world = created;
    run->rank = hp_world_rank(created);
    run->job->body(created, run->job->argument);
    hp_world_destroy(created);
    current = NULL;
    return true;
}

/* ---- threads ------------------------------------------------------------------------------- */

static void *thread_main(void *argument) {
    rank_run *run = argument;
    ranks_job *job = run->job;
    (void)rank_main(run);
    pthread_mutex_lock(&job->lock);
    job->n_died += run->has_died;
    job->n_ended++;
    pthread_cond_signal(&job->ended);
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

static bool wait_for_threads(ranks_job *job, uint64_t ms) {
    struct timespec until;
    int failed = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(ms / 1000);
    pthread_mutex_lock(&job->lock);
    while (job->n_ended < job->n && !failed)
        failed = pthread_cond_timedwait(&job->ended, &job->lock, &until);
    const bool is_done = job->n_ended == job->n;
    pthread_mutex_unlock(&job->lock);
    return is_done;
}

/* The deadline has passed: say who waits for whom, then let waits end by declaring all dead. */
static void give_up(ranks_job *job) {
    print_error("%d ranks did not end within %llu ms:\n", job->n, (unsigned long long)deadline_ms);
    for (int i = 0; i < job->n; i++) {
        char text[512];
        hpi_control_describe(hpi_hub_control(job->hub, i), text, sizeof text);
        print_error("  rank %d: %s\n", i, text);
    }
    for (int i = 0; i < job->n; i++) {
        hpi_control *control = hpi_hub_control(job->hub, i);
        const uint64_t life = atomic_load_explicit(&control->life, memory_order_acquire);
        atomic_store_explicit(&control->life, hpi_life(hpi_life_generation(life), HPI_LIFE_DEAD),
                              memory_order_seq_cst);
    }
    if (wait_for_threads(job, 5000))
        return;
    print_error("and some did not end after that; the program ends here\n");
    _exit(1);
}

static void run_threads(ranks_job *job) {
    bool is_late;
    if (hp_hub_create(job->n, &job->hub))
        fail_msg("%s", hp_last_error());
    if (job->per_node && hpi_hub_split(job->hub, job->per_node))
        fail_msg("%s", hp_last_error());
    for (int i = 0; i < job->n; i++)
        if (pthread_create(&job->runs[i].thread, NULL, thread_main, &job->runs[i]))
            fail_msg("no thread for rank %d", i);
    is_late = !wait_for_threads(job, deadline_ms);
    if (is_late)
        give_up(job);
    for (int i = 0; i < job->n; i++)
        pthread_join(job->runs[i].thread, NULL);
    if (is_late) {
        job->n_failed++;
        snprintf(job->first, sizeof job->first, "the deadline of %llu ms passed",
                 (unsigned long long)deadline_ms);
    }
    for (int i = 0; i < job->n; i++)
        if (job->runs[i].has_failed)
            print_error("%s\n", job->runs[i].text);
    /* worlds that were given up still use the hub's memory */
    if (job->n_failed || job->n_died)
        keep(job->hub);
    else
        hp_hub_destroy(job->hub);
}

/* ---- processes ----------------------------------------------------------------------------- */

static int process_main(void *argument) {
    ranks_job *job = argument;
    rank_run *run = &job->runs[0];
    const char *rank = getenv("RANK");
    run->rank = rank ? atoi(rank) : -1;
    if (rank_main(run))
        return 0;
    fprintf(stderr, "%s\n", run->text);
    return 1;
}

static void say(void *context, const char *line) {
    ranks_job *job = context;
    const size_t length = strlen(job->first);
    print_error("%s\n", line);
    snprintf(job->first + length, sizeof job->first - length, "%s\n", line);
}

static void run_processes(ranks_job *job) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int status = 0;
    config.n_ranks = job->n;
    config.body = process_main;
    config.argument = job;
    config.deadline_ms = deadline_ms;
    config.say = say;
    config.say_context = job;
    if (hp_launch(&config, &status))
        fail_msg("%s", hp_last_error());
    job->n_failed = status != 0;
}

/* ---- the door ------------------------------------------------------------------------------ */

static int try_job(int n, int per_node, ranks_kind kind, ranks_body body, void *argument,
                   char *out_text, size_t size) {
    ranks_job job = {.n = n, .per_node = per_node, .body = body, .argument = argument};
    job.runs = calloc((size_t)n, sizeof *job.runs);
    assert_non_null(job.runs);
    pthread_mutex_init(&job.lock, NULL);
    pthread_cond_init(&job.ended, NULL);
    for (int i = 0; i < n; i++) {
        job.runs[i].job = &job;
        job.runs[i].rank = i;
    }
    if (kind == RANKS_THREADS)
        run_threads(&job);
    else
        run_processes(&job);
    pthread_cond_destroy(&job.ended);
    pthread_mutex_destroy(&job.lock);
    free(job.runs);
    if (out_text)
        snprintf(out_text, size, "%s", job.n_failed ? job.first : "");
    return job.n_failed;
}

int ranks_try(int n, ranks_kind kind, ranks_body body, void *argument, char *out_text,
              size_t size) {
    return try_job(n, 0, kind, body, argument, out_text, size);
}

int ranks_try_nodes(int n, int per_node, ranks_body body, void *argument, char *out_text,
                    size_t size) {
    return try_job(n, per_node, RANKS_THREADS, body, argument, out_text, size);
}

static void run_job(int n, int per_node, ranks_kind kind, ranks_body body, void *argument) {
    char text[TEXT_BYTES];
    const int n_failed = try_job(n, per_node, kind, body, argument, text, sizeof text);
    if (n_failed)
        fail_msg("%d of %d ranks failed; first: %s", n_failed, n, text);
}

void ranks_run(int n, ranks_kind kind, ranks_body body, void *argument) {
    if (kind == RANKS_PROCESSES && hpi_environment("HP_TEST_THREADS_ONLY"))
        return;
    run_job(n, 0, kind, body, argument);
}

void ranks_run_nodes(int n, int per_node, ranks_body body, void *argument) {
    run_job(n, per_node, RANKS_THREADS, body, argument);
}
