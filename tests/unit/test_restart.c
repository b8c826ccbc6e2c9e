/* SPDX-License-Identifier: Apache-2.0
 *
 * test_restart.c - a job that is started again: how often, when not, what it is told, and that
 * nothing of the try before is left.
 *
 * The ranks are children made by hp_launch. What they saw comes back in memory that all share.
 * Signals to the launcher are cli/test_hprun_restarts.sh's.
 */
#include "support/ranks.h"
#include "world/inside.h"
#include <hyperparallel/coll.h>

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_RANKS = 3, MOST_TRIES = 8, MOST_LINES = 64 };

/* What ranks of all tries saw. */
typedef struct seen {
    _Atomic int n_started, n_fds[MOST_TRIES], counts[MOST_TRIES], most;
} seen;

/* What rank 1 does in a try before `n_failing`. */
typedef enum trouble { STATUS, KILL_EARLY, KILL_INSIDE, USAGE, HANG } trouble;

typedef struct job {
    seen *seen;
    trouble trouble;
    int n_failing;
    int n_lines;
    char lines[MOST_LINES][256];
} job;

static int number_of(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

static int count_open(void) {
    int n = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        n++;
    if (directory)
        closedir(directory);
    return n;
}

static void note(seen *s, int rank, int try) {
    s->n_started++;
    s->most = number_of("TORCHELASTIC_MAX_RESTARTS");
    if (rank == 0) {
        s->n_fds[try] = count_open();
        s->counts[try]++;
    }
}

/* Fails on purpose, or is there until its peer fails it. */
static int work(const job *j, int rank, bool is_failing) {
    hp_world *world;
    int status = 0;
    if (is_failing && rank == 1 && j->trouble == KILL_EARLY)
        raise(SIGKILL); /* before it has met anybody */
    if (hp_world_create(NULL, &world))
        return 4;
    if (is_failing && rank == 1 && j->trouble == KILL_INSIDE)
        raise(SIGKILL);
    for (int i = 0; !status && i < (is_failing ? 1000000 : 10); i++)
        status = hp_barrier(hp_world_group(world)) < 0 ? 4 : 0;
    hp_world_destroy(world);
    return status;
}

static int body(void *argument) {
    const job *j = argument;
    const int rank = number_of("RANK"), try = number_of("TORCHELASTIC_RESTART_COUNT");
    if (try < 0 || try >= MOST_TRIES)
        return 5;
    note(j->seen, rank, try);
    if (try >= j->n_failing)
        return work(j, rank, false);
    if (j->trouble == HANG) {
        pause();
        return 6;
    }
    if (j->trouble == USAGE || (j->trouble == STATUS && rank == 1))
        return j->trouble == USAGE ? 2 : 3;
    return work(j, rank, true);
}

static void say(void *context, const char *line) {
    job *j = context;
    if (j->n_lines < MOST_LINES)
        snprintf(j->lines[j->n_lines++], sizeof j->lines[0], "%s", line);
}

static int n_lines_with(const job *j, const char *text) {
    int n = 0;
    for (int i = 0; i < j->n_lines; i++)
        n += strstr(j->lines[i], text) != NULL;
    return n;
}

/* The exit status; j->seen tells of the ranks. */
static int launch(job *j, int max_restarts, uint64_t deadline_ms) {
    int status = -1;
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    config.n_ranks = N_RANKS;
    config.body = body;
    config.argument = j;
    config.say = say;
    config.say_context = j;
    config.max_restarts = max_restarts;
    config.deadline_ms = deadline_ms;
    const int n_before = count_open();
    memset(j->seen, 0, sizeof *j->seen);
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    assert_int_equal(count_open(), n_before);
    return status;
}

static int setup(void **state) {
    job *j = calloc(1, sizeof *j);
    void *shared =
        mmap(NULL, sizeof(seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!j || shared == MAP_FAILED)
        return -1;
    j->seen = shared;
    *state = j;
    return 0;
}

static int teardown(void **state) {
    job *j = *state;
    munmap(j->seen, sizeof *j->seen);
    free(j);
    return 0;
}

/* ---- until it succeeds ------------------------------------------------------------------------
 */

/* Two tries fail, the third is like a first one: it is told its number and inherits no more. */
static void check_third_try(job *j, trouble what) {
    j->trouble = what;
    j->n_failing = 2;
    j->n_lines = 0;
    assert_int_equal(launch(j, 5, 0), 0);
    assert_int_equal(j->seen->n_started, 3 * N_RANKS);
    assert_int_equal(j->seen->most, 5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(j->seen->counts[i], 1);
        assert_int_equal(j->seen->n_fds[i], j->seen->n_fds[0]);
    }
    assert_int_equal(n_lines_with(j, "restart 1 of 5"), 1);
    assert_int_equal(n_lines_with(j, "restart 2 of 5"), 1);
    assert_int_equal(n_lines_with(j, "restart 3"), 0);
    assert_int_equal(n_lines_with(j, "rank 1 (pid "), 2); /* the reason, each time */
}

static void a_rank_that_fails(void **state) {
    check_third_try(*state, STATUS);
}

static void a_rank_that_is_killed(void **state) {
    check_third_try(*state, KILL_EARLY);
    check_third_try(*state, KILL_INSIDE);
}

/* ---- and when not -----------------------------------------------------------------------------
 */

static void no_more_than_were_granted(void **state) {
    job *j = *state;
    j->n_failing = MOST_TRIES;
    assert_int_equal(launch(j, 2, 0), 3);
    assert_int_equal(j->seen->n_started, 3 * N_RANKS);
    assert_int_equal(n_lines_with(j, "failed after each of 2 restarts"), 1);
    j->n_lines = 0;
    assert_int_equal(launch(j, 0, 0), 3);
    assert_int_equal(j->seen->n_started, N_RANKS);
    assert_int_equal(n_lines_with(j, "restart"), 0);
}

static void a_wrong_command_line_stays_wrong(void **state) {
    job *j = *state;
    j->trouble = USAGE;
    j->n_failing = 1;
    assert_int_equal(launch(j, 2, 0), 2);
    assert_int_equal(j->seen->n_started, N_RANKS);
    assert_int_equal(j->n_lines, 0);
}

static void the_deadline_is_of_the_whole_job(void **state) {
    job *j = *state;
    j->n_failing = MOST_TRIES; /* pauses of 0.1, 0.2, 0.4 s: it passes in one, or in a try */
    assert_int_equal(launch(j, MOST_TRIES, 400), 124);
    assert_int_equal(n_lines_with(j, "deadline"), 1);
    j->trouble = HANG;
    assert_int_equal(launch(j, 2, 100), 124);
    assert_int_equal(j->seen->n_started, N_RANKS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_rank_that_fails),
        TEST(a_rank_that_is_killed),
        TEST(no_more_than_were_granted),
        TEST(a_wrong_command_line_stays_wrong),
        TEST(the_deadline_is_of_the_whole_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
